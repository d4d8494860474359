// Linear for few tokens: weights stream from DRAM directly into MMA operands, and everything else
// is fused around them.
//
// Grid: a block owns tiles of groups x 8 weight rows (tile blockIdx.x, then every gridDim.x-th).
// Warp (group, split) multiplies 8 rows with its share of K. Activations are the MMA's A operand
// (16 tokens x 16 k, where rows beyond num_tokens repeat the last token), 8 weight rows its B
// operand. Lane (g, t) = (lane / 4, lane % 4) loads 16 bytes, which are k = 8t..8t+7 of a 32-wide
// block of row g: words 0 and 1 are its B fragment of one MMA, words 2 and 3 that of the next. That
// permutes k within the block. The A fragments use the same permutation, so no weight passes
// through shared memory.
// Shared memory: activations [num_tokens, pitch_units] of 16 B, normalised; norm weight; two
// buffers of partial sums [splits, num_tokens, groups * 8]; sums of squares [num_tokens, splits].
// Barriers: one or two for the activations, and one per tile, between the partial sums and the
// epilogue that adds them in the order of the splits (deterministic). One per tile suffices because
// there are two buffers.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/load.cuh"
#include "kernels/device/ptx/mma.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/silu.cuh"
#include "kernels/linear/linear_plan.h"

namespace tokline {

// The kernel's arguments.
struct SkinnyArgs {
  LinearParams params;
  int32_t in_features, num_tokens;  // copies of those in params: 64-bit values would make the loop
                                    // longer
  SkinnyPlan plan;
};

template <typename T, int kMaxTokens>
struct SkinnyPolicy {
  using Type = T;
  static_assert(kMaxTokens == 8 || kMaxTokens == 16);
  static constexpr int kTokenHalves = kMaxTokens / 8;  // 8-row halves of the MMA's A operand in use
};

// A warp's share of the weights: 16 bytes per lane and 32-wide k block, from row g of the tile.
class WeightStream {
 public:
  __device__ __forceinline__ WeightStream(const SkinnyArgs& args, int group, int split, int lane)
      : args_(args) {
    const int units = args.in_features / 8, blocks = (units + 3) / 4;
    const int per_split = (blocks + args.plan.splits - 1) / args.plan.splits;
    first_block_ = min(split * per_split, blocks);
    num_blocks_ = min(first_block_ + per_split, blocks) - first_block_;
    const int first_unit = first_block_ * 4 + lane % 4;
    lane_loads_ = min(num_blocks_, (units - first_unit + 3) / 4);
    const bool up = args.params.gated_silu && group >= args.plan.groups / 2;
    row_in_tile_ = (up ? group - args.plan.groups / 2 : group) * kSkinnyTileRows + lane / 4;
    lane_base_ = static_cast<const uint4*>(args.params.weight) +
                 (row_in_tile_ + (up ? args.params.out_features : 0)) * int64_t{units} + first_unit;
  }

  __device__ __forceinline__ int first_block() const { return first_block_; }
  __device__ __forceinline__ int num_blocks() const { return num_blocks_; }

  // Points at block `block` of this warp's share of `tile`.
  __device__ __forceinline__ void Seek(int tile, int block) {
    const int64_t first_row = int64_t{tile} << args_.plan.tile_columns_log2;
    pointer_ = lane_base_ + first_row * (args_.in_features / 8) + block * 4;
    // The loads left for this lane are those in its share and inside the row, if the row exists.
    loads_left_ = first_row + row_in_tile_ < args_.params.out_features ? lane_loads_ - block : 0;
  }

  // Loads the `i`-th block after the current one, or zeros if there is none.
  __device__ __forceinline__ uint4 Load(int i) const {
    return i < loads_left_ ? ptx::LoadStream16(pointer_ + i * 4) : uint4{0, 0, 0, 0};
  }

