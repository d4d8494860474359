// The exchange of slabs of rows between ranks, the sum of their partials, and RMSNorm.
//
// Grid: x: blocks, each of which takes every gridDim.x-th slab; y: the rank if one grid runs all
// ranks. Each warp handles one row of the slab. A block first sends its partials of all slabs that
// belong to other ranks, then sums the slabs of its own rank and sends the sums to all, and finally
// takes the sums of the other ranks. Rows are sent as they are. Once a block has sent a slab, one
// thread releases a flag with the number of the launch, which one thread of the receiving block
// acquires. Successive launches alternate between two sets of places and flags; see
// all_reduce_norm_device.cuh for why that is enough. Nothing but flags is ever written to the place
// of a flag. Progress: all blocks are resident, and slab s is sent and taken by the same block of
// all ranks. The block sends before it waits, and its sums wait for partials only.
#pragma once

#include "kernels/all_reduce_norm/rank_launch_device.cuh"
#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/ordered_system.cuh"
#include "kernels/device/reduce.cuh"

namespace tokline {

template <typename T, int kRanksInGrid>
struct SlabsPolicy {
  using Type = T;
  static constexpr int kRanks = kRanksInGrid;
  static constexpr int kMaxThreads = 512;
  static constexpr int kMinBlocks =
      2;  // per SM, with the most threads; PlanAllReduceNorm assumes this
};

// Eight neighbouring elements of a row.
struct Octet {
  float v[8];
};

template <typename T>
__device__ __forceinline__ Octet Unpack8(uint4 packed) {
  const float2 a = Unpack2<T>(packed.x), b = Unpack2<T>(packed.y);
  const float2 c = Unpack2<T>(packed.z), d = Unpack2<T>(packed.w);
  return {a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y};
}

template <typename T>
__device__ __forceinline__ uint4 Pack8(const Octet& o) {
  return {Pack2<T>(o.v[0], o.v[1]), Pack2<T>(o.v[2], o.v[3]), Pack2<T>(o.v[4], o.v[5]),
          Pack2<T>(o.v[6], o.v[7])};
}

// The places and flags of this launch at all ranks.
class SlabExchange : public RankLaunch {
 public:
  __device__ __forceinline__ SlabExchange(const AllReduceNormParams& params,
                                          const AllReduceSlabs& slabs)
      : RankLaunch(params.peers, params.time_limit_ms), slabs_(slabs) {
    constexpr int64_t kFlagBytes = kAllReduceSlabFlags * sizeof(uint32_t);
    const int64_t begin = peers_.bytes - peers_.slab_bytes;
    const int64_t room = (peers_.slab_bytes - 2 * kFlagBytes) / 2 / 16 * 16;
    flags_ = begin + Turn() * kFlagBytes;
    rows_ = begin + 2 * kFlagBytes + Turn() * room;
  }

  // The places of a slab: one for the partial from `source` of a slab that the receiver owns, and
  // one for a slab's sum.
  __device__ __forceinline__ int64_t PartialOf(int source, int64_t slab) const {
    return int64_t{source} * slabs_.owned + slab / peers_.world_size;
  }
  __device__ __forceinline__ int64_t SumOf(int64_t slab) const {
    return int64_t{peers_.world_size} * slabs_.owned + slab;
  }
  // Returns this warp's row in a place at a rank. A row has `vectors` times 16 bytes.
  __device__ __forceinline__ uint4* Row(int rank, int64_t place, int64_t vectors) const {
    const int64_t row = place * slabs_.rows + threadIdx.x / 32;
    return reinterpret_cast<uint4*>(Base(rank) + rows_) + row * vectors;
  }

  // Signals that all threads of the block have written to the place at the rank, or at all peers.
  __device__ __forceinline__ void Signal(int rank, int64_t place) const {
    __syncthreads();
    if (threadIdx.x == 0) ptx::StoreReleaseSystem4(Flag(rank, place), launch_);
  }
  __device__ __forceinline__ void SignalPeers(int64_t place) const {
    __syncthreads();
    const auto rank = static_cast<int>(threadIdx.x);
    if (IsPeer(rank)) ptx::StoreReleaseSystem4(Flag(rank, place), launch_);
  }
  // Returns when `source` has written to the place at this rank.
  __device__ __forceinline__ void Await(int source, int64_t place) {
    if (threadIdx.x == 0) {
      Deadline deadline;
      const void* const flag = Flag(peers_.rank, place);
      while (ptx::LoadAcquireSystem4(flag) != launch_ && !Failed()) Poll(deadline, source);
    }
    __syncthreads();
  }
  using RankLaunch::IsPeer;

