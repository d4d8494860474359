// One thread per peer and block carries a barrier: it writes the number of the meeting to the
// peer's flags and waits for the peer's in its own.
#include "benches/barrier_all_reduce.h"

#include <algorithm>

#include "kernels/common/error.h"
#include "kernels/common/rounding.h"
#include "kernels/device/convert.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx/ordered_system.cuh"

namespace tokline::bench {
namespace {

constexpr int kThreads = 512;
constexpr int kMostBlocks = 36;  // vLLM's number, which keeps the links busy

// Per block: the number of its meetings so far, and the number that each rank has told it.
struct BlockFlags {
  uint32_t meetings;
  uint32_t told[kMaxRanks];
};
static_assert(kMostBlocks * sizeof(BlockFlags) <= kBarrierBytes);

struct Arguments {
  const uint4* partials[kMaxRanks];
  BlockFlags* barriers[kMaxRanks];
  uint4* out;
  int64_t vectors;
  int32_t world_size, rank;
};

__device__ __forceinline__ void Meet(const Arguments& args, uint32_t meeting) {
  __syncthreads();
  const auto peer = static_cast<int32_t>(threadIdx.x);
  if (peer < args.world_size) {
    ptx::StoreReleaseSystem4(&args.barriers[peer][blockIdx.x].told[args.rank], meeting);
    const uint32_t* const told = &args.barriers[args.rank][blockIdx.x].told[peer];
    // A peer that is ahead may already report the next meeting.
    while (static_cast<int32_t>(ptx::LoadAcquireSystem4(told) - meeting) < 0) {
    }
  }
  __syncthreads();
}

template <int kWorld>
__global__ void __launch_bounds__(kThreads, 1)
    BarrierAllReduceKernel(const __grid_constant__ Arguments args) {
  using T = __nv_bfloat16;
  BlockFlags& mine = args.barriers[args.rank][blockIdx.x];
  const uint32_t meetings = mine.meetings;
  Meet(args, meetings + 1);
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < args.vectors;
       i += int64_t{gridDim.x} * kThreads) {
    uint4 parts[kWorld];
#pragma unroll
    for (int r = 0; r < kWorld; ++r) parts[r] = args.partials[r][i];
    const auto sum = [&](uint32_t uint4::*pair) {
      float2 total = Unpack2<T>(parts[0].*pair);
#pragma unroll
      for (int r = 1; r < kWorld; ++r) {
        const float2 part = Unpack2<T>(parts[r].*pair);
        total = {total.x + part.x, total.y + part.y};
      }
      return Pack2<T>(total.x, total.y);
    };
    args.out[i] = {sum(&uint4::x), sum(&uint4::y), sum(&uint4::z), sum(&uint4::w)};
  }
  Meet(args, meetings + 2);
  if (threadIdx.x == 0) mine.meetings = meetings + 2;
}

}  // namespace

void LaunchBarrierAllReduce(int32_t world_size, int32_t rank,
                            const void* const (&partials)[kMaxRanks],
                            void* const (&barriers)[kMaxRanks], int64_t elements, void* out,
                            CUstream_st* stream) {
  Arguments args{.partials = {},
                 .barriers = {},
                 .out = static_cast<uint4*>(out),
                 .vectors = elements / 8,
                 .world_size = world_size,
                 .rank = rank};
  for (int32_t r = 0; r < world_size; ++r) {
    args.partials[r] = static_cast<const uint4*>(partials[r]);
    args.barriers[r] = static_cast<BlockFlags*>(barriers[r]);
  }
  const int64_t blocks = std::min<int64_t>(DivideUp(args.vectors, kThreads), kMostBlocks);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads)};
  const LaunchOptions options{.stream = stream, .dependent = false};
  switch (world_size) {
    case 2:
      return LaunchKernel(BarrierAllReduceKernel<2>, shape, options, args);
    case 4:
      return LaunchKernel(BarrierAllReduceKernel<4>, shape, options, args);
    case 8:
      return LaunchKernel(BarrierAllReduceKernel<8>, shape, options, args);
    default:
      throw InvalidArgument(StrCat("barrier_all_reduce takes 2, 4 or 8 ranks, not ", world_size));
  }
}

}  // namespace tokline::bench
