// Formats a memory report (harness/record/memory_report.h) for people.
#pragma once

#include <string>

#include "harness/record/record.h"

namespace tokline {

// Returns one line.
std::string MemoryText(const Json& report);

}  // namespace tokline
