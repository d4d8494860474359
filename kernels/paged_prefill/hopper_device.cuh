// Paged prefill attention for sm_90a: wgmma with producer warps and two consumer warpgroups.
// Grid: one block per SM, or one per tile of the plan if those are fewer. A block follows the plan
// from tile to tile. It owns 128 packed query rows of one KV head at a time, and each consumer 64
// of them. A tile that is a part of a context leaves the states of its rows in the workspace.
// Shared memory (HopperShared): rings of query tiles, of K tiles and V tiles of 128 tokens in
// wgmma's 128-byte swizzle, and of notes about KV tiles, with their mbarriers. A query tile's rows
// later stage their own output.
// Producers (hopper_producer_device.cuh) run ahead as far as there is room, so that the next query
// tile and its first K and V tiles arrive while the output of the current one is written. A
// consumer issues S = Q K^T of the next KV tile, then O += P V of the current one, and computes the
// softmax of the next tile during the latter. It computes half of the exponentials before it waits
// for P V. The work that depends on that wait, rounding P and rescaling O, is interleaved with the
// other half.
#pragma once

#include <cstdint>

#include "kernels/device/attention_tile.cuh"
#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/named_barrier.cuh"
#include "kernels/device/ptx/set_max_registers.cuh"
#include "kernels/device/ptx/wgmma.cuh"
#include "kernels/paged_prefill/hopper_producer_device.cuh"
#include "kernels/paged_prefill/hopper_shared_device.cuh"
#include "kernels/paged_prefill/part_states_device.cuh"
#include "kernels/paged_prefill/tile_output_device.cuh"

namespace tokline {

// A consumer warpgroup: it computes attention for its 64 rows of each query tile.
template <typename Policy>
class HopperConsumer {
 public:
  __device__ HopperConsumer(const PagedPrefillParams& params, const HopperShared<Policy>& shared)
      : params_(params),
        shared_(shared),
        packed_(params.num_q_heads / params.layout.num_kv_heads),
        scale_log2_(params.scale * 1.44269504088896340736f),
        // The value is taken from one lane, so that ptxas knows that it is uniform in a warp, and
        // with it all descriptors.
        consumer_(
            __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / Policy::kGroupThreads - 1, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_row_((static_cast<int>(threadIdx.x) - Policy::kGroupThreads) / 32 * 16) {}

  __device__ __forceinline__ void Run() {
    const int32_t tiles = params_.tiles[blockIdx.x].left;
    for (int query = 0; query < tiles; ++query) Attend(query);
  }

 private:
  static constexpr int kQueryBarrier = 1;  // and 2: a consumer is done with its query rows
  static constexpr int kTailBarrier = 3;   // the rows of a V tile without tokens hold zeros
  static constexpr int kBothThreads = Policy::kConsumers * Policy::kGroupThreads;

  // Computes attention for the block's query tile with this index.
  __device__ __forceinline__ void Attend(int query) {
    constexpr int kScores = AttentionTile<Policy>::kScores;
    AttentionTile<Policy> tile;
    shared_.k.WaitFull(use_);
    query_ = shared_.Note(use_).query;
    target_ = shared_.Note(use_).target;
    ReadNote(use_);
    shared_.q.WaitFull(query);
    const uint64_t q = QueryRows(query);
    tile.IssueScores(q, KeyTile(use_));
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(tile.scores);
    shared_.k.Release(use_);
    Mask(tile);
    tile.UpdateMaxima(scale_log2_);
    tile.template Exponentiate<0, kScores>(scale_log2_);
    tile.RoundWeights();
    for (; !last_; ++use_) {
      ClearTail();
      shared_.k.WaitFull(use_ + 1);
      ReadNote(use_ + 1);
      tile.IssueScores(q, KeyTile(use_ + 1));
      shared_.v.WaitFull(use_);
      tile.IssueValues(ValueTile(use_));
      ptx::WgmmaWait<1>();
      ptx::PinRegisters(tile.scores);
      shared_.k.Release(use_ + 1);
      Mask(tile);
      tile.UpdateMaxima(scale_log2_);
      tile.template Exponentiate<0, kScores / 2>(scale_log2_);
      tile.KeepSoftmaxHere();
      ptx::WgmmaWait<0>();
      ptx::PinRegisters(tile.out);
      shared_.v.Release(use_);
      tile.template Exponentiate<kScores / 2, kScores>(scale_log2_);
      tile.RoundWeights();
      tile.Rescale();
    }
    ClearTail();
    shared_.v.WaitFull(use_);
    // On the diagonal the consumer's rows often see no more than half of the last tile.
    if (min(tokens_, VisibleEnd((consumer_ + 1) * Policy::kConsumerRows - 1) - position_) <=
        Policy::kKvTokens / 2) {
      tile.template IssueValues<Policy::kKvTokens / 2>(ValueTile(use_));
    } else {
      tile.IssueValues(ValueTile(use_));
    }
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(tile.out);
    shared_.v.Release(use_++);
    Finish(tile, query);
  }

  __device__ __forceinline__ void ReadNote(int use) {
    const HopperTileNote& note = shared_.Note(use);
    position_ = note.position;
    tokens_ = note.tokens;
    last_ = note.last != 0;
    shared_.notes.ReleaseByLane(use);
  }

  // Descriptors of the consumer's rows of a query tile, and of whole K and V tiles.
  __device__ __forceinline__ uint64_t QueryRows(int query) const {
    return ptx::WgmmaDescriptor(shared_.q.Slot(query) + consumer_ * Policy::kConsumerRows *
                                                            Policy::QueryPlacement::kRowPitch,
                                0);
  }
  __device__ __forceinline__ uint64_t KeyTile(int use) const {
    return ptx::WgmmaDescriptor(shared_.k.Slot(use), 0);
  }
  __device__ __forceinline__ uint64_t ValueTile(int use) const {
    return ptx::WgmmaDescriptor(shared_.v.Slot(use), Policy::KvPlacement::kPanelBytes);
  }

  // The number of context tokens that a packed row of the query tile sees.
  __device__ __forceinline__ int32_t VisibleEnd(int32_t row) const {
    return params_.causal ? query_.first_end + packed_.Token(row) : query_.end;
  }

  __device__ __forceinline__ void Mask(AttentionTile<Policy>& tile) const {
    if (min(tokens_, VisibleEnd(warp_row_) - position_) >= Policy::kKvTokens) return;
    const int32_t visible[2] = {min(tokens_, VisibleEnd(warp_row_ + lane_ / 4) - position_),
                                min(tokens_, VisibleEnd(warp_row_ + lane_ / 4 + 8) - position_)};
    tile.Mask(visible);
  }

  // Both consumers together overwrite the rows past a chunk's end with zeros in the V tile of the
  // note that was read last, because 0 times the contents of an unused slot may be NaN.
  __device__ __forceinline__ void ClearTail() const {
    if (tokens_ == Policy::kKvTokens) return;
    constexpr int kSegments = Policy::kHeadDim / 8;
    shared_.v.WaitFull(use_);
    unsigned char* slot = shared_.At(shared_.v.Slot(use_));
    for (int i = static_cast<int>(threadIdx.x) - Policy::kGroupThreads;
         i < (Policy::kKvTokens - tokens_) * kSegments; i += kBothThreads) {
      *reinterpret_cast<uint4*>(
          slot + Policy::KvPlacement::Offset(tokens_ + i / kSegments, i % kSegments)) = {};
    }
    ptx::FenceProxyAsyncShared();
    ptx::NamedBarrierSync(kTailBarrier, kBothThreads);
  }

  __device__ __forceinline__ void Finish(const AttentionTile<Policy>& tile, int query) const {
    const auto values = [&](int half) {
      return [&tile, half](int n) {
        return float2{tile.out[4 * n + 2 * half], tile.out[4 * n + 2 * half + 1]};
      };
    };
    if constexpr (Policy::kCut) {
      if (target_ < 0) {
        const PartStates<Policy::kHeadDim> states(params_);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          states.Store(~target_, warp_row_ + half * 8 + lane_ / 4, query_.num_rows, tile.rows[half],
                       values(half));
        }
        shared_.q.Release(query);
        return;
      }
    }
    ptx::NamedBarrierSync(kQueryBarrier + consumer_, Policy::kGroupThreads);
    const TileOutput<typename Policy::T, Policy::kHeadDim, typename Policy::QueryPlacement> output{
        params_, query_, packed_, target_, shared_.At(shared_.q.Slot(query))};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      output.Finish(warp_row_ + half * 8 + lane_ / 4, tile.rows[half], scale_log2_, values(half));
    }
    ptx::FenceProxyAsyncShared();  // the query tile after the next will overwrite what was staged
    __syncwarp();
    output.template Store<16>(warp_row_, [&](int row) { return shared_.row_offsets[row]; });
    shared_.q.Release(query);
  }

