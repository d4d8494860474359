// Checks of the addresses that kernels access by vectors.
#pragma once

#include <cstdint>

#include "kernels/common/error.h"

namespace tokline {

// Null is aligned.
inline bool IsAligned(const void* pointer, int64_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(alignment) == 0;
}

// Throws InvalidArgument unless the address is a multiple of `alignment` bytes. Null passes.
inline void RequireAligned(const char* name, const void* pointer, int64_t alignment = 16) {
  Require(IsAligned(pointer, alignment), name, " is at ", pointer, "; it must be ", alignment,
          " B aligned");
}

// The same, and null is refused too.
inline void RequireTensor(const char* name, const void* pointer, int64_t alignment = 16) {
  Require(pointer != nullptr && IsAligned(pointer, alignment), name, " is at ", pointer,
          "; it must be ", alignment, " B aligned and not null");
}

}  // namespace tokline
