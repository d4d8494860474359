// Second kernel: picks a row's token from what the first one stored.
//
// Grid: a cluster of blocks per row, of which the first does everything that is not said to be
//   shared, or one block per row. Greedy rows compare the chunks' best logits, or those that linear
//   left. Rows with only a temperature draw a chunk by its mass and read only that chunk. For top-k
//   or top-p the maxima of the groups of 32 give a bound below which nothing can be kept; only the
//   few groups that reach it are examined. If at most 512 of their logits reach the bound, which is
//   usual, each is compared with all others; otherwise a selection in rounds finds the logits to
//   keep. If the groups do not suffice (large k, a flat top-p), the cluster's blocks share a
//   selection over the whole row.
// Barriers: the whole block calls every function below that takes the storage. Branches with
//   barriers depend on values that all threads share. A typical row passes nine barriers.
// Dependent launch: before the wait the rule is read, so that blocks which the row does not need
//   leave, the draw's bits are computed, and bins and counters are cleared.
#pragma once

#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/sampling/chunk_scan_device.cuh"
#include "kernels/sampling/philox.h"
#include "kernels/sampling/row_context_device.cuh"
#include "kernels/sampling/row_share_device.cuh"
#include "kernels/sampling/select_device.cuh"

namespace tokline {

inline constexpr int kMaxCandidateGroups = 512;
inline constexpr int kMaxCandidates = kMaxCandidateGroups * kSamplingGroup;
// top-p without top-k examines the candidates of at least kTopPGroups groups. A bound that leaves
// at most kEnoughGroups groups is not narrowed further.
inline constexpr int kTopPGroups = 96, kEnoughGroups = 192;
inline constexpr int kMaxCompared = 512;
static_assert(kMaxSamplingVocab / kSamplingChunk <= kPickThreads, "a thread has one chunk");
static_assert(kPickThreads <= kSelectBins, "chunk masses share the bins' memory");

// Values in shared memory.
struct ArraySource {
  const float* values;
  int32_t size;

  template <typename Visit>
  __device__ __forceinline__ void ForEach(const Visit& visit) const {
    constexpr int kUnroll = 4;
    for (int32_t base = threadIdx.x; base < size; base += kUnroll * kPickThreads) {
      float x[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int32_t i = base + u * kPickThreads;
        x[u] = i < size ? values[i] : -INFINITY;
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (base + u * kPickThreads < size) visit(x[u]);
      }
    }
  }
};

// The maxima of a row's groups. The maxima of 163,840 logits are held in registers, so that they
// are loaded while the best logit is still being found, and are loaded once for two passes.
struct Maxima {
  static constexpr int kHeld = 5;
  const float* values;
  int32_t size;
  float held[kHeld];

  __device__ __forceinline__ void Load() {
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      const int32_t i = static_cast<int32_t>(threadIdx.x) + u * kPickThreads;
      held[u] = i < size ? values[i] : -INFINITY;
    }
  }
  template <typename Visit>
  __device__ __forceinline__ void ForEachAt(const Visit& visit) const {
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      const int32_t i = static_cast<int32_t>(threadIdx.x) + u * kPickThreads;
      if (i < size) visit(held[u], i);
    }
    for (int32_t i = static_cast<int32_t>(threadIdx.x) + kHeld * kPickThreads; i < size;
         i += kPickThreads) {
      visit(values[i], i);
    }
  }
  template <typename Visit>
  __device__ __forceinline__ void ForEach(const Visit& visit) const {
    ForEachAt([&](float value, int32_t) { visit(value); });
  }
};

struct PickStorage {
  alignas(16) SelectStorage select;
  alignas(16) float candidates[kMaxCandidates];  // or, for a whole row, its RowShare
  int32_t groups[kMaxCandidateGroups];
  int32_t num_groups, num_found;  // of CollectCompared()
  int32_t chunk;                  // the drawn chunk
  uint64_t residual;              // position of the draw within the chunk's mass
  uint64_t draw_bits;
  int32_t needs_row;  // set by rank 0 in the other ranks: the candidates did not suffice
};
static_assert(sizeof(RowShare) <= sizeof(PickStorage::candidates) && alignof(RowShare) <= 16);

