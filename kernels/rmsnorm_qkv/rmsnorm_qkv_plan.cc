#include "kernels/rmsnorm_qkv/rmsnorm_qkv.h"

namespace tokline {

KvAppendParams AppendOf(const LinearParams& projection, KvAppendParams append) {
  const int64_t element = SizeOf(projection.dtype), head_dim = append.layout.head_dim;
  char* const qkv = static_cast<char*>(projection.out);
  append.dtype = projection.dtype;
  append.num_tokens = projection.num_tokens;
  append.q_in = append.k = append.v = qkv;
  append.q_out = qkv;
  if (qkv) {
    append.k = qkv + append.num_q_heads * head_dim * element;
    append.v = qkv + (append.num_q_heads + append.layout.num_kv_heads) * head_dim * element;
  }
  append.q_in_stride = append.q_out_stride = append.k_stride = append.v_stride =
      projection.out_stride;
  return append;
}

void Validate(const RmsNormQkvParams& params) {
  if (params.append) ValidateAppend(params.projection, *params.append);
  Validate(params.projection);
  if (params.append) Validate(AppendOf(params.projection, *params.append));
}

// With `append`, the compulsory writes are the query in qkv and the rows of the cache, which
// together have as many bytes as all of qkv. The data that the append reads and rewrites in qkv is
// an intermediate result and thus not compulsory.
Cost CostOf(const RmsNormQkvParams& params) {
  Cost cost = CostOf(params.projection);
  if (!params.append) return cost;
  const Cost append = CostOf(AppendOf(params.projection, *params.append));
  cost.read_bytes += append.read_bytes - append.write_bytes;  // rows are read once and written once
  cost.flops += append.flops;
  return cost;
}

}  // namespace tokline
