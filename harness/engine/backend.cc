// Implements the host backend and selects the backend of a device.
#include "harness/engine/backend.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "harness/engine/convert_elements.h"
#include "harness/platform/process_memory.h"
#include "kernels/common/error.h"
#include "reference/reference_ops.h"

namespace tokline {
namespace {

class HostFence : public Fence {
 public:
  void Record() override {}
  void Wait() override {}
};

class HostTimeMark : public TimeMark {
 public:
  void Record() override { time_ = std::chrono::steady_clock::now(); }
  double NsSince(const TimeMark& earlier) const override {
    const auto& begin = static_cast<const HostTimeMark&>(earlier);
    return std::chrono::duration<double, std::nano>(time_ - begin.time_).count();
  }

 private:
  std::chrono::steady_clock::time_point time_;
};

// Every call does its work before it returns, so there is nothing to wait for.
class HostBackend : public Backend {
 public:
  explicit HostBackend(const RankPlace& place) : place_(place) {}

  Device device() const override { return Device::kCpu; }
  bool asynchronous() const override { return false; }
  const Ops& ops() const override { return ops_; }
  const DeviceFacts& facts() const override { return facts_; }
  CUstream_st* stream() const override { return nullptr; }
  Matmul* matmul() override { return nullptr; }
  int64_t FreeBytes() const override { return AvailableHostBytes(); }

  Memory Allocate(int64_t bytes) override {
    if (bytes <= 0) return {};
    // calloc leaves pages unbacked until they are touched, which suits a large KV cache. The bytes
    // before the aligned start hold the pointer to be freed.
    constexpr size_t kAlignment = 256;
    void* raw = std::calloc(static_cast<size_t>(bytes) + 2 * kAlignment, 1);
    if (raw == nullptr) {
      throw RuntimeFailure(StrCat("host memory does not suffice: ", bytes, " bytes are needed, ",
                                  FreeBytes(), " are free"));
    }
    const auto address = reinterpret_cast<uintptr_t>(raw);
    const uintptr_t aligned = (address + 2 * kAlignment - 1) / kAlignment * kAlignment;
    void* data = static_cast<char*>(raw) + (aligned - address);
    std::memcpy(static_cast<char*>(data) - sizeof(raw), &raw, sizeof(raw));
    return {data, bytes, [](void* p) {
              void* start = nullptr;
              std::memcpy(&start, static_cast<char*>(p) - sizeof(start), sizeof(start));
              std::free(start);
            }};
  }
  Memory AllocateStaging(int64_t bytes) override { return Allocate(bytes); }

  void CopyToDevice(void* device, const void* staging, int64_t bytes) override {
    Upload(device, staging, bytes);
  }
  void CopyCounted(void* device, const void* staging, int64_t most) override {
    int64_t bytes = 0;
    std::memcpy(&bytes, staging, sizeof(bytes));
    Require(bytes >= 8 && bytes <= most, "a counted copy has ", bytes, " bytes; 8 to ", most,
            " are allowed");
    Upload(device, staging, bytes);
  }
  void CopyToHost(void* staging, const void* device, int64_t bytes) override {
    Download(staging, device, bytes);
  }
  void Zero(void* device, int64_t bytes) override {
    std::memset(device, 0, static_cast<size_t>(bytes));
  }
  void Upload(void* device, const void* host, int64_t bytes) override {
    if (bytes > 0) std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void Download(void* host, const void* device, int64_t bytes) override {
    if (bytes > 0) std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void UploadWeights(std::span<const WeightCopy> copies) override {
    for (const WeightCopy& copy : copies) {
      ConvertMatrix(copy.from, copy.host, copy.row_stride, copy.column_stride, copy.to, copy.device,
                    copy.rows, copy.columns);
    }
  }

  void DrawWeights(DType dtype, void* device, const RandomPieces& pieces, uint64_t seed,
                   int log2_scale) override {
    FillRandom(dtype, device, pieces, seed, log2_scale);
  }

  void AllReduceNorm(AllReduceNormParams params, const LaunchOptions& options) override {
    const int32_t rank = place_.rank;
    const int64_t bytes = params.num_tokens * params.partial_stride * SizeOf(params.dtype);
    const std::byte* const partials = Gathered(params.partials[rank], bytes);
    params.peers = {.world_size = place_.Ranks(), .rank = rank};
    for (int32_t from = 0; from < place_.Ranks(); ++from) {
      params.partials[from] = partials + from * bytes;
    }
    ops_.all_reduce_norm(params, options);
  }
  // Exchanges dense blocks that all have the size of the largest one.
  void GatherColumns(const ColumnGather& gather) override {
    const auto parts = place_.Gather(gather);
    const int64_t widest = std::ranges::max(parts, {}, &ColumnGather::columns).columns;
    std::vector<float> block(static_cast<size_t>(gather.rows * widest));
    for (int64_t row = 0; row < gather.rows; ++row) {
      std::copy_n(gather.matrix + row * gather.stride + gather.begin, gather.columns,
                  block.data() + row * widest);
    }
    const auto* from = reinterpret_cast<const float*>(
        Gathered(block.data(), std::ssize(block) * int64_t{sizeof(float)}));
    for (int32_t rank = 0; rank < place_.Ranks(); ++rank) {
      const ColumnGather& part = parts[static_cast<size_t>(rank)];
      for (int64_t row = 0; row < gather.rows; ++row, from += widest) {
        std::copy_n(from, part.columns, gather.matrix + row * gather.stride + part.begin);
      }
    }
  }

  std::unique_ptr<Fence> MakeFence() override { return std::make_unique<HostFence>(); }
  std::unique_ptr<TimeMark> MakeTimeMark() override { return std::make_unique<HostTimeMark>(); }
  void Synchronize() override {}
  void Rehearse(const std::function<void()>&) override {}
  std::unique_ptr<WorkGraph> Capture(const std::function<void()>&) override { return nullptr; }
  int64_t CapturedKernels() const override { return 0; }

 private:
  // The data of all ranks, one after another. Valid until the next call.
  const std::byte* Gathered(const void* mine, int64_t bytes) {
    gathered_.resize(static_cast<size_t>(place_.Ranks() * bytes));
    place_.link->AllGather(place_.rank, mine, bytes, gathered_.data());
    return gathered_.data();
  }

  RankPlace place_;
  std::vector<std::byte> gathered_;
  Ops ops_ = MakeReferenceOps();
  DeviceFacts facts_;
};

}  // namespace

std::unique_ptr<Backend> MakeHostBackend(const RankPlace& place) {
  return std::make_unique<HostBackend>(place);
}

std::unique_ptr<Backend> MakeBackend(Device device, const RankPlace& place) {
  if (device == Device::kCpu) return MakeHostBackend(place);
#if TOKLINE_HAS_CUDA
  return MakeCudaBackend(place);
#else
  throw RuntimeFailure("device cuda: this build has no CUDA (configured with TOKLINE_CUDA=OFF)");
#endif
}

}  // namespace tokline
