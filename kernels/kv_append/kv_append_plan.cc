// Host side of kv_append: validates parameters, computes the minimum cost, and plans how rows are
// grouped.
#include "kernels/kv_append/kv_append_plan.h"

#include <algorithm>
#include <limits>

#include "kernels/common/alignment.h"
#include "kernels/common/error.h"
#include "kernels/common/rounding.h"
#include "kernels/common/rows.h"

namespace tokline {
namespace {

constexpr int64_t kVectorBytes = 16;

// Checks rows of `heads` heads that lie `stride` elements apart. With one token, the stride is
// unused.
void ValidateRows(const char* name, const KvAppendParams& params, const void* pointer,
                  int64_t stride, int32_t heads) {
  Require(pointer != nullptr, name, " is null with ", params.num_tokens, " tokens");
  RequireAligned(name, pointer, kVectorBytes);
  if (params.num_tokens <= 1) return;
  const int64_t row = int64_t{heads} * params.layout.head_dim;
  Require(stride >= row, name, "_stride is ", stride, "; rows of ", heads, " heads need ", row);
  const int64_t vector = kVectorBytes / SizeOf(params.dtype);
  Require(stride % vector == 0, name, "_stride is ", stride, "; it must be a multiple of ", vector);
}

bool QueryChanges(const KvAppendParams& params) {
  const bool moves = params.q_in != params.q_out;
  return params.num_q_heads > 0 && (moves || params.q_norm_weight || params.rope_cos_sin);
}

}  // namespace

void Validate(const KvAppendParams& params) {
  Validate(params.layout);
  Require(params.num_tokens >= 0, "num_tokens is ", params.num_tokens, "; it must be >= 0");
  Require(params.num_q_heads >= 0, "num_q_heads is ", params.num_q_heads, "; it must be >= 0");
  const int64_t rows = params.num_q_heads + 2 * int64_t{params.layout.num_kv_heads};
  Require(params.num_tokens <= std::numeric_limits<int32_t>::max() / rows, params.num_tokens,
          " tokens of ", rows, " rows exceed ", std::numeric_limits<int32_t>::max(), " rows");
  if (params.num_tokens == 0) return;

  const int32_t kv_heads = params.layout.num_kv_heads;
  ValidateRows("k", params, params.k, params.k_stride, kv_heads);
  ValidateRows("v", params, params.v, params.v_stride, kv_heads);
  if (params.num_q_heads > 0) {
    ValidateRows("q_in", params, params.q_in, params.q_in_stride, params.num_q_heads);
    ValidateRows("q_out", params, params.q_out, params.q_out_stride, params.num_q_heads);
    RequireOneStride(params.num_tokens, params.q_in, params.q_in_stride, params.q_out,
                     params.q_out_stride, "q_in and q_out");
  }
  Require(params.slots != nullptr, "slots is null with ", params.num_tokens, " tokens");
  if (params.layout.num_pages > 0) {
    Require(params.kv != nullptr, "kv is null with ", params.layout.num_pages, " pages");
    RequireAligned("kv", params.kv, kVectorBytes);
  }
  if (params.q_norm_weight || params.k_norm_weight) {
    Require(params.norm_eps >= 0 && params.norm_eps <= std::numeric_limits<float>::max(),
            "norm_eps is ", params.norm_eps, "; it must be finite and >= 0");
    RequireAligned("q_norm_weight", params.q_norm_weight, kVectorBytes);
    RequireAligned("k_norm_weight", params.k_norm_weight, kVectorBytes);
  }
  if (params.rope_cos_sin) {
    RequireAligned("rope_cos_sin", params.rope_cos_sin, kVectorBytes);
    Require(params.positions != nullptr, "positions is null, but RoPE needs it");
    Require(params.rope_rows >= 1, "rope_rows is ", params.rope_rows, "; RoPE needs at least 1");
  }
}

void ValidateSlots(const KvAppendParams& params, const int64_t* host_slots,
                   const int32_t* host_positions) {
  for (int64_t t = 0; t < params.num_tokens; ++t) {
    Require(host_slots[t] >= -1 && host_slots[t] < params.layout.NumSlots(), "token ", t,
            " has slot ", host_slots[t], "; allowed are -1 (do not write) and 0 to ",
            params.layout.NumSlots() - 1);
    if (!params.rope_cos_sin) continue;
    Require(host_positions[t] >= 0 && host_positions[t] < params.rope_rows, "token ", t,
            " has position ", host_positions[t], "; the RoPE table has rows 0 to ",
            params.rope_rows - 1);
  }
}

Cost CostOf(const KvAppendParams& params) {
  const double element = static_cast<double>(SizeOf(params.dtype));
  const double tokens = static_cast<double>(params.num_tokens);
  const double head_dim = params.layout.head_dim;
  const double kv_rows = tokens * params.layout.num_kv_heads;
  const double q_rows = tokens * (QueryChanges(params) ? params.num_q_heads : 0);
  const double norm_flops = 4 * head_dim;  // square, add, multiply by the scale, multiply by the
                                           // weight
  const double rope_flops = 3 * head_dim;  // per pair: four multiplies, two adds

  Cost cost;
  cost.read_bytes += (q_rows + 2 * kv_rows) * head_dim * element;   // q, k and v rows
  cost.read_bytes += tokens * sizeof(int64_t);                      // slots
  cost.write_bytes += (q_rows + 2 * kv_rows) * head_dim * element;  // assumes that no slot is -1
  if (params.num_tokens == 0) return cost;
  if (params.q_norm_weight && q_rows > 0) {
    cost.read_bytes += head_dim * element;
    cost.flops += q_rows * norm_flops;
  }
  if (params.k_norm_weight) {
    cost.read_bytes += head_dim * element;
    cost.flops += kv_rows * norm_flops;
  }
  if (params.rope_cos_sin) {
    cost.read_bytes += tokens * sizeof(int32_t);  // positions
    // One table row (head_dim / 2 pairs of floats) per token, since positions of a sequence are
    // distinct.
    cost.read_bytes +=
        std::min(tokens, static_cast<double>(params.rope_rows)) * head_dim * sizeof(float);
    cost.flops += (q_rows + kv_rows) * rope_flops;
  }
  return cost;
}

KvAppendPlan PlanKvAppend(const KvAppendParams& params) {
  const bool transforms = params.rope_cos_sin || params.k_norm_weight ||
                          (params.q_norm_weight && params.num_q_heads > 0);
  KvAppendPlan plan;
  plan.op = transforms ? RowOp::kTransform : RowOp::kCopy;
  plan.num_q_rows = QueryChanges(params) ? params.num_q_heads : 0;
  const int64_t rows = params.num_tokens * (plan.num_q_rows + 2 * params.layout.num_kv_heads);
  const int32_t most_heads = std::max(plan.num_q_rows, params.layout.num_kv_heads);
  plan.rows_per_group = rows < kKvAppendManyRows || most_heads < 2 ? 1 : 2;
  const auto groups = [&](int32_t heads) {
    return static_cast<int32_t>(DivideUp(heads, plan.rows_per_group));
  };
  plan.q_groups = groups(plan.num_q_rows);
  plan.kv_groups = groups(params.layout.num_kv_heads);
  plan.groups_per_token = plan.q_groups + 2 * plan.kv_groups;
  return plan;
}

}  // namespace tokline
