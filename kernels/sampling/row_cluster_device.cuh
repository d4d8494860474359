// Scans a row and picks from it in one launch, for as many rows as fill the device with clusters.
//
// Grid: a cluster of blocks per row. A block scans every ranks-th chunk, the last one first, and
//   sends what pick needs to the blocks that need it; then the first block picks, and the others
//   leave unless the row's rule lets them share it.
// Scan: eight teams of 128 threads take the block's chunks in turn. The copy engine loads each
//   team's chunk into a slot of its own, so that up to 128 KB of a block are on their way. A thread
//   has a group of 32 logits, whose maximum needs no other thread; a warp looks for the id of its
//   best logit only in the best one's group.
// Shared memory: the slots lie in pick's candidates and behind them. The maxima and the chunks'
//   stats take the workspace's place.
// Barriers: a team's named barrier after it has read a slot, and for masses one before. What other
//   blocks store arrives at an mbarrier that counts its bytes, which is cheaper than a barrier of
//   the cluster that releases writes. The cluster's barrier says that these mbarriers are
//   initialised; blocks arrive at it long before they send.
// Dependent launch: before the wait the mbarriers are initialised. What else needs no logits
// follows
//   behind the first copies: it would delay them where the blocks start late, because the
//   predecessor leaves no SM free. The rule is read before them only where it says whether to scan.
#pragma once

#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/cluster.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/load.cuh"
#include "kernels/device/ptx/mbarrier.cuh"
#include "kernels/device/ptx/named_barrier.cuh"
#include "kernels/sampling/pick_device.cuh"

namespace tokline {

inline constexpr int kTeamThreads = kSamplingChunk / kSamplingGroup;  // a thread has a group
inline constexpr int kTeamWarps = kTeamThreads / 32;
inline constexpr int kTeams = kPickThreads / kTeamThreads;
inline constexpr int kSlotsOfCandidates = kMaxCandidates / kSamplingChunk;
inline constexpr int kSlotVectors = kSamplingGroup / 4;  // of a thread

// One value per warp. A team's chunks use two sets in turn, so that one barrier per value suffices.
struct TeamStorage {
  uint64_t bests[2][kTeamWarps], masses[2][kTeamWarps];
};

struct RowClusterStorage {
  PickStorage pick;
  alignas(16) float slots[kTeams - kSlotsOfCandidates][kSamplingChunk];  // of the last teams
  // Of the first block; only for top-k or top-p.
  alignas(16) float maxima[kMaxClusterChunks * kTeamThreads];
  alignas(16) ChunkStats stats[kMaxClusterChunks];
  TeamStorage teams[kTeams];
  uint64_t copied[kTeams];  // mbarriers: of the team's slot,
  uint64_t received;        // and of what the other blocks send
};
static_assert(sizeof(RowClusterStorage) <= kRowClusterSharedBytes);
static_assert(alignof(RowClusterStorage) <= 16 && sizeof(ChunkStats) == sizeof(ulonglong2));

// The scan of a block's share of a row.
struct RowScan {
  RowClusterStorage& storage;
  RowPlace place;
  RowSource row;
  int32_t num_chunks, own_chunks;
  int team, thread;  // its place in the team
  float* slot;
  uint32_t copied, received;

  __device__ __forceinline__ RowScan(RowClusterStorage& memory, const SamplingParams& params,
                                     const SamplingPlan& plan, const RowPlace& of)
      : storage(memory),
        place(of),
        row{params.logits + of.row * params.logits_stride, static_cast<int32_t>(params.vocab_size),
            plan.vector_loads},
        num_chunks(plan.num_chunks),
        own_chunks((num_chunks + of.ranks - 1 - of.rank) / of.ranks),
        team(static_cast<int>(threadIdx.x) / kTeamThreads),
        thread(static_cast<int>(threadIdx.x) % kTeamThreads),
        slot(team < kSlotsOfCandidates ? storage.pick.candidates + team * kSamplingChunk
                                       : storage.slots[team - kSlotsOfCandidates]),
        copied(ptx::SharedAddress(&storage.copied[team])),
        received(ptx::SharedAddress(&storage.received)) {}

  // Initialises the mbarriers. A barrier of the block has to follow.
  __device__ __forceinline__ void Begin() const {
    if (threadIdx.x > 0) return;
#pragma unroll
    for (uint64_t& of_team : storage.copied) ptx::MbarrierInit(ptx::SharedAddress(&of_team), 1);
    ptx::MbarrierInit(received, 1);
    ptx::FenceMbarrierInit();
  }

  // Starts to copy the first chunks. The whole block calls this after the grid's wait.
  __device__ __forceinline__ void Start() const {
    if (thread == 0) Copy(team);
  }

