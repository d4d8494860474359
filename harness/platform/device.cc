#include "harness/platform/device.h"

#include "kernels/common/error.h"

namespace tokline {

void RequireSupportedDevice(std::string_view name, const DeviceFacts& facts) {
  constexpr int kMinMajor = 8;
  if (facts.compute_major >= kMinMajor) return;
  throw RuntimeFailure(StrCat(name, " has compute capability ", facts.compute_major, ".",
                              facts.compute_minor, "; ", kMinMajor, ".0 or newer is needed"));
}

#if !TOKLINE_HAS_CUDA
int CudaDeviceCount() { return 0; }
#endif

}  // namespace tokline