 private:
  __device__ __forceinline__ char* Base(int rank) const {
    return static_cast<char*>(peers_.buffers[rank]);
  }
  __device__ __forceinline__ uint32_t* Flag(int rank, int64_t place) const {
    return reinterpret_cast<uint32_t*>(Base(rank) + flags_) + place;
  }

  AllReduceSlabs slabs_;
  int64_t flags_, rows_;  // offsets in bytes
};

// The row of one warp. A lane handles every 32nd vector and loads several before it uses any.
template <typename T>
class SlabRow {
 public:
  static constexpr int kUnrolled = 4;

  __device__ __forceinline__ SlabRow(const AllReduceNormParams& params, int64_t row)
      : params_(params), row_(row), vectors_(params.hidden_size / 8) {}

  __device__ __forceinline__ const uint4* Partial() const {
    return Of(params_.partials[params_.peers.rank], params_.partial_stride);
  }

  __device__ __forceinline__ void Copy(const uint4* from, uint4* to) const {
    ForVectors([&](const auto& at) {
      uint4 moved[kUnrolled];
      Load(from, at, moved);
      Store(to, at, moved);
    });
  }

  // Sums the partials and the residual, and sends the sum to all peers.
  __device__ __forceinline__ void Sum(const SlabExchange& exchange, int64_t slab) {
    const int world = params_.peers.world_size, rank = params_.peers.rank;
    const uint4* const own = Partial();
    const uint4* const residual = Of(params_.residual, params_.residual_stride);
    ForVectors([&](const auto& at) {
      uint4 packed[kUnrolled];
      Octet sums[kUnrolled];
#pragma unroll
      for (Octet& sum : sums) {
        for (float& element : sum.v) element = -0.0f;  // adding x to it gives x, even if x is -0
      }
      for (int source = 0; source < world; ++source) {
        Load(source == rank ? own : exchange.Row(rank, exchange.PartialOf(source, slab), vectors_),
             at, packed);
        Add(packed, sums);
      }
      if (params_.residual != nullptr) {
        Load(residual, at, packed);
        Add(packed, sums);
      }
#pragma unroll
      for (int i = 0; i < kUnrolled; ++i) packed[i] = Pack8<T>(sums[i]);
      for (int peer = 0; peer < world; ++peer) {
        if (peer != rank) Store(exchange.Row(peer, exchange.SumOf(slab), vectors_), at, packed);
      }
      Keep(at, packed);
    });
  }

  // Takes the sum that another rank has computed.
  __device__ __forceinline__ void Take(const uint4* sum) {
    ForVectors([&](const auto& at) {
      uint4 packed[kUnrolled];
      Load(sum, at, packed);
      Keep(at, packed);
    });
  }

  // Stores the norm of the row that was summed or taken.
  __device__ __forceinline__ void Normalise() const {
    if (params_.weight == nullptr) return;
    const float mean = WarpSum(squares_) / static_cast<float>(params_.hidden_size);
    const float scale = rsqrtf(mean + params_.eps);
    const auto* const weight = static_cast<const uint4*>(params_.weight);
    const uint4* const sum = Of(params_.residual_out, params_.residual_out_stride);
    uint4* const out = const_cast<uint4*>(Of(params_.out, params_.out_stride));
    ForVectors([&](const auto& at) {
      uint4 s[kUnrolled], w[kUnrolled];
      Load(sum, at, s);
      Load(weight, at, w);
#pragma unroll
      for (int i = 0; i < kUnrolled; ++i) {
        Octet n = Unpack8<T>(s[i]);
#pragma unroll
        for (float& element : n.v) element *= scale;
        const uint4 rounded = Pack8<T>(n);
        s[i] = {Multiply2<T>(rounded.x, w[i].x), Multiply2<T>(rounded.y, w[i].y),
                Multiply2<T>(rounded.z, w[i].z), Multiply2<T>(rounded.w, w[i].w)};
      }
      Store(out, at, s);
    });
  }

 private:
  struct Places {
    int64_t first;  // and every 32nd vector after it
    int64_t vectors;
    __device__ __forceinline__ bool Has(int i) const { return first + 32 * i < vectors; }
  };

