// Selection and draw over a whole row, for rules whose candidates do not suffice: a large k, a flat
// top-p, many ties.
//
// Grid: the blocks of a cluster share a row, or one block has it alone. Rank r takes every ranks-th
//   chunk from r on, in L2 after the first kernel. All sums are of integers, so the token does not
//   depend on the number of ranks.
// Rounds: a pass adds up the weights of kShareBins bins, which the ranks read from each other; the
//   bin in which the running sum crosses the target becomes the next interval. A second pass adds
//   up, per chunk, what lies above the interval, and lists what lies in it. Usually the lists hold
//   few logits: every rank reads them all and selects among them. If they overflow, the interval is
//   divided again. Bins of the first round are linear in the logit, later ones in the order of the
//   floats: three divisions reach a single float if it is not near 0.
// Barriers: one of the cluster after each pass, and one before a block that others read leaves.
#pragma once

#include "kernels/device/ptx/cluster.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/sampling/row_context_device.cuh"
#include "kernels/sampling/select_device.cuh"

namespace tokline {

inline constexpr int kShareBins = 512;
inline constexpr int kShareListed = 3072;  // of all ranks together
static_assert(kShareBins < kPickThreads, "a thread has a bin, and one the weight above");

// What the ranks read from each other. It lies at the same address in each.
struct RowShare {
  struct Head {
    uint64_t mass_above, count_above;  // of the interval, in the rank's chunks
    int32_t num_listed;                // may exceed what is stored
  };
  Head head;
  uint64_t bins[2][kShareBins];  // rounds take turns
  uint64_t above[2];             // weight above the interval in a round
  uint64_t chunk_masses[kMaxSamplingVocab / kSamplingChunk];  // above the interval
  float listed[kShareListed];                                 // in the interval
  uint16_t listed_chunks[kShareListed];

  // What all ranks have listed, and their heads.
  float gathered[kShareListed];
  uint16_t gathered_chunks[kShareListed];
  Head heads[kMaxPickRanks];
};

// An interval of logits. It is closed when it is a single float, which then counts as above.
struct ShareInterval {
  float high, low;
  __device__ __forceinline__ bool closed() const { return !(low < high); }
};

__device__ __forceinline__ uint32_t OrderedKey(float logit) {
  return static_cast<uint32_t>(PackBest(logit + 0.0f, 0) >> 32);
}
__device__ __forceinline__ float LogitOfKey(uint32_t key) { return BestLogit(uint64_t{key} << 32); }

// Bins that are linear in the logit. Halves, because a difference of two floats can overflow.
struct LinearBins {
  ShareInterval interval;
  float scale;

  __device__ __forceinline__ explicit LinearBins(const ShareInterval& whole)
      : interval(whole),
        scale(static_cast<float>(fmin(
            2 * kShareBins / (static_cast<double>(whole.high) - whole.low), double{FLT_MAX}))) {}
  __device__ __forceinline__ int operator()(float logit) const {
    return min(static_cast<int>(fmaf(-0.5f, logit, 0.5f * interval.high) * scale), kShareBins - 1);
  }
  // The edges of a bin, widened by more than the rounding of its number, enclose its logits.
  __device__ __forceinline__ ShareInterval Of(int bin) const {
    const double width = 2 / static_cast<double>(scale), slack = 1e-3 * width;
    const double top = interval.high - bin * width;
    return {fminf(interval.high, static_cast<float>(top + slack)),
            bin == kShareBins - 1 ? interval.low
                                  : fmaxf(interval.low, static_cast<float>(top - width - slack))};
  }
};

// Bins of equally many floats, a power of two.
struct OrderedBins {
  uint32_t high, low;
  int shift;

