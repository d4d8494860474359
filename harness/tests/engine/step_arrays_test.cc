// Tests the layout of a step's arrays, and that the plans of random batches fit into them.
#include "harness/engine/step_arrays.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "harness/tests/kernels/devices.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::kH200;
constexpr PagedKvLayout kLayout{
    .num_pages = 4096, .num_kv_heads = 8, .page_size = 16, .head_dim = 128};
constexpr int32_t kQueryHeads = 16;
constexpr int32_t kMaxPages = 64;

StepShape DecodeShape(int32_t rows) {
  StepShape shape;
  shape.decode = {.kind = AttentionKind::kChunkDecode,
                  .num_seqs = rows,
                  .num_tokens = rows,
                  .max_pages = int64_t{rows} * kMaxPages,
                  .grid = ChunkDecodeFullGrid(kLayout, kH200)};
  shape.logit_rows = rows;
  return shape;
}

// A block of memory that is followed by guard bytes.
class GuardedBlock {
 public:
  explicit GuardedBlock(int64_t bytes)
      : bytes_(bytes), block_(static_cast<size_t>(bytes) + kGuard, std::byte{0xab}) {}
  std::byte* data() { return block_.data(); }
  bool GuardIntact() const {
    return std::all_of(block_.begin() + bytes_, block_.end(),
                       [](std::byte b) { return b == std::byte{0xab}; });
  }

 private:
  static constexpr int64_t kGuard = 4096;
  int64_t bytes_;
  std::vector<std::byte> block_;
};

TEST(StepArraysTest, ArraysOfAShapeDoNotOverlapAndKeepTheirOffsets) {
  StepShape shape = DecodeShape(8);
  shape.prefill = {.kind = AttentionKind::kPagedPrefill,
                   .num_seqs = 3,
                   .num_tokens = 100,
                   .max_pages = 30,
                   .max_tiles = 50};
  GuardedBlock first(PlaceStep(shape, nullptr).bytes), second(PlaceStep(shape, nullptr).bytes);
  const StepArrays a = PlaceStep(shape, first.data()), b = PlaceStep(shape, second.data());
  struct Extent {
    const void* in_first;
    const void* in_second;
    int64_t bytes;
  };
  const auto extent = [](const auto* in_first, const auto* in_second, int64_t count) {
    return Extent{in_first, in_second, count * static_cast<int64_t>(sizeof(*in_first))};
  };
  std::vector<Extent> extents{
      extent(a.bytes_used, b.bytes_used, 1),
      extent(a.prefill_ids, b.prefill_ids, 100),
      extent(a.positions, b.positions, 108),
      extent(a.slots, b.slots, 108),
      extent(a.logit_tokens, b.logit_tokens, 8),
      extent(a.rules, b.rules, 8),
      extent(a.only_best, b.only_best, 8),
      extent(a.prefill.seq_chunk_indptr, b.prefill.seq_chunk_indptr, 4),
      extent(a.prefill.seq_chunks, b.prefill.seq_chunks, 3),
      extent(a.prefill.chunk_lengths, b.prefill.chunk_lengths, 3),
      extent(a.prefill.chunk_page_indptr, b.prefill.chunk_page_indptr, 4),
      extent(a.prefill.q_indptr, b.prefill.q_indptr, 4),
      extent(a.prefill.tiles, b.prefill.tiles, 50),
      extent(a.prefill.chunk_pages, b.prefill.chunk_pages, 30),
      extent(a.decode.seq_chunk_indptr, b.decode.seq_chunk_indptr, 9),
      extent(a.decode.seq_chunks, b.decode.seq_chunks, 8),
      extent(a.decode.chunk_lengths, b.decode.chunk_lengths, 8),
      extent(a.decode.chunk_page_indptr, b.decode.chunk_page_indptr, 9),
      extent(a.decode.plan, b.decode.plan, DecodeRoomOf(shape.decode).Bytes()),
      extent(a.decode.chunk_pages, b.decode.chunk_pages, 8 * kMaxPages)};
  const std::byte* end = first.data();
  for (const Extent& e : extents) {
    const auto* begin = static_cast<const std::byte*>(e.in_first);
    ASSERT_GE(begin, end);
    EXPECT_EQ(begin - first.data(), static_cast<const std::byte*>(e.in_second) - second.data());
    end = begin + e.bytes;
  }
  EXPECT_LE(end - first.data(), a.bytes);
}