 private:
  const SkinnyArgs& args_;
  const uint4* lane_base_;
  int first_block_, num_blocks_, lane_loads_, row_in_tile_;
  const uint4* pointer_ = nullptr;
  int loads_left_ = 0;
};

// Normalises the 8 elements of `unit`: each is rounded, multiplied by its weight, and rounded
// again.
template <typename T>
__device__ __forceinline__ uint4 NormaliseUnit(uint4 unit, uint4 weight, float inverse_rms) {
  uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
  const uint32_t weights[4] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 s = Unpack2<T>(words[i]), w = Unpack2<T>(weights[i]);
    const float2 n = Unpack2<T>(Pack2<T>(s.x * inverse_rms, s.y * inverse_rms));
    words[i] = Pack2<T>(n.x * w.x, n.y * w.y);
  }
  return {words[0], words[1], words[2], words[3]};
}

// Prefetches this block's share of a later kernel's weights into L2.
__device__ __forceinline__ void PrefetchShare(const SkinnyArgs& args) {
  if (threadIdx.x != 0 || args.params.prefetch_bytes == 0) return;
  constexpr int64_t kLineBytes = 128;
  const int64_t share = (args.params.prefetch_bytes / gridDim.x / kLineBytes + 1) * kLineBytes;
  const int64_t begin = blockIdx.x * share;
  const int64_t bytes = min(share, args.params.prefetch_bytes - begin) / 16 * 16;
  if (bytes <= 0) return;
  ptx::PrefetchL2Bulk(static_cast<const char*>(args.params.prefetch) + begin,
                      static_cast<uint32_t>(bytes));
}

// Starts copying the norm weight, which depends on no earlier kernel, into shared memory.
__device__ __forceinline__ void StageNormWeight(const SkinnyArgs& args, uint4* norm_weight) {
  if (args.params.norm_weight == nullptr) return;
  const uint4* source = static_cast<const uint4*>(args.params.norm_weight);
#pragma unroll 1
  for (int unit = threadIdx.x; unit < args.in_features / 8; unit += blockDim.x) {
    ptx::CpAsync16(ptx::SharedAddress(norm_weight + unit), source + unit, true);
  }
}

// Loads x into shared memory and normalises it if there is a norm weight. The warps of a group form
// a team that takes every groups-th token. A token's statistic is summed in an order that depends
// only on splits. Ends with a barrier.
template <typename T>
__device__ __forceinline__ void StageActivations(const SkinnyArgs& args, uint4* activations,
                                                 const uint4* norm_weight, float* squares) {
  const int units = args.in_features / 8;
  const int padded_units = (units + 3) / 4 * 4;  // the padding at the end of K is read, so it must
                                                 // be zero
  const int team_size = 32 * args.plan.splits;
  const int team = threadIdx.x / team_size, member = threadIdx.x % team_size;

#pragma unroll 1
  for (int token = team; token < args.num_tokens; token += args.plan.groups) {
    const uint4* source = reinterpret_cast<const uint4*>(static_cast<const T*>(args.params.x) +
                                                         token * args.params.x_stride);
#pragma unroll 1
    for (int unit = member; unit < padded_units; unit += team_size) {
      const bool valid = unit < units;
      ptx::CpAsync16(ptx::SharedAddress(activations + token * args.plan.pitch_units + unit),
                     source + (valid ? unit : 0), valid);
    }
  }
  ptx::CpAsyncCommit();
  ptx::CpAsyncWait<0>();
  if (args.params.norm_weight == nullptr) {
    __syncthreads();
    return;
  }

  // Until the last barrier a thread accesses only those units of x that it loaded itself.
#pragma unroll 1
  for (int token = team; token < args.num_tokens; token += args.plan.groups) {
    float sum = 0;
#pragma unroll 1
    for (int unit = member; unit < units; unit += team_size) {
      sum += SumOfSquares<T>(activations[token * args.plan.pitch_units + unit]);
    }
    sum = WarpSum(sum);
    if (threadIdx.x % 32 == 0) squares[token * args.plan.splits + member / 32] = sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int token = team; token < args.num_tokens; token += args.plan.groups) {
    float sum = 0;
#pragma unroll 1
    for (int split = 0; split < args.plan.splits; ++split)
      sum += squares[token * args.plan.splits + split];
    const float inverse_rms =
        rsqrtf(sum / static_cast<float>(args.in_features) + args.params.norm_eps);
    uint4* row = activations + token * args.plan.pitch_units;
#pragma unroll 1
    for (int unit = member; unit < units; unit += team_size) {
      row[unit] = NormaliseUnit<T>(row[unit], norm_weight[unit], inverse_rms);
    }
  }
  __syncthreads();
}

