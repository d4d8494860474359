// What this program was built from and with. "unknown" where the build did not say.
#pragma once

#include <string>

namespace tokline {

struct BuildInfo {
  std::string commit;  // of the tree that was built
  std::string dirty;   // "true" where that tree had changes besides, "false", or "unknown"
  std::string compiler;
  std::string flags;
  std::string cuda_compiler;  // "none" in builds without CUDA
  std::string build_type;
};

const BuildInfo& GetBuildInfo();

}  // namespace tokline
