// The producer warp: streams the block's rows of every weight, and its tiles of K and V, through
// the ring, ahead of the arithmetic. It goes through the stages in the order in which the
// consumers read them.
#pragma once

#include "kernels/decode_step/step_shared_device.cuh"
#include "kernels/device/ptx/cache_policy.cuh"

namespace tokline::decode_step {

template <typename P>
class Producer {
 public:
  __device__ __forceinline__ Producer(const Arguments& args, const CopyRing& ring)
      : args_(args),
        ring_(ring),
        position_{.stages = ring.stages, .phase = 1},
        pending_{.stages = ring.stages},
        lane_(static_cast<int>(threadIdx.x % 32)),
        policy_(ptx::EvictFirstPolicy()) {}

  __device__ __forceinline__ void Run(const Shared& shared, const uint32_t* tiles) {
    const DecodeStepModel& model = args_.params.model;
    const auto hidden = static_cast<int>(model.hidden_size);
    const auto inner = static_cast<int>(model.intermediate_size);
    const int q = model.num_q_heads * P::kHeadDim;
#pragma unroll 1
    for (int half = 0; half < 2 * model.num_layers; ++half) {
      const int layer = half / 2;
      const bool attends = half % 2 == 0;
      const auto of_layer = [&](const void* tensor) {
        return OfLayer<char>(tensor, model.layer_stride_bytes, layer);
      };
      StreamRows(of_layer(attends ? model.qkv : model.gate_up), attends ? shared.qkv : shared.inner,
                 hidden, attends ? 0 : inner);
      if (attends) {
        if (layer == 0) ptx::NamedBarrierSync(kTilesBarrier, kConsumerThreads + 32);
#pragma unroll 1
        for (int i = 0; i < shared.num_tasks; ++i) StreamTiles(shared.tasks[i], tiles, layer);
      }
      StreamRows(of_layer(attends ? model.o : model.down), shared.hidden, attends ? q : inner, 0);
    }
    StreamRows(static_cast<const char*>(model.lm_head), shared.vocab, hidden, 0);
  }

 private:
  // Waits until the next stage is free and fewer than `in_flight` copies are in flight. More copies
  // would not stream faster, but would slow down every other access of the device.
  __device__ __forceinline__ void BeginStage(uint32_t bytes, int in_flight) {
    ptx::MbarrierWait(ring_.Empty(position_.stage), position_.phase);
    for (; issued_ >= in_flight; --issued_) {
      ptx::MbarrierWait(ring_.Full(pending_.stage), pending_.phase);
      pending_.Advance();
    }
    ++issued_;
    if (lane_ == 0) ptx::MbarrierArriveExpect(ring_.Full(position_.stage), bytes);
    __syncwarp();
  }

  // Streams a slice of a projection: its units (see Projection), two per stage. Lanes 0 to 7 copy
  // the rows of the first unit, lanes 8 to 15 those of the second. With gates, the up rows lie `up`
  // rows further down the matrix; otherwise `up` is 0.
  __device__ __forceinline__ void StreamRows(const char* weight, const Slice& slice,
                                             int in_features, int up) {
    const int k_blocks = (in_features + kDecodeStepBlockK - 1) >> 10;
    const int parts = up > 0 ? 2 : 1;
    const int units = ((slice.end - slice.begin + 7) >> 3) * parts * k_blocks;
    // The place of the lane's unit.
    int rows = 0, part = 0, block = 0;
    const auto advance = [&] {
      if (++block < k_blocks) return;
      block = 0;
      if (++part < parts) return;
      part = 0;
      rows += 8;
    };
    const int second = lane_ / kDecodeStepRows;
    if (second == 1) advance();
#pragma unroll 1
    for (int unit = 0; unit < units; unit += kDecodeStepStageUnits) {
      const int row = slice.begin + rows + lane_ % kDecodeStepRows;
      const int k = block * kDecodeStepBlockK;
      const int bytes = 2 * min(in_features - k, kDecodeStepBlockK);
      const bool copies =
          second < kDecodeStepStageUnits && unit + second < units && row < slice.end;
      BeginStage(__reduce_add_sync(0xffffffffu, copies ? bytes : 0), args_.geometry.in_flight);
      if (copies) {
        ptx::BulkCopyToShared(ring_.Stage(position_.stage) + second * kDecodeStepUnitBytes +
                                  lane_ % kDecodeStepRows * kDecodeStepPitch,
                              weight + 2 * (int64_t{row + part * up} * in_features + k),
                              static_cast<uint32_t>(bytes), ring_.Full(position_.stage), policy_);
      }
      position_.Advance();
      advance();
      advance();
    }
  }

  // The first tiles fill the ring while the block polls its queries. The following tiles may stream
  // at the full rate of the memory, because no block waits for words until a whole context has been
  // read.
  __device__ __forceinline__ void StreamTiles(const Task& task, const uint32_t* tiles, int layer) {
    const PagedKvLayout& layout = args_.params.layout;
    const PageSplit pages = layout.Pages();
    const int64_t layer_row = layer * (layout.NumElements() / P::kHeadDim);
#pragma unroll 1
    for (int first = 0; first < task.tiles; first += P::kStageTiles) {
      const int count = min(P::kStageTiles, task.tiles - first);
      BeginStage(static_cast<uint32_t>(count * 2 * P::kTileBytes),
                 first < ring_.stages * P::kStageTiles ? args_.geometry.in_flight
                                                       : kDecodeStepMostInFlight);
      if (lane_ < 2 * count) {
        const uint32_t row =
            tiles[task.first_tile + first + lane_ / 2] >> 5 << 4;  // counted in rows of a head
        const int64_t at = layer_row + layout.HeadRow(pages.PageOf(row), lane_ % 2, task.kv_head,
                                                      pages.RowOf(row));
        ptx::TensorCopyToShared(ring_.Stage(position_.stage) + lane_ * P::kTileBytes, &args_.kv, 0,
                                static_cast<int32_t>(at), 0, ring_.Full(position_.stage), policy_);
      }
      position_.Advance();
    }
  }

  const Arguments& args_;
  CopyRing ring_;
  RingPosition position_;  // with the phase of its Empty barrier
  RingPosition pending_;   // the oldest copy that may still be in flight
  int issued_ = 0;         // copies from `pending_` on
  int lane_;
  uint64_t policy_;
};

}  // namespace tokline::decode_step
