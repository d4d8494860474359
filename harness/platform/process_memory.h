// What memory this process holds, and what the machine has left.
#pragma once

#include <cstdint>

namespace tokline {

// Bytes; 0 where the system does not say.
struct ProcessMemory {
  int64_t resident = 0;       // pages in memory, mapped files included
  int64_t peak_resident = 0;  // the most that it was
  int64_t anonymous = 0;      // of resident, pages of no file: heap and stacks
  int64_t heap_in_use = 0;    // handed out by the allocator and not given back, of the main arena
};
ProcessMemory ReadProcessMemory();

// What new work can take without swapping: MemAvailable, which counts caches that the system would
// give up.
int64_t AvailableHostBytes();

}  // namespace tokline
