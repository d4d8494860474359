// Host side of the norms: plans access width and threads per row, validates parameters, and
// computes the minimum cost.
#include "kernels/norm/norm_plan.h"

#include <cmath>
#include <span>

#include "kernels/common/alignment.h"
#include "kernels/common/error.h"
#include "kernels/common/rounding.h"
#include "kernels/common/rows.h"

namespace tokline {
namespace {

constexpr int64_t kVectorBytes = 16;
constexpr int64_t kFewRows = 512;  // below this, latency matters

// 16-byte accesses require every row of every tensor to start and end at a multiple of 16 bytes.
bool TakesVectors(const NormParams& params) {
  const int64_t width = kVectorBytes / SizeOf(params.dtype);
  const bool one_row = params.num_tokens <= 1;
  const auto rows_aligned = [&](const void* pointer, int64_t stride) {
    return IsAligned(pointer, kVectorBytes) && (one_row || stride % width == 0);
  };
  return params.hidden_size % width == 0 && IsAligned(params.weight, kVectorBytes) &&
         IsAligned(params.bias, kVectorBytes) && rows_aligned(params.x, params.x_stride) &&
         rows_aligned(params.out, params.out_stride) &&
         (!params.add || (rows_aligned(params.add, params.add_stride) &&
                          rows_aligned(params.residual_out, params.residual_out_stride)));
}

// How a row is held in registers: `threads` threads hold `held` accesses each.
struct HeldRow {
  int32_t threads;
  int32_t held;
};

// Ways to hold a row of RMSNorm; the first that has room for it is taken. With few rows the latency
// of one row matters, so a row gets as many threads as it has accesses. With many rows a thread has
// up to four accesses: a warp then takes rows without a barrier. With a residual there are twice
// the loads for each access, and longer rows are faster with one access per thread.
std::span<const HeldRow> WaysToHold(const NormParams& params) {
  static constexpr HeldRow kFew[] = {{32, 1}, {128, 1}, {512, 1}, {512, 4}};
  static constexpr HeldRow kMany[] = {{32, 4}, {128, 4}, {512, 4}};
  static constexpr HeldRow kManyWithResidual[] = {{32, 4}, {256, 1}, {512, 1}, {512, 4}};
  if (params.num_tokens < kFewRows) return kFew;
  if (params.add == nullptr) return kMany;
  return kManyWithResidual;
}

}  // namespace

NormPlan PlanNorm(const NormParams& params) {
  constexpr int32_t kWarp = 32, kBlock = 256;
  NormPlan plan;
  plan.width = TakesVectors(params) ? static_cast<int32_t>(kVectorBytes / SizeOf(params.dtype)) : 1;
  const int64_t accesses = DivideUp(params.hidden_size, plan.width);
  plan.threads_per_row =
      accesses <= kWarp * (params.num_tokens < kFewRows ? 1 : 4) ? kWarp : kBlock;
  if (params.kind == NormKind::kRms && plan.width == 8) {
    for (const HeldRow& way : WaysToHold(params)) {
      if (accesses > int64_t{way.threads} * way.held) continue;
      plan.held = way.held;
      plan.threads_per_row = way.threads;
      break;
    }
  }
  plan.rows_per_block = plan.threads_per_row == kWarp ? kNormWarpRowsPerBlock : 1;
  plan.blocks = DivideUp(params.num_tokens, plan.rows_per_block);
  return plan;
}

void Validate(const NormParams& params) {
  Require(params.num_tokens >= 0 && params.num_tokens <= INT32_MAX, "num_tokens is ",
          params.num_tokens, "; it must be 0 to ", INT32_MAX);
  Require(params.hidden_size >= 1 && params.hidden_size <= INT32_MAX / 2, "hidden_size is ",
          params.hidden_size, "; it must be 1 to ", INT32_MAX / 2);
  Require(params.eps >= 0 && std::isfinite(params.eps), "eps is ", params.eps,
          "; it must be finite and >= 0");
  if (params.num_tokens == 0) return;
  Require(params.x && params.weight && params.out, "x, weight and out must not be null");
  const bool layer = params.kind == NormKind::kLayer;
  Require(layer == (params.bias != nullptr), "bias is ", params.bias, "; layernorm needs one and ",
          "rmsnorm takes none");
  Require(!layer || !params.add, "add is given; layernorm adds no residual");
  Require(!params.add || params.residual_out, "add is given without residual_out");
  Require(params.add || !params.residual_out, "residual_out is given without add");
  Require(!params.add || (params.out != params.x && params.out != params.add &&
                          params.out != params.residual_out),
          "with add, out must be none of x, add and residual_out");
  const int64_t rows = params.num_tokens;
  const auto require_stride = [&](int64_t stride, const char* name) {
    RequireStride(rows, stride, name, params.hidden_size, "hidden_size");
  };
  require_stride(params.x_stride, "x_stride");
  require_stride(params.out_stride, "out_stride");
  RequireOneStride(rows, params.x, params.x_stride, params.out, params.out_stride, "x and out");
  if (!params.add) return;
  require_stride(params.add_stride, "add_stride");
  require_stride(params.residual_out_stride, "residual_out_stride");
  RequireOneStride(rows, params.x, params.x_stride, params.residual_out, params.residual_out_stride,
                   "x and residual_out");
  RequireOneStride(rows, params.add, params.add_stride, params.residual_out,
                   params.residual_out_stride, "add and residual_out");
}

Cost CostOf(const NormParams& params) {
  Cost cost;
  if (params.num_tokens == 0) return cost;
  const double elements = static_cast<double>(params.num_tokens) * params.hidden_size;
  const double element_bytes = SizeOf(params.dtype);
  cost.read_bytes = (elements + params.hidden_size) * element_bytes;  // x, weight
  cost.write_bytes = elements * element_bytes;                        // out
  if (params.kind == NormKind::kLayer) {
    cost.read_bytes += params.hidden_size * element_bytes;  // bias
    cost.flops = 7 * elements;  // mean; difference, square, add; scale, weight, bias
  } else {
    cost.flops = 4 * elements;  // square, add, scale, weight
  }
  if (params.add) {
    cost.read_bytes += elements * element_bytes;   // add
    cost.write_bytes += elements * element_bytes;  // residual_out
    cost.flops += elements;
  }
  return cost;
}

}  // namespace tokline
