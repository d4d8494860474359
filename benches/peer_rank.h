// One GPU's part of the measurement of all_reduce_norm on several: its tensors, its launches in
// each way, the timed graph of these, and the comparison of their outputs. CUDA builds only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "harness/platform/cuda_handles.h"
#include "harness/platform/device_buffer.h"
#include "kernels/all_reduce_norm/all_reduce_norm.h"
#include "kernels/common/dtype.h"
#include "kernels/device/nccl_library.h"

namespace tokline::bench {

inline constexpr DType kPeerDType = DType::kBf16;

struct PeerShape {
  int64_t tokens, hidden;
  int64_t Elements() const { return tokens * hidden; }
  int64_t Bytes() const { return Elements() * SizeOf(kPeerDType); }
  // In a graph.
  int Launches() const { return Bytes() < (4 << 20) ? 200 : 20; }
  // An idle GPU takes a while to raise its clock.
  int WarmUpReplays() const { return 40'000 / Launches() / (Bytes() < (4 << 20) ? 1 : 20); }
};

enum class Way { kOneShotPlain, kOneShot, kTwoShot, kSlabs, kBarrier, kNccl };

inline bool IsOurs(Way way) { return way < Way::kBarrier; }

// The launches of a graph use two sets of partials in turn, two launches each, and each set has its
// own outputs. A packet left over in an inbox comes from the launch before the last, so its data
// differ from those of the awaited packet.
inline constexpr int kPeerSets = 2, kLaunchesOfASet = 2;
static_assert(20 % (kPeerSets * kLaunchesOfASet) == 0);

// The inputs of all ranks, and the outputs that each rank must get.
struct PeerProblem {
  using Bytes = std::vector<unsigned char>;
  struct Set {
    std::vector<Bytes> partials;  // of all ranks
    Bytes sum, out;
  };

  PeerProblem(const PeerShape& of, int32_t ranks);

  PeerShape shape;
  Bytes residual, weight;
  Set sets[kPeerSets];
};

// The objects that a GPU keeps from shape to shape. Members are made while it is the current
// device.
struct PeerGpu {
  PeerBuffers peers;
  DeviceBuffer buffer, barrier;
  void* barriers[kMaxRanks] = {};  // of all GPUs
  UniqueStream stream;
  UniqueNcclComm communicator;
};

// Made and used by the thread of its GPU.
class PeerRank {
 public:
  PeerRank(const PeerProblem& problem, const PeerGpu& gpu);

  // The partials of a set, for the others to read.
  const void* Partial(size_t set) const { return partials_[set].data(); }
  void SetPeers(const std::vector<const PeerRank*>& ranks) { ranks_ = ranks; }

  void Launch(Way way, int launches) const;
  // Overwrites the outputs, and waits for all work of the device.
  void Poison() const;
  // Throws RuntimeFailure if an output is wrong or a sum was not complete.
  void Check(Way way) const;
  // Captures PeerShape::Launches() launches.
  UniqueGraphExec Capture(Way way) const;
  // Returns the microseconds per launch of one replay. It is queued behind another replay, because
  // otherwise the time that the host takes to queue it would count. `meanwhile` is called while
  // they run.
  double Replay(const UniqueGraphExec& graph, const std::function<void()>& meanwhile) const;

 private:
  void LaunchBarrier(const AllReduceNormParams& params, size_t set) const;

  const PeerProblem& problem_;
  const PeerGpu& gpu_;
  DeviceBuffer residual_, weight_;
  std::vector<DeviceBuffer> partials_, sums_, outs_;
  std::vector<const PeerRank*> ranks_;
  UniqueEvent begin_ = MakeTimingEvent(), end_ = MakeTimingEvent();
};

}  // namespace tokline::bench
