// Holds the tensors of a case in device memory, from a pool that keeps what is freed.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <vector>

#include "benches/tensors.h"
#include "harness/platform/cuda_handles.h"
#include "harness/platform/random_values.h"
#include "kernels/device/cuda_check.h"

namespace tokline::bench {
namespace {

// Keeps freed memory for the following rows. The driver clears returned memory in the background,
// which slows down any measurement meanwhile (docs/measuring.md). The pool keeps at most half of
// the device's memory, because graphs and libraries need some outside of it.
cudaMemPool_t KeepingPool() {
  static const cudaMemPool_t pool = [] {
    int device = 0;
    TOKLINE_CUDA(cudaGetDevice(&device));
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    TOKLINE_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    cudaMemPool_t made = nullptr;
    TOKLINE_CUDA(cudaDeviceGetDefaultMemPool(&made, device));
    uint64_t kept_bytes = total_bytes / 2;
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
    // No work of this row, on any stream, may write to memory that the next row receives.
    Report(cudaDeviceSynchronize());
    for (void* block : blocks_) Report(cudaFreeAsync(block, WorkStream()));
  }
  void* Allocate(int64_t bytes) override {
    void* block = nullptr;
    cudaError_t code = AllocateAsync(&block, bytes);
    if (code == cudaErrorMemoryAllocation) {  // the kept pieces are too small
      TOKLINE_CUDA(cudaStreamSynchronize(WorkStream()));
      TOKLINE_CUDA(cudaMemPoolTrimTo(KeepingPool(), 0));
      code = AllocateAsync(&block, bytes);
    }
    TOKLINE_CUDA(code);
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
  static cudaError_t AllocateAsync(void** block, int64_t bytes) {
    const cudaError_t code =
        cudaMallocFromPoolAsync(block, static_cast<size_t>(bytes), KeepingPool(), WorkStream());
    if (code != cudaSuccess) cudaGetLastError();  // clears the error, which the caller gets
    return code;
  }
  static void Report(cudaError_t code) {
    if (code == cudaSuccess) return;
    std::fprintf(stderr, "freeing device memory: %s\n", cudaGetErrorString(code));
    cudaGetLastError();
  }

  std::vector<void*> blocks_;
};

}  // namespace

std::unique_ptr<Memory> MakeDeviceMemory() { return std::make_unique<DeviceMemory>(); }

int64_t KeptDeviceBytes() {
  TOKLINE_CUDA(cudaStreamSynchronize(WorkStream()));
  return PoolBytes(cudaMemPoolAttrReservedMemCurrent) - PoolBytes(cudaMemPoolAttrUsedMemCurrent);
}

}  // namespace tokline::bench
