// The exchange of packets between ranks, the sum of their partials, and RMSNorm.
//
// Grid: x: blocks, each of which takes every gridDim.x-th row; y: the rank if one grid runs all
// ranks. A thread handles the same elements of every row, four at a time, which make one packet.
//
// Packets: a packet is two atomic 64-bit words, each of which holds two elements and the number of
// the launch. So a packet is its own flag, and neither fences nor resets are needed. one_shot's
// packets may come from the projection that made the partial, for the launch that follows it. The
// number selects one of two inboxes: a rank sends for launch n only after its launch n - 1 has
// ended. For that launch all peers must have sent, and they send only after their launches n - 2
// have ended. So no rank still reads an inbox when its next packets arrive.
//
// Progress: all blocks are resident, and each sends before it waits. If the projection sends, all
// of its blocks run before any of these starts. In two_shot the sums wait for partials only.
//
// Shared memory: the sums of the warps, for two rows in turn. Barriers: one after the partials have
// been sent, and one per row.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/all_reduce_norm/all_reduce_norm_plan.h"
#include "kernels/all_reduce_norm/rank_launch_device.cuh"
#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/relaxed.cuh"
#include "kernels/device/ptx/relaxed_system.cuh"
#include "kernels/device/reduce.cuh"

namespace tokline {

template <typename T, int kMaxWorldSize, AllReduceNormVariant kOneOrTwoShot, int kRanksInGrid>
struct AllReduceNormPolicy {
  using Type = T;
  static constexpr int kMaxWorld = kMaxWorldSize;  // loops over ranks are unrolled to it
  static constexpr bool kTwoShot = kOneOrTwoShot == AllReduceNormVariant::kTwoShot;
  static constexpr int kRanks = kRanksInGrid;
};

// Four neighbouring elements of a row, packed.
using Quad = uint2;

template <typename T>
__device__ __forceinline__ float4 Unpack(Quad quad) {
  const float2 low = Unpack2<T>(quad.x), high = Unpack2<T>(quad.y);
  return {low.x, low.y, high.x, high.y};
}

template <typename T>
__device__ __forceinline__ Quad Pack(float4 v) {
  return {Pack2<T>(v.x, v.y), Pack2<T>(v.z, v.w)};
}

__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// The rows of a tensor, in quads. Without vectors the last quad of a row may be incomplete:
// elements beyond the row read as 0 and are not written.
template <typename T>
class QuadRows {
 public:
  __device__ __forceinline__ QuadRows(const void* data, int64_t stride, int32_t width, bool vectors)
      : data_(static_cast<T*>(const_cast<void*>(data))),
        stride_(stride),
        width_(width),
        vectors_(vectors) {}

  __device__ __forceinline__ explicit operator bool() const { return data_ != nullptr; }

  // The tensors may be the same one, so all loads are plain.
  __device__ __forceinline__ Quad Load(int64_t row, int32_t i) const {
    const T* at = data_ + row * stride_ + 4 * i;
    if (vectors_) return *reinterpret_cast<const Quad*>(at);
    T elements[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) elements[e] = 4 * i + e < width_ ? at[e] : FromFloat<T>(0);
    Quad quad;
    memcpy(&quad, elements, sizeof(quad));
    return quad;
  }

  // Loads data that was written before this kernel began, but by a kernel for which this one has
  // not waited itself.
  __device__ __forceinline__ Quad LoadFromL2(int64_t row, int32_t i) const {
    const T* at = data_ + row * stride_ + 4 * i;
    if (vectors_) return ptx::LoadRelaxed8(reinterpret_cast<const uint32_t*>(at));
    uint16_t elements[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      elements[e] = 4 * i + e < width_ ? __ldcg(reinterpret_cast<const uint16_t*>(at) + e) : 0;
    }
    Quad quad;
    memcpy(&quad, elements, sizeof(quad));
    return quad;
  }

  __device__ __forceinline__ void Store(int64_t row, int32_t i, Quad quad) const {
    T* at = data_ + row * stride_ + 4 * i;
    if (vectors_) {
      // The compiler would split a store of a Quad in two.
      *reinterpret_cast<uint64_t*>(at) = static_cast<uint64_t>(quad.y) << 32 | quad.x;
      return;
    }
    T elements[4];
    memcpy(elements, &quad, sizeof(quad));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (4 * i + e < width_) at[e] = elements[e];
    }
  }

 private:
  T* data_;
  int64_t stride_;
  int32_t width_;
  bool vectors_;
};

// This launch's inboxes on all ranks.
template <int kMaxWorld>
class PacketExchange : public RankLaunch {
 public:
  // `sent`: this rank's partial arrives as packets, too.
  __device__ __forceinline__ PacketExchange(const PeerBuffers& peers, int64_t time_limit_ms,
                                            bool sent)
      : RankLaunch(peers, time_limit_ms), packets_(peers, launch_), sent_(sent) {}

