// Second kernel: picks a row's token from what the first one stored.
//
// Grid: one block per row. Greedy rows compare the chunks' best logits, or those that linear left.
//   Rows with only a temperature draw a chunk by its mass and read only that chunk. For top-k or
//   top-p the maxima of the groups of 32 give a bound below which nothing can be kept; only the few
//   groups that reach it are examined. If at most 512 of their logits reach the bound, which is
//   usual, each is compared with all others; otherwise a selection in rounds finds the logits to
//   keep. If the groups do not suffice (large k, a flat top-p), the same selection runs over the
//   whole row, which is in L2.
// Barriers: the whole block calls every function below that takes the storage. Branches with
//   barriers depend on values that all threads share. A typical row passes nine barriers.
// Dependent launch: bins and counters are cleared before the wait; everything is read after it.
#pragma once

#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/sampling/chunk_scan_device.cuh"
#include "kernels/sampling/philox.h"
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

// Every logit of a row, which is in L2.
struct RowSource {
  const float* logits;
  int32_t vocab_size;
  bool vector_loads;

  template <typename Visit>
  __device__ __forceinline__ void ForEach(const Visit& visit) const {
    constexpr int kUnroll = 4;
    constexpr int kStride = 4 * kPickThreads;
    for (int32_t base = threadIdx.x * 4; base < vocab_size; base += kUnroll * kStride) {
      float4 x[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        x[u] = LoadLogits(logits, base + u * kStride, vocab_size, vector_loads);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int i = 0; i < 4; ++i) visit(Component(x[u], i));
      }
    }
  }
};

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
  float candidates[kMaxCandidates];
  int32_t groups[kMaxCandidateGroups];
  int32_t num_groups, num_found;  // of CollectCompared()
  int32_t chunk;                  // the drawn chunk
  uint64_t residual;              // position of the draw within the chunk's mass
  uint64_t draw_bits;
};

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

// One row's rule and values derived from it; uniform across the block.
struct RowContext {
  RowSource row;
  const ChunkStats* stats;
  const float* group_maxima;
  int32_t num_chunks;
  int32_t num_groups;
  SamplingRule rule;
  MassOf mass_of;
  float highest;  // the row's largest logit
  float lowest;   // logits below this have no mass
  int32_t* token;
};

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
  const uint64_t total =
      top_k ? MassFrom(storage, context, source, threshold) : RowMass(storage, context);
  const uint64_t target = Max64()(1, __double2ull_ru(static_cast<double>(rule.top_p) * total));
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
  // Converts from the unit of the row to that of the chunk.
  const double place = static_cast<double>(storage.residual) / storage.select.shared;
  uint64_t scaled = __double2ull_rd(place * own_total);
  if (scaled >= own_total) scaled = own_total - 1;
  WriteWherePassed(mass, before, scaled, context.token, [&](int i) { return first + i; });
}

