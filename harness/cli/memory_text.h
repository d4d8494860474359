// A memory report (harness/record/memory_report.h) for people.
#pragma once

#include <string>

#include "harness/record/record.h"

namespace tokline {

// In one line.
std::string MemoryText(const Json& report);

}  // namespace tokline