  const PagedPrefillParams& params_;
  const HopperShared<Policy>& shared_;
  const PackedRows packed_;
  const float scale_log2_;
  const int consumer_;
  const int lane_;
  const int warp_row_;
  QueryTile query_;
  int32_t target_ = 0;
  int use_ = 0;  // KV tiles whose V has been accumulated
  // These come from the note that was read last.
  int32_t position_ = 0;
  int32_t tokens_ = 0;
  bool last_ = false;
};

template <typename Policy>
__global__ void __launch_bounds__(kAttentionLaunchBound, 1)
    HopperPrefillKernel(const __grid_constant__ HopperPrefillArgs params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static_assert(kAttentionLaunchBound == Policy::kThreads);
  extern __shared__ __align__(1024) unsigned char start[];
  const HopperShared<Policy> shared(start);
  ptx::GridDependencyLaunch();
  if (threadIdx.x == 0) shared.Init();
  if (threadIdx.x < kPagedPrefillTileRows) {
    const PagedPrefillParams& prefill = params.prefill;
    const PackedRows packed(prefill.num_q_heads / prefill.layout.num_kv_heads);
    const auto row = static_cast<int32_t>(threadIdx.x);
    shared.row_offsets[row] = RowOffset<Policy::kHeadDim>(prefill, packed, row);
  }
  __syncthreads();
  if (threadIdx.x < Policy::kGroupThreads) {
    ptx::ReleaseRegisters<Policy::kProducerRegisters>();
    if (threadIdx.x < 32) {
      LookUpTiles(params.prefill, shared);
    } else if (threadIdx.x < 64) {
      ptx::GridDependencyWait();
      LoadTiles<Policy, false>(params, shared);
    } else if (threadIdx.x < 96) {
      ptx::GridDependencyWait();
      LoadTiles<Policy, true>(params, shared);
    }
  } else {
    ptx::AcquireRegisters<Policy::kConsumerRegisters>();
    ptx::GridDependencyWait();
    HopperConsumer<Policy>(params.prefill, shared).Run();
  }
#endif
}

}  // namespace tokline