  // Says how many bytes the other blocks will send, and that they may.
  __device__ __forceinline__ void Announce(const PickedRow& picked) const {
    if (threadIdx.x == 0) {
      int32_t of_chunk =
          IsSentTo(picked, place.rank) ? static_cast<int32_t>(sizeof(ChunkStats)) : 0;
      if (place.rank == 0 && picked.needs_threshold) {
        of_chunk += kTeamThreads * static_cast<int32_t>(sizeof(float));
      }
      ptx::MbarrierArriveExpect(received,
                                static_cast<uint32_t>((num_chunks - own_chunks) * of_chunk));
    }
    __syncwarp();
    ptx::ClusterArrive();
  }

  // Whether a block gets the stats of all chunks.
  __device__ __forceinline__ static bool IsSentTo(const PickedRow& picked, int32_t rank) {
    return rank == 0 || picked.shared;
  }

  // The last chunk, which may have to be loaded without the copy engine, comes first.
  __device__ __forceinline__ int32_t ChunkAt(int32_t number) const {
    return place.rank + place.ranks * (own_chunks - 1 - number);
  }
  __device__ __forceinline__ bool IsCopied(int32_t chunk) const {
    return row.vector_loads && (chunk + 1) * kSamplingChunk <= row.vocab_size;
  }

  // Starts to copy the block's chunk of this number. A team's first thread calls this.
  __device__ __forceinline__ void Copy(int32_t number) const {
    if (number >= own_chunks || !IsCopied(ChunkAt(number))) return;
    constexpr uint32_t kBytes = kSamplingChunk * sizeof(float);
    ptx::MbarrierArriveExpect(copied, kBytes);
    ptx::BulkCopyToShared(ptx::SharedAddress(slot), row.logits + ChunkAt(number) * kSamplingChunk,
                          kBytes, copied);
  }

  // Loads a chunk that the copy engine cannot: one that is not aligned or not whole.
  __device__ __forceinline__ void Load(int32_t chunk) const {
    constexpr int kUnroll = 16;
#pragma unroll 1
    for (int first = thread; first < kSamplingChunk; first += kUnroll * kTeamThreads) {
      float x[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int32_t id = chunk * kSamplingChunk + first + u * kTeamThreads;
        x[u] = id < row.vocab_size ? row.logits[id] : -INFINITY;
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) slot[first + u * kTeamThreads] = x[u];
    }
    ptx::FenceProxyAsyncShared();  // the copy engine may write the slot next
    TeamSync();
  }

  __device__ __forceinline__ void TeamSync() const {
    __syncwarp();
    ptx::NamedBarrierSync(1 + team, kTeamThreads);
  }

