// Attention over what many sequences share, as a dense product on sm_90a: their query rows times K,
// then times V, by wgmma, so that K and V are read once for up to 128 rows. It produces only
// partial states. The kernel after it adds them to the states of what each sequence reads alone.
// Grid: one block per run lane and KV head. It runs the lane's tasks in order.
// Block: a warpgroup of producers, in which one warp loads queries and K and another loads V, and
//   two consumers with 64 query rows each (device/attention_tile.cuh).
// Shared memory: the query rows of a task, and rings of K and V tiles of 128 tokens, in wgmma's
//   128-byte swizzle, with their mbarriers. Members may be any sequences, so the copy engine brings
//   the rows of each member in a box of its own.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/chunk_decode/arguments_device.cuh"
#include "kernels/chunk_decode/merge_device.cuh"
#include "kernels/chunk_decode/rows_device.cuh"
#include "kernels/chunk_decode/tiles_device.cuh"
#include "kernels/device/attention_tile.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/named_barrier.cuh"
#include "kernels/device/ptx/set_max_registers.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/slot_ring.cuh"

namespace tokline::chunk_decode {

struct RunArguments {
  Arguments args;
  CUtensorMap q;   // QueryMap with boxes of one sequence's heads of a KV head
  CUtensorMap kv;  // PagedKvMap with boxes for tiles of a run lane
};

template <DType kDType, int kHeadDimValue>
struct RunPolicy {
  using T = typename DeviceType<kDType>::Type;
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr int kRows = kChunkDecodeRunRows;
  static constexpr int kKvTokens = kChunkDecodeRunTileTokens;
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kGroupThreads = 128;
  static constexpr int kConsumers = kRows / 64;
  static constexpr int kThreads = kGroupThreads * (1 + kConsumers);
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  using QueryPlacement = SwizzledPanels<kHeadDim * 2, kRows>;
  using KvPlacement = SwizzledPanels<kHeadDim * 2, kKvTokens>;
};

template <typename P>
struct RunShared {
  using QueryRing = SlotRing<1, P::kRows * P::kHeadDim * 2>;
  using TileRing = SlotRing<3, P::kKvTokens * P::kHeadDim * 2>;
  static constexpr int kBytes = QueryRing::kBytes + 2 * TileRing::kBytes +
                                QueryRing::kBarrierBytes + 2 * TileRing::kBarrierBytes;
  static_assert(kBytes <= 227 << 10, "a block of compute capability 9.0 has no more");

  unsigned char* base;  // at a multiple of 1024 bytes
  QueryRing q;          // one slot per task
  TileRing k, v;        // one slot per KV tile

  __device__ explicit RunShared(unsigned char* start) : base(start) {
    uint32_t at = ptx::SharedAddress(start);
    const auto take = [&at](uint32_t bytes) { return (at += bytes) - bytes; };
    q.slots = take(QueryRing::kBytes);
    k.slots = take(TileRing::kBytes);
    v.slots = take(TileRing::kBytes);
    q.barriers = take(QueryRing::kBarrierBytes);
    k.barriers = take(TileRing::kBarrierBytes);
    v.barriers = take(TileRing::kBarrierBytes);
  }
  // One thread calls this.
  __device__ void Init() const {
    constexpr int kConsumerWarps = P::kConsumers * P::kGroupThreads / 32;
    q.Init(kConsumerWarps);
    k.Init(kConsumerWarps);
    v.Init(kConsumerWarps);
    ptx::FenceMbarrierInit();
  }
  // Returns the generic pointer for a shared-memory address.
  __device__ unsigned char* At(uint32_t address) const { return base + (address - q.slots); }
};

// What a block does: tasks task_begin to task_end - 1, for one KV head.
struct RunWork {
  int32_t task_begin, task_end;
  int kv_head, group;

