#include "reference/paged_prefill.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/elements.h"

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
      const int64_t key = layout.KeyOffset(page, head, row);
      const int64_t value = layout.ValueOffset(page, head, row);
      for (int32_t d = 0; d < layout.head_dim; ++d) {
        keys(position, d) = LoadElement(params.dtype, params.kv, key + d);
        values(position, d) = LoadElement(params.dtype, params.kv, value + d);
      }
    }
  }
}

}  // namespace

void PagedPrefillReference(const PagedPrefillParams& params) {
  Validate(params);
  ValidateLengths(params.table, params.q_indptr, params.layout, params.total_tokens);
  const int32_t dim = params.layout.head_dim;
  const int32_t group = params.num_q_heads / params.layout.num_kv_heads;
  Eigen::VectorXd query(dim), weights, out(dim);
  RowMatrix keys, values;
  for (int32_t seq = 0; seq < params.table.num_seqs; ++seq) {
    const int64_t begin = params.q_indptr[seq], rows = params.q_indptr[seq + 1] - begin;
    if (rows == 0) continue;
    const int64_t length = SequenceLength(params.table, seq);
    keys.resize(length, dim);
    values.resize(length, dim);
    for (int32_t head = 0; head < params.num_q_heads; ++head) {
      if (head % group == 0) GatherContext(params, seq, head / group, keys, values);
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t token = begin + row;
        const int64_t visible = params.causal ? length - rows + row + 1 : length;
        for (int32_t d = 0; d < dim; ++d) {
          query[d] = LoadElement(params.dtype, params.q, token * params.q_stride + head * dim + d);
        }
        weights.noalias() = keys.topRows(visible) * query * static_cast<double>(params.scale);
        const double max = weights.maxCoeff();
        weights = (weights.array() - max).exp();
        const double sum = weights.sum();
        out.noalias() = values.topRows(visible).transpose() * weights;
        for (int32_t d = 0; d < dim; ++d) {
          StoreElement(params.dtype, params.out, token * params.out_stride + head * dim + d,
                       out[d] / sum);
        }
        if (params.lse_ln != nullptr) {
          params.lse_ln[token * params.num_q_heads + head] =
              static_cast<float>(max + std::log(sum));
        }
      }
    }
  }
}

}  // namespace tokline
