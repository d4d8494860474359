// Turns CUDA error codes into CudaError with the file, line and expression.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/common/error.h"

namespace tokline {

inline void CheckCuda(cudaError_t code, const char* expression, const char* file, int line) {
  if (code != cudaSuccess) {
    throw CudaError(StrCat(file, ":", line, ": ", expression, ": ", cudaGetErrorName(code), ": ",
                           cudaGetErrorString(code)));
  }
}

}  // namespace tokline

#define TOKLINE_CUDA(expression) ::tokline::CheckCuda((expression), #expression, __FILE__, __LINE__)
