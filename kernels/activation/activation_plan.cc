#include <cstdint>
#include <limits>

#include "kernels/activation/activation.h"
#include "kernels/common/alignment.h"
#include "kernels/common/error.h"
#include "kernels/common/rows.h"

namespace tokline {
namespace {

constexpr int64_t kVectorElements = 8;

void ValidateRows(const char* name, const void* pointer, int64_t stride, int64_t row,
                  int64_t num_tokens) {
  Require(pointer != nullptr, name, " is null with ", num_tokens, " tokens");
  RequireAligned(name, pointer);
  if (num_tokens == 1) return;  // one row needs no stride
  Require(stride >= row && stride % kVectorElements == 0, name, "_stride is ", stride,
          "; it must be a multiple of ", kVectorElements, " and at least ", row);
}

}  // namespace

void Validate(const ActivationParams& params) {
  const int64_t size = params.intermediate_size;
  Require(params.num_tokens >= 0, "num_tokens is ", params.num_tokens, "; it must be >= 0");
  Require(size >= kVectorElements && size % kVectorElements == 0, "intermediate_size is ", size,
          "; it must be a positive multiple of ", kVectorElements);
  if (params.num_tokens == 0) return;
  Require(params.num_tokens <= std::numeric_limits<int64_t>::max() / 4 / size, "num_tokens ",
          params.num_tokens, " times intermediate_size ", size, " overflows");
  ValidateRows("x", params.x, params.x_stride, InputSize(params), params.num_tokens);
  ValidateRows("out", params.out, params.out_stride, size, params.num_tokens);
  RequireOneStride(params.num_tokens, params.x, params.x_stride, params.out, params.out_stride,
                   "x and out");
}

Cost CostOf(const ActivationParams& params) {
  const double tokens = static_cast<double>(params.num_tokens);
  const double element = static_cast<double>(SizeOf(params.dtype));
  // Gated SiLU: negate, exp, add, divide, multiply. GELU: square, times a constant, add, times x,
  // times a constant, tanh, add, half, multiply.
  const double flops = params.kind == ActivationKind::kGatedSilu ? 5 : 9;
  return {.read_bytes = tokens * InputSize(params) * element,
          .write_bytes = tokens * params.intermediate_size * element,
          .flops = flops * tokens * params.intermediate_size};
}

}  // namespace tokline