// The output element that a thread finishes, if any. There is at most one per thread, since a block
// has at least 4 warps per group and at most 16 tokens.
template <typename T>
class Epilogue {
 public:
  __device__ __forceinline__ explicit Epilogue(const SkinnyArgs& args) : args_(args) {}

  // Loads the value that is added to the sums of `tile`.
  __device__ __forceinline__ void Prefetch(int tile) {
    const int64_t column = Column(tile);
    if (Token() >= args_.num_tokens || column >= args_.params.out_features) return;
    if (args_.params.bias != nullptr) {
      const T* bias = static_cast<const T*>(args_.params.bias);
      bias_ = ToFloat(bias[column]);
      if (args_.params.gated_silu) addend_ = ToFloat(bias[args_.params.out_features + column]);
    }
    if (args_.params.residual != nullptr) {
      addend_ = ToFloat(static_cast<const T*>(
          args_.params.residual)[Token() * args_.params.residual_stride + column]);
    }
  }

  // Adds the splits' partial sums in order and stores the element of `tile`.
  __device__ __forceinline__ void Store(int tile, const float* partials) const {
    const int64_t column = Column(tile);
    if (Token() >= args_.num_tokens || column >= args_.params.out_features) return;
    const int tile_rows = args_.plan.groups * kSkinnyTileRows;
    const int split_stride = args_.num_tokens * tile_rows;
    const float* sums = partials + Token() * tile_rows + ColumnInTile();
    float value = 0, up = 0;
#pragma unroll 4
    for (int split = 0; split < args_.plan.splits; ++split) {
      value += sums[split * split_stride];
      if (args_.params.gated_silu) up += sums[split * split_stride + tile_rows / 2];
    }
    value += bias_;
    const int64_t at = Token() * args_.params.out_stride + column;
    if (args_.params.out_f32) {
      static_cast<float*>(args_.params.out)[at] = value;
      return;
    }
    value = Round<T>(value);
    const float result =
        args_.params.gated_silu ? Round<T>(Silu(value)) * Round<T>(up + addend_) : value + addend_;
    static_cast<T*>(args_.params.out)[at] = FromFloat<T>(result);
  }

 private:
  __device__ __forceinline__ int Token() const {
    return threadIdx.x >> args_.plan.tile_columns_log2;
  }
  __device__ __forceinline__ int ColumnInTile() const {
    return threadIdx.x & ((1 << args_.plan.tile_columns_log2) - 1);
  }
  __device__ __forceinline__ int64_t Column(int tile) const {
    return (int64_t{tile} << args_.plan.tile_columns_log2) + ColumnInTile();
  }

  const SkinnyArgs& args_;
  float bias_ = 0;
  float addend_ = 0;  // the up projection's bias or the residual, never both
};

// The activations of a block as A fragments of its two MMAs: words 0 and 1 of each half of 8 tokens
// for the first MMA, 2 and 3 for the second. A lane whose token does not exist reads the last
// token's row: rows of an MMA do not mix, its sums are not stored, and no branch is needed between
// the MMAs.
template <typename Policy>
struct ActivationFragment {
  uint4 half[Policy::kTokenHalves];

  __device__ __forceinline__ ActivationFragment(const uint4* const (&rows)[Policy::kTokenHalves],
                                                int block) {
#pragma unroll
    for (int h = 0; h < Policy::kTokenHalves; ++h) half[h] = rows[h][block * 4];
  }

