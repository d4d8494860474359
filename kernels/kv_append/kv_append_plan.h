// How an append is mapped to the device. Pure host code.
#pragma once

#include <cstdint>

#include "kernels/kv_append/kv_append.h"

namespace tokline {

enum class RowOp : uint8_t {
  kCopy,       // neither norm nor RoPE: rows are copied bit by bit
  kTransform,  // norm and RoPE if their tables are given
};

// A row is one head of one token: a query head (if the query changes), a K head or a V head. The
// kernel's unit of work is a group of neighbouring rows of one kind and one token.
struct KvAppendPlan {
  RowOp op = RowOp::kCopy;
  int32_t num_q_rows = 0;        // per token; 0 if the query needs no work
  int32_t rows_per_group = 1;    // at most this many: 1 or 2
  int32_t q_groups = 0;          // groups of query rows per token
  int32_t kv_groups = 0;         // groups of K rows per token, and of V rows
  int32_t groups_per_token = 0;  // q_groups + 2 * kv_groups
};

// Below this number of rows a group has one row, so that the rows spread over the device. From here
// on it has two, which share look-ups and the RoPE row (README.md has the figures).
inline constexpr int64_t kKvAppendManyRows = 16384;

KvAppendPlan PlanKvAppend(const KvAppendParams& params);

}  // namespace tokline
