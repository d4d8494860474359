// Where and how a kernel is launched.
#pragma once

struct CUstream_st;

namespace tokline {

struct LaunchOptions {
  CUstream_st* stream = nullptr;  // a cudaStream_t
  // Programmatic dependent launch: the kernel may start before its predecessor on the stream
  // ends. Every kernel of the suite waits for it (griddepcontrol.wait) before it touches anything
  // that an earlier kernel writes, so this is always safe between kernels of the suite. Where the
  // device or the loaded code lacks it (DeviceFacts::HasDependentLaunch), it changes nothing.
  bool dependent = false;
};

}  // namespace tokline
