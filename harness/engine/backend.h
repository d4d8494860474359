// What a decoder needs from the device that it runs on: memory, copies, ordering of work, and the
// table of ops. The forward pass is written once against this interface. The host backend runs it
// with the references, the CUDA backend with the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "harness/engine/rank_link.h"
#include "harness/platform/random_values.h"
#include "kernels/common/device_facts.h"
#include "kernels/common/dtype.h"
#include "kernels/kernel_list.h"
#include "kernels/linear/linear.h"

namespace tokline {

enum class Device : uint8_t { kCpu, kCuda };

constexpr std::string_view Name(Device device) { return device == Device::kCpu ? "cpu" : "cuda"; }

// Owns a block of bytes that is 256 B aligned.
class Memory {
 public:
  Memory() = default;
  Memory(void* data, int64_t bytes, void (*free)(void*)) : data_(data, free), bytes_(bytes) {}

  std::byte* data() const { return static_cast<std::byte*>(data_.get()); }
  int64_t bytes() const { return bytes_; }

 private:
  static void Nothing(void*) {}

  std::unique_ptr<void, void (*)(void*)> data_{nullptr, Nothing};
  int64_t bytes_ = 0;
};

// A point in the order of work.
class Fence {
 public:
  virtual ~Fence() = default;
  virtual void Record() = 0;  // places the fence after all work enqueued so far
  virtual void Wait() = 0;    // waits for the work before the last Record; returns at once if there
                              // was none
};

// A time on the backend's own clock, which is the device's, or the steady clock on the host.
class TimeMark {
 public:
  virtual ~TimeMark() = default;
  virtual void Record() = 0;  // marks the time at which the work enqueued so far is done
  // Nanoseconds from `earlier` to this mark. Both marks must belong to the same backend and be
  // recorded, and the work before them must be done.
  virtual double NsSince(const TimeMark& earlier) const = 0;
};

// Work that is captured once and enqueued as a whole.
class WorkGraph {
 public:
  virtual ~WorkGraph() = default;
  virtual void Enqueue() = 0;
};

// Copies a matrix of weights from `host`, in dtype `from`, to `device`, in dtype `to`. The source
// may have any alignment and strides (in elements). The rows at the target are dense.
struct WeightCopy {
  void* device = nullptr;
  const void* host = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
  DType from = DType::kF32;
  DType to = DType::kF32;
};

// Float columns that each rank has computed for itself in a matrix of the same shape.
struct ColumnGather {
  float* matrix = nullptr;  // [rows, stride], this rank's
  int64_t rows = 0;
  int64_t stride = 0;
  int64_t begin = 0;  // this rank's columns
  int64_t columns = 0;
};

constexpr std::string_view KernelName(const ColumnGather&) { return "peer_copy"; }

// A backend performs all work in the order in which it is enqueued.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device device() const = 0;
  // Whether work goes on while the host does something else. Otherwise it is done when the call
  // that enqueues it returns.
  virtual bool asynchronous() const = 0;
  virtual const Ops& ops() const = 0;
  virtual const DeviceFacts& facts() const = 0;  // all 0 on the host
  virtual CUstream_st* stream() const = 0;       // null on the host
  virtual Matmul* matmul() = 0;                  // null on the host
  virtual int64_t FreeBytes() const = 0;         // bytes that Allocate can return now

  // Allocates zeroed memory for ops.
  virtual Memory Allocate(int64_t bytes) = 0;
  // Allocates host memory for asynchronous copies.
  virtual Memory AllocateStaging(int64_t bytes) = 0;

  // These enqueue a copy. `staging` is of AllocateStaging, and must not change until a later fence
  // has been waited for.
  virtual void CopyToDevice(void* device, const void* staging, int64_t bytes) = 0;
  // Copies the first bytes of a block. The int64 at its beginning says how many when the copy runs,
  // at most `most`. Both sides have room up to a multiple of 16 bytes.
  virtual void CopyCounted(void* device, const void* staging, int64_t most) = 0;
  virtual void CopyToHost(void* staging, const void* device, int64_t bytes) = 0;
  // Enqueues a memset of device memory to zero.
  virtual void Zero(void* device, int64_t bytes) = 0;
  // These copy from or to any host memory after all enqueued work, and return when they are done.
  virtual void Upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void Download(void* host, const void* device, int64_t bytes) = 0;
  // Converts and copies weights through a bounded staging buffer, and returns when it is done.
  virtual void UploadWeights(std::span<const WeightCopy> copies) = 0;
  // Writes random elements as FillRandom does, and returns when it is done.
  virtual void DrawWeights(DType dtype, void* device, const RandomPieces& pieces, uint64_t seed,
                           int log2_scale) = 0;

  // All ranks of a group enqueue the same calls of these. AllReduceNorm fills in the ranks'
  // buffers, and all partials except this rank's. The columns of all ranks are gathered into the
  // matrices of all. Between two gathers there must be an AllReduceNorm, after which the matrix may
  // be overwritten.
  virtual void AllReduceNorm(AllReduceNormParams params, const LaunchOptions& options) = 0;
  // The buffers that AllReduceNorm fills in, where projections can send their partials there.
  virtual const PeerBuffers* Peers() const { return nullptr; }
  virtual void GatherColumns(const ColumnGather& gather) = 0;

  // Waiting for a fence throws RuntimeFailure if a rank was missing in the work before it.
  virtual std::unique_ptr<Fence> MakeFence() = 0;
  virtual std::unique_ptr<TimeMark> MakeTimeMark() = 0;
  virtual void Synchronize() = 0;
  // Loads the kernels that `enqueue` would run, without running them, if kernels of this rank and
  // of another one wait for each other and loading one may wait for both; otherwise does nothing.
  // All ranks call it for the same work. The outputs of that work are overwritten.
  virtual void Rehearse(const std::function<void()>& enqueue) = 0;
  // Captures what `enqueue` enqueues, without running it. The host has no graphs: it does not call
  // `enqueue` and returns null.
  virtual std::unique_ptr<WorkGraph> Capture(const std::function<void()>& enqueue) = 0;
  // The number of kernels in the current capture; 0 if there is none.
  virtual int64_t CapturedKernels() const = 0;
};

// Throws RuntimeFailure if the device is missing, too old, or not supported by this build. The
// backends of a group are made at the same time, each on the thread or in the process of its rank.
std::unique_ptr<Backend> MakeBackend(Device device, const RankPlace& place = {});
std::unique_ptr<Backend> MakeHostBackend(const RankPlace& place = {});
std::unique_ptr<Backend> MakeCudaBackend(const RankPlace& place = {});  // CUDA builds only

}  // namespace tokline
