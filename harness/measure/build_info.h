// What this program was built from and with. A field is "unknown" when the build did not provide
// it.
#pragma once

#include <string>

namespace tokline {

struct BuildInfo {
  std::string commit;  // of the source tree that was built
  std::string dirty;   // "true" if that tree had uncommitted changes, "false", or "unknown"
  std::string compiler;
  std::string flags;
  std::string cuda_compiler;  // "none" in builds without CUDA
  std::string build_type;
};

const BuildInfo& GetBuildInfo();

}  // namespace tokline
