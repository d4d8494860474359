#include <utility>
#include <vector>

#include "benches/tensors.h"
#include "harness/core/cuda_handles.h"
#include "harness/core/device_buffer.h"
#include "harness/core/random_values.h"

namespace tokline::bench {
namespace {

class DeviceMemory : public Memory {
 public:
  void* Allocate(int64_t bytes) override {
    blocks_.emplace_back(bytes);
    return blocks_.back().data();
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
  std::vector<DeviceBuffer> blocks_;
};

}  // namespace

std::unique_ptr<Memory> MakeDeviceMemory() { return std::make_unique<DeviceMemory>(); }

}  // namespace tokline::bench
