// Attention of prompt tokens by its definition, in double precision.
#include "reference/paged_prefill.h"

#include <Eigen/Core>
#include <cmath>

#include "reference/elements.h"
#include "reference/parallel.h"

namespace tokline {
namespace {

using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Gathers the K and V rows of one head for a sequence's whole context, [length, head_dim] each.
void GatherContext(const PagedPrefillParams& params, int32_t seq, int32_t head, RowMatrix& keys,
                   RowMatrix& values) {
  const ChunkTableView& table = params.table;
  const PagedKvLayout& layout = params.layout;
  int64_t position = 0;
  for (int32_t i = table.seq_chunk_indptr[seq]; i < table.seq_chunk_indptr[seq + 1]; ++i) {
    const int32_t chunk = table.seq_chunks[i];
    const int32_t* pages = table.chunk_pages + table.chunk_page_indptr[chunk];
    for (int32_t token = 0; token < table.chunk_lengths[chunk]; ++token, ++position) {
      const int64_t page = pages[layout.Pages().PageOf(token)];
      const int32_t row = layout.Pages().RowOf(token);
      const auto load = [&](int64_t offset, RowMatrix& to) {
        LoadElements(params.dtype, params.kv, offset, layout.head_dim, to.row(position).data());
      };
      load(layout.KeyOffset(page, head, row), keys);
      load(layout.ValueOffset(page, head, row), values);
    }
  }
}

// Attention of one query head of a new token over the first `visible` rows of its context.
void AttendReference(const PagedPrefillParams& params, int64_t token, int32_t head, int64_t visible,
                     const RowMatrix& keys, const RowMatrix& values) {
  const int32_t dim = params.layout.head_dim;
  Eigen::VectorXd query(dim);
  LoadElements(params.dtype, params.q, token * params.q_stride + head * dim, dim, query.data());
  Eigen::VectorXd weights = keys.topRows(visible) * query * static_cast<double>(params.scale);
  const double max = weights.maxCoeff();
  weights = (weights.array() - max).exp();
  const double sum = weights.sum();
  const Eigen::VectorXd out = values.topRows(visible).transpose() * weights;
  for (int32_t d = 0; d < dim; ++d) {
    StoreElement(params.dtype, params.out, token * params.out_stride + head * dim + d,
                 out[d] / sum);
  }
  if (params.lse_ln != nullptr) {
    params.lse_ln[token * params.num_q_heads + head] = static_cast<float>(max + std::log(sum));
  }
}

}  // namespace

void PagedPrefillReference(const PagedPrefillParams& params) {
  Validate(params);
  ValidateLengths(params.table, params.q_indptr, params.layout, params.total_tokens);
  const int32_t group = params.num_q_heads / params.layout.num_kv_heads;
  RowMatrix keys, values;
  for (int32_t seq = 0; seq < params.table.num_seqs; ++seq) {
    const int64_t begin = params.q_indptr[seq], rows = params.q_indptr[seq + 1] - begin;
    if (rows == 0) continue;
    const int64_t length = SequenceLength(params.table, seq);
    keys.resize(length, params.layout.head_dim);
    values.resize(length, params.layout.head_dim);
    for (int32_t kv_head = 0; kv_head < params.layout.num_kv_heads; ++kv_head) {
      GatherContext(params, seq, kv_head, keys, values);
      const double products = static_cast<double>(2 * group * rows * keys.size());
      ParallelFor(group * rows, products, [&](int64_t i) {
        const int64_t row = i / group;
        const int64_t visible = params.causal ? length - rows + row + 1 : length;
        AttendReference(params, begin + row, kv_head * group + static_cast<int32_t>(i % group),
                        visible, keys, values);
      });
    }
  }
}

}  // namespace tokline
