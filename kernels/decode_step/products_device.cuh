// The consumers' products: x W^T for the block's rows of a weight. Each warp takes 128 of every
// 1,024 elements of K, in chunks of 32; the sums of the warps are added through shared memory.
//
// The cost of a step beyond its bytes is the chain of instructions from the arrival of x to the
// words that depend on it: a single warp issues one instruction in about five cycles. Phases are
// therefore specialised at compile time, and addresses are computed once.
#pragma once

#include "kernels/decode_step/step_shared_device.cuh"
#include "kernels/device/ptx/mma.cuh"

namespace tokline::decode_step {

inline constexpr int kWarpK = kDecodeStepBlockK / kWarps;  // elements of a block of K per warp
inline constexpr int kChunks = kWarpK / 32;
inline constexpr int kBlockVectors = kWarpK / 8;  // 16 bytes each

// A consumer's place in the block and in the ring.
struct Consumer {
  CopyRing ring;
  RingPosition position;
  int warp, lane;
  int row, column;   // of the lane in fragments: lane / 4, lane % 4
  uint32_t weights;  // the lane's first weights in stage 0

  __device__ __forceinline__ explicit Consumer(const CopyRing& copies)
      : ring(copies),
        position{.stages = copies.stages},
        warp(static_cast<int>(threadIdx.x / 32)),
        lane(static_cast<int>(threadIdx.x % 32)),
        row(lane / 4),
        column(lane % 4),
        weights(copies.data + row * kDecodeStepPitch + warp * (2 * kWarpK) + column * 16) {}

  __device__ __forceinline__ void Wait() const {
    ptx::MbarrierWait(ring.Full(position.stage), position.phase);
  }
  __device__ __forceinline__ void Release() {
    __syncwarp();
    if (lane == 0) ptx::MbarrierArrive(ring.Empty(position.stage));
    position.Advance();
  }
};

__device__ __forceinline__ uint4 LoadShared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ __forceinline__ void StoreShared16(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// A projection as units of 8 rows by 1,024 elements: for each group of 8 rows of the block's slice,
// the blocks of K one after another. With gates, every 8 gate rows are followed by their up rows.
struct Projection {
  Slice slice;
  int in_features;
  int k_blocks;
  int tail_chunks;  // chunks of 32 elements that the warp has in the last block of K
  bool gated;

  __device__ __forceinline__ Projection(const Slice& rows, int k, int warp, bool has_gates = false)
      : slice(rows), in_features(k), gated(has_gates) {
    k_blocks = (k + kDecodeStepBlockK - 1) >> 10;
    tail_chunks =
        min(kChunks, max(0, (k - (k_blocks - 1) * kDecodeStepBlockK - kWarpK * warp) >> 5));
  }
  // The number of units of the slice's features from `feature` on.
  __device__ __forceinline__ int Units(int feature) const {
    return max(0, (slice.end - feature + 7) >> 3 << (gated ? 1 : 0)) * k_blocks;
  }
  // The number of 16-byte vectors of a token's x that the warp multiplies; those of the last block
  // come last.
  __device__ __forceinline__ int Vectors() const {
    return (k_blocks - 1) * kBlockVectors + tail_chunks * 4;
  }
};

// A lane's x of a warp's share of a block: the left factors of products whose rows are tokens.
// Rows 8 to 15 are zeros, and so are missing tokens and chunks.
struct XFragment {
  uint32_t of[2 * kChunks][4];

  __device__ __forceinline__ void Load(uint32_t x, int chunks) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint4 v{};
      if (c < chunks) v = LoadShared16(x + c * 64);
      of[2 * c][0] = v.x, of[2 * c][1] = 0, of[2 * c][2] = v.y, of[2 * c][3] = 0;
      of[2 * c + 1][0] = v.z, of[2 * c + 1][1] = 0, of[2 * c + 1][2] = v.w, of[2 * c + 1][3] = 0;
    }
  }
};

// A lane's fragments of a stage of weights. They are taken from the ring before x arrives.
struct WeightStage {
  uint4 of[kDecodeStepStageUnits][kChunks];