// The smallest limit of a block on the supported devices is 99 KB, on 8.6, 8.9 and 12.0.
static_assert(sizeof(PickStorage) <= 99 << 10 && alignof(PickStorage) <= 16);

// Candidates that are compared with one another. They take the place of a selection's bins.
struct Compared {
  // As they were found, in any order.
  uint64_t* masses;  // [kMaxCompared]
  float* values;     // [kMaxCompared]
  int32_t* ids;      // [kMaxCompared]
  // In the order of their ids.
  uint64_t* kept_masses;  // [kMaxCompared] 0: not kept
  int32_t* ordered_ids;   // [kMaxCompared]

  __device__ __forceinline__ explicit Compared(PickStorage& storage)
      : masses(storage.select.bins),
        values(reinterpret_cast<float*>(masses + kMaxCompared)),
        ids(reinterpret_cast<int32_t*>(values + kMaxCompared)),
        kept_masses(reinterpret_cast<uint64_t*>(ids + kMaxCompared)),
        ordered_ids(reinterpret_cast<int32_t*>(kept_masses + kMaxCompared)) {
    static_assert(kMaxCompared * 28 <= sizeof(storage.select.bins));
  }
};

// The mass that top-p keeps of `total`.
__device__ __forceinline__ uint64_t MassToKeep(const SamplingRule& rule, uint64_t total) {
  return Max64()(1, __double2ull_ru(static_cast<double>(rule.top_p) * total));
}

struct One {
  __device__ __forceinline__ uint32_t operator()(float) const { return 1; }
};

// Calls f(place, id, logit) for each logit of the first `count` of storage.groups, -inf past the
// end of the row. A thread's loads do not wait for each other.
template <typename F>
__device__ __forceinline__ void ForEachOfGroups(const PickStorage& storage,
                                                const RowContext& context, int32_t count, F f) {
  constexpr int kUnroll = 4;
  const int32_t size = count * kSamplingGroup;
  for (int32_t base = threadIdx.x; base < size; base += kUnroll * kPickThreads) {
    float logits[kUnroll];
    int32_t ids[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int32_t place = base + u * kPickThreads;
      ids[u] = place < size ? storage.groups[place / kSamplingGroup] * kSamplingGroup +
                                  place % kSamplingGroup
                            : context.row.vocab_size;
      logits[u] =
          ids[u] < context.row.vocab_size ? Sanitize(context.row.logits[ids[u]]) : -INFINITY;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (base + u * kPickThreads < size) f(base + u * kPickThreads, ids[u], logits[u]);
    }
  }
}

// Loads the groups whose maximum reaches `threshold` into shared memory, in the order of their ids;
// values below the threshold become -inf. Returns the number of values. There must be room for the
// groups.
__device__ int32_t GatherCandidates(PickStorage& storage, const RowContext& context,
                                    float threshold) {
  // A thread examines neighbouring groups, so that one scan puts all of them in order.
  const int32_t a_thread = (context.num_groups + kPickThreads - 1) / kPickThreads;
  const int32_t begin = threadIdx.x * a_thread;
  const int32_t end = min(begin + a_thread, context.num_groups);
  uint32_t mine = 0, count;
  for (int32_t g = begin; g < end; ++g) mine += context.group_maxima[g] >= threshold;
  uint32_t position = ExclusiveSum(storage.select, mine, count);
  for (int32_t g = begin; g < end; ++g) {
    if (context.group_maxima[g] >= threshold) storage.groups[position++] = g;
  }
  __syncthreads();
  ForEachOfGroups(storage, context, static_cast<int32_t>(count),
                  [&](int32_t place, int32_t, float logit) {
                    storage.candidates[place] = logit >= threshold ? logit : -INFINITY;
                  });
  __syncthreads();
  return static_cast<int32_t>(count) * kSamplingGroup;
}

// The number of candidates per thread. They are neighbours.
__device__ __forceinline__ int32_t CandidatesOfThread(int32_t size) {
  return (size + kPickThreads - 1) / kPickThreads;
}