  __device__ __forceinline__ void Send(int rank, int64_t packet, Quad quad) const {
    packets_.Send(rank, packet, quad);
  }

  __device__ __forceinline__ void SendToPeers(int64_t packet, Quad quad) const {
#pragma unroll
    for (int distance = 1; distance < kMaxWorld; ++distance) {
      if (distance >= peers_.world_size) break;
      Send(packets_.Peer(distance), packet, quad);
    }
  }

  // Waits for a packet that `source` sends.
  __device__ __forceinline__ Quad Receive(int source, int64_t packet) {
    const char* const at = packets_.At(peers_.rank, packet);
    return Wait(source, at, ptx::LoadRelaxedSystem16(at));
  }

  // Returns the sum over all ranks, in their order. The term of rank r is packet(r) of the inbox;
  // this rank's is `own` unless it was sent.
  template <typename T, typename PacketOf>
  __device__ __forceinline__ float4 Sum(Quad own, const PacketOf& packet) {
    ulonglong2 got[kMaxWorld];
#pragma unroll
    for (int r = 0; r < kMaxWorld; ++r) {
      if (Comes(r)) got[r] = ptx::LoadRelaxedSystem16(packets_.At(peers_.rank, packet(r)));
    }
    float4 sum;
#pragma unroll
    for (int r = 0; r < kMaxWorld; ++r) {
      if (r >= peers_.world_size) break;
      const Quad part = Comes(r) ? Wait(r, packets_.At(peers_.rank, packet(r)), got[r]) : own;
      sum = r == 0 ? Unpack<T>(part) : sum + Unpack<T>(part);
    }
    return sum;
  }

 private:
  // Whether the partial of a rank arrives as packets.
  __device__ __forceinline__ bool Comes(int rank) const {
    return IsPeer(rank) || (sent_ && rank == peers_.rank);
  }

  __device__ __forceinline__ bool IsOfThisLaunch(ulonglong2 packet) const {
    return packet.x >> 32 == launch_ && packet.y >> 32 == launch_;
  }

  __device__ __forceinline__ Quad Wait(int source, const char* at, ulonglong2 packet) {
    Deadline deadline;
    while (!IsOfThisLaunch(packet) && !Failed()) {
      Poll(deadline, source);
      packet = ptx::LoadRelaxedSystem16(at);
    }
    return {static_cast<uint32_t>(packet.x), static_cast<uint32_t>(packet.y)};
  }

  RankPackets packets_;
  bool sent_;
};

// Sums over the block; every thread gets the sum. Successive calls use two sets of `sums` in turn,
// so that one barrier per call is enough.
__device__ __forceinline__ float BlockSum(float x, float (&sums)[32]) {
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  x = WarpSum(x);
  if (lane == 0) sums[warp] = x;
  __syncthreads();
  return WarpSum(lane < blockDim.x / 32 ? sums[lane] : 0.0f);
}

template <typename Policy>
class AllReduceNormRows {
 public:
  using T = typename Policy::Type;
  using Sums = float[2][32];

