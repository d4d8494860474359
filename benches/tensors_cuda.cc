#include <cuda_runtime_api.h>

#include <limits>
#include <vector>

#include "benches/tensors.h"
#include "harness/core/cuda_handles.h"
#include "harness/core/random_values.h"
#include "kernels/device/cuda_check.h"

namespace tokline::bench {
namespace {

// Keeps what is freed for the rows to come. The driver clears memory that it is given back, in the
// background, and whatever is measured meanwhile is slower (docs/measuring.md).
cudaMemPool_t KeepingPool() {
  static const cudaMemPool_t pool = [] {
    cudaMemPool_t made = nullptr;
    TOKLINE_CUDA(cudaDeviceGetDefaultMemPool(&made, /*device=*/0));
    auto kept_bytes = std::numeric_limits<uint64_t>::max();
    TOKLINE_CUDA(cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &kept_bytes));
    return made;
  }();
  return pool;
}

int64_t PoolBytes(cudaMemPoolAttr attribute) {
  uint64_t bytes = 0;
  TOKLINE_CUDA(cudaMemPoolGetAttribute(KeepingPool(), attribute, &bytes));
  return static_cast<int64_t>(bytes);
}

class DeviceMemory : public Memory {
 public:
  ~DeviceMemory() override {
    for (void* block : blocks_) cudaFreeAsync(block, WorkStream());
  }
  void* Allocate(int64_t bytes) override {
    const auto size = static_cast<size_t>(bytes);
    void* block = nullptr;
    if (cudaMallocFromPoolAsync(&block, size, KeepingPool(), WorkStream()) != cudaSuccess) {
      cudaGetLastError();  // what is kept lies in pieces, none of them large enough
      TOKLINE_CUDA(cudaStreamSynchronize(WorkStream()));
      TOKLINE_CUDA(cudaMemPoolTrimTo(KeepingPool(), 0));
      TOKLINE_CUDA(cudaMallocFromPoolAsync(&block, size, KeepingPool(), WorkStream()));
    }
    blocks_.push_back(block);
    TOKLINE_CUDA(cudaStreamSynchronize(WorkStream()));
    return block;
  }
  void SetBytes(void* at, unsigned char byte, int64_t bytes) override {
    TOKLINE_CUDA(cudaMemsetAsync(at, byte, static_cast<size_t>(bytes), WorkStream()));
  }
  void Fill(const TensorSpec& spec, void* at, uint64_t seed) override {
    FillRandomOnDevice(spec.dtype, at, spec.rows * spec.cols, seed, spec.log2_scale);
  }
  void CopyIn(void* to, const void* host, int64_t bytes) override {
    if (bytes == 0) return;
    TOKLINE_CUDA(cudaMemcpy(to, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
  }
  void CopyOut(void* host, const void* from, int64_t bytes) const override {
    if (bytes == 0) return;
    TOKLINE_CUDA(cudaMemcpy(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost));
  }
  void Synchronize() override { TOKLINE_CUDA(cudaDeviceSynchronize()); }

 private:
  std::vector<void*> blocks_;
};

}  // namespace

std::unique_ptr<Memory> MakeDeviceMemory() { return std::make_unique<DeviceMemory>(); }

int64_t KeptDeviceBytes() {
  TOKLINE_CUDA(cudaStreamSynchronize(WorkStream()));
  return PoolBytes(cudaMemPoolAttrReservedMemCurrent) - PoolBytes(cudaMemPoolAttrUsedMemCurrent);
}

}  // namespace tokline::bench
