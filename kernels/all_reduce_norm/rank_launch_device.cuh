// What a rank's launch knows about itself, whatever it exchanges with its peers: its number, its
// deadline, and the peers to notify when the deadline passes. The number is counted in the header
// of the rank's buffer and selects one of two places for the data that the launch receives.
#pragma once

#include <cstdint>

#include "kernels/all_reduce_norm/all_reduce_norm_plan.h"
#include "kernels/device/ptx/global_timer.cuh"
#include "kernels/device/ptx/relaxed_system.cuh"
#include "kernels/device/rank_packets.cuh"

namespace tokline {

template <int kRanks>
struct AllReduceNormArguments {
  AllReduceNormParams ranks[kRanks];
  bool vectors;
  AllReduceSlabs slabs;
};

class RankLaunch {
 public:
  __device__ __forceinline__ RankLaunch(const PeerBuffers& peers, int64_t time_limit_ms)
      : peers_(peers), time_limit_ns_(static_cast<uint64_t>(time_limit_ms) * 1'000'000) {
    const ulonglong2 head = ptx::LoadRelaxedSystem16(Header());
    launch_ = LaunchAfter(static_cast<uint32_t>(head.x));
    failed_ = head.y != 0;
  }

  // The last block to call this counts the launch. All threads of all blocks call it once, after
  // the constructor.
  __device__ __forceinline__ void CountLaunch() const {
    __syncthreads();  // all threads have read the header
    if (threadIdx.x != 0) return;
    AllReduceHeader* const header = Header();
    if (atomicInc(&header->arrivals, gridDim.x - 1) == gridDim.x - 1) header->launches = launch_;
  }

  // Call this at the end of the kernel, after its wait for earlier kernels.
  __device__ __forceinline__ void Complete() const {
    if (blockIdx.x == 0 && threadIdx.x == 0) Header()->completed = launch_;
  }

 protected:
  // When a wait is too long (0: it is not timed yet), and how many polls it has taken.
  struct Deadline {
    uint64_t ns = 0;
    int polls = 0;
  };

  __device__ __forceinline__ int64_t Turn() const { return launch_ & 1; }
  __device__ __forceinline__ bool Failed() const { return failed_; }
  __device__ __forceinline__ bool IsPeer(int rank) const {
    return rank < peers_.world_size && rank != peers_.rank;
  }

  // Called between polls for the data that `source` has to send. Checks from time to time whether
  // this rank has waited for too long or a rank has failed.
  __device__ __forceinline__ void Poll(Deadline& deadline, int source) {
    constexpr int kPollsBetweenLooks = 256;
    if (++deadline.polls % kPollsBetweenLooks != 0) return;
    const uint64_t now = ptx::GlobalTimerNs();
    if (deadline.ns == 0) deadline.ns = now + time_limit_ns_;
    failed_ = HasFailed(peers_, now >= deadline.ns, source, launch_);
  }

  const PeerBuffers& peers_;
  uint32_t launch_;

 private:
  __device__ __forceinline__ AllReduceHeader* Header() const {
    return static_cast<AllReduceHeader*>(peers_.buffers[peers_.rank]);
  }
  // Whether this rank or a peer has given up. If not and it is `late`, the rank gives up now.
  // Static and not inlined, so that the exchange stays in registers.
  static __device__ __noinline__ bool HasFailed(const PeerBuffers& peers, bool late, int source,
                                                uint32_t launch) {
    auto* const header = static_cast<AllReduceHeader*>(peers.buffers[peers.rank]);
    if (ptx::LoadRelaxedSystem16(header).y != 0) return true;
    if (!late) return false;
    if (atomicCAS(&header->gave_up, 0u, 1u) == 0) {
      header->missing_rank = static_cast<uint32_t>(source);
      header->missing_launch = launch;
      for (int rank = 0; rank < peers.world_size; ++rank) {
        if (rank == peers.rank) continue;
        auto* const peer = static_cast<AllReduceHeader*>(peers.buffers[rank]);
        ptx::StoreRelaxedSystem4(&peer->peer_failed, static_cast<uint32_t>(peers.rank) + 1);
      }
    }
    return true;
  }

  uint64_t time_limit_ns_;
  bool failed_;
};

}  // namespace tokline
