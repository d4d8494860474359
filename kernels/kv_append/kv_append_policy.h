// How an append is mapped to the device. Pure host code.
#pragma once

#include <cstdint>

#include "kernels/kv_append/kv_append.h"

namespace tokline {

enum class RowOp : uint8_t {
  kCopy,       // no norm and no RoPE anywhere: rows move bit by bit
  kTransform,  // norm and RoPE where their tables are given
};

// The kernel's unit of work is a row: one head of one token. A token's rows are its query heads
// (when they change), then its K heads, then its V heads.
struct KvAppendPlan {
  RowOp op = RowOp::kCopy;
  int32_t num_q_rows = 0;      // a token; 0 when the query needs no work
  int32_t rows_per_token = 0;  // num_q_rows + 2 * num_kv_heads
  int32_t num_rows = 0;
};

KvAppendPlan PlanKvAppend(const KvAppendParams& params);

}  // namespace tokline
