// setmaxnreg: moves registers between the warpgroups of a block (sm_90a). All warps of a warpgroup
// must execute it together, and kRegisters must be a multiple of 8.
#pragma once

namespace tokline::ptx {

template <int kRegisters>
__device__ __forceinline__ void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void AcquireRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace tokline::ptx
