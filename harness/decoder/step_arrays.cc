#include "harness/decoder/step_arrays.h"

#include <algorithm>
#include <vector>

#include "harness/decoder/carver.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

AttentionArrays PlaceAttention(const AttentionShape& shape, Carver& carver) {
  AttentionArrays arrays;
  if (shape.num_seqs == 0) return arrays;
  const int64_t seqs = shape.num_seqs;
  arrays.seq_chunk_indptr = carver.Take<int32_t>(seqs + 1);
  arrays.seq_chunks = carver.Take<int32_t>(seqs);
  arrays.chunk_lengths = carver.Take<int32_t>(seqs);
  arrays.chunk_page_indptr = carver.Take<int32_t>(seqs + 1);
  if (shape.kind == AttentionKind::kPagedPrefill) {
    arrays.q_indptr = carver.Take<int32_t>(seqs + 1);
    arrays.tiles = carver.Take<PagedPrefillTile>(shape.num_tokens);
  } else if (shape.num_lanes > 0) {
    const int64_t tasks = MaxDecodeTasks(shape);
    arrays.lane_task_indptr = carver.Take<int32_t>(shape.num_lanes + 1);
    arrays.tasks = carver.Take<ChunkDecodeTask>(tasks);
    arrays.ranges = carver.Take<ChunkDecodeRange>(tasks);
    arrays.members = carver.Take<ChunkDecodeMember>(tasks);
    arrays.seq_partial_indptr = carver.Take<int32_t>(seqs + 1);
  }
  arrays.chunk_pages = carver.Take<int32_t>(shape.max_pages);
  return arrays;
}

template <typename T>
void CopyPlanArray(const std::vector<T>& from, T* to, int64_t room, const char* name) {
  Require(static_cast<int64_t>(from.size()) <= room, "the plan of a step has ", from.size(), " ",
          name, "; there is room for ", room);
  std::ranges::copy(from, to);
}

}  // namespace

ChunkTableView AttentionArrays::Table(const AttentionShape& shape) const {
  return {.num_seqs = shape.num_seqs,
          .num_chunks = shape.num_seqs,
          .seq_chunk_indptr = seq_chunk_indptr,
          .seq_chunks = seq_chunks,
          .seq_shifts = nullptr,
          .chunk_page_indptr = chunk_page_indptr,
          .chunk_pages = chunk_pages,
          .chunk_lengths = chunk_lengths};
}

StepArrays PlaceStep(const StepShape& shape, std::byte* base) {
  Carver carver(base);
  StepArrays arrays;
  arrays.prefill_ids = carver.Take<int32_t>(shape.prefill.num_tokens);
  arrays.positions = carver.Take<int32_t>(shape.Tokens());
  arrays.slots = carver.Take<int64_t>(shape.Tokens());
  arrays.logit_tokens = carver.Take<int32_t>(shape.logit_rows);
  arrays.rules = carver.Take<SamplingRule>(shape.logit_rows);
  arrays.prefill = PlaceAttention(shape.prefill, carver);
  arrays.decode = PlaceAttention(shape.decode, carver);
  arrays.bytes = carver.Size();
  return arrays;
}

int64_t MaxDecodeTasks(const AttentionShape& shape) {
  return int64_t{shape.num_seqs} + shape.num_lanes;
}

TableWriter::TableWriter(const AttentionShape& shape, const AttentionArrays& arrays)
    : shape_(shape), arrays_(arrays) {
  if (shape.num_seqs == 0) return;
  arrays_.seq_chunk_indptr[0] = 0;
  arrays_.chunk_page_indptr[0] = 0;
  if (arrays_.q_indptr != nullptr) arrays_.q_indptr[0] = 0;
}

void TableWriter::Add(std::span<const int32_t> pages, int32_t length, int32_t new_tokens) {
  const auto count = static_cast<int64_t>(pages.size());
  Require(seqs_ < shape_.num_seqs && pages_ + count <= shape_.max_pages, "sequence ", seqs_,
          " with ", count, " pages after ", pages_, " exceeds a step of ", shape_.num_seqs,
          " sequences and ", shape_.max_pages, " pages");
  std::ranges::copy(pages, arrays_.chunk_pages + pages_);
  pages_ += count;
  arrays_.seq_chunks[seqs_] = seqs_;
  arrays_.chunk_lengths[seqs_] = length;
  if (arrays_.q_indptr != nullptr) {
    arrays_.q_indptr[seqs_ + 1] = arrays_.q_indptr[seqs_] + new_tokens;
  }
  ++seqs_;
  arrays_.seq_chunk_indptr[seqs_] = seqs_;
  arrays_.chunk_page_indptr[seqs_] = static_cast<int32_t>(pages_);
}

AttentionWork PlanAttention(const AttentionShape& shape, const AttentionArrays& arrays,
                            const PagedKvLayout& layout, int32_t num_q_heads,
                            const DeviceFacts& device) {
  AttentionWork work;
  if (shape.num_seqs == 0 || device.sm_count == 0) return work;
  if (shape.kind == AttentionKind::kPagedPrefill) {
    const PagedPrefillPlan plan = PlanPagedPrefill(arrays.Table(shape), arrays.q_indptr, layout,
                                                   num_q_heads, /*causal=*/true, device);
    CopyPlanArray(plan.tiles, arrays.tiles, shape.num_tokens, "tiles");
    work.num_tiles = static_cast<int32_t>(plan.tiles.size());
    work.tile_tokens = plan.tile_tokens;
    return work;
  }
  // No chunk of a step is listed twice, so there is nothing to share.
  const ChunkDecodePlan plan = PlanChunkDecode(
      arrays.Table(shape), layout, num_q_heads, device,
      {.batch_invariant = false, .share_chunks = false, .max_lanes = shape.num_lanes});
  const int64_t tasks = MaxDecodeTasks(shape);
  CopyPlanArray(plan.lane_task_indptr, arrays.lane_task_indptr, shape.num_lanes + 1, "lanes");
  CopyPlanArray(plan.tasks, arrays.tasks, tasks, "tasks");
  CopyPlanArray(plan.ranges, arrays.ranges, tasks, "ranges");
  CopyPlanArray(plan.members, arrays.members, tasks, "members");
  CopyPlanArray(plan.seq_partial_indptr, arrays.seq_partial_indptr, shape.num_seqs + 1,
                "sequences");
  return work;
}

}  // namespace tokline