  __device__ explicit RunWork(const ChunkDecodeParams& params)
      : kv_head(static_cast<int>(blockIdx.x) % params.layout.num_kv_heads),
        group(params.num_q_heads / params.layout.num_kv_heads) {
    const int32_t* const indptr = params.plan.lane_task_indptr + params.plan.grid.num_lanes +
                                  blockIdx.x / params.layout.num_kv_heads;
    task_begin = indptr[0];
    task_end = indptr[1];
  }
};

// A producer warp. It loads all V tiles, or all query rows and K tiles. Each lane issues the copies
// of a member's rows, and of one box of a tile, whose page it looks up a tile ahead.
template <typename P, bool kValues>
__device__ __forceinline__ void LoadRuns(const RunArguments& run, const RunShared<P>& shared,
                                         const RunWork& work) {
  const Arguments& args = run.args;
  const int lane = threadIdx.x % 32, panel = lane % P::kPanels;
  const int32_t box_tokens = args.params.layout.BoxTokens(P::kKvTokens);
  const int32_t first_token = lane / P::kPanels * box_tokens;  // of the lane's box
  const bool has_box = first_token < P::kKvTokens;
  const uint32_t offset =
      panel * P::KvPlacement::kPanelBytes + first_token * P::KvPlacement::kRowPitch;
  const auto page_of = [&](const TokenCursor<P::kKvTokens>& tile) {
    return has_box ? PageOf(args, tile, tile.token + first_token) : 0;
  };
  bool waited = false;
  int use = 0;
  for (int32_t t = work.task_begin; t < work.task_end; ++t) {
    const ChunkDecodeTask task = args.params.plan.tasks[t];
    TokenCursor<P::kKvTokens> tile(task);
    int32_t page = page_of(tile);
    if (!waited) ptx::GridDependencyWait();
    waited = true;
    if constexpr (!kValues) {
      const int query = t - work.task_begin;
      shared.q.Claim(query, task.member_count * work.group * P::kHeadDim * 2, lane);
      for (int m = lane; m < task.member_count; m += 32) {
        const int32_t seq = Member(args, task, m).seq;
#pragma unroll
        for (int p = 0; p < P::kPanels; ++p) {
          ptx::TensorCopyToShared(shared.q.Slot(query) + p * P::QueryPlacement::kPanelBytes +
                                      m * work.group * P::QueryPlacement::kRowPitch,
                                  &run.q, p * 64, work.kv_head * work.group, seq,
                                  shared.q.Full(query));
        }
      }
    }
    for (; tile.Valid(); ++use) {
      const int32_t page_now = page;
      const int32_t row = args.kv_bytes.pages.RowOf(tile.token);
      tile.Advance(args.params.plan.ranges);
      if (tile.Valid()) page = page_of(tile);
      const auto& ring = kValues ? shared.v : shared.k;
      ring.Claim(use, ring.kSlotBytes, lane);
      if (has_box) {
        ptx::TensorCopyToShared(ring.Slot(use) + offset, &run.kv, panel * 64, row, work.kv_head,
                                kValues, page_now, ring.Full(use));
      }
    }
  }
}

// A consumer warpgroup: it computes the states of its 64 query rows of each task.
template <typename P>
class RunConsumer {
 public:
  __device__ RunConsumer(const Arguments& args, const RunShared<P>& shared, const RunWork& work)
      : args_(args),
        shared_(shared),
        work_(work),
        // The value is taken from one lane, so that ptxas knows that it is uniform in a warp, and
        // with it all descriptors.
        consumer_(
            __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / P::kGroupThreads - 1, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_row_((static_cast<int>(threadIdx.x) - P::kGroupThreads) / 32 * 16) {}

  __device__ __forceinline__ void Run() {
    for (int32_t t = work_.task_begin; t < work_.task_end; ++t) {
      const ChunkDecodeTask task = args_.params.plan.tasks[t];
      const int query = t - work_.task_begin;
      shared_.q.WaitFull(query);
      if (consumer_ * 64 < task.member_count * work_.group) {
        Attend(task, query);
      } else {
        Pass(task);
        shared_.q.Release(query);
      }
      Count(task);
    }
  }

 private:
  using Cursor = TokenCursor<P::kKvTokens>;
  static constexpr int kTailBarrier = 1;  // and 2: the rows of a V tile without tokens hold zeros

  // The order of steps is that of paged_prefill, whose README says why.
  __device__ __forceinline__ void Attend(const ChunkDecodeTask& task, int query) {
    constexpr int kScores = AttentionTile<P>::kScores;
    AttentionTile<P> tile;
    Cursor cursor(task);
    shared_.k.WaitFull(use_);
    const uint64_t q = ptx::WgmmaDescriptor(
        shared_.q.Slot(query) + consumer_ * 64 * P::QueryPlacement::kRowPitch, 0);
    tile.IssueScores(q, KeyTile(use_));
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(tile.scores);
    shared_.k.Release(use_);
    int32_t tokens = cursor.Tokens();
    Mask(tile, tokens);
    tile.UpdateMaxima(args_.scale_log2);
    tile.template Exponentiate<0, kScores>(args_.scale_log2);
    tile.RoundWeights();
    for (; !cursor.IsLast(); ++use_) {
      ClearTail(tokens);
      cursor.Advance(args_.params.plan.ranges);
      tokens = cursor.Tokens();
      shared_.k.WaitFull(use_ + 1);
      tile.IssueScores(q, KeyTile(use_ + 1));
      shared_.v.WaitFull(use_);
      tile.IssueValues(ValueTile(use_));
      ptx::WgmmaWait<1>();
      ptx::PinRegisters(tile.scores);
      shared_.k.Release(use_ + 1);
      Mask(tile, tokens);
      tile.UpdateMaxima(args_.scale_log2);
      tile.template Exponentiate<0, kScores / 2>(args_.scale_log2);
      tile.KeepSoftmaxHere();
      ptx::WgmmaWait<0>();
      ptx::PinRegisters(tile.out);
      shared_.v.Release(use_);
      tile.template Exponentiate<kScores / 2, kScores>(args_.scale_log2);
      tile.RoundWeights();
      tile.Rescale();
    }
    shared_.q.Release(query);
    ClearTail(tokens);
    shared_.v.WaitFull(use_);
    tile.IssueValues(ValueTile(use_));
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(tile.out);
    shared_.v.Release(use_++);
    Store(tile, task);
  }

  // Releases the tiles of a task that has no rows for this consumer.
  __device__ __forceinline__ void Pass(const ChunkDecodeTask& task) {
    for (Cursor cursor(task); cursor.Valid(); cursor.Advance(args_.params.plan.ranges), ++use_) {
      shared_.k.WaitFull(use_);
      shared_.k.Release(use_);
      shared_.v.WaitFull(use_);
      shared_.v.Release(use_);
    }
  }

  __device__ __forceinline__ uint64_t KeyTile(int use) const {
    return ptx::WgmmaDescriptor(shared_.k.Slot(use), 0);
  }
  __device__ __forceinline__ uint64_t ValueTile(int use) const {
    return ptx::WgmmaDescriptor(shared_.v.Slot(use), P::KvPlacement::kPanelBytes);
  }

  __device__ __forceinline__ void Mask(AttentionTile<P>& tile, int32_t tokens) const {
    if (tokens == P::kKvTokens) return;
    const int32_t visible[2] = {tokens, tokens};
    tile.Mask(visible);
  }

  // Overwrites the rows of the next V tile past the end of a range with zeros, because 0 times the
  // contents of an unused slot may be NaN. Each consumer with query rows does so for itself: both
  // write the same values, so they need not synchronise.
  __device__ __forceinline__ void ClearTail(int32_t tokens) const {
    if (tokens == P::kKvTokens) return;
    shared_.v.WaitFull(use_);
    unsigned char* const slot = shared_.At(shared_.v.Slot(use_));
    constexpr int kPieces = P::kHeadDim / 8;
    for (int i = static_cast<int>(threadIdx.x) % P::kGroupThreads;
         i < (P::kKvTokens - tokens) * kPieces; i += P::kGroupThreads) {
      *reinterpret_cast<uint4*>(slot +
                                P::KvPlacement::Offset(tokens + i / kPieces, i % kPieces)) = {};
    }
    ptx::FenceProxyAsyncShared();
    ptx::NamedBarrierSync(kTailBarrier + consumer_, P::kGroupThreads);
  }

  // Writes the states of the consumer's rows. The reference of their weights is stored in place of
  // the maximum; the two differ with fp16.
  __device__ __forceinline__ void Store(const AttentionTile<P>& tile,
                                        const ChunkDecodeTask& task) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = WarpSum<4>(tile.rows[half].sum);
      const int row = warp_row_ + half * 8 + lane_ / 4;
      if (row >= task.member_count * work_.group) continue;
      const float row_max = ExponentOffset<typename P::T>(tile.rows[half].max, args_.scale_log2);
      StoreQuadState<P::kHeadDim>(
          args_, Member(args_, task, row / work_.group).partial, work_.kv_head, work_.group,
          row % work_.group, {row_max, sum}, [&](int n) {
            return float2{tile.out[4 * n + 2 * half], tile.out[4 * n + 2 * half + 1]};
          });
    }
  }

