// Host side of sampling: validation, cost, workspace, and the division among blocks.
#include "kernels/sampling/sampling_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/common/alignment.h"
#include "kernels/common/error.h"
#include "kernels/common/rounding.h"
#include "kernels/common/rows.h"

namespace tokline {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int32_t kChunksOfRank = 2;  // a block with a single chunk gains less than it costs

int64_t NumChunks(int64_t vocab_size) { return DivideUp(vocab_size, kSamplingChunk); }

// The number of bytes before the group maxima.
int64_t StatsBytes(int64_t num_rows, int64_t vocab_size) {
  const int64_t bytes = num_rows * NumChunks(vocab_size) * static_cast<int64_t>(sizeof(ChunkStats));
  return RoundUp(bytes, kAlignment);
}

}  // namespace

int64_t SamplingWorkspaceBytes(int64_t num_rows, int64_t vocab_size) {
  const int64_t groups = NumChunks(vocab_size) * (kSamplingChunk / kSamplingGroup);
  return StatsBytes(num_rows, vocab_size) + num_rows * groups * static_cast<int64_t>(sizeof(float));
}

void Validate(const SamplingRule& rule) {
  Require(std::isfinite(rule.temperature) && rule.temperature >= 0, "temperature is ",
          rule.temperature, "; it must be finite and >= 0 (0 is greedy)");
  Require(rule.top_k >= 0, "top_k is ", rule.top_k, "; it must be >= 0 (0 keeps all)");
  Require(rule.top_p > 0 && rule.top_p <= 1, "top_p is ", rule.top_p,
          "; it must be above 0 and at most 1");
}

void Validate(const SamplingParams& params) {
  Require(params.vocab_size >= 1 && params.vocab_size <= kMaxSamplingVocab, "vocab_size is ",
          params.vocab_size, "; it must be 1 to ", kMaxSamplingVocab);
  const int64_t max_rows = std::numeric_limits<int32_t>::max() / NumChunks(params.vocab_size);
  Require(params.num_rows >= 0 && params.num_rows <= max_rows, "num_rows is ", params.num_rows,
          "; with vocab_size ", params.vocab_size, " it must be 0 to ", max_rows);
  if (params.num_rows == 0) return;
  Require(params.logits && params.rules && params.tokens, "logits, rules or tokens is null with ",
          params.num_rows, " rows");
  Require((params.best == nullptr) == (params.best_parts == 0) && params.best_parts >= 0,
          "best is ", params.best, " with ", params.best_parts,
          " parts; it must have at least one, or be null with none");
  RequireStride(params.num_rows, params.logits_stride, "logits_stride", params.vocab_size,
                "vocab_size");
}

Cost CostOf(const SamplingParams& params) {
  const double rows = static_cast<double>(params.num_rows);
  const double logits = rows * static_cast<double>(params.vocab_size);
  return {.read_bytes = logits * sizeof(float) + rows * sizeof(SamplingRule),
          .write_bytes = rows * sizeof(int32_t),  // tokens
          .flops = logits};  // one comparison per logit, which is all that a greedy row needs
}

SamplingPlan PlanSampling(const SamplingParams& params) {
  const int64_t needed = SamplingWorkspaceBytes(params.num_rows, params.vocab_size);
  Require(params.workspace_bytes >= needed, "workspace_bytes is ", params.workspace_bytes, "; ",
          params.num_rows, " rows of ", params.vocab_size, " logits need ", needed);
  if (params.num_rows > 0) RequireTensor("workspace", params.workspace, kAlignment);
  SamplingPlan plan;
  plan.num_chunks = static_cast<int32_t>(NumChunks(params.vocab_size));
  plan.num_groups = plan.num_chunks * (kSamplingChunk / kSamplingGroup);
  plan.vector_loads =
      IsAligned(params.logits, 16) && (params.num_rows == 1 || params.logits_stride % 4 == 0);
  plan.stats = static_cast<ChunkStats*>(params.workspace);
  plan.group_maxima = reinterpret_cast<float*>(static_cast<char*>(params.workspace) +
                                               StatsBytes(params.num_rows, params.vocab_size));
  return plan;
}

int32_t ChunkScanGrid(int64_t num_rows, int32_t num_chunks, const DeviceFacts& device) {
  return static_cast<int32_t>(
      std::min(num_rows * num_chunks, int64_t{kChunkScanBlocks} * device.sm_count));
}

int32_t PickRanks(int64_t num_rows, int32_t num_chunks, const DeviceFacts& device) {
  // A cluster waits until as many SMs of one group are free of the scan's blocks, which costs rows
  // that do not need it more the more rows there are.
  constexpr int64_t kRowsOfEight = 4, kRowsOfFour = 16;
  if (!device.HasClusters() || num_rows > kRowsOfFour) return 1;
  // A block fills an SM. Clusters of four and eight fill 120 of 132 SMs, whose groups are whole.
  const auto fits = [&](int32_t ranks) {
    return num_rows * ranks <= device.sm_count * 10 / 11 && kChunksOfRank * ranks <= num_chunks;
  };
  int32_t ranks = num_rows <= kRowsOfEight ? kMaxPickRanks : kMaxPickRanks / 2;
  while (ranks > 1 && !fits(ranks)) ranks /= 2;
  return ranks;
}

}  // namespace tokline
