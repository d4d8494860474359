// Attention of a block's tasks. A task is a part of the context of one sequence for one KV head.
//
// The block polls the query rows of the KV head's group, normalises and rotates them. Each of eight
// warps takes every eighth tile of 16 tokens and keeps an online softmax, with keys as rows of the
// score matrix and queries as columns, so that a group fills only 8 columns. Then the warps merge.
// A block publishes a whole context as output, and a part as a partial state. The block of the
// first part polls all partial states and publishes the output.
#pragma once

#include "kernels/decode_step/products_device.cuh"
#include "kernels/device/ptx/math.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/softmax_row.cuh"

namespace tokline::decode_step {

// Four elements of a head's row per lane, in the first head_dim / 4 lanes.
template <typename P>
struct HeadLane {
  static constexpr int kLanes = P::kHeadDim / 4;
  float4 angles[2];  // cos and sin of four pairs
  uint2 weight;

  // Loads what does not depend on the step's words.
  __device__ __forceinline__ HeadLane(const DecodeStepParams& params, int64_t position, int lane,
                                      const void* norm_weight) {
    const int at = lane % kLanes;
    const float4* pairs = reinterpret_cast<const float4*>(params.rope_cos_sin) +
                          (position * (P::kHeadDim / 2) + at % (kLanes / 2) * 4) / 2;
    angles[0] = __ldg(pairs);
    angles[1] = __ldg(pairs + 1);
    weight = norm_weight ? __ldg(static_cast<const uint2*>(norm_weight) + at) : uint2{};
  }

  // QK-norm and RoPE with the rounding points of kv_append. Lanes past the row pass zeros.
  __device__ __forceinline__ uint2 Transform(uint2 row, bool norm, float eps, int lane) const {
    using T = typename P::T;
    float2 a = Unpack2<T>(row.x), b = Unpack2<T>(row.y);
    if (norm) {
      const float squares = WarpSum(a.x * a.x + a.y * a.y + b.x * b.x + b.y * b.y);
      const float scale = rsqrtf(squares * (1.0f / P::kHeadDim) + eps);
      row.x = Multiply2<T>(Pack2<T>(a.x * scale, a.y * scale), weight.x);
      row.y = Multiply2<T>(Pack2<T>(b.x * scale, b.y * scale), weight.y);
      a = Unpack2<T>(row.x);
      b = Unpack2<T>(row.y);
    }
    const uint2 other{__shfl_xor_sync(0xffffffffu, row.x, kLanes / 2),
                      __shfl_xor_sync(0xffffffffu, row.y, kLanes / 2)};
    const float2 c = Unpack2<T>(other.x), d = Unpack2<T>(other.y);
    const float sign = lane % kLanes < kLanes / 2 ? -1.0f : 1.0f;
    return {Pack2<T>(a.x * angles[0].x + c.x * sign * angles[0].y,
                     a.y * angles[0].z + c.y * sign * angles[0].w),
            Pack2<T>(b.x * angles[1].x + d.x * sign * angles[1].y,
                     b.y * angles[1].z + d.y * sign * angles[1].w)};
  }
};

// Polls a row of a head from the words of q, k and v.
template <typename P>
__device__ __forceinline__ uint2 PollHead(const uint32_t* head, int lane) {
  uint2 row[1];
  Poll(
      row, head + 2 * lane, true, [](int) { return 0; },
      [&](int) { return lane < HeadLane<P>::kLanes; });
  return row[0];
}

// The online softmax of a warp: keys lane / 4 and lane / 4 + 8 of a tile, queries 2 (lane % 4) and
// the next one.
template <typename P>
struct WarpState {
  static constexpr int kSteps = P::kHeadDim / 16;
  // ReferenceOf(largest scaled score).
  float best[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};         // of this lane's keys
  float output[kSteps][4] = {};  // dims lane / 4 and + 8 of each step

