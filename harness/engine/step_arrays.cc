// Lays out and fills the arrays of a step, and plans its attention.
#include "harness/engine/step_arrays.h"

#include <algorithm>
#include <vector>

#include "harness/engine/carver.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

AttentionArrays PlaceAttention(const AttentionShape& shape, Carver& carver) {
  AttentionArrays arrays;
  if (shape.num_seqs == 0) return arrays;
  const int64_t seqs = shape.num_seqs;
  arrays.seq_chunk_indptr = carver.Take<int32_t>(seqs + 1);
  arrays.seq_chunks = carver.Take<int32_t>(shape.MaxChunks());
  arrays.chunk_lengths = carver.Take<int32_t>(shape.MaxChunks());
  arrays.chunk_page_indptr = carver.Take<int32_t>(shape.MaxChunks() + 1);
  switch (shape.kind) {
    case AttentionKind::kPagedPrefill:
      arrays.q_indptr = carver.Take<int32_t>(seqs + 1);
      arrays.tiles = carver.Take<PagedPrefillTile>(shape.max_tiles);
      arrays.parts = carver.Take<PagedPrefillPart>(shape.max_parts);
      break;
    case AttentionKind::kChunkDecode:
      if (shape.grid.num_lanes > 0) arrays.plan = carver.TakeBytes(DecodeRoomOf(shape).Bytes());
      break;
  }
  arrays.chunk_pages = carver.Take<int32_t>(shape.max_pages);
  return arrays;
}

}  // namespace

ChunkTableView AttentionArrays::Table(const AttentionShape& shape) const {
  return {.num_seqs = shape.num_seqs,
          .num_chunks = shape.MaxChunks(),
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
  arrays.bytes_used = carver.Take<int64_t>(1);
  arrays.prefill_ids = carver.Take<int32_t>(shape.prefill.num_tokens);
  arrays.positions = carver.Take<int32_t>(shape.Tokens());
  arrays.slots = carver.Take<int64_t>(shape.Tokens());
  arrays.logit_tokens = carver.Take<int32_t>(shape.logit_rows);
  arrays.rules = carver.Take<SamplingRule>(shape.logit_rows);
  arrays.only_best = carver.Take<int32_t>(shape.logit_rows);
  if (shape.one_kernel) arrays.parts = carver.Take<int32_t>(shape.decode.num_seqs);
  arrays.prefill = PlaceAttention(shape.prefill, carver);
  arrays.decode = PlaceAttention(shape.decode, carver);
  arrays.bytes = carver.Size();
  return arrays;
}

ChunkDecodePlanRoom DecodeRoomOf(const AttentionShape& shape) {
  // A block lane has cuts at its ends, or a part of a cluster's sequence. If warps take parts,
  // there are fewer cuts than warps; otherwise they read whole sequences. Neither warps nor
  // clusters cut what sequences share.
  const bool warps = shape.grid.block_lanes > 1;
  const int64_t cuts = warps && !shape.grid.takes_parts ? 0 : shape.grid.num_lanes;
  const int64_t shared_cuts = shape.shared_runs > 0 && !shape.grid.ReadsWhole() ? cuts : 0;
  const int64_t run_cuts = shape.grid.run_lanes;
  const int64_t uncut = int64_t{shape.num_seqs} * (1 + shape.shared_runs);
  return {.grid = shape.grid,
          .num_seqs = shape.num_seqs,
          .tasks = uncut + cuts + shared_cuts + run_cuts,
          .ranges = shape.MaxChunks() + cuts + shared_cuts + run_cuts,
          .members = uncut + cuts / shape.grid.cluster_lanes + shared_cuts * shape.task_members +
                     run_cuts * shape.run_task_members};
}

TableWriter::TableWriter(const AttentionShape& shape, const AttentionArrays& arrays)
    : shape_(shape), arrays_(arrays) {
  if (shape.num_seqs == 0) return;
  arrays_.seq_chunk_indptr[0] = 0;
  arrays_.chunk_page_indptr[0] = 0;
  if (arrays_.q_indptr != nullptr) arrays_.q_indptr[0] = 0;
}

int32_t TableWriter::AddChunk(std::span<const int32_t> pages, int32_t length) {
  const auto count = static_cast<int64_t>(pages.size());
  Require(chunks_ < shape_.MaxChunks() && pages_ + count <= shape_.max_pages, "chunk ", chunks_,
          " with ", count, " pages after ", pages_, " exceeds a step of ", shape_.MaxChunks(),
          " chunks and ", shape_.max_pages, " pages");
  std::ranges::copy(pages, arrays_.chunk_pages + pages_);
  pages_ += count;
  arrays_.chunk_lengths[chunks_] = length;
  arrays_.chunk_page_indptr[chunks_ + 1] = static_cast<int32_t>(pages_);
  ListChunk(chunks_);
  return chunks_++;
}

void TableWriter::ListChunk(int32_t chunk) {
  Require(listings_ < shape_.MaxChunks(), "the sequences of a step list more than ",
          shape_.MaxChunks(), " chunks");
  arrays_.seq_chunks[listings_++] = chunk;
}

void TableWriter::EndSequence(int32_t new_tokens) {
  Require(seqs_ < shape_.num_seqs, "a table for ", shape_.num_seqs, " sequences gets another one");
  if (arrays_.q_indptr != nullptr) {
    arrays_.q_indptr[seqs_ + 1] = arrays_.q_indptr[seqs_] + new_tokens;
  }
  ++seqs_;
  arrays_.seq_chunk_indptr[seqs_] = listings_;
  if (seqs_ < shape_.num_seqs) return;
  // Makes the chunks that no sequence lists empty.
  std::fill(arrays_.chunk_lengths + chunks_, arrays_.chunk_lengths + shape_.MaxChunks(), 0);
  std::fill(arrays_.chunk_page_indptr + chunks_, arrays_.chunk_page_indptr + shape_.MaxChunks() + 1,
            static_cast<int32_t>(pages_));
}

void TableWriter::Add(std::span<const int32_t> pages, int32_t length, int32_t new_tokens) {
  AddChunk(pages, length);
  EndSequence(new_tokens);
}

void PlanAttention(AttentionShape& shape, const AttentionArrays& arrays,
                   const PagedKvLayout& layout, int32_t num_q_heads, const DeviceFacts& device,
                   std::span<const SharedRun> runs) {
  if (shape.num_seqs == 0 || device.sm_count == 0) return;
  switch (shape.kind) {
    case AttentionKind::kPagedPrefill: {
      const PagedPrefillPlan plan =
          PlanPagedPrefill(arrays.Table(shape), arrays.q_indptr, layout, num_q_heads,
                           /*causal=*/true, device, shape.max_parts);
      Require(std::ssize(plan.tiles) <= shape.max_tiles, "the plan of a step has ",
              plan.tiles.size(), " tiles; there is room for ", shape.max_tiles);
      std::ranges::copy(plan.tiles, arrays.tiles);
      std::ranges::copy(plan.parts, arrays.parts);
      shape.num_blocks = plan.num_blocks;
      shape.num_tiles = static_cast<int32_t>(plan.tiles.size());
      shape.num_parts = static_cast<int32_t>(plan.parts.size());
      shape.tile_tokens = plan.tile_tokens;
      break;
    }
    case AttentionKind::kChunkDecode:
      if (shape.grid.num_lanes == 0) break;
      PlanChunkDecode(arrays.Table(shape), layout, num_q_heads, device,
                      {.runs = runs, .grid = shape.grid})
          .CopyTo(DecodeRoomOf(shape), arrays.plan);
      break;
  }
}

}  // namespace tokline
