#include "kernels/layernorm/layernorm_policy.h"

#include <cmath>

#include "kernels/common/error.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

constexpr int64_t kVectorBytes = 16;

bool IsVectorAligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kVectorBytes == 0;
}

// 16-byte accesses need every row of every tensor to start on 16 bytes and to end on them.
bool TakesVectors(const LayerNormParams& params) {
  const int64_t width = kVectorBytes / SizeOf(params.dtype);
  const auto rows_aligned = [&](const void* pointer, int64_t stride) {
    return IsVectorAligned(pointer) && (params.num_tokens <= 1 || stride % width == 0);
  };
  return params.hidden_size % width == 0 && IsVectorAligned(params.weight) &&
         IsVectorAligned(params.bias) && rows_aligned(params.x, params.x_stride) &&
         rows_aligned(params.out, params.out_stride);
}

void RequireStride(const LayerNormParams& params, int64_t stride, const char* name) {
  Require(params.num_tokens <= 1 || stride >= params.hidden_size, name, " is ", stride,
          "; it must be at least hidden_size, ", params.hidden_size);
}

}  // namespace

LayerNormPlan PlanLayerNorm(const LayerNormParams& params) {
  constexpr int32_t kWarp = 32, kBlock = 256;
  constexpr int32_t kWarpRowsPerBlock = 4;
  // With few rows the latency of one row counts: a warp takes a row only if one access a lane
  // covers it. With many rows a warp spares the block's barriers as long as four cover a row.
  constexpr int64_t kFewRows = 512;
  LayerNormPlan plan;
  plan.width = TakesVectors(params) ? static_cast<int32_t>(kVectorBytes / SizeOf(params.dtype)) : 1;
  const int64_t warp_accesses = params.num_tokens < kFewRows ? 1 : 4;
  const bool warp_per_row = params.hidden_size <= kWarp * warp_accesses * plan.width;
  plan.threads_per_row = warp_per_row ? kWarp : kBlock;
  plan.rows_per_block = warp_per_row ? kWarpRowsPerBlock : 1;
  plan.blocks = DivideUp(params.num_tokens, plan.rows_per_block);
  return plan;
}

void Validate(const LayerNormParams& params) {
  Require(params.num_tokens >= 0 && params.num_tokens <= INT32_MAX, "num_tokens is ",
          params.num_tokens, "; it must be 0 to ", INT32_MAX);
  Require(params.hidden_size >= 1 && params.hidden_size <= INT32_MAX / 2, "hidden_size is ",
          params.hidden_size, "; it must be 1 to ", INT32_MAX / 2);
  Require(params.eps >= 0 && std::isfinite(params.eps), "eps is ", params.eps,
          "; it must be finite and >= 0");
  if (params.num_tokens == 0) return;
  Require(params.x && params.weight && params.bias && params.out,
          "x, weight, bias and out must not be null");
  RequireStride(params, params.x_stride, "x_stride");
  RequireStride(params, params.out_stride, "out_stride");
  Require(params.x != params.out || params.num_tokens == 1 || params.x_stride == params.out_stride,
          "x and out are one tensor, but have strides ", params.x_stride, " and ",
          params.out_stride);
}

void ValidateLaunch(const LayerNormParams& params) {
  Require(params.dtype == DType::kBf16 || params.dtype == DType::kF16, "dtype is ",
          Name(params.dtype), "; CUDA kernels take bf16 and f16");
}

Cost CostOf(const LayerNormParams& params) {
  Cost cost;
  if (params.num_tokens == 0) return cost;
  const double elements = static_cast<double>(params.num_tokens) * params.hidden_size;
  const double element_bytes = SizeOf(params.dtype);
  cost.read_bytes = (elements + 2.0 * params.hidden_size) * element_bytes;  // x; weight, bias
  cost.write_bytes = elements * element_bytes;                              // out
  cost.flops = 7 * elements;  // mean; difference, square, add; scale, weight, bias
  return cost;
}

}  // namespace tokline
