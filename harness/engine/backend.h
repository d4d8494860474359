// Where a decoder runs: memory, copies, order of work, and the table of ops. The forward pass is
// written once against this; the host backend runs it over the references, the CUDA backend over
// the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/common/device_facts.h"
#include "kernels/common/dtype.h"
#include "kernels/kernel_list.h"
#include "kernels/linear/linear.h"

namespace tokline {

enum class Device : uint8_t { kCpu, kCuda };

constexpr std::string_view Name(Device device) { return device == Device::kCpu ? "cpu" : "cuda"; }

// Owned bytes, 256 B aligned, freed at the end of its life.
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
  virtual void Record() = 0;  // here
  virtual void Wait() = 0;    // until the work before the last Record is done; at once if never
                              // recorded
};

// A time on the backend's own clock: the device's, or on the host the steady clock.
class TimeMark {
 public:
  virtual ~TimeMark() = default;
  virtual void Record() = 0;  // when the work enqueued so far is done
  // From `earlier` to this, nanoseconds. Both are of one backend, recorded, and their work is done.
  virtual double NsSince(const TimeMark& earlier) const = 0;
};

// Work captured once and enqueued as a whole.
class WorkGraph {
 public:
  virtual ~WorkGraph() = default;
  virtual void Enqueue() = 0;
};

// A matrix of weights at `host` in `from`, of any alignment and strides in elements, to `device` in
// `to`, where its rows are dense.
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

// All work of a backend is done in the order in which it was enqueued.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device device() const = 0;
  virtual const Ops& ops() const = 0;
  virtual const DeviceFacts& facts() const = 0;  // all 0 on the host
  virtual CUstream_st* stream() const = 0;       // null on the host
  virtual Matmul* matmul() = 0;                  // null on the host
  virtual int64_t FreeBytes() const = 0;         // memory that Allocate can give now

  // Memory that ops work on, zeroed.
  virtual Memory Allocate(int64_t bytes) = 0;
  // Host memory that asynchronous copies read and write.
  virtual Memory AllocateStaging(int64_t bytes) = 0;

  // Enqueue a copy. `staging` must stay as it is until a later fence has been passed.
  virtual void CopyToDevice(void* device, const void* staging, int64_t bytes) = 0;
  virtual void CopyToHost(void* staging, const void* device, int64_t bytes) = 0;
  // Enqueues the zeroing of device memory.
  virtual void Zero(void* device, int64_t bytes) = 0;
  // Copy from or to any host memory, after all enqueued work; done on return.
  virtual void Upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void Download(void* host, const void* device, int64_t bytes) = 0;
  // Converts and copies weights through bounded staging; done on return.
  virtual void UploadWeights(std::span<const WeightCopy> copies) = 0;

  virtual std::unique_ptr<Fence> MakeFence() = 0;
  virtual std::unique_ptr<TimeMark> MakeTimeMark() = 0;
  virtual void Synchronize() = 0;
  // Captures what `enqueue` enqueues, without running it. Null on the host, where there are no
  // graphs and `enqueue` is not called.
  virtual std::unique_ptr<WorkGraph> Capture(const std::function<void()>& enqueue) = 0;
  // Kernels of the capture that is under way; 0 where none is.
  virtual int64_t CapturedKernels() const = 0;
};

// Throws RuntimeFailure if the device is not there, too old, or not part of this build.
std::unique_ptr<Backend> MakeBackend(Device device);
std::unique_ptr<Backend> MakeHostBackend();
std::unique_ptr<Backend> MakeCudaBackend();  // CUDA builds only

}  // namespace tokline