  // `keys` and `values` are [16 tokens][head_dim] in panels of 64 with the 128-byte swizzle.
  __device__ __forceinline__ void Add(const uint32_t (&query)[kSteps][2], uint32_t keys,
                                      uint32_t values, int tokens, float scale_log2, int lane) {
    using T = typename P::T;
    float scores[2][4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t key[4];
      ptx::LdMatrixX4(key, keys + P::Tile::Offset(lane / 8 % 2 * 8 + lane % 8, s * 2 + lane / 16));
      ptx::MmaM16N8K16<T>(scores[s % 2], key, query[s][0], query[s][1]);
    }
    const int row = lane / 4;
    uint32_t probabilities[2];
    float p[4], rescale[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float score = (scores[0][i] + scores[1][i]) * scale_log2;
      p[i] = row + i / 2 * 8 < tokens ? score : -INFINITY;
    }
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      float top = fmaxf(LargestScoreOf<T>(best[q]), fmaxf(p[q], p[q + 2]));
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
      }
      top = ReferenceOf<T>(top);
      // Scores that are all -inf (possible with infinite inputs) must not give NaN.
      const float base = top == -INFINITY ? 0.0f : top;
      rescale[q] = ptx::Exp2(best[q] - base);
      best[q] = top;
      p[q] = WeightOf<T>(p[q] - base);
      p[q + 2] = WeightOf<T>(p[q + 2] - base);
      sum[q] = sum[q] * rescale[q] + (p[q] + p[q + 2]);
    }
    probabilities[0] = ptx::Transpose8x8(Pack2<T>(p[0], p[1]));
    probabilities[1] = ptx::Transpose8x8(Pack2<T>(p[2], p[3]));
    // Slots past the last token may hold anything, NaN included.
    uint32_t keep[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int first = lane % 4 * 2 + h * 8;
      keep[h] = (first < tokens ? 0x0000ffffu : 0) | (first + 1 < tokens ? 0xffff0000u : 0);
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t value[4];
      ptx::LdMatrixX4Trans(
          value, values + P::Tile::Offset(lane / 16 * 8 + lane % 8, s * 2 + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        value[i] &= keep[i / 2];
        output[s][i] *= rescale[i % 2];
      }
      ptx::MmaM16N8K16<T>(output[s], value, probabilities[0], probabilities[1]);
    }
  }
};

// Two dims of a query's output and its softmax state, to which parts are added in order.
struct Merged {
  float best = -INFINITY, sum = 0;
  float2 output{};

  __device__ __forceinline__ void Add(float2 max_sum, float2 part) {
    const float top = fmaxf(best, max_sum.x);
    const float base = top == -INFINITY ? 0.0f : top;
    const float old_scale = ptx::Exp2(best - base), scale = ptx::Exp2(max_sum.x - base);
    best = top;
    sum = sum * old_scale + max_sum.y * scale;
    output.x = output.x * old_scale + part.x * scale;
    output.y = output.y * old_scale + part.y * scale;
  }
  template <typename T>
  __device__ __forceinline__ uint32_t Word() const {
    const float scale = sum > 0 ? 1.0f / sum : (sum == 0 ? 0.0f : sum);
    return Pack2<T>(output.x * scale, output.y * scale);
  }
};

// The states of a block's warps in shared memory.
template <typename P>
class BlockStates {
 public:
  static constexpr int kPitch = P::kHeadDim + 4;

  __device__ __forceinline__ BlockStates(float* memory, int group)
      : outputs_(memory),
        max_sum_(reinterpret_cast<float2*>(memory + kWarps * group * kPitch)),
        group_(group) {}