// Finds the logits that reach `threshold`, in any order. Returns their number, or -1 if there are
// too many logits or groups. The counters must be 0 before.
__device__ int32_t CollectCompared(PickStorage& storage, const RowContext& context,
                                   const Maxima& maxima, float threshold,
                                   const Compared& compared) {
  maxima.ForEachAt([&](float maximum, int32_t group) {
    if (!(maximum >= threshold)) return;
    const int32_t place = atomicAdd(&storage.num_groups, 1);
    if (place < kMaxCandidateGroups) storage.groups[place] = group;
  });
  __syncthreads();
  const int32_t groups = storage.num_groups;
  if (groups > kMaxCandidateGroups) return -1;
  ForEachOfGroups(storage, context, groups, [&](int32_t, int32_t id, float logit) {
    if (!(logit >= threshold)) return;
    const int32_t place = atomicAdd(&storage.num_found, 1);
    if (place >= kMaxCompared) return;
    compared.values[place] = logit;
    compared.ids[place] = id;
    compared.masses[place] = context.mass_of(logit);
  });
  __syncthreads();
  return storage.num_found <= kMaxCompared ? storage.num_found : -1;
}

// The mass of a chunk, which the first kernel stored, relative to the row's largest logit.
__device__ __forceinline__ uint64_t ScaledChunkMass(const RowContext& context, int32_t chunk) {
  const ChunkStats stats = context.stats[chunk];
  const double share = static_cast<double>(context.mass_of(BestLogit(stats.best))) / MassOf::kOne;
  return __double2ull_rn(static_cast<double>(stats.mass) * share);
}

// The mass of the whole row.
__device__ uint64_t RowMass(PickStorage& storage, const RowContext& context) {
  uint64_t mass = 0;
  for (int32_t chunk = threadIdx.x; chunk < context.num_chunks; chunk += kPickThreads) {
    mass += ScaledChunkMass(context, chunk);
  }
  __syncthreads();  // an earlier sum has been read
  return BlockSum(storage.select, mass);
}

template <typename Source>
__device__ uint64_t MassFrom(PickStorage& storage, const RowContext& context, const Source& source,
                             float threshold) {
  uint64_t mass = 0;
  source.ForEach([&](float value) {
    if (value >= threshold) mass += context.mass_of(value);
  });
  return BlockSum(storage.select, mass);
}

// Raises `threshold` to the bound that top-k and then top-p give. `source` holds everything at or
// above the initial threshold. Returns false if the source is `partial` and has too little mass for
// top-p.
template <typename Source>
__device__ bool ApplyRule(PickStorage& storage, const RowContext& context, const Source& source,
                          bool partial, float& threshold) {
  const SamplingRule& rule = context.rule;
  const bool top_k = HasTopK(rule, context.row.vocab_size);
  if (top_k) {
    threshold = SelectThreshold(storage.select, source, One(), context.highest, threshold,
                                static_cast<uint64_t>(rule.top_k), 0, false)
                    .threshold;
  }
  if (rule.top_p >= 1) return true;
  const uint64_t total = top_k ? MassFrom(storage, context, source, threshold) : context.row_mass;
  const uint64_t target = MassToKeep(rule, total);
  const Selection selection = SelectThreshold(storage.select, source, context.mass_of,
                                              context.highest, threshold, target, 0, false);
  if (!selection.reached && partial && !top_k) return false;
  threshold = selection.threshold;  // if rounding alone kept it from being reached, keep all
  return true;
}

// Writes the token at which the running mass of this thread's items, which starts at `before`,
// exceeds `draw`. At most one thread writes.
template <int kItems, typename IdOf>
__device__ __forceinline__ void WriteWherePassed(const uint64_t (&mass)[kItems], uint64_t before,
                                                 uint64_t draw, int32_t* token, const IdOf& id_of) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (before <= draw && draw < before + mass[i]) *token = id_of(i);
    before += mass[i];
  }
}

