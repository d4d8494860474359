// How much memory this process holds, and how much the machine has left.
#pragma once

#include <cstdint>

namespace tokline {

// All in bytes; 0 if the system does not report a value.
struct ProcessMemory {
  int64_t resident = 0;       // pages in memory, including those of mapped files
  int64_t peak_resident = 0;  // the maximum of `resident` so far
  int64_t anonymous = 0;      // the part of `resident` without a file behind it: heap and stacks
  int64_t heap_in_use = 0;    // allocated from the main arena and not yet freed
};
ProcessMemory ReadProcessMemory();

// Memory that new work can use without swapping: MemAvailable, which includes caches that the
// system would give up.
int64_t AvailableHostBytes();

}  // namespace tokline
