#include <cstdint>
#include <limits>

#include "kernels/common/error.h"
#include "kernels/gelu/gelu.h"

namespace tokline {
namespace {

constexpr int64_t kVectorElements = 8;

void ValidateRows(const char* name, const void* pointer, int64_t stride, const GeluParams& params) {
  Require(pointer != nullptr, name, " is null with ", params.num_tokens, " tokens");
  Require(reinterpret_cast<uintptr_t>(pointer) % 16 == 0, name, " is at ", pointer,
          "; it must be 16 B aligned");
  if (params.num_tokens == 1) return;  // one row needs no stride
  Require(stride >= params.intermediate_size && stride % kVectorElements == 0, name, "_stride is ",
          stride, "; it must be a multiple of ", kVectorElements, " and at least ",
          params.intermediate_size);
}

}  // namespace

void Validate(const GeluParams& params) {
  const int64_t size = params.intermediate_size;
  Require(params.num_tokens >= 0, "num_tokens is ", params.num_tokens, "; it must be >= 0");
  Require(size >= kVectorElements && size % kVectorElements == 0, "intermediate_size is ", size,
          "; it must be a positive multiple of ", kVectorElements);
  if (params.num_tokens == 0) return;
  Require(params.num_tokens <= std::numeric_limits<int64_t>::max() / 4 / size, "num_tokens ",
          params.num_tokens, " times intermediate_size ", size, " overflows");
  ValidateRows("x", params.x, params.x_stride, params);
  ValidateRows("out", params.out, params.out_stride, params);
  Require(params.x != params.out || params.num_tokens == 1 || params.x_stride == params.out_stride,
          "x and out are one tensor, but have strides ", params.x_stride, " and ",
          params.out_stride);
}

Cost CostOf(const GeluParams& params) {
  const double elements = static_cast<double>(params.num_tokens) * params.intermediate_size;
  const double element = static_cast<double>(SizeOf(params.dtype));
  return {.read_bytes = elements * element,
          .write_bytes = elements * element,
          // square, times a constant, add, times x, times a constant, tanh, add, half, multiply
          .flops = 9 * elements};
}

}  // namespace tokline