  // A vector of the thread's group. Neighbours begin with different ones, so that eight threads
  // read from all banks.
  __device__ __forceinline__ float4 GroupVector(int v) const {
    return reinterpret_cast<const float4*>(
        slot)[thread * kSlotVectors + (v ^ thread % kSlotVectors)];
  }
  // Sanitizing the maximum equals the maximum of sanitized logits: fmaxf leaves out NaN.
  __device__ __forceinline__ float GroupMaximum() const {
    float maximum = -INFINITY;
#pragma unroll
    for (int v = 0; v < kSlotVectors; ++v) {
      const float4 x = GroupVector(v);
      maximum = fmaxf(maximum, fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)));
    }
    return Sanitize(maximum);
  }
  __device__ __forceinline__ uint64_t GroupMass(const MassOf& mass_of) const {
    uint64_t mass = 0;
#pragma unroll 2
    for (int v = 0; v < kSlotVectors; ++v) {
      const float4 x = Sanitize(GroupVector(v));
#pragma unroll
      for (int i = 0; i < 4; ++i) mass += mass_of(Component(x, i));
    }
    return mass;
  }

  // The best logit of a warp's groups, given the maximum of each thread's: the lowest id among
  // equals is in the first group that has one.
  __device__ __forceinline__ uint64_t BestOfGroups(int32_t chunk, float maximum) const {
    const uint32_t key = OrderedKey(maximum);
    const uint32_t highest = __reduce_max_sync(0xffffffffu, key);
    const int first = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, key == highest))) - 1;
    const int group = (thread & ~31) + first;
    const float logit = Sanitize(slot[group * kSamplingGroup + thread % 32]);
    const uint32_t holders = __ballot_sync(0xffffffffu, OrderedKey(logit) == highest);
    const int32_t id =
        chunk * kSamplingChunk + group * kSamplingGroup + __ffs(static_cast<int>(holders)) - 1;
    return uint64_t{highest} << 32 | ~static_cast<uint32_t>(id);
  }

  // Leaves the groups' maxima in the first block, four of them in each store to another block.
  __device__ __forceinline__ void SendMaximum(int32_t chunk, float maximum) const {
    float* const to = &storage.maxima[chunk * kTeamThreads + thread];
    if (place.rank == 0) {
      *to = maximum;
      return;
    }
    const float4 four{maximum, __shfl_down_sync(0xffffffffu, maximum, 1),
                      __shfl_down_sync(0xffffffffu, maximum, 2),
                      __shfl_down_sync(0xffffffffu, maximum, 3)};
    if (thread % 4 > 0) return;
    ptx::ClusterStoreAsync(ptx::ClusterAddress(ptx::SharedAddress(to), 0), four,
                           ptx::ClusterAddress(received, 0));
  }
  // Leaves a chunk's stats in all blocks that need them. A team's first thread calls this.
  __device__ __forceinline__ void SendStats(const PickedRow& picked, int32_t chunk,
                                            const ChunkStats& stats) const {
    for (int32_t to = 0; to < place.ranks && IsSentTo(picked, to); ++to) {
      if (to == place.rank) {
        storage.stats[chunk] = stats;
      } else {
        const auto rank = static_cast<uint32_t>(to);
        ptx::ClusterStoreAsync(ptx::ClusterAddress(ptx::SharedAddress(&storage.stats[chunk]), rank),
                               ulonglong2{stats.best, stats.mass},
                               ptx::ClusterAddress(received, rank));
      }
    }
  }

  // Computes what pick needs of the chunk in the team's slot, and starts to copy the next one.
  __device__ __forceinline__ void ScanSlot(const PickedRow& picked, int32_t number,
                                           int turn) const {
    const int32_t chunk = ChunkAt(number);
    const int warp = thread / 32;
    TeamStorage& own = storage.teams[team];
    const float maximum = GroupMaximum();
    if (picked.needs_threshold) SendMaximum(chunk, maximum);
    const uint64_t best_of_warp = BestOfGroups(chunk, maximum);
    if (thread % 32 == 0) own.bests[turn][warp] = best_of_warp;
    TeamSync();
    ChunkStats stats{own.bests[turn][0], 0};
#pragma unroll
    for (int w = 1; w < kTeamWarps; ++w) stats.best = Max64()(stats.best, own.bests[turn][w]);
    if (picked.rule.temperature > 0 && !picked.top_k) {
      const MassOf mass_of(BestLogit(stats.best), picked.rule.temperature);
      const uint64_t mass = WarpSum(GroupMass(mass_of));
      if (thread % 32 == 0) own.masses[turn][warp] = mass;
      TeamSync();
#pragma unroll
      for (int w = 0; w < kTeamWarps; ++w) stats.mass += own.masses[turn][w];
    }
    if (thread > 0) return;
    Copy(number + kTeams);
    SendStats(picked, chunk, stats);
  }

  // Scans the block's chunks. The whole block calls this after Announce().
  __device__ __forceinline__ void Run(const PickedRow& picked) const {
    ptx::ClusterWait();  // the blocks that are sent to have initialised their mbarriers
    uint32_t parity = 0;
    int turn = 0;
#pragma unroll 1
    for (int32_t number = team; number < own_chunks; number += kTeams, turn ^= 1) {
      const int32_t chunk = ChunkAt(number);
      if (IsCopied(chunk)) {
        ptx::MbarrierWait(copied, parity);
        parity ^= 1;
      } else {
        Load(chunk);
      }
      ScanSlot(picked, number, turn);
      __syncwarp();
    }
  }
};

__global__ void __launch_bounds__(kPickThreads)
    RowClusterKernel(const __grid_constant__ SamplingParams params,
                     const __grid_constant__ SamplingPlan plan) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 memory[];
  RowClusterStorage& storage = *reinterpret_cast<RowClusterStorage*>(memory);
  ptx::GridDependencyLaunch();
  const RowPlace place(plan.ranks);
  ptx::PrefetchL1(&params.rules[place.row]);
  // Only with given bests does it take the rule to know whether to scan.
  const bool scans = params.best == nullptr || params.rules[place.row].temperature > 0;
  if (place.rank > 0 && !scans) return;
  const RowScan scan(storage, params, plan, place);
  scan.Begin();
  __syncthreads();
  ptx::GridDependencyWait();
  if (scans) scan.Start();
  const PickedRow picked(params, place);
  PreparePick(storage.pick, picked.rule);
  if (scans) {
    scan.Announce(picked);
    scan.Run(picked);
    // What leaves now has sent everything from registers, and nobody sends to it.
    if (!RowScan::IsSentTo(picked, place.rank)) return;
    __syncthreads();  // this block's own stats and maxima are there, and the slots are free
    ptx::MbarrierWaitCluster(scan.received, 0);
  }
  PickToken(params, plan, picked, storage.pick, storage.stats, storage.maxima);
#endif
}

}  // namespace tokline
