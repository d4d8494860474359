#include <cstdint>
#include <limits>

#include "kernels/common/error.h"
#include "kernels/silu_mul/silu_mul.h"

namespace tokline {
namespace {

constexpr int64_t kVectorElements = 8;

void ValidateRows(const char* name, const void* pointer, int64_t stride, int64_t row,
                  int64_t num_tokens) {
  Require(pointer != nullptr, name, " is null with ", num_tokens, " tokens");
  Require(reinterpret_cast<uintptr_t>(pointer) % 16 == 0, name, " is at ", pointer,
          "; it must be 16 B aligned");
  if (num_tokens == 1) return;  // one row needs no stride
  Require(stride >= row && stride % kVectorElements == 0, name, "_stride is ", stride,
          "; it must be a multiple of ", kVectorElements, " and at least ", row);
}

}  // namespace

void Validate(const SiluMulParams& params) {
  const int64_t size = params.intermediate_size;
  Require(params.num_tokens >= 0, "num_tokens is ", params.num_tokens, "; it must be >= 0");
  Require(size >= kVectorElements && size % kVectorElements == 0, "intermediate_size is ", size,
          "; it must be a positive multiple of ", kVectorElements);
  if (params.num_tokens == 0) return;
  Require(params.num_tokens <= std::numeric_limits<int64_t>::max() / 4 / size, "num_tokens ",
          params.num_tokens, " times intermediate_size ", size, " overflows");
  ValidateRows("gate_up", params.gate_up, params.gate_up_stride, 2 * size, params.num_tokens);
  ValidateRows("out", params.out, params.out_stride, size, params.num_tokens);
}

Cost CostOf(const SiluMulParams& params) {
  const double elements = static_cast<double>(params.num_tokens) * params.intermediate_size;
  const double element = static_cast<double>(SizeOf(params.dtype));
  return {.read_bytes = 2 * elements * element,  // gate and up
          .write_bytes = elements * element,
          .flops = 5 * elements};  // negate, exp, add, divide, multiply
}

}  // namespace tokline