  __device__ __forceinline__ explicit OrderedBins(const ShareInterval& whole)
      : high(OrderedKey(whole.high)), low(OrderedKey(whole.low)), shift(0) {
    while ((high - low) >> shift >= kShareBins) ++shift;
  }
  __device__ __forceinline__ int operator()(float logit) const {
    return static_cast<int>((high - OrderedKey(logit)) >> shift);
  }
  __device__ __forceinline__ ShareInterval Of(int bin) const {
    const uint32_t top = high - (static_cast<uint32_t>(bin) << shift);
    const uint32_t width = (uint32_t{1} << shift) - 1;
    return {LogitOfKey(top), LogitOfKey(top - min(width, top - low))};
  }
};

// The sum of a warp's masses of at most four logits each.
__device__ __forceinline__ uint64_t WarpSumOfFew(uint64_t mass) {
  constexpr int kBits = 21;
  static_assert(uint64_t{4} << 40 < uint64_t{1} << (2 * kBits + 1));
  const uint32_t low =
      __reduce_add_sync(0xffffffffu, static_cast<uint32_t>(mass) & ((1u << kBits) - 1));
  const uint32_t high = __reduce_add_sync(0xffffffffu, static_cast<uint32_t>(mass >> kBits));
  return (uint64_t{high} << kBits) + low;
}

// A row that `ranks` blocks select from together. All of them call every function alike.
struct SharedRow {
  SelectStorage& select;
  RowShare& share;
  const RowContext& context;
  int turn = 0;

  __device__ __forceinline__ void Barrier() const {
    if (context.ranks > 1) {
      ptx::ClusterSync();
    } else {
      __syncthreads();
    }
  }
  __device__ __forceinline__ const RowShare& Of(int32_t rank) const {
    return context.ranks > 1 ? *ptx::ClusterPointer(&share, static_cast<uint32_t>(rank)) : share;
  }

  // Calls f(chunk, logits) for the rank's chunks; a thread has the same four logits of each.
  template <typename F>
  __device__ __forceinline__ void ForEachChunk(const F& f) const {
    constexpr int kUnroll = 4;
    static_assert(kSamplingChunk == 4 * kPickThreads);
    for (int32_t first = context.rank; first < context.num_chunks;
         first += kUnroll * context.ranks) {
      float4 x[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int32_t chunk = first + u * context.ranks;
        x[u] = LoadLogits(context.row.logits,
                          chunk * kSamplingChunk + static_cast<int32_t>(threadIdx.x) * 4,
                          context.row.vocab_size, context.row.vector_loads);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int32_t chunk = first + u * context.ranks;
        if (chunk < context.num_chunks) f(chunk, x[u]);
      }
    }
  }

  __device__ __forceinline__ void ClearRound(int round) const {
    for (int i = threadIdx.x; i < kShareBins; i += kPickThreads) share.bins[round][i] = 0;
    if (threadIdx.x == 0) share.above[round] = 0;
  }
  // The first call.
  __device__ __forceinline__ void Begin() const {
    __syncthreads();  // the storage has been read
    ClearRound(turn);
    __syncthreads();
  }

