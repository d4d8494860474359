// SHA-256 (FIPS 180-4), which identifies known chat templates.
#pragma once

#include <string>
#include <string_view>

namespace tokline {

// Returns 64 lower-case hexadecimal digits, as sha256sum prints them.
std::string Sha256Hex(std::string_view data);

}  // namespace tokline