  __device__ __forceinline__ void Store(WarpState<P>& state, int warp, int lane) const {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      float sum = state.sum[q];
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      }
      const int query = lane % 4 * 2 + q;
      if (query >= group_) continue;
      float* const to = outputs_ + (warp * group_ + query) * kPitch + lane / 4;
#pragma unroll
      for (int s = 0; s < WarpState<P>::kSteps; ++s) {
        to[s * 16] = state.output[s][q];
        to[s * 16 + 8] = state.output[s][2 + q];
      }
      if (lane / 4 == 0) max_sum_[warp * 8 + query] = {state.best[q], sum};
    }
  }
  // Two dims of a query, merged over the first `warps` warps.
  __device__ __forceinline__ Merged Merge(int warps, int query, int pair) const {
    float2 max_sum[kWarps];
    Merged merged;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      max_sum[warp] = float2{-INFINITY, 0};
      if (warp < warps) max_sum[warp] = max_sum_[warp * 8 + query];
      merged.best = fmaxf(merged.best, max_sum[warp].x);
    }
    const float base = merged.best == -INFINITY ? 0.0f : merged.best;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      if (warp >= warps) break;
      const float scale = ptx::Exp2(max_sum[warp].x - base);
      const float2 output =
          *reinterpret_cast<const float2*>(outputs_ + (warp * group_ + query) * kPitch + 2 * pair);
      merged.sum += max_sum[warp].y * scale;
      merged.output.x += output.x * scale;
      merged.output.y += output.y * scale;
    }
    return merged;
  }

 private:
  float* outputs_;
  float2* max_sum_;
  int group_;
};

template <typename P>
class Attention {
 public:
  using T = typename P::T;

  __device__ __forceinline__ Attention(const Arguments& args, char* shared, const uint32_t* tiles)
      : params_(args.params),
        tiles_(tiles),
        rows_(shared + args.geometry.rows),
        group_(args.params.model.num_q_heads / args.params.layout.num_kv_heads),
        states_(reinterpret_cast<float*>(shared + args.geometry.states), group_) {}

  __device__ __forceinline__ void Run(Consumer& consumer, const Task& task, const WordArea& area,
                                      int layer) const {
    const DecodeStepModel& model = params_.model;
    uint32_t* const row = area.Row(task.token, layer);
    const auto of_layer = [&](const void* tensor) -> const void* {
      return tensor ? OfLayer<char>(tensor, model.layer_stride_bytes, layer) : nullptr;
    };
    const int lane = consumer.lane;
    // The rows of the queries come first, then K and V of the step's own token.
#pragma unroll 1
    for (int i = consumer.warp; i < group_ + (task.appends ? 2 : 0); i += kWarps) {
      const bool is_query = i < group_;
      const bool is_value = i > group_;
      const void* const norm =
          is_value ? nullptr : of_layer(is_query ? model.q_norm : model.k_norm);
      const HeadLane<P> head(params_, task.position, lane, norm);
      const int kv_heads = params_.layout.num_kv_heads;
      const int index = is_query ? task.kv_head * group_ + i
                                 : model.num_q_heads + task.kv_head + (is_value ? kv_heads : 0);
      uint2 words = PollHead<P>(row + area.of.qkv + index * (P::kHeadDim / 2), lane);
      if (!is_value) words = head.Transform(words, norm != nullptr, model.norm_eps, lane);
      if (lane < HeadLane<P>::kLanes) {
        *reinterpret_cast<uint2*>(rows_ + i * kRowPitch + 8 * lane) = words;
        if (!is_query) Append(task, words, is_value, layer, lane);
      }
    }
    SyncConsumers();

    uint32_t query[WarpState<P>::kSteps][2];
    LoadQueries(consumer, query);
    WarpState<P> state;
    const float scale_log2 = model.scale * 1.4426950408889634f;
#pragma unroll 1
    for (int first = 0; first < task.tiles; first += P::kStageTiles) {
      consumer.Wait();
#pragma unroll 1
      for (int i = 0; i < P::kStageTiles; ++i) {
        const int tile = first + i;
        if (tile >= task.tiles || tile % kWarps != consumer.warp) continue;
        const uint32_t keys = consumer.ring.Stage(consumer.position.stage) + 2 * i * P::kTileBytes;
        const int tokens = TileTokens(tiles_[task.first_tile + tile]);
        if (task.appends && tile == task.tiles - 1) {
          StoreRow(keys, tokens - 1, group_, lane);
          StoreRow(keys + P::kTileBytes, tokens - 1, group_ + 1, lane);
          ptx::FenceProxyAsyncShared();
          __syncwarp();
        }
        state.Add(query, keys, keys + P::kTileBytes, tokens, scale_log2, lane);
      }
      consumer.Release();
    }
    if (consumer.warp < min(kWarps, task.tiles)) states_.Store(state, consumer.warp, lane);
    SyncConsumers();
    Publish(task, area, layer, row);
  }

