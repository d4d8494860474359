// The memory that a service holds at one moment of its run.
#pragma once

#include <cstdint>
#include <optional>

#include "harness/platform/process_memory.h"

namespace tokline {

// A series of these shows whether memory use grows.
struct MemoryPoint {
  int64_t requests = 0;  // that have ended so far
  ProcessMemory host;
  std::optional<int64_t> device_free;  // bytes; none on the CPU
  int64_t sequences = 0;
  int64_t chunks = 0;
  int64_t chunk_ids = 0;  // existing chunks and free chunk slots
  int64_t kv_pages = 0;   // in use or kept for reuse
};

}  // namespace tokline