// Draws among the candidates at or above `threshold`, in the order of their ids.
__device__ void DrawCandidate(PickStorage& storage, const RowContext& context, int32_t size,
                              float threshold) {
  const int32_t first = static_cast<int32_t>(threadIdx.x) * CandidatesOfThread(size);
  const int32_t end = min(first + CandidatesOfThread(size), size);
  const auto mass_at = [&](int32_t at) {
    const float value = storage.candidates[at];
    return value >= threshold ? context.mass_of(value) : 0;
  };
  uint64_t sum = 0;
  for (int32_t at = first; at < end; ++at) sum += mass_at(at);
  uint64_t total, before = ExclusiveSum(storage.select, sum, total);
  const uint64_t draw = __umul64hi(storage.draw_bits, total);
  if (draw < before || draw >= before + sum) return;
  for (int32_t at = first; at < end; ++at) {  // only one thread runs this
    const uint64_t mass[] = {mass_at(at)};
    WriteWherePassed(mass, before, draw, context.token, [&](int) {
      return storage.groups[at / kSamplingGroup] * kSamplingGroup + at % kSamplingGroup;
    });
    before += mass[0];
  }
}

// Draws a chunk with probability proportional to mass_of_chunk(chunk), then one of its tokens among
// the logits at or above `threshold`, whose masses are relative to reference_of(chunk).
template <typename MassOfChunk, typename ReferenceOf>
__device__ void DrawFromChunks(PickStorage& storage, const RowContext& context, float threshold,
                               const MassOfChunk& mass_of_chunk, const ReferenceOf& reference_of) {
  const auto own = static_cast<int32_t>(threadIdx.x);
  const uint64_t own_mass = own < context.num_chunks ? mass_of_chunk(own) : 0;
  uint64_t total, before = ExclusiveSum(storage.select, own_mass, total);
  const uint64_t draw = __umul64hi(storage.draw_bits, total);
  if (before <= draw && draw < before + own_mass) {
    storage.chunk = own;
    storage.residual = draw - before;
    storage.select.shared = own_mass;
  }
  __syncthreads();

  constexpr int kItems = kSamplingChunk / kPickThreads;
  static_assert(kItems % 4 == 0, "a thread reads whole vectors of the chunk");
  const int32_t chunk = storage.chunk;
  const MassOf mass_of(reference_of(chunk), context.rule.temperature);
  const int32_t first = chunk * kSamplingChunk + static_cast<int32_t>(threadIdx.x) * kItems;
  uint64_t mass[kItems], sum = 0;
#pragma unroll
  for (int i = 0; i < kItems; i += 4) {
    const float4 x =
        LoadLogits(context.row.logits, first + i, context.row.vocab_size, context.row.vector_loads);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float value = Component(x, c);
      mass[i + c] = value >= threshold ? mass_of(value) : 0;
      sum += mass[i + c];
    }
  }
  uint64_t own_total;
  before = ExclusiveSum(storage.select, sum, own_total);
  // Converts from the unit of the row to that of the chunk, if they differ.
  uint64_t scaled = storage.residual;
  if (own_total != storage.select.shared) {
    const double place = static_cast<double>(storage.residual) / storage.select.shared;
    scaled = __double2ull_rd(place * own_total);
    if (scaled >= own_total) scaled = own_total - 1;
  }
  WriteWherePassed(mass, before, scaled, context.token, [&](int i) { return first + i; });
}

// The rank of a candidate among all.
struct Standing {
  int32_t own = -1;    // its place among those that were found; -1: this thread has none
  int32_t larger = 0;  // how many are larger
  int32_t before = 0;  // how many have lower ids
  uint64_t above = 0;  // the mass of those that are larger
};

// Compares the first `count` candidates with each other. Up to eight threads share one candidate,
// as many as are available; the first of them gets the result.
__device__ __forceinline__ Standing RankCompared(int32_t count, const Compared& compared) {
  static_assert(kMaxCompared <= kPickThreads);
  int32_t sharing = 1;
  while (sharing < 8 && 2 * sharing * count <= kPickThreads) sharing *= 2;
  const int32_t of = static_cast<int32_t>(threadIdx.x) / sharing;
  const int32_t part = static_cast<int32_t>(threadIdx.x) % sharing;
  Standing standing;
  if (of < count) {
    const float value = compared.values[of];
    const int32_t id = compared.ids[of];
    for (int32_t j = part; j < count; j += sharing) {
      const bool is_larger = compared.values[j] > value;
      standing.larger += is_larger;
      standing.above += is_larger ? compared.masses[j] : 0;
      standing.before += compared.ids[j] < id;
    }
  }
  for (int32_t offset = sharing / 2; offset > 0; offset /= 2) {
    standing.larger += __shfl_xor_sync(0xffffffffu, standing.larger, offset);
    standing.before += __shfl_xor_sync(0xffffffffu, standing.before, offset);
    standing.above += __shfl_xor_sync(0xffffffffu, standing.above, offset);
  }
  if (of < count && part == 0) standing.own = of;
  return standing;
}

