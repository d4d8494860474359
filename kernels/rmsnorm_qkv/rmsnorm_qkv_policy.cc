#include "kernels/common/error.h"
#include "kernels/rmsnorm_qkv/rmsnorm_qkv.h"

namespace tokline {
namespace {

int64_t OutFeatures(const RmsNormQkvParams& params) {
  return (params.num_q_heads + 2 * int64_t{params.num_kv_heads}) * params.head_dim;
}

// Element `index` of the row of a tensor of `dtype`.
const void* At(DType dtype, const void* base, int64_t index) {
  return base ? static_cast<const char*>(base) + index * SizeOf(dtype) : nullptr;
}

}  // namespace

LinearParams ProjectionOf(const RmsNormQkvParams& params) {
  return {.dtype = params.dtype,
          .variant = params.variant,
          .num_tokens = params.num_tokens,
          .in_features = params.hidden_size,
          .out_features = OutFeatures(params),
          .x = params.x,
          .x_stride = params.x_stride,
          .norm_weight = params.norm_weight,
          .norm_eps = params.norm_eps,
          .weight = params.weight,
          .bias = params.bias,
          .out = params.qkv,
          .out_stride = params.qkv_stride,
          .matmul = params.matmul,
          .workspace = params.workspace,
          .workspace_bytes = params.workspace_bytes};
}

KvAppendParams AppendOf(const RmsNormQkvParams& params) {
  const int64_t k_at = int64_t{params.num_q_heads} * params.head_dim;
  const int64_t v_at = k_at + int64_t{params.num_kv_heads} * params.head_dim;
  KvAppendParams append = params.append_params;
  append.dtype = params.dtype;
  append.num_tokens = params.num_tokens;
  append.num_q_heads = params.num_q_heads;
  append.q_in = params.qkv;
  append.q_in_stride = params.qkv_stride;
  append.q_out = params.qkv;
  append.q_out_stride = params.qkv_stride;
  append.k = At(params.dtype, params.qkv, k_at);
  append.k_stride = params.qkv_stride;
  append.v = At(params.dtype, params.qkv, v_at);
  append.v_stride = params.qkv_stride;
  return append;
}

int64_t RmsNormQkvWorkspaceBytes(const RmsNormQkvParams& params) {
  return LinearWorkspaceBytes(ProjectionOf(params));
}

void Validate(const RmsNormQkvParams& params) {
  Require(params.num_q_heads >= 1 && params.num_kv_heads >= 1, "num_q_heads is ",
          params.num_q_heads, " and num_kv_heads ", params.num_kv_heads, "; both must be >= 1");
  Require(params.head_dim == 64 || params.head_dim == 128, "head_dim is ", params.head_dim,
          "; supported are 64 and 128");
  Require(params.num_tokens <= 0 || params.norm_weight, "norm_weight must not be null");
  Validate(ProjectionOf(params));
  if (!params.append) return;
  const PagedKvLayout& layout = params.append_params.layout;
  Require(layout.num_kv_heads == params.num_kv_heads && layout.head_dim == params.head_dim,
          "the cache holds ", layout.num_kv_heads, " heads of ", layout.head_dim,
          "; the projection makes ", params.num_kv_heads, " of ", params.head_dim);
  Validate(AppendOf(params));
}

// With append, the compulsory writes are the query in qkv and the rows of the cache: as many bytes
// as all of qkv. What append reads and rewrites of qkv lies between the two and is not compulsory.
Cost CostOf(const RmsNormQkvParams& params) {
  Cost cost = CostOf(ProjectionOf(params));
  if (!params.append) return cost;
  const Cost append = CostOf(AppendOf(params));
  const double rows_bytes = append.write_bytes;  // read once, written once
  cost.read_bytes += append.read_bytes - rows_bytes;
  cost.flops += append.flops;
  return cost;
}

}  // namespace tokline
