// Peaks that an earlier run measured: many short runs on one GPU need not measure them each.
#pragma once

#include <ctime>
#include <string>

#include "harness/measure/peaks.h"

namespace tokline {

inline constexpr std::time_t kMostPeaksAge = 3600;  // seconds

// What a program's limits need: all peaks, or those of memory (a decoder's run measures no others).
enum class PeaksNeeded { kAll, kMemory };

// Of the newest run in the record file that measured those of this GPU itself. Throws
// InvalidArgument where there is none, or it is older than kMostPeaksAge at `now`.
Peaks ReusePeaks(const std::string& path, const std::string& uuid_hash, PeaksNeeded needed,
                 std::time_t now);

}  // namespace tokline