  // Counts an arrival at each member's sequence if the blocks of the next kernel count arrivals,
  // too: the last to arrive is then one of those blocks. They wait for this kernel to end, so
  // nothing has to be published.
  __device__ __forceinline__ void Count(const ChunkDecodeTask& task) const {
    const int m = static_cast<int>(threadIdx.x) - P::kGroupThreads;
    if (m >= task.member_count || args_.params.plan.grid.block_lanes > 1) return;
    const int64_t place =
        int64_t{Member(args_, task, m).seq} * args_.params.layout.num_kv_heads + work_.kv_head;
    atomicAdd(args_.counters + place * (1 + kChunkDecodeBundles) + 1, 1u);
  }

  const Arguments& args_;
  const RunShared<P>& shared_;
  const RunWork work_;
  const int consumer_;
  const int lane_;
  const int warp_row_;
  int use_ = 0;  // KV tiles whose V has been accumulated
};

template <typename P>
__global__ void __launch_bounds__(kAttentionLaunchBound, 1)
    SharedRunKernel(const __grid_constant__ RunArguments run) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static_assert(kAttentionLaunchBound == P::kThreads);
  extern __shared__ __align__(1024) unsigned char start[];
  const RunShared<P> shared(start);
  ptx::GridDependencyLaunch();
  // The plan is uploaded before the step's first kernel.
  const RunWork work(run.args.params);
  if (work.task_begin == work.task_end) {
    // The next kernel waits for this one alone, so this one must not end before its predecessor.
    ptx::GridDependencyWait();
    return;
  }
  if (threadIdx.x == 0) shared.Init();
  __syncthreads();
  if (threadIdx.x < P::kGroupThreads) {
    ptx::ReleaseRegisters<P::kProducerRegisters>();
    if (threadIdx.x < 32) {
      LoadRuns<P, false>(run, shared, work);
    } else if (threadIdx.x < 64) {
      LoadRuns<P, true>(run, shared, work);
    }
  } else {
    ptx::AcquireRegisters<P::kConsumerRegisters>();
    ptx::GridDependencyWait();
    RunConsumer<P>(run.args, shared, work).Run();
  }
#endif
}

}  // namespace tokline::chunk_decode
