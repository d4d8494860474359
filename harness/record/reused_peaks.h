// Reuses the peaks that an earlier run measured, so that many short runs on one GPU need not
// measure them each time.
#pragma once

#include <ctime>
#include <string>

#include "harness/measure/peaks.h"

namespace tokline {

inline constexpr std::time_t kMaxPeaksAge = 3600;  // seconds

// The peaks that a program's limits need: all of them, or only those of memory, which are all that
// a decoder's run measures.
enum class PeaksNeeded { kAll, kMemory };

// Takes the peaks from the newest run in the record file that measured them on this GPU itself.
// Throws InvalidArgument if there is no such run or if at `now` it is older than kMaxPeaksAge.
Peaks ReusePeaks(const std::string& path, const std::string& uuid_hash, PeaksNeeded needed,
                 std::time_t now);

}  // namespace tokline