// Computes the masses of the chunks at or above `threshold` in a pass over the row. Returns them in
// shared memory.
__device__ const uint64_t* ChunkMassesFrom(PickStorage& storage, const RowContext& context,
                                           float threshold) {
  uint64_t* const masses = storage.select.bins;
  const int32_t lane = threadIdx.x % 32;
  __syncthreads();
  for (int32_t chunk = threadIdx.x / 32; chunk < context.num_chunks; chunk += kPickWarps) {
    uint64_t mass = 0;
#pragma unroll 8
    for (int32_t i = 0; i < kSamplingChunk; i += 4 * 32) {
      const float4 x = LoadLogits(context.row.logits, chunk * kSamplingChunk + i + lane * 4,
                                  context.row.vocab_size, context.row.vector_loads);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (Component(x, c) >= threshold) mass += context.mass_of(Component(x, c));
      }
    }
    mass = WarpSum(mass);
    if (lane == 0) masses[chunk] = mass;
  }
  __syncthreads();
  return masses;
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
// bound, and draws. Returns false if they are `partial` and have too little mass for top-p.
__device__ bool SampleCompared(PickStorage& storage, const RowContext& context, int32_t count,
                               const Compared& compared, bool partial) {
  const SamplingRule& rule = context.rule;
  const bool top_k = HasTopK(rule, context.row.vocab_size);
  const Standing standing = RankCompared(count, compared);
  const bool exists = standing.own >= 0;
  uint64_t kept =
      exists && (!top_k || standing.larger < rule.top_k) ? compared.masses[standing.own] : 0;
  if (rule.top_p < 1) {
    const uint64_t of_kept = BlockSum(storage.select, kept);
    const uint64_t total = top_k ? of_kept : RowMass(storage, context);
    const uint64_t target = Max64()(1, __double2ull_ru(static_cast<double>(rule.top_p) * total));
    if (of_kept < target && partial && !top_k) return false;
    if (standing.above >= target) kept = 0;
  }
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

// Applies top-k and top-p to the candidates and draws. Returns false if the candidates do not
// suffice.
__device__ bool SampleCandidates(PickStorage& storage, const RowContext& context,
                                 const Maxima& maxima) {
  const int32_t top_k = HasTopK(context.rule, context.row.vocab_size) ? context.rule.top_k : 0;
  if (top_k > kMaxCandidateGroups) return false;
  // k groups whose maxima reach a bound contain at least k logits that do, so any such bound works.
  const uint64_t wanted = top_k > 0 ? top_k : kTopPGroups;
  const Selection bound =
      SelectThreshold(storage.select, maxima, One(), context.highest, context.lowest, wanted,
                      Max64()(wanted, kEnoughGroups), true);
  const Compared compared(storage);
  const int32_t count = CollectCompared(storage, context, maxima, bound.threshold, compared);
  if (count >= 0) return SampleCompared(storage, context, count, compared, bound.reached);
  if (storage.num_groups > kMaxCandidateGroups) return false;
  const int32_t size = GatherCandidates(storage, context, bound.threshold);
  float threshold = bound.threshold;
  const ArraySource candidates{storage.candidates, size};
  if (!ApplyRule(storage, context, candidates, bound.reached, threshold)) return false;
  DrawCandidate(storage, context, size, threshold);
  return true;
}

__global__ void __launch_bounds__(kPickThreads)
    PickKernel(const __grid_constant__ SamplingParams params,
               const __grid_constant__ SamplingPlan plan) {
  extern __shared__ uint4 memory[];
  PickStorage& storage = *reinterpret_cast<PickStorage*>(memory);
  ptx::GridDependencyLaunch();
  ClearBins(storage.select);
  if (threadIdx.x == 0) storage.num_groups = storage.num_found = 0;
  ptx::GridDependencyWait();

  const int64_t row = blockIdx.x;
  const ChunkStats* const stats = plan.stats + row * plan.num_chunks;
  const SamplingRule rule = params.rules[row];
  // While loads are in flight, one thread computes the random bits.
  if (threadIdx.x == kPickThreads - 1 && rule.temperature > 0) {
    storage.draw_bits = DrawBits(rule.seed, rule.offset);
  }
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
  // The maxima are loaded after the best logits, whose loads usually need not wait for the rule.
  // The maxima arrive while the best logit is reduced.
  Maxima maxima{
      .values = plan.group_maxima + row * plan.num_groups, .size = plan.num_groups, .held = {}};
  if (rule.temperature > 0 && NeedsThreshold(rule, params.vocab_size)) maxima.Load();
  const uint64_t best = BlockReduce(storage.select, own_best, Max64());
  const float highest = BestLogit(best);
  if (!(rule.temperature > 0) || highest == -INFINITY) {
    if (threadIdx.x == 0) params.tokens[row] = BestId(best);
    return;
  }

  constexpr float kMasslessDistance = 41 * 0.69314718f;  // logits further below the largest have a
                                                         // mass that rounds to 0
  const RowContext context{
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
  };
  if (!NeedsThreshold(rule, params.vocab_size)) {
    DrawFromChunks(
        storage, context, -INFINITY, [&](int32_t chunk) { return ScaledChunkMass(context, chunk); },
        [&](int32_t chunk) { return BestLogit(stats[chunk].best); });
    return;
  }
  if (SampleCandidates(storage, context, maxima)) return;
  float threshold = context.lowest;
  ApplyRule(storage, context, context.row, false, threshold);
  const uint64_t* const masses = ChunkMassesFrom(storage, context, threshold);
  DrawFromChunks(
      storage, context, threshold, [&](int32_t chunk) { return masses[chunk]; },
      [&](int32_t) { return highest; });
}

}  // namespace tokline
