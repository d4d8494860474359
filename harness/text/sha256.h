// SHA-256 (FIPS 180-4), by which a known chat template is recognised.
#pragma once

#include <string>
#include <string_view>

namespace tokline {

// 64 lower-case hexadecimal digits, as sha256sum prints.
std::string Sha256Hex(std::string_view data);

}  // namespace tokline