  __device__ __forceinline__ void MultiplyAdd(float (&low)[4], float (&high)[4],
                                              uint4 weight) const {
    constexpr int kUpper = Policy::kTokenHalves - 1;
    constexpr bool kHasUpper = kUpper == 1;
    const uint32_t first[4] = {half[0].x, kHasUpper ? half[kUpper].x : 0u, half[0].y,
                               kHasUpper ? half[kUpper].y : 0u};
    const uint32_t second[4] = {half[0].z, kHasUpper ? half[kUpper].z : 0u, half[0].w,
                                kHasUpper ? half[kUpper].w : 0u};
    ptx::MmaM16N8K16<typename Policy::Type>(low, first, weight.x, weight.y);
    ptx::MmaM16N8K16<typename Policy::Type>(high, second, weight.z, weight.w);
  }
};

template <typename Policy>
__global__ void __launch_bounds__(32 * kSkinnyMaxWarps,
                                  kSkinnyResidentThreads / (32 * kSkinnyMaxWarps))
    SkinnyLinearKernel(const __grid_constant__ SkinnyArgs args) {
  using T = typename Policy::Type;
  constexpr int kDepth = kSkinnyDepth;
  extern __shared__ uint4 shared[];
  uint4* activations = shared;
  uint4* norm_weight = activations + args.num_tokens * args.plan.pitch_units;
  float* partials = reinterpret_cast<float*>(
      norm_weight + (args.params.norm_weight != nullptr ? args.plan.pitch_units : 0));
  const int partials_size = args.plan.partials_units * 4;
  float* squares = partials + 2 * partials_size;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = warp / args.plan.splits, split = warp % args.plan.splits;
  const int g = lane / 4, t = lane % 4;

  WeightStream weights(args, group, split, lane);
  uint4 ring[kDepth];
  weights.Seek(blockIdx.x, 0);
#pragma unroll
  for (int i = 0; i < kDepth; ++i) ring[i] = weights.Load(i);
  StageNormWeight(args, norm_weight);

  ptx::GridDependencyLaunch();
  PrefetchShare(args);  // after the block's own loads and before the wait, while DRAM is idle
  ptx::GridDependencyWait();
  Epilogue<T> epilogue(args);
  epilogue.Prefetch(blockIdx.x);
  StageActivations<T>(args, activations, norm_weight, squares);

  const int num_blocks = weights.num_blocks();
  const uint4* lane_rows[Policy::kTokenHalves];
#pragma unroll
  for (int h = 0; h < Policy::kTokenHalves; ++h) {
    lane_rows[h] = activations + min(h * 8 + g, args.num_tokens - 1) * args.plan.pitch_units +
                   weights.first_block() * 4 + t;
  }
  const int tile_rows = args.plan.groups * kSkinnyTileRows;
  float* lane_partials =
      partials + (split * args.num_tokens + g) * tile_rows + group * kSkinnyTileRows + 2 * t;
  int buffer = 0;

  for (int tile = blockIdx.x; tile < args.plan.tiles; tile += gridDim.x) {
    float low[4] = {}, high[4] = {};  // two independent chains of MMAs
#pragma unroll 1
    for (int block = 0; block < num_blocks; block += kDepth) {
      // The ring is refilled from this tile's next blocks, then from the next tile's first blocks.
      if (block + kDepth < num_blocks) {
        weights.Seek(tile, block + kDepth);
      } else {
        weights.Seek(tile + gridDim.x, 0);
      }
#pragma unroll
      for (int i = 0; i < kDepth; ++i) {
        if (block + i < num_blocks) {
          const ActivationFragment<Policy> x(lane_rows, block + i);
          x.MultiplyAdd(low, high, ring[i]);
        }
        ring[i] = weights.Load(i);
      }
    }

#pragma unroll
    for (int h = 0; h < Policy::kTokenHalves; ++h) {
      if (h * 8 + g < args.num_tokens) {
        const float2 sum{low[2 * h] + high[2 * h], low[2 * h + 1] + high[2 * h + 1]};
        *reinterpret_cast<float2*>(lane_partials + buffer * partials_size + h * 8 * tile_rows) =
            sum;
      }
    }
    __syncthreads();
    epilogue.Store(tile, partials + buffer * partials_size);
    epilogue.Prefetch(tile + gridDim.x);
    buffer ^= 1;
  }
}

}  // namespace tokline