  // Narrows the interval to the bin in which the weight reaches `target`. Returns false, and leaves
  // the interval, if it does not.
  template <typename Bins, typename Weight>
  __device__ bool Narrow(ShareInterval& interval, const Weight& weight, uint64_t target) {
    const Bins bin_of(interval);
    uint64_t* const bins = share.bins[turn];
    uint64_t above = 0;
    uint64_t run = 0;  // not yet added to run_bin: neighbours share a bin where logits tie
    int run_bin = 0;
    if (threadIdx.x == 0) select.bin = -1;
    ForEachChunk([&](int32_t, const float4& x) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = Component(x, i);
        if (!(value >= interval.low)) continue;
        if (value > interval.high) {
          above += weight(value);
          continue;
        }
        const int bin = bin_of(value);
        if (bin != run_bin) {
          if (run > 0) AddToBin(&bins[run_bin], run);
          run_bin = bin;
          run = 0;
        }
        run += weight(value);
      }
    });
    if (run > 0) AddToBin(&bins[run_bin], run);
    above = WarpSum(above);
    if (threadIdx.x % 32 == 0 && above > 0) AddToBin(&share.above[turn], above);
    Barrier();
    ClearRound(turn ^ 1);  // every rank has read it
    // Thread 0 has the weight above, the others a bin each.
    const int bin = static_cast<int>(threadIdx.x) - 1;
    uint64_t own = 0;
    if (bin < kShareBins) {
#pragma unroll
      for (int32_t rank = 0; rank < kMaxPickRanks; ++rank) {
        if (rank >= context.ranks) break;
        const RowShare& other = Of(rank);
        own += bin < 0 ? other.above[turn] : other.bins[turn][bin];
      }
    }
    turn ^= 1;
    uint64_t total;
    const uint64_t before = ExclusiveSum(select, own, total);
    if (bin >= 0 && before < target && before + own >= target) select.bin = bin;
    __syncthreads();
    if (select.bin < 0) return false;
    interval = bin_of.Of(select.bin);
    return true;
  }

  // Adds up a member of all ranks' heads, which are in shared memory after Collect().
  template <typename T>
  __device__ __forceinline__ T SumOfRanks(T RowShare::Head::*member) const {
    T sum = 0;
#pragma unroll
    for (int32_t rank = 0; rank < kMaxPickRanks; ++rank) {
      if (rank < context.ranks) sum += share.heads[rank].*member;
    }
    return sum;
  }

  // Adds up what lies above the interval and lists what lies in it. Returns the number of logits
  // that all ranks have listed, or -1 if there are too many.
  __device__ int32_t Collect(const ShareInterval& interval) {
    if (static_cast<int32_t>(threadIdx.x) < context.num_chunks) share.chunk_masses[threadIdx.x] = 0;
    if (threadIdx.x == 0) share.head = {};
    __syncthreads();
    const bool closed = interval.closed();
    uint64_t mass_above = 0, count_above = 0;
    ForEachChunk([&](int32_t chunk, const float4& x) {
      uint64_t mass = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = Component(x, i);
        if (!(value >= interval.low)) continue;
        if (value > interval.high || closed) {
          mass += context.mass_of(value);
          ++count_above;
          continue;
        }
        const int32_t place = atomicAdd(&share.head.num_listed, 1);
        if (place >= kShareListed) continue;
        share.listed[place] = value;
        share.listed_chunks[place] = static_cast<uint16_t>(chunk);
      }
      __syncwarp();
      mass = WarpSumOfFew(mass);
      if (threadIdx.x % 32 == 0 && mass > 0) AddToBin(&share.chunk_masses[chunk], mass);
      mass_above += mass;
    });
    count_above = WarpSum(count_above);
    if (threadIdx.x % 32 == 0 && count_above > 0) {
      AddToBin(&share.head.mass_above, mass_above);
      AddToBin(&share.head.count_above, count_above);
    }
    Barrier();
    if (static_cast<int32_t>(threadIdx.x) < context.ranks) {
      share.heads[threadIdx.x] = Of(static_cast<int32_t>(threadIdx.x)).head;
    }
    __syncthreads();
    const auto listed = SumOfRanks(&RowShare::Head::num_listed);
    return listed <= kShareListed ? listed : -1;
  }

  // Brings what all ranks have listed, and the masses of the chunks above the interval, into this
  // block. The values are in shared memory when a barrier has followed.
  __device__ void Gather() const {
    const int32_t threads = kPickThreads / context.ranks;  // per rank
    const int32_t rank = static_cast<int32_t>(threadIdx.x) / threads;
    const RowShare& other = Of(rank);
    int32_t before = 0;
#pragma unroll 1
    for (int32_t r = 0; r < rank; ++r) before += share.heads[r].num_listed;
    for (int32_t i = static_cast<int32_t>(threadIdx.x) % threads; i < share.heads[rank].num_listed;
         i += threads) {
      share.gathered[before + i] = other.listed[i];
      share.gathered_chunks[before + i] = other.listed_chunks[i];
    }
    const auto chunk = static_cast<int32_t>(threadIdx.x);
    if (chunk >= context.num_chunks || chunk % context.ranks == context.rank) return;
    share.chunk_masses[chunk] = Of(chunk % context.ranks).chunk_masses[chunk];
  }

  // Finds an interval that holds the threshold at which the weight reaches `target`, few enough
  // logits of which are listed. The search starts in `hint`; if the weight in it does not suffice,
  // it goes on from `low`; if rounding alone keeps it from being reached, everything is kept.
  template <typename Weight>
  __device__ int32_t FindInterval(ShareInterval& interval, const Weight& weight, float hint,
                                  float low, uint64_t target) {
    bool reached = false;
#pragma unroll 1  // twice the code would take longer to load than to run
    for (float from = hint;; from = low) {
      interval = {context.highest, from};
      reached = !interval.closed() && Narrow<LinearBins>(interval, weight, target);
      if (reached || from == low) break;
    }
    if (!reached) interval = {low, low};
#pragma unroll 1
    while (true) {
      const int32_t listed = Collect(interval);
      if (listed >= 0) return listed;
      Narrow<OrderedBins>(interval, weight, target);
    }
  }
};

}  // namespace tokline
