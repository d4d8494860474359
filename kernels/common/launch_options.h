// Where and how a kernel is launched.
#pragma once

struct CUstream_st;

namespace tokline {

struct LaunchOptions {
  CUstream_st* stream = nullptr;  // a cudaStream_t
  // Enables programmatic dependent launch: the kernel may start before its predecessor on the
  // stream ends. Every kernel of the suite waits for the predecessor (griddepcontrol.wait) before
  // it touches anything that an earlier kernel writes, so this is safe between kernels of the
  // suite. What the host has planned for a step (tables, slots, positions, rules) is read before
  // that: the first kernel after it was copied must not be dependent. It has no effect when the
  // device or the loaded code does not support it (DeviceFacts::HasDependentLaunch).
  bool dependent = false;
};

}  // namespace tokline