TEST(StepArraysTest, PlansOfRandomDecodeBatchesFitAndCoverEveryContext) {
  std::mt19937 rng(3);
  for (int round = 0; round < 200; ++round) {
    StepShape shape = DecodeShape(1 + static_cast<int32_t>(rng() % 64));
    const int32_t rows = shape.decode.num_seqs;
    GuardedBlock block(PlaceStep(shape, nullptr).bytes);
    const StepArrays arrays = PlaceStep(shape, block.data());
    TableWriter writer(shape.decode, arrays.decode);
    std::vector<int32_t> lengths;
    for (int32_t row = 0; row < rows; ++row) {
      // A third of the rows is padding. In round 0 all rows are, in round 1 all have maximum
      // length.
      int32_t length = rng() % 3 == 0 ? 0 : static_cast<int32_t>(rng() % (kMaxPages * 16));
      if (round == 0) length = 0;
      if (round == 1) length = kMaxPages * 16;
      lengths.push_back(length);
      std::vector<int32_t> pages(static_cast<size_t>((length + 15) / 16));
      for (int32_t& page : pages) page = static_cast<int32_t>(rng() % 4096);
      writer.Add(pages, length, 1);
    }
    PlanAttention(shape.decode, arrays.decode, kLayout, kQueryHeads, kH200);
    ASSERT_TRUE(block.GuardIntact());
    ASSERT_NO_THROW(Validate(arrays.decode.Table(shape.decode), kLayout));

    std::vector<int32_t> covered(lengths.size(), 0);
    const ChunkDecodePlanView plan = DecodeRoomOf(shape.decode).View(arrays.decode.plan);
    const int32_t num_tasks = plan.lane_task_indptr[shape.decode.grid.num_lanes];
    ASSERT_LE(num_tasks, DecodeRoomOf(shape.decode).tasks);
    std::vector<int32_t> members(lengths.size(), 0);
    for (int32_t t = 0; t < num_tasks; ++t) {
      const ChunkDecodeTask& task = plan.tasks[t];
      ASSERT_EQ(task.member_count, 1);
      const int32_t seq = plan.members[task.member_begin].seq;
      ++members[static_cast<size_t>(seq)];
      for (int32_t r = task.range_begin; r < task.range_end; ++r) {
        const ChunkDecodeRange& range = plan.ranges[r];
        EXPECT_EQ(range.page_begin, arrays.decode.chunk_page_indptr[seq]);
        covered[static_cast<size_t>(seq)] += range.token_end - range.token_begin;
      }
    }
    EXPECT_EQ(covered, lengths);
    for (const int32_t count : members) EXPECT_GE(count, 1);  // padding rows are written too
    EXPECT_LE(plan.seq_partial_indptr[rows], rows + shape.decode.grid.num_lanes);
  }
}

// Sequences that share chunks have several runs of pages. The block starts with garbage, so that
// entries that are not written are noticed.
TEST(StepArraysTest, PlansOfSequencesOfSeveralChunksFitAndCoverEveryContext) {
  std::mt19937 rng(8);
  for (int round = 0; round < 100; ++round) {
    StepShape shape = DecodeShape(1 + static_cast<int32_t>(rng() % 32));
    const int32_t rows = shape.decode.num_seqs;
    constexpr int32_t kRuns = 8;
    shape.decode.more_chunks = rows * (kRuns - 1);
    GuardedBlock block(PlaceStep(shape, nullptr).bytes);
    const StepArrays arrays = PlaceStep(shape, block.data());
    TableWriter writer(shape.decode, arrays.decode);
    std::vector<int32_t> lengths;
    for (int32_t row = 0; row < rows; ++row) {
      int32_t total = 0;
      const int32_t runs = round == 0 ? kRuns : static_cast<int32_t>(rng() % (kRuns + 1));
      for (int32_t run = 0; run < runs; ++run) {
        const auto length = static_cast<int32_t>(1 + rng() % (kMaxPages * 16 / kRuns));
        std::vector<int32_t> pages(static_cast<size_t>((length + 15) / 16));
        for (int32_t& page : pages) page = static_cast<int32_t>(rng() % 4096);
        writer.AddChunk(pages, length);
        total += length;
      }
      writer.EndSequence(1);
      lengths.push_back(total);
    }
    PlanAttention(shape.decode, arrays.decode, kLayout, kQueryHeads, kH200);
    ASSERT_TRUE(block.GuardIntact());
    const ChunkTableView table = arrays.decode.Table(shape.decode);
    ASSERT_NO_THROW(Validate(table, kLayout));
    std::vector<int32_t> covered(lengths.size(), 0);
    const ChunkDecodePlanView plan = DecodeRoomOf(shape.decode).View(arrays.decode.plan);
    for (int32_t t = 0; t < plan.lane_task_indptr[shape.decode.grid.num_lanes]; ++t) {
      const ChunkDecodeTask& task = plan.tasks[t];
      const int32_t seq = plan.members[task.member_begin].seq;
      for (int32_t r = task.range_begin; r < task.range_end; ++r) {
        const ChunkDecodeRange& range = plan.ranges[r];
        covered[static_cast<size_t>(seq)] += range.token_end - range.token_begin;
      }
    }
    EXPECT_EQ(covered, lengths);
    EXPECT_LE(plan.seq_partial_indptr[rows], rows + shape.decode.grid.num_lanes);
  }
}