// Applies top-k and top-p to the first `count` of `compared`, which hold everything at or above a
// bound, and draws. Returns false if they are `partial` and have too little mass for top-p, and
// otherwise calls suffice() as soon as it knows.
template <typename Suffice>
__device__ bool SampleCompared(PickStorage& storage, const RowContext& context, int32_t count,
                               const Compared& compared, bool partial, const Suffice& suffice) {
  const SamplingRule& rule = context.rule;
  const bool top_k = HasTopK(rule, context.row.vocab_size);
  const Standing standing = RankCompared(count, compared);
  const bool exists = standing.own >= 0;
  uint64_t kept =
      exists && (!top_k || standing.larger < rule.top_k) ? compared.masses[standing.own] : 0;
  if (rule.top_p < 1) {
    const uint64_t of_kept = BlockSum(storage.select, kept);
    const uint64_t total = top_k ? of_kept : context.row_mass;
    const uint64_t target = MassToKeep(rule, total);
    if (of_kept < target && partial && !top_k) return false;
    if (standing.above >= target) kept = 0;
  }
  suffice();
  if (exists) {
    compared.kept_masses[standing.before] = kept;
    compared.ordered_ids[standing.before] = compared.ids[standing.own];
  }
  __syncthreads();
  const int32_t place = threadIdx.x;
  const uint64_t mass = place < count ? compared.kept_masses[place] : 0;
  uint64_t total;
  const uint64_t before = ExclusiveSum(storage.select, mass, total);
  const uint64_t draw = __umul64hi(storage.draw_bits, total);
  if (before <= draw && draw < before + mass) *context.token = compared.ordered_ids[place];
  return true;
}

// Applies top-k, of at most kMaxCandidateGroups, and top-p to the candidates and draws. Returns
// false if the candidates do not suffice, and otherwise calls suffice() as soon as it knows.
template <typename Suffice>
__device__ bool SampleCandidates(PickStorage& storage, const RowContext& context,
                                 const Maxima& maxima, const Suffice& suffice) {
  const int32_t top_k = HasTopK(context.rule, context.row.vocab_size) ? context.rule.top_k : 0;
  // k groups whose maxima reach a bound contain at least k logits that do, so any such bound works.
  const uint64_t wanted = top_k > 0 ? top_k : kTopPGroups;
  const Selection bound =
      SelectThreshold(storage.select, maxima, One(), context.highest, context.lowest, wanted,
                      Max64()(wanted, kEnoughGroups), true);
  const Compared compared(storage);
  const int32_t count = CollectCompared(storage, context, maxima, bound.threshold, compared);
  if (count >= 0) return SampleCompared(storage, context, count, compared, bound.reached, suffice);
  if (storage.num_groups > kMaxCandidateGroups) return false;
  const int32_t size = GatherCandidates(storage, context, bound.threshold);
  float threshold = bound.threshold;
  const ArraySource candidates{storage.candidates, size};
  if (!ApplyRule(storage, context, candidates, bound.reached, threshold)) return false;
  suffice();
  DrawCandidate(storage, context, size, threshold);
  return true;
}

// Whether to try the candidates. A top-p that must keep more logits than they usually are, each of
// which has at most the mass of the largest, does not; and where blocks share a row, nor does one
// that must keep more than are compared.
__device__ __forceinline__ bool MayTakeCandidates(const RowContext& context) {
  const SamplingRule& rule = context.rule;
  if (HasTopK(rule, context.row.vocab_size)) return rule.top_k <= kMaxCandidateGroups;
  const uint64_t most = context.ranks > 1 ? kMaxCompared : kEnoughGroups * kSamplingGroup;
  return MassToKeep(rule, context.row_mass) <= most << 40;
}

