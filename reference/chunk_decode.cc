// CPU reference of chunk_decode: attention in double over each sequence's chunks, with shifted keys
// expressed as rotated queries.
#include "reference/chunk_decode.h"

#include <Eigen/Core>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "reference/elements.h"
#include "reference/parallel.h"

namespace tokline {
namespace {

// Returns one head's query rotated by minus `shift` positions, rounded to the dtype it is stored
// in.
Eigen::VectorXd ShiftedQuery(const ChunkDecodeParams& params, const Eigen::VectorXd& query,
                             int32_t shift) {
  if (shift == 0) return query;
  const int64_t half = query.size() / 2;
  const float* angles = params.rope_cos_sin + int64_t{std::abs(shift)} * half * 2;
  Eigen::VectorXd shifted(query.size());
  for (int64_t i = 0; i < half; ++i) {
    const double cosine = angles[2 * i];
    const double sine = shift > 0 ? -angles[2 * i + 1] : angles[2 * i + 1];
    shifted[i] = RoundTo(params.dtype, query[i] * cosine - query[i + half] * sine);
    shifted[i + half] = RoundTo(params.dtype, query[i + half] * cosine + query[i] * sine);
  }
  return shifted;
}

// Attention of one query head of a sequence. Computes the scores of the whole context first, then
// the softmax by its definition.
void AttendReference(const ChunkDecodeParams& params, int32_t seq, int32_t head) {
  const PagedKvLayout& layout = params.layout;
  const ChunkTableView& table = params.table;
  const int64_t head_dim = layout.head_dim;
  const int32_t kv_head = head / (params.num_q_heads / layout.num_kv_heads);
  const auto load = [&](const void* base, int64_t offset, Eigen::VectorXd& row) {
    LoadElements(params.dtype, base, offset, head_dim, row.data());
  };
  // Calls visit(position, its chunk's place in the sequence's list, page, row).
  const auto for_each_row = [&](auto&& visit) {
    int64_t at = 0;
    for (int32_t i = table.seq_chunk_indptr[seq]; i < table.seq_chunk_indptr[seq + 1]; ++i) {
      const int32_t chunk = table.seq_chunks[i];
      const int32_t* pages = table.chunk_pages + table.chunk_page_indptr[chunk];
      for (int32_t t = 0; t < table.chunk_lengths[chunk]; ++t) {
        visit(at++, i, pages[layout.Pages().PageOf(t)], layout.Pages().RowOf(t));
      }
    }
  };
  Eigen::VectorXd query(head_dim), shifted, key(head_dim), value(head_dim);
  load(params.q, seq * params.q_stride + head * head_dim, query);
  const int64_t length = SequenceLength(table, seq);
  Eigen::VectorXd scores(length);
  int32_t shifted_for = -1;
  for_each_row([&](int64_t at, int32_t listing, int64_t page, int32_t row) {
    if (listing != shifted_for) {
      shifted = ShiftedQuery(params, query, table.seq_shifts ? table.seq_shifts[listing] : 0);
      shifted_for = listing;
    }
    load(params.kv, layout.KeyOffset(page, kv_head, row), key);
    scores[at] = shifted.dot(key) * params.scale;
  });
  Eigen::VectorXd output = Eigen::VectorXd::Zero(head_dim);
  double lse = -std::numeric_limits<double>::infinity();
  if (length > 0) {
    const double best = scores.maxCoeff();
    scores = (scores.array() - best).exp();
    const double sum = scores.sum();
    lse = best + std::log(sum);
    for_each_row([&](int64_t at, int32_t, int64_t page, int32_t row) {
      load(params.kv, layout.ValueOffset(page, kv_head, row), value);
      output += scores[at] / sum * value;
    });
  }
  for (int64_t i = 0; i < head_dim; ++i) {
    StoreElement(params.dtype, params.out, seq * params.out_stride + head * head_dim + i,
                 output[i]);
  }
  if (params.lse_ln) {
    params.lse_ln[int64_t{seq} * params.num_q_heads + head] = static_cast<float>(lse);
  }
}

}  // namespace

void ChunkDecodeReference(const ChunkDecodeParams& params) {
  Validate(params);
  ValidateShifts(params.table, params.layout, params.rope_rows);
  const int64_t heads = params.num_q_heads;
  ParallelFor(params.table.num_seqs * heads, CostOf(params).flops / 2, [&](int64_t i) {
    AttendReference(params, static_cast<int32_t>(i / heads), static_cast<int32_t>(i % heads));
  });
}

}  // namespace tokline
