#include "kernels/device/launch.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/toy/toy.h"

namespace tokline {
namespace {

constexpr int kThreads = 128;

// One thread per element.
__global__ void ToyKernel(const float* x, float* y, int64_t size, float scale) {
  ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < size) y[i] = scale * x[i];
}

}  // namespace

void Launch(const ToyParams& params, const LaunchOptions& options) {
  Validate(params);
  Require(params.dtype == DType::kF32, "dtype is ", Name(params.dtype), "; toy supports f32");
  LaunchKernel(ToyKernel,
               {.grid = dim3(static_cast<unsigned>((params.size + kThreads - 1) / kThreads)),
                .block = dim3(kThreads)},
               options, static_cast<const float*>(params.x), static_cast<float*>(params.y),
               params.size, params.scale);
}

}  // namespace tokline