// A logit that top-p probably does not drop: the smallest one kept has at least an equal share of
// the mass that may be dropped. Halved, and less what rounding could add.
__device__ __forceinline__ float TopPHint(const RowContext& context, uint64_t total) {
  const float droppable = 0.5f * (1 - context.rule.top_p - 1e-5f);
  if (!(droppable > 0)) return context.lowest;
  const float share = droppable * static_cast<float>(total) /
                      (MassOf::kOne * static_cast<float>(context.row.vocab_size));
  const float hint =
      fminf(context.highest + context.rule.temperature * logf(share), context.highest);
  return fmaxf(context.lowest, hint);
}

// Applies top-k and top-p to a whole row and draws. All ranks call this; rank 0 writes the token.
// It is inlined, because a call needs a stack, which every launch pays for.
__device__ __forceinline__ void SampleRow(PickStorage& storage, const RowContext& context) {
  RowShare& share = *reinterpret_cast<RowShare*>(storage.candidates);
  SharedRow row{storage.select, share, context};
  const SamplingRule& rule = context.rule;
  // Selects among the listed logits, of which all ranks then have `gathered`.
  const auto select = [&](const auto& weight, const ShareInterval& interval, int32_t listed,
                          uint64_t target) {
    if (interval.closed()) return interval.high;
    return SelectThreshold(storage.select, ArraySource{share.gathered, listed}, weight,
                           interval.high, interval.low, target, 0, false)
        .threshold;
  };
  row.Begin();
  ShareInterval interval;
  int32_t listed = 0;
  float threshold = context.lowest;
  uint64_t total = context.row_mass, target = 0;
  const bool top_k = HasTopK(rule, context.row.vocab_size), top_p = rule.top_p < 1;
  if (top_k) {
    target = static_cast<uint64_t>(rule.top_k);
    listed = row.FindInterval(interval, One(), threshold, threshold, target);
    target -= min(target, row.SumOfRanks(&RowShare::Head::count_above));
    if (top_p) {
      row.Gather();
      threshold = select(One(), interval, listed, target);
      __syncthreads();  // an earlier sum has been read
      total = row.SumOfRanks(&RowShare::Head::mass_above) +
              MassFrom(storage, context, ArraySource{share.gathered, listed}, threshold);
      row.Barrier();  // every rank has read the lists
    }
  }
  if (top_p) {
    target = MassToKeep(rule, total);
    listed = row.FindInterval(interval, context.mass_of, fmaxf(threshold, TopPHint(context, total)),
                              threshold, target);
    target -= min(target, row.SumOfRanks(&RowShare::Head::mass_above));
  }
  if (context.rank == 0) row.Gather();
  if (context.ranks > 1) ptx::ClusterArrive();  // rank 0 has what it reads of the others
  if (context.rank == 0) {
    threshold = top_p ? select(context.mass_of, interval, listed, target)
                      : select(One(), interval, listed, target);
    __syncthreads();
    for (int32_t i = threadIdx.x; i < listed; i += kPickThreads) {
      if (share.gathered[i] < threshold) continue;
      AddToBin(&share.chunk_masses[share.gathered_chunks[i]], context.mass_of(share.gathered[i]));
    }
    __syncthreads();
    DrawFromChunks(
        storage, context, threshold, [&](int32_t chunk) { return share.chunk_masses[chunk]; },
        [&](int32_t) { return context.highest; });
  }
  if (context.ranks > 1) ptx::ClusterWait();
}

