// The link over which the ranks of a model exchange host data, and the place of a rank among them.
// The ranks are threads of a process (RankGroup) or processes (ProcessGroup).
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/all_reduce_norm/all_reduce_norm.h"

namespace tokline {

class RankLink {
 public:
  virtual ~RankLink() = default;
  virtual int32_t Size() const = 0;
  // How far a rank may fall behind the others.
  virtual std::chrono::milliseconds Limit() const = 0;
  // Called by every rank with the same number of bytes. Waits until all have arrived, and writes
  // what each has brought to `all`, in the order of the ranks.
  virtual void AllGather(int32_t rank, const void* mine, int64_t bytes, void* all) = 0;
};

// How many rows of a sum are exchanged at once, as packets and as slabs; larger sums are computed
// in pieces. The elements have 16 bits.
struct SumRoom {
  int64_t hidden_size = 0;
  int64_t packet_rows = 0, slab_rows = 0;

  int64_t SlabBytes(int32_t ranks) const {
    return AllReduceNormSlabBytes(ranks, slab_rows, hidden_size);
  }
  // The size of a rank's exchange buffer.
  int64_t Bytes(int32_t ranks) const {
    return AllReduceNormBufferBytes(ranks, packet_rows, hidden_size) + SlabBytes(ranks);
  }
};

// The place of a rank in its group, as far as its backend needs it.
struct RankPlace {
  RankLink* link = nullptr;  // null: there is a single rank
  int32_t rank = 0;
  int32_t device = 0;        // of CUDA
  bool own_process = false;  // the other ranks are not in this process
  SumRoom sums = {};

  int32_t Ranks() const { return link == nullptr ? 1 : link->Size(); }
  // Returns what every rank has brought.
  template <typename Value>
  std::array<Value, kMaxRanks> Gather(const Value& mine) const {
    std::array<Value, kMaxRanks> all{};
    link->AllGather(rank, &mine, sizeof(mine), all.data());
    return all;
  }
};

}  // namespace tokline
