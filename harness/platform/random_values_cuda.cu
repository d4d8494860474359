// Fills device memory with the elements of random_values.h in a grid-stride loop, in which each
// thread produces the four elements of one hash.
#include <algorithm>

#include "harness/platform/cuda_handles.h"
#include "harness/platform/random_values.h"
#include "kernels/device/launch.cuh"

namespace tokline {
namespace {

__global__ void FillRandomKernel(DType dtype, void* out, RandomPieces pieces, uint64_t seed,
                                 int log2_scale) {
  const int64_t count = pieces.pieces * pieces.length;
  const int64_t groups_per_piece = pieces.length / kValuesPerHash;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t group = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
       group * kValuesPerHash < count; group += stride) {
    // A single piece may end within a group.
    const int64_t piece = pieces.pieces > 1 ? group / groups_per_piece : 0;
    const auto source = static_cast<uint64_t>(
        (pieces.first + piece * pieces.stride) / kValuesPerHash + group - piece * groups_per_piece);
    const uint64_t hash = RandomBits(seed, source);
    const uint64_t low_hash = RandomBits(LowBitsSeed(seed), source);
    for (int j = 0; j < kValuesPerHash; ++j) {
      const int64_t i = group * kValuesPerHash + j;
      if (i >= count) break;
      const auto bits = static_cast<uint32_t>(hash >> (16 * j)) & 0xffffu;
      if (dtype == DType::kF32) {
        const auto low = static_cast<uint32_t>(low_hash >> (16 * j)) & 0xffffu;
        static_cast<uint32_t*>(out)[i] = RandomElement32(bits, low, log2_scale);
      } else {
        static_cast<uint16_t*>(out)[i] = RandomElement16(dtype, bits, log2_scale);
      }
    }
  }
}

}  // namespace

void FillRandomOnDevice(DType dtype, void* out, const RandomPieces& pieces, uint64_t seed,
                        int log2_scale) {
  Validate(pieces);
  Require(log2_scale >= kMinLog2Scale && log2_scale <= kMaxLog2Scale, "log2_scale is ", log2_scale,
          "; it must be in [", kMinLog2Scale, ", ", kMaxLog2Scale, "]");
  const int64_t count = pieces.Count();
  if (count == 0) return;
  constexpr int64_t kThreads = 256;
  const int64_t groups = (count + kValuesPerHash - 1) / kValuesPerHash;
  const int64_t blocks = std::min<int64_t>((groups + kThreads - 1) / kThreads, 4096);
  LaunchKernel(
      FillRandomKernel,
      {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(static_cast<unsigned>(kThreads))},
      {.stream = WorkStream()}, dtype, out, pieces, seed, log2_scale);
}

}  // namespace tokline