  template <typename Work>
  __device__ __forceinline__ void ForVectors(const Work& work) const {
    for (int64_t first = threadIdx.x % 32; first < vectors_; first += 32 * kUnrolled) {
      work(Places{first, vectors_});
    }
  }
  __device__ __forceinline__ static void Load(const uint4* row, const Places& at,
                                              uint4 (&to)[kUnrolled]) {
#pragma unroll
    for (int i = 0; i < kUnrolled; ++i) to[i] = at.Has(i) ? row[at.first + 32 * i] : uint4{};
  }
  __device__ __forceinline__ static void Store(uint4* row, const Places& at,
                                               const uint4 (&from)[kUnrolled]) {
#pragma unroll
    for (int i = 0; i < kUnrolled; ++i) {
      if (at.Has(i)) row[at.first + 32 * i] = from[i];
    }
  }
  __device__ __forceinline__ static void Add(const uint4 (&packed)[kUnrolled],
                                             Octet (&sums)[kUnrolled]) {
#pragma unroll
    for (int i = 0; i < kUnrolled; ++i) {
      const Octet one = Unpack8<T>(packed[i]);
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[i].v[e] += one.v[e];
    }
  }
  __device__ __forceinline__ const uint4* Of(const void* data, int64_t stride) const {
    return reinterpret_cast<const uint4*>(static_cast<const T*>(data) + row_ * stride);
  }
  __device__ __forceinline__ void Keep(const Places& at, const uint4 (&sum)[kUnrolled]) {
    Store(const_cast<uint4*>(Of(params_.residual_out, params_.residual_out_stride)), at, sum);
#pragma unroll
    for (int i = 0; i < kUnrolled; ++i) {
      for (const float element : Unpack8<T>(sum[i]).v) squares_ = fmaf(element, element, squares_);
    }
  }

  const AllReduceNormParams& params_;
  int64_t row_;
  int64_t vectors_;
  float squares_ = 0;
};

template <typename Policy>
__global__ void __launch_bounds__(Policy::kMaxThreads, Policy::kMinBlocks)
    AllReduceSlabsKernel(const __grid_constant__ AllReduceNormArguments<Policy::kRanks> args) {
  using Row = SlabRow<typename Policy::Type>;
  ptx::GridDependencyLaunch();
  const AllReduceNormParams& params = args.ranks[Policy::kRanks == 1 ? 0 : blockIdx.y];
  const AllReduceSlabs& slabs = args.slabs;
  const int32_t world = params.peers.world_size, rank = params.peers.rank;
  const int64_t vectors = params.hidden_size / 8;
  // Calls work(slab, owner, row of this warp, whether there is such a row).
  const auto for_slabs = [&](const auto& work) {
    for (int64_t slab = blockIdx.x; slab < slabs.slabs; slab += gridDim.x) {
      const int64_t row = slab * slabs.rows + threadIdx.x / 32;
      work(slab, static_cast<int>(slab % world), row, row < params.num_tokens);
    }
  };
  ptx::GridDependencyWait();
  SlabExchange exchange(params, slabs);
  for_slabs([&](int64_t slab, int owner, int64_t index, bool there) {
    if (owner == rank) return;
    const int64_t place = exchange.PartialOf(rank, slab);
    const Row row(params, index);
    if (there) row.Copy(row.Partial(), exchange.Row(owner, place, vectors));
    exchange.Signal(owner, place);
  });
  exchange.CountLaunch();
  for_slabs([&](int64_t slab, int owner, int64_t index, bool there) {
    if (owner != rank) return;
    for (int source = 0; source < world; ++source) {
      if (source != rank) exchange.Await(source, exchange.PartialOf(source, slab));
    }
    Row row(params, index);
    if (there) row.Sum(exchange, slab);
    exchange.SignalPeers(exchange.SumOf(slab));
    if (there) row.Normalise();
  });
  for_slabs([&](int64_t slab, int owner, int64_t index, bool there) {
    if (owner == rank) return;
    exchange.Await(owner, exchange.SumOf(slab));
    if (!there) return;
    Row row(params, index);
    row.Take(exchange.Row(rank, exchange.SumOf(slab), vectors));
    row.Normalise();
  });
  exchange.Complete();
}

}  // namespace tokline