TEST(StepArraysTest, PrefillTilesCoverEveryNewToken) {
  StepShape shape;
  shape.prefill = {.kind = AttentionKind::kPagedPrefill,
                   .num_seqs = 3,
                   .num_tokens = 171,
                   .max_pages = 40,
                   .max_tiles = MaxPagedPrefillTiles(kLayout, kQueryHeads, 3, 171)};
  GuardedBlock block(PlaceStep(shape, nullptr).bytes);
  const StepArrays arrays = PlaceStep(shape, block.data());
  TableWriter writer(shape.prefill, arrays.prefill);
  const std::vector<int32_t> pages{7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  const int32_t counts[] = {1, 20, 150};
  for (const int32_t count : counts) writer.Add(pages, std::max(count, 30), count);
  PlanAttention(shape.prefill, arrays.prefill, kLayout, kQueryHeads, kH200);
  ASSERT_TRUE(block.GuardIntact());
  int64_t covered = 0;
  for (int32_t i = 0; i < shape.prefill.num_tiles; ++i) {
    covered += arrays.prefill.tiles[i].num_tokens;
  }
  EXPECT_EQ(covered, 171 * kLayout.num_kv_heads);
  EXPECT_EQ(writer.PagesUsed(), 30);
}

TEST(StepArraysTest, PrefillCutsALongContextOnlyIfThereIsRoomForParts) {
  constexpr int32_t kContext = 20'000;
  const std::vector<int32_t> pages(kContext / kLayout.page_size + 1, 3);
  for (const int32_t max_parts : {0, MaxPagedPrefillParts(kH200)}) {
    StepShape shape;
    shape.prefill = {.kind = AttentionKind::kPagedPrefill,
                     .num_seqs = 1,
                     .num_tokens = 2,
                     .max_pages = std::ssize(pages),
                     .max_tiles = MaxPagedPrefillTiles(kLayout, kQueryHeads, 1, 2) + max_parts,
                     .max_parts = max_parts};
    GuardedBlock block(PlaceStep(shape, nullptr).bytes);
    const StepArrays arrays = PlaceStep(shape, block.data());
    TableWriter(shape.prefill, arrays.prefill).Add(pages, kContext, 2);
    PlanAttention(shape.prefill, arrays.prefill, kLayout, kQueryHeads, kH200);
    ASSERT_TRUE(block.GuardIntact());
    EXPECT_EQ(shape.prefill.num_parts > 0, max_parts > 0);
    EXPECT_EQ(shape.prefill.num_tiles,
              max_parts > 0 ? shape.prefill.num_parts : kLayout.num_kv_heads);
    int64_t walked = 0;
    for (int32_t i = 0; i < shape.prefill.num_parts; ++i) {
      walked += arrays.prefill.parts[i].end - arrays.prefill.parts[i].begin;
    }
    EXPECT_EQ(walked, max_parts > 0 ? int64_t{kContext} * kLayout.num_kv_heads : 0);
  }
}

TEST(StepArraysTest, TableRefusesMoreThanItsRoom) {
  const StepShape shape = DecodeShape(1);
  GuardedBlock block(PlaceStep(shape, nullptr).bytes);
  const StepArrays arrays = PlaceStep(shape, block.data());
  TableWriter writer(shape.decode, arrays.decode);
  const std::vector<int32_t> pages(kMaxPages + 1, 0);
  EXPECT_THROW(writer.Add(pages, 1, 1), InvalidArgument);
  writer.Add({}, 0, 1);
  EXPECT_THROW(writer.Add({}, 0, 1), InvalidArgument);
}

TEST(StepArraysTest, WithoutADeviceNothingIsPlanned) {
  StepShape shape = DecodeShape(2);
  shape.decode.grid.num_lanes = 0;
  GuardedBlock block(PlaceStep(shape, nullptr).bytes);
  const StepArrays arrays = PlaceStep(shape, block.data());
  TableWriter writer(shape.decode, arrays.decode);
  writer.Add({}, 0, 1);
  writer.Add({}, 0, 1);
  PlanAttention(shape.decode, arrays.decode, kLayout, kQueryHeads, DeviceFacts{});
  EXPECT_EQ(shape.decode.num_tiles, 0);
  EXPECT_EQ(arrays.decode.plan, nullptr);
}

}  // namespace
}  // namespace tokline
