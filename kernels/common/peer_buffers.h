// The memory through which the ranks of a group exchange partial sums. all_reduce_norm owns its
// contents; a projection may send its outputs there itself.
#pragma once

#include <cstdint>

namespace tokline {

inline constexpr int32_t kMaxRanks = 8;

// The exchange buffers of a group of ranks as one rank sees them. It does not matter where the
// addresses come from: one process that drives several devices enables peer access and passes the
// pointers of cudaMalloc; separate processes pass what cudaIpcOpenMemHandle returns.
//
// Every rank allocates AllReduceNormBufferBytes() bytes, and AllReduceNormSlabBytes() more if it
// wants kSlabs. All of them are zeroed before the first launch of any rank. From then on they
// belong to the kernel. They are not reset between launches, so that a captured graph can be
// replayed. Packets carry the 32-bit number of the launch: a packet from 2^32 launches ago that was
// not overwritten since would be taken for a new one.
//
// The launches of a rank on the buffers follow one another, on one stream at a time. The kernel has
// to be loaded on the devices of all ranks before any rank launches it, because loading may wait
// for running kernels, and those wait for the rank that loads. A launch within a Rehearsal
// (kernels/device/rehearsal.h) loads it and does nothing else.
//
// Once a rank has given up, all later launches of the group return at once, until the buffers of
// all ranks are zeroed again, while no rank's stream has work. So outputs are good only if
// RequireAllReduced, called after their launch, has not thrown.
struct PeerBuffers {
  int32_t world_size = 1;         // 1 to kMaxRanks
  int32_t rank = 0;               // this rank
  int64_t bytes = 0;              // of each buffer; the same on all ranks
  int64_t slab_bytes = 0;         // the part at their end for slabs, which lets kAuto take them, or
                                  // 0; the same on all ranks
  void* buffers[kMaxRanks] = {};  // [world_size], 256 B aligned, accessible from this rank's device
};

// The head of an exchange buffer.
struct AllReduceHeader {
  uint32_t launches;     // launches of which all blocks have begun
  uint32_t arrivals;     // blocks of the current launch that have read `launches`
  uint32_t gave_up;      // 1: this rank has waited for too long
  uint32_t peer_failed;  // 1 + the rank of a peer that has given up; 0: none
  // The rank whose data was missing. Valid once the launch that gave up has ended.
  uint32_t missing_rank;
  uint32_t missing_launch;
  // The number of the last launch that has ended. `launches` runs ahead of it while a launch is
  // running, possibly together with the projection whose partial that launch sums.
  uint32_t completed;
};

// A packet of 16 bytes carries four 16-bit elements of a row: it is two words, each with two
// elements and the number of the launch.
inline constexpr int64_t kAllReducePacketBytes = 16;
inline constexpr int64_t kAllReducePacketElements = 4;
// The packets of an exchange buffer follow its header at this offset, in two inboxes that
// successive launches use in turn.
inline constexpr int64_t kAllReduceHeaderBytes = 256;

// Packets that fit into each of the two inboxes of a buffer, without its part for slabs.
int64_t AllReduceInboxCapacity(int64_t packet_bytes);

// Throws InvalidArgument, which names them buffers[rank] and `of`, unless all ranks have buffers
// that are aligned as PeerBuffers says. world_size must be valid.
void RequireBuffers(const PeerBuffers& peers, const char* of = "");

}  // namespace tokline