// Without kClusters a row has one block. Blocks of a cluster, except the first, leave at once if
// the row's rule cannot need them.
template <bool kClusters>
__global__ void __launch_bounds__(kPickThreads)
    PickKernel(const __grid_constant__ SamplingParams params,
               const __grid_constant__ SamplingPlan plan) {
  extern __shared__ uint4 memory[];
  PickStorage& storage = *reinterpret_cast<PickStorage*>(memory);
  ptx::GridDependencyLaunch();
  const int32_t ranks = kClusters ? plan.ranks : 1;
  const int64_t row = blockIdx.x / static_cast<uint32_t>(ranks);
  const auto rank = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(ranks));
  // The rules are uploaded before the step's first kernel.
  const SamplingRule rule = params.rules[row];
  const bool top_k = HasTopK(rule, params.vocab_size);
  const bool needs_threshold = rule.temperature > 0 && NeedsThreshold(rule, params.vocab_size);
  // Up to kMaxCandidateGroups, top-k needs the whole row only if more logits tie.
  const bool shared = kClusters && needs_threshold && (!top_k || rule.top_k > kMaxCandidateGroups);
  if (rank > 0 && !shared) return;
  ClearBins(storage.select);
  if (threadIdx.x == 0) storage.num_groups = storage.num_found = 0;
  if (threadIdx.x == kPickThreads - 1 && rule.temperature > 0) {
    storage.draw_bits = DrawBits(rule.seed, rule.offset);
  }
  ptx::GridDependencyWait();

  const ChunkStats* const stats = plan.stats + row * plan.num_chunks;
  uint64_t own_best = 0;
  if (params.best != nullptr && !(rule.temperature > 0)) {
    for (int32_t part = threadIdx.x; part < params.best_parts; part += kPickThreads) {
      own_best = Max64()(own_best, params.best[row * params.best_parts + part]);
    }
  } else {
    for (int32_t chunk = threadIdx.x; chunk < plan.num_chunks; chunk += kPickThreads) {
      own_best = Max64()(own_best, stats[chunk].best);
    }
  }
  // The maxima arrive while the best logit is reduced.
  Maxima maxima{
      .values = plan.group_maxima + row * plan.num_groups, .size = plan.num_groups, .held = {}};
  if (needs_threshold) maxima.Load();
  const uint64_t best = BlockReduce(storage.select, own_best, Max64());
  const float highest = BestLogit(best);
  if (!(rule.temperature > 0) || highest == -INFINITY) {
    if (rank == 0 && threadIdx.x == 0) params.tokens[row] = BestId(best);
    return;
  }

  constexpr float kMasslessDistance = 41 * 0.69314718f;  // logits further below the largest have a
                                                         // mass that rounds to 0
  RowContext context{
      .row = {params.logits + row * params.logits_stride, static_cast<int32_t>(params.vocab_size),
              plan.vector_loads},
      .stats = stats,
      .group_maxima = plan.group_maxima + row * plan.num_groups,
      .num_chunks = plan.num_chunks,
      .num_groups = plan.num_groups,
      .rule = rule,
      .mass_of = MassOf(highest, rule.temperature),
      .highest = highest,
      .lowest = fmaxf(highest - kMasslessDistance * rule.temperature, -FLT_MAX),
      .token = params.tokens + row,
      .ranks = shared ? ranks : 1,
      .rank = rank,
  };
  if (!needs_threshold) {
    DrawFromChunks(
        storage, context, -INFINITY, [&](int32_t chunk) { return ScaledChunkMass(context, chunk); },
        [&](int32_t chunk) { return BestLogit(stats[chunk].best); });
    return;
  }
  if (!top_k) context.row_mass = RowMass(storage, context);
  if (MayTakeCandidates(context)) {
    if (shared) ptx::ClusterArrive();  // this block has started
    if (rank == 0) {
      const auto tell = [&](bool needs_row) {
        if (!shared) return;
        ptx::ClusterWait();
        const uint32_t other = threadIdx.x;
        if (other > 0 && other < static_cast<uint32_t>(context.ranks)) {
          *ptx::ClusterPointer(&storage.needs_row, other) = needs_row;
        }
        __syncwarp();
        ptx::ClusterArriveRelease();
      };
      const bool done = SampleCandidates(storage, context, maxima, [&] { tell(false); });
      if (!done) tell(true);
      if (shared) ptx::ClusterWait();
      if (done) return;
    } else {
      ptx::ClusterWait();
      ptx::ClusterArrive();
      ptx::ClusterWait();
      if (!storage.needs_row) return;
    }
  }
  SampleRow(storage, context);
}

}  // namespace tokline