 private:
  static constexpr int kRowPitch = 2 * P::kHeadDim + 16;
  static constexpr int kPairs = P::kHeadDim / 2;

  __device__ __forceinline__ void LoadQueries(const Consumer& consumer,
                                              uint32_t (&query)[WarpState<P>::kSteps][2]) const {
    const auto* from =
        reinterpret_cast<const uint32_t*>(rows_ + consumer.row * kRowPitch) + consumer.column;
#pragma unroll
    for (int s = 0; s < WarpState<P>::kSteps; ++s) {
      query[s][0] = consumer.row < group_ ? from[s * 8] : 0;
      query[s][1] = consumer.row < group_ ? from[s * 8 + 4] : 0;
    }
  }

  // Copies the lane's four elements of row `from` to row `row` of a tile.
  __device__ __forceinline__ void StoreRow(uint32_t tile, int row, int from, int lane) const {
    if (lane >= HeadLane<P>::kLanes) return;
    const uint2 words = *reinterpret_cast<const uint2*>(rows_ + from * kRowPitch + 8 * lane);
    const uint32_t to = tile + P::Tile::Offset(row, lane / 2) + lane % 2 * 8;
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(words.x), "r"(words.y)
                 : "memory");
  }

  // Writes K or V of the step's own token to the cache, for later steps.
  __device__ __forceinline__ void Append(const Task& task, uint2 words, bool is_value, int layer,
                                         int lane) const {
    const PagedKvLayout& layout = params_.layout;
    T* const at = static_cast<T*>(params_.kv) + layer * layout.NumElements() +
                  layout.KeyOffset(layout.Pages().PageOf(task.slot), task.kv_head,
                                   layout.Pages().RowOf(task.slot)) +
                  (is_value ? layout.KvStride() : 0);
    reinterpret_cast<uint2*>(at)[lane] = words;
  }

  __device__ __forceinline__ void Publish(const Task& task, const WordArea& area, int layer,
                                          uint32_t* row) const {
    const int warps = min(kWarps, task.tiles);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < group_ * kPairs; i += kConsumerThreads) {
      const int query = i / kPairs, pair = i % kPairs;
      const Merged merged = states_.Merge(warps, query, pair);
      uint32_t* const out =
          row + area.of.attention + (task.kv_head * group_ + query) * kPairs + pair;
      if (task.parts == 1) {
        decode_step::Publish(out, merged.Word<T>());
        continue;
      }
      uint32_t* const partial = area.Partial(task.first_partial + task.part, layer);
      decode_step::Publish(partial + 2 * (query * kPairs + pair), merged.output);
      if (pair == 0) {
        decode_step::Publish(partial + 2 * (group_ * kPairs + query), {merged.best, merged.sum});
      }
    }
    if (task.parts == 1 || task.part != 0) return;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < group_ * kPairs; i += kConsumerThreads) {
      const int query = i / kPairs, pair = i % kPairs;
      constexpr int kAtOnce = 4;
      Merged merged;
#pragma unroll 1
      for (int first = 0; first < task.parts; first += kAtOnce) {
        uint2 parts[2 * kAtOnce];
        Poll(
            parts, area.Partial(task.first_partial + first, layer), true,
            [&](int j) {
              return j / 2 * int64_t{area.layers} * area.partial_words +
                     2 * (j % 2 ? group_ * kPairs + query : query * kPairs + pair);
            },
            [&](int j) { return first + j / 2 < task.parts; });
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (first + j >= task.parts) break;
          const uint2 output = parts[2 * j], max_sum = parts[2 * j + 1];
          merged.Add({__uint_as_float(max_sum.x), __uint_as_float(max_sum.y)},
                     {__uint_as_float(output.x), __uint_as_float(output.y)});
        }
      }
      decode_step::Publish(
          row + area.of.attention + (task.kv_head * group_ + query) * kPairs + pair,
          merged.Word<T>());
    }
  }

  const DecodeStepParams& params_;
  const uint32_t* tiles_;
  char* rows_;  // queries, then K and V of the step's own token
  int group_;
  BlockStates<P> states_;
};

}  // namespace tokline::decode_step
