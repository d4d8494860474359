#include "kernels/common/peer_buffers.h"

#include <algorithm>

#include "kernels/common/alignment.h"
#include "kernels/common/error.h"

namespace tokline {

int64_t AllReduceInboxCapacity(int64_t packet_bytes) {
  return std::max<int64_t>(0, packet_bytes - kAllReduceHeaderBytes) / 2 / kAllReducePacketBytes;
}

void RequireBuffers(const PeerBuffers& peers, const char* of) {
  for (int32_t rank = 0; rank < peers.world_size; ++rank) {
    const void* buffer = peers.buffers[rank];
    Require(buffer != nullptr && IsAligned(buffer, 256), "buffers[", rank, "]", of, " is ", buffer,
            "; it must be an address that is a multiple of 256");
  }
}

}  // namespace tokline
