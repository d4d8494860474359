// Packets to the ranks of a group. Each word of a packet is its own flag (peer_buffers.h). Packet p
// of rank r's row t has number (r * num_tokens + t) * packets per row + p in one_shot's inbox.
//
// A projection that finishes eight elements per thread sends two packets per thread. The first
// packets of 16 threads are neighbours, and so are their second ones, so that the lanes of a warp
// fill whole lines each time: stores that leave gaps of 16 bytes take twice as long on the link.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/peer_buffers.h"
#include "kernels/device/ptx/relaxed_system.cuh"

namespace tokline {

// The number of the launch that follows `launches` others. Fresh buffers are full of zeros, so no
// launch has number 0; its place is taken by 2, with which the inboxes still alternate.
__device__ __forceinline__ uint32_t LaunchAfter(uint32_t launches) {
  return launches + 1 == 0 ? 2 : launches + 1;
}

// Whether the sum of partials that were sent begins while the projection still runs. With fewer
// tokens it is better to launch all later kernels early, so that their weights arrive meanwhile
// (README.md of all_reduce_norm).
__device__ __forceinline__ bool SumsBeforeTheEnd(int64_t num_tokens) { return num_tokens > 16; }

// The place of packet `quad` among the `quads` (an even number) of its row if the projection has
// sent it. With few tokens a thread sends less than a packet.
__device__ __forceinline__ int32_t SentPacket(int64_t num_tokens, int32_t quads, int32_t quad) {
  constexpr int kGroup = 32, kFewTokens = 16;
  if (num_tokens <= kFewTokens) return quad;
  const int group = quad & ~(kGroup - 1);
  return group + quad % 2 * (min(quads - group, kGroup) / 2) + quad % kGroup / 2;
}

// The inboxes of one launch, on all ranks.
class RankPackets {
 public:
  __device__ __forceinline__ RankPackets(const PeerBuffers& peers, uint32_t launch)
      : peers_(peers),
        launch_(static_cast<uint64_t>(launch) << 32),
        inbox_(kAllReduceHeaderBytes +
               (launch & 1) *
                   ((peers.bytes - peers.slab_bytes - kAllReduceHeaderBytes) / 2 /
                    kAllReducePacketBytes) *
                   kAllReducePacketBytes) {}

  __device__ __forceinline__ char* At(int rank, int64_t packet) const {
    return static_cast<char*>(peers_.buffers[rank]) + inbox_ + packet * kAllReducePacketBytes;
  }
  __device__ __forceinline__ void Send(int rank, int64_t packet, uint2 quad) const {
    ptx::StoreRelaxedSystem16(At(rank, packet), {launch_ | quad.x, launch_ | quad.y});
  }
  // Sends one word of a packet: its first or its last two elements.
  __device__ __forceinline__ void SendWord(int rank, int64_t packet, int word,
                                           uint32_t pair) const {
    ptx::StoreRelaxedSystem8(At(rank, packet) + 8 * word, launch_ | pair);
  }
  // The ranks begin with different peers, so that they do not all send to the same one.
  __device__ __forceinline__ int Peer(int distance) const {
    const int to = peers_.rank + distance;
    return to < peers_.world_size ? to : to - peers_.world_size;
  }

 private:
  const PeerBuffers& peers_;
  uint64_t launch_;
  int64_t inbox_;  // offset in bytes
};

// Sends a projection's outputs, which are the partial of the next launch of all_reduce_norm, to all
// ranks, including its own.
//
// With SumsBeforeTheEnd that launch begins, counts itself and polls while the projection still
// runs. The projection therefore lets its dependents start only after its own wait for
// predecessors, and looks up how many launches have ended, not how many have begun.
class PartialSender {
 public:
  __device__ __forceinline__ explicit PartialSender(const PeerBuffers& send) : send_(send) {}

  // Call this after the wait for earlier kernels, which include the previous launch.
  __device__ __forceinline__ void LookUpLaunch() {
    const auto* const header = static_cast<const AllReduceHeader*>(send_.buffers[send_.rank]);
    launch_ = LaunchAfter(ptx::LoadRelaxedSystem4(&header->completed));
  }
  // Sends eight elements of a token from `feature` on, which is a multiple of 8, like all feature
  // counts here.
  __device__ __forceinline__ void SendEight(int64_t num_tokens, int64_t features, int64_t token,
                                            int32_t feature, uint4 eight) const {
    const RankPackets packets(send_, launch_);
    const int32_t quads = Quads(features), quad = feature / 4;
    const int64_t row = (send_.rank * num_tokens + token) * quads;
    for (int distance = 0; distance < send_.world_size; ++distance) {
      const int to = packets.Peer(distance);
      packets.Send(to, row + SentPacket(num_tokens, quads, quad), {eight.x, eight.y});
      packets.Send(to, row + SentPacket(num_tokens, quads, quad + 1), {eight.z, eight.w});
    }
  }
  // Sends two elements, from an even feature on.
  __device__ __forceinline__ void SendPair(int64_t num_tokens, int64_t features, int64_t token,
                                           int32_t feature, uint32_t pair) const {
    const RankPackets packets(send_, launch_);
    const int32_t quads = Quads(features);
    const int64_t packet =
        (send_.rank * num_tokens + token) * quads + SentPacket(num_tokens, quads, feature / 4);
    for (int distance = 0; distance < send_.world_size; ++distance) {
      packets.SendWord(packets.Peer(distance), packet, feature / 2 % 2, pair);
    }
  }

 private:
  static __device__ __forceinline__ int32_t Quads(int64_t features) {
    return static_cast<int32_t>(features / kAllReducePacketElements);
  }

  const PeerBuffers& send_;
  uint32_t launch_ = 0;
};

}  // namespace tokline