  __device__ __forceinline__ AllReduceNormRows(const AllReduceNormParams& params, bool vectors,
                                               Sums& sums)
      : params_(params),
        width_(static_cast<int32_t>(params.hidden_size)),
        quads_((width_ + 3) / 4),
        partial_(params.partials[params.peers.rank], params.partial_stride, width_, vectors),
        residual_(params.residual, params.residual_stride, width_, vectors),
        weight_(params.weight, 0, width_, vectors),
        residual_out_(params.residual_out, params.residual_out_stride, width_, vectors),
        out_(params.out, params.out_stride, width_, vectors),
        sums_(sums) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (weight_ && thread < quads_) first_weight_ = weight_.Load(0, thread);
  }

  __device__ __forceinline__ void OneShot(PacketExchange<Policy::kMaxWorld>& exchange) {
    const auto packet = [&](int rank, int64_t row, int32_t quad) {
      return (rank * params_.num_tokens + row) * quads_ + quad;
    };
    if (params_.sent) {
      // The projection is still at work, and one thread per block that polls disturbs it little.
      if (threadIdx.x == 0)
        exchange.Receive(params_.peers.rank, packet(params_.peers.rank, blockIdx.x, 0));
    } else {
      for (int64_t row = blockIdx.x; row < params_.num_tokens; row += gridDim.x) {
        const int64_t first = packet(params_.peers.rank, row, 0);
        ForQuads([&](int32_t i) { exchange.SendToPeers(first + i, partial_.Load(row, i)); });
      }
    }
    exchange.CountLaunch();
    for (int64_t row = blockIdx.x; row < params_.num_tokens; row += gridDim.x) {
      Finish(row, [&](int32_t i) {
        const int32_t at = params_.sent ? SentPacket(params_.num_tokens, quads_, i) : i;
        return SumOf(exchange, row, i, [&](int r) { return packet(r, row, at); });
      });
    }
  }

  // Row r belongs to rank r % world_size, which keeps it as its row r / world_size.
  __device__ __forceinline__ void TwoShot(PacketExchange<Policy::kMaxWorld>& exchange) {
    const int32_t world = params_.peers.world_size, rank = params_.peers.rank;
    const int64_t owned = (params_.num_tokens + world - 1) / world;
    const auto sum_packet = [&](int64_t row) { return (world * owned + row) * quads_; };
    for (int64_t row = blockIdx.x; row < params_.num_tokens; row += gridDim.x) {
      const auto owner = static_cast<int32_t>(row % world);
      const int64_t first = (rank * owned + row / world) * quads_;
      if (owner == rank) continue;
      ForQuads([&](int32_t i) { exchange.Send(owner, first + i, partial_.Load(row, i)); });
    }
    exchange.CountLaunch();
    for (int64_t row = blockIdx.x; row < params_.num_tokens; row += gridDim.x) {
      if (row % world != rank) continue;
      Finish(row, [&](int32_t i) {
        const Quad sum =
            SumOf(exchange, row, i, [&](int r) { return (r * owned + row / world) * quads_ + i; });
        exchange.SendToPeers(sum_packet(row) + i, sum);
        return sum;
      });
    }
    for (int64_t row = blockIdx.x; row < params_.num_tokens; row += gridDim.x) {
      const auto owner = static_cast<int>(row % world);
      if (owner == rank) continue;
      Finish(row, [&](int32_t i) { return exchange.Receive(owner, sum_packet(row) + i); });
    }
  }

 private:
  // Calls work(i) for this thread's quads of a row.
  template <typename Work>
  __device__ __forceinline__ void ForQuads(const Work& work) const {
    for (auto i = static_cast<int32_t>(threadIdx.x); i < quads_; i += blockDim.x) work(i);
  }

  // Returns the rounded sum of all partials and the residual. This rank's operands are loaded
  // before the wait.
  template <typename PacketOf>
  __device__ __forceinline__ Quad SumOf(PacketExchange<Policy::kMaxWorld>& exchange, int64_t row,
                                        int32_t i, const PacketOf& packet) const {
    Quad own{}, residual{};
    if (!params_.sent) own = partial_.Load(row, i);
    if (residual_) {
      residual = params_.sent ? residual_.LoadFromL2(row, i) : residual_.Load(row, i);
    }
    float4 sum = exchange.template Sum<T>(own, packet);
    if (residual_) sum = sum + Unpack<T>(residual);
    return Pack<T>(sum);
  }

  // Stores the row of sums that sum(i) returns and, with a weight, its norm.
  template <typename SumAt>
  __device__ __forceinline__ void Finish(int64_t row, const SumAt& sum) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    Quad first{};
    float squares = 0;
    ForQuads([&](int32_t i) {
      const Quad s = sum(i);
      residual_out_.Store(row, i, s);
      if (i == thread) first = s;
      const float4 v = Unpack<T>(s);
      squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));
    });
    if (!weight_) return;
    const float total = BlockSum(squares, sums_[turn_]);
    turn_ ^= 1;
    const float scale = rsqrtf(total / static_cast<float>(width_) + params_.eps);
    ForQuads([&](int32_t i) {
      const bool is_first = i == thread;
      const float4 s = Unpack<T>(is_first ? first : residual_out_.Load(row, i));
      const Quad n = Pack<T>({s.x * scale, s.y * scale, s.z * scale, s.w * scale});
      const Quad w = is_first ? first_weight_ : weight_.Load(0, i);
      out_.Store(row, i, {Multiply2<T>(n.x, w.x), Multiply2<T>(n.y, w.y)});
    });
  }

  const AllReduceNormParams& params_;
  int32_t width_;
  int32_t quads_;
  QuadRows<T> partial_, residual_, weight_, residual_out_, out_;
  Sums& sums_;
  int turn_ = 0;
  Quad first_weight_{};
};

template <typename Policy>
__global__ void __launch_bounds__(1024)
    AllReduceNormKernel(const __grid_constant__ AllReduceNormArguments<Policy::kRanks> args) {
  __shared__ typename AllReduceNormRows<Policy>::Sums sums;
  ptx::GridDependencyLaunch();
  const AllReduceNormParams& params = args.ranks[Policy::kRanks == 1 ? 0 : blockIdx.y];
  AllReduceNormRows<Policy> rows(params, args.vectors, sums);
  // A projection that sends has waited for the launch before this one. Until it ends, packets are
  // the only thing it writes that this kernel reads or writes.
  const bool early = params.sent && SumsBeforeTheEnd(params.num_tokens);
  if (!early) ptx::GridDependencyWait();
  PacketExchange<Policy::kMaxWorld> exchange(params.peers, params.time_limit_ms, params.sent);
  if constexpr (Policy::kTwoShot) {
    rows.TwoShot(exchange);
  } else {
    rows.OneShot(exchange);
  }
  if (early) ptx::GridDependencyWait();  // so that the next kernel's wait covers all earlier ones
  exchange.Complete();
}

}  // namespace tokline
