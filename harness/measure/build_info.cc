#include "harness/measure/build_info.h"

// Written by cmake/TokBuildInfo.cmake before every build.
#if __has_include("tokline_build_info.inc")
#include "tokline_build_info.inc"
#endif
#ifndef TOKLINE_BUILD_COMMIT
#define TOKLINE_BUILD_COMMIT "unknown"
#define TOKLINE_BUILD_DIRTY "unknown"
#define TOKLINE_BUILD_FLAGS "unknown"
#define TOKLINE_BUILD_CUDA_COMPILER "unknown"
#define TOKLINE_BUILD_TYPE "unknown"
#endif

namespace tokline {

const BuildInfo& GetBuildInfo() {
  static const BuildInfo info{
      .commit = TOKLINE_BUILD_COMMIT,
      .dirty = TOKLINE_BUILD_DIRTY,
#ifdef __clang__
      .compiler = "clang " __clang_version__,
#else
      .compiler = "gcc " __VERSION__,
#endif
      .flags = TOKLINE_BUILD_FLAGS,
      .cuda_compiler = TOKLINE_BUILD_CUDA_COMPILER,
      .build_type = TOKLINE_BUILD_TYPE,
  };
  return info;
}

}  // namespace tokline
