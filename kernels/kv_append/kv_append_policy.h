// How an append is mapped to the device. Pure host code.
#pragma once

#include <cstdint>

#include "kernels/kv_append/kv_append.h"

namespace tokline {

enum class RowOp : uint8_t {
  kCopy,       // no norm and no RoPE anywhere: rows move bit by bit
  kTransform,  // norm and RoPE where their tables are given
};

// A row is one head of one token: a query head (where they change), a K head or a V head. The
// kernel's unit of work is a group of neighbouring rows of one kind and one token.
struct KvAppendPlan {
  RowOp op = RowOp::kCopy;
  int32_t num_q_rows = 0;        // a token; 0 when the query needs no work
  int32_t rows_per_group = 1;    // at most: 1 or 2
  int32_t q_groups = 0;          // a token, of query rows
  int32_t kv_groups = 0;         // a token, of K rows, and as many of V rows
  int32_t groups_per_token = 0;  // q_groups + 2 * kv_groups
};

// A group has one row where rows are few, so that they spread over the device, and from so many on
// two, which share look-ups and the RoPE row (README.md has the figures).
inline constexpr int64_t kKvAppendManyRows = 16384;

KvAppendPlan PlanKvAppend(const KvAppendParams& params);

}  // namespace tokline
