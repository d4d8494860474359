// Access of the devices of one process to each other's memory. CUDA builds only.
#pragma once

#include <cstdint>

namespace tokline {

// Lets each of the devices 0 to `count` - 1 read and write the memory of all others; it may have
// been enabled before. Leaves the current device as it is. Throws InvalidArgument if there are
// fewer devices, and RuntimeFailure, which names the pair, if two of them have no such access.
void EnablePeerAccess(int32_t count);

}  // namespace tokline
