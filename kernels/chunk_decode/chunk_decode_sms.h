// Which SM runs which block of a grid without clusters, and how lanes are numbered so that SMs have
// about equally much to read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/common/device_facts.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline {

// An idle device hands out the blocks of a launch in the order of their numbers, one to each SM
// before any SM gets a second one, so block `kv_heads * (lane % blocks) + head` runs on the SM of
// that number modulo `sm_count`. In a chain blocks go where those of the predecessor end (this
// kernel's README).
struct ChunkDecodeSms {
  int32_t sm_count = 0;  // 0: not known, and nothing depends on it
  int32_t kv_heads = 1;
  int32_t blocks = 1;  // per KV head: the lanes, or a part of them if lanes are warps
};

// Of a grid without clusters. Not known if its blocks do not all run at once, or follow run lanes.
ChunkDecodeSms ChunkDecodeSmsOf(const ChunkDecodeGrid& grid, const PagedKvLayout& layout,
                                const DeviceFacts& device);

// Returns the number that each lane should have, given what each reads. The lanes that read most
// come first, and of the blocks that SMs get next, the largest go to the SMs that have least. Lanes
// keep their numbers if the SM with most would not have less. A pure function.
std::vector<int32_t> EvenLaneNumbers(std::span<const int64_t> loads, const ChunkDecodeSms& sms);

}  // namespace tokline