  // `units` counts the remaining units of the projection; `block` is its next block of K. A stage
  // may hold anything past the end of K, including NaN, and that part is left out.
  template <bool kOneBlock>
  __device__ __forceinline__ void Take(Consumer& consumer, const Projection& projection, int units,
                                       int block) {
    consumer.Wait();
    const uint32_t from = consumer.weights + consumer.position.stage * kDecodeStepStageBytes;
#pragma unroll
    for (int i = 0; i < kDecodeStepStageUnits; ++i) {
      if (i >= units) break;
      const bool tail = kOneBlock || (block + i) % projection.k_blocks == projection.k_blocks - 1;
      const int chunks = tail ? projection.tail_chunks : kChunks;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        of[i][c] = uint4{};
        if (c < chunks) of[i][c] = LoadShared16(from + i * kDecodeStepUnitBytes + c * 64);
      }
    }
    consumer.Release();
  }
};

// Multiplies x by the next `rows` times 8 rows of a projection. `weights` holds the first stage
// and, at the end, the first stage of the `more` units that follow, if any. `x` is the address of
// the lane's first 16 bytes of x. The sums of token lane / 4 for rows 2 (lane % 4) and the next one
// of the i-th 8 rows go to sums + i * stride.
template <typename T, bool kOneBlock>
__device__ __forceinline__ void Multiply(Consumer& consumer, const Projection& projection,
                                         WeightStage& weights, int rows, int more, uint32_t x,
                                         bool has_token, float* sums, int stride) {
  int units = rows * (kOneBlock ? 1 : projection.k_blocks);
  XFragment fragment;
  if (kOneBlock) fragment.Load(x, has_token ? projection.tail_chunks : 0);
  float sum[2][4] = {};
  int block = 0;
#pragma unroll 1
  while (units > 0) {
#pragma unroll
    for (int i = 0; i < kDecodeStepStageUnits; ++i) {
      if (i >= units) break;
      const bool tail = kOneBlock || block + 1 == projection.k_blocks;
      if (!kOneBlock) {
        fragment.Load(x + block * (2 * kDecodeStepBlockK),
                      has_token ? (tail ? projection.tail_chunks : kChunks) : 0);
      }
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4& weight = weights.of[i][c];
        ptx::MmaM16N8K16<T>(sum[0], fragment.of[2 * c], weight.x, weight.y);
        ptx::MmaM16N8K16<T>(sum[1], fragment.of[2 * c + 1], weight.z, weight.w);
      }
      if (!kOneBlock) block = tail ? 0 : block + 1;
      if (!tail) continue;
      if (has_token) {
        *reinterpret_cast<float2*>(sums) = float2{sum[0][0] + sum[1][0], sum[0][1] + sum[1][1]};
      }
      sums += stride;
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[0][j] = sum[1][j] = 0;
    }
    units -= kDecodeStepStageUnits;
    if (units + more > 0) {
      weights.Take<kOneBlock>(consumer, projection, units > 0 ? units : more, block);
    }
  }
}

// Partial sums in shared memory: [group of 8 rows][warp][token][8], with 8 floats of padding after
// each group of 8 rows.
class Sums {
 public:
  __device__ __forceinline__ Sums(const Consumer& consumer, float* memory, int tokens)
      : warp_(8 * tokens),
        stride_(kWarps * warp_ + 8),
        store_(memory + consumer.warp * warp_ + 8 * consumer.row + 2 * consumer.column),
        load_(memory + 8 * consumer.warp) {}

  __device__ __forceinline__ int Stride() const { return stride_; }
  __device__ __forceinline__ float* Store() const { return store_; }
  // The sums of rows `row` and `row` + 1 of the pass for token consumer.warp, added in a fixed
  // order.
  __device__ __forceinline__ float2 Pair(int row) const {
    const float* from = load_ + row / 8 * stride_ + row % 8;
    float2 part[kWarps];
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      part[warp] = *reinterpret_cast<const float2*>(from + warp * warp_);
    }
#pragma unroll
    for (int width = 1; width < kWarps; width *= 2) {
#pragma unroll
      for (int warp = 0; warp < kWarps; warp += 2 * width) {
        part[warp].x += part[warp + width].x;
        part[warp].y += part[warp + width].y;
      }
    }
    return part[0];
  }

 private:
  int warp_, stride_;
  float* store_;
  const float* load_;
};

}  // namespace tokline::decode_step
