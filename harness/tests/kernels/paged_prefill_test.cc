// Plan, Validate, Cost, index arithmetic and reference of paged_prefill, without a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <tuple>

#include "harness/tests/kernels/devices.h"
#include "harness/tests/kernels/paged_prefill_case.h"
#include "harness/tests/kernels/sequence_tokens.h"
#include "harness/tests/message_of.h"
#include "kernels/device/swizzle.cuh"
#include "kernels/paged_prefill/paged_prefill_plan.h"

namespace tokline {
namespace {

using testing::Devices;
using ::testing::HasSubstr;
using testing::HostTensor;
using testing::kH200;
using testing::MessageOf;
using testing::NamedDevice;
using testing::PrefillCase;
using testing::PrefillExpectation;
using testing::PrefillSequence;
using testing::PrefillSpec;

PrefillSpec RaggedSpec() {
  return {.sequences = {
              {{}, 0}, {{1}, 1}, {{40}, 40}, {{0, 17, 16, 30}, 5}, {{33}, 0}, {{20, 20}, 40}}};
}

TEST(PackedRowsTest, DividesEveryRowByEveryGroup) {
  for (int32_t group = 1; group <= 16; ++group) {
    const PackedRows packed(group);
    for (int32_t row = 0; row < kPagedPrefillTileRows; ++row) {
      ASSERT_EQ(packed.Token(row), row / group) << "group " << group << " row " << row;
      ASSERT_EQ(packed.Head(row), row % group) << "group " << group << " row " << row;
    }
  }
}

// Checks the placement of 16 rows of kRowBytes.
template <typename Placement, int kRowBytes>
void ExpectConflictFree() {
  std::set<uint32_t> all;
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t segment = 0; segment < kRowBytes / 16; ++segment) {
      const uint32_t offset = Placement::Offset(row, segment);
      all.insert(offset);
      EXPECT_EQ(offset, Placement::Offset(row % 8, segment) + row / 8 * 8 * Placement::kRowPitch);
    }
  }
  EXPECT_EQ(all.size(), 16u * kRowBytes / 16);
  EXPECT_EQ(*all.rbegin(), 16u * kRowBytes - 16);
  const auto banks = [](uint32_t offset) { return offset / 16 % 8; };
  for (uint32_t segment = 0; segment < kRowBytes / 16; ++segment) {
    std::set<uint32_t> column, line;
    for (uint32_t i = 0; i < 8; ++i) {
      column.insert(banks(Placement::Offset(8 + i, segment)));
      line.insert(banks(Placement::Offset(segment % 8, segment / 8 * 8 + i)));
    }
    EXPECT_EQ(column.size(), 8u);
    EXPECT_EQ(line.size(), 8u);
  }
}

TEST(SwizzleTest, PlacementsArePermutationsWithoutBankConflicts) {
  ExpectConflictFree<SwizzledRows<128>, 128>();
  ExpectConflictFree<SwizzledRows<256>, 256>();
  ExpectConflictFree<SwizzledPanels<128, 16>, 128>();
  ExpectConflictFree<SwizzledPanels<256, 16>, 256>();
}

TEST(PagedPrefillVariantTest, EveryDeviceGetsAVariantThatItsCodeAndMemoryRun) {
  int hopper = 0;
  for (const NamedDevice& device : Devices()) {
    SCOPED_TRACE(::testing::PrintToString(device));
    const PagedPrefillVariant variant = ChoosePagedPrefillVariant(device.facts);
    // Only sm_90a code contains wgmma, and it runs only on 9.0.
    EXPECT_EQ(variant == PagedPrefillVariant::kHopper,
              device.facts.code_is_sm90a && device.facts.compute_major == 9);
    hopper += variant == PagedPrefillVariant::kHopper;
    for (const int32_t head_dim : {64, 128}) {
      EXPECT_LE(PagedPrefillBlockBytes(variant, head_dim), device.facts.shared_bytes_per_block);
    }
  }
  EXPECT_EQ(hopper, 1);
}

TEST(PagedPrefillPlanTest, BlocksCoverEachNewTokenAndHeadOnceLongestFirst) {
  std::mt19937_64 rng(5);
  for (int round = 0; round < 40; ++round) {
    const bool causal = round % 4 != 0;
    const auto group = static_cast<int32_t>(1 + rng() % 16);
    const PagedKvLayout layout{
        .num_pages = 1000, .num_kv_heads = 3, .page_size = 16, .head_dim = 64};
    ChunkTable table;
    std::vector<int32_t> q_indptr{0};
    for (int seq = 0; seq < 6; ++seq) {
      const auto length = static_cast<int32_t>(rng() % 700);
      const std::vector<int32_t> pages((length + 15) / 16, 1);
      const std::vector<int32_t> chunks{table.AddChunk(pages, length)};
      table.AddSequence(chunks);
      q_indptr.push_back(q_indptr.back() + static_cast<int32_t>(rng() % (length + 1)));
    }
    const PagedPrefillPlan plan =
        PlanPagedPrefill(table.View(), q_indptr.data(), layout, 3 * group, causal, kH200);
    EXPECT_LE(plan.tile_tokens * group, kPagedPrefillTileRows);
    int32_t longest = 0, most = 0;
    for (int seq = 0; seq < 6; ++seq)
      longest = std::max(longest, q_indptr[seq + 1] - q_indptr[seq]);
    for (const PagedPrefillTile& tile : plan.tiles) most = std::max<int32_t>(most, tile.num_tokens);
    EXPECT_EQ(plan.tile_tokens, most);
    EXPECT_EQ(most, std::min(longest, kPagedPrefillTileRows / group));
    EXPECT_LE(std::ssize(plan.tiles), MaxPagedPrefillTiles(layout, 3 * group, 6, q_indptr.back()));
    EXPECT_EQ(plan.num_blocks, std::min<int64_t>(std::ssize(plan.tiles), kH200.sm_count));
    std::vector<std::vector<int>> covered(3, std::vector<int>(q_indptr.back(), 0));
    for (int32_t block = 0; block < plan.num_blocks; ++block) {
      int32_t at = block;
      for (int32_t left = plan.tiles[block].left; left > 0; --left, at = plan.tiles[at].next) {
        const PagedPrefillTile& tile = plan.tiles[at];
        ASSERT_EQ(tile.left, left);
        for (int32_t i = 0; i < tile.num_tokens; ++i) ++covered[tile.kv_head][tile.q_begin + i];
      }
    }
    int64_t previous = INT64_MAX;
    for (const PagedPrefillTile& tile : plan.tiles) {
      ASSERT_GE(tile.num_tokens, 1);
      ASSERT_LE(tile.num_tokens, plan.tile_tokens);
      const int32_t end = tile.q_begin + tile.num_tokens;
      const auto seq = static_cast<int32_t>(
          std::upper_bound(q_indptr.begin(), q_indptr.end(), tile.q_begin) - q_indptr.begin() - 1);
      EXPECT_LE(end, q_indptr[seq + 1]) << "a tile of two sequences";
      EXPECT_EQ(tile.next_chunk, seq + 1);  // each sequence has one chunk
      EXPECT_EQ(tile.chunk_length, table.SequenceLength(seq));
      EXPECT_EQ(tile.page_begin, table.View().chunk_page_indptr[seq]);
      EXPECT_EQ(tile.kv_end, table.SequenceLength(seq) - (causal ? q_indptr[seq + 1] - end : 0));
      EXPECT_LE(tile.kv_end, previous);
      previous = tile.kv_end;
    }
    EXPECT_EQ(covered, std::vector(3, std::vector<int>(q_indptr.back(), 1)));
  }
}

// A batch of equal prompts without a past.
PagedPrefillPlan PlanOfPrompts(int32_t num_seqs, int32_t length, int32_t group) {
  const PagedKvLayout layout{
      .num_pages = 1 << 20, .num_kv_heads = 8, .page_size = 16, .head_dim = 128};
  ChunkTable table;
  std::vector<int32_t> q_indptr{0};
  for (int32_t seq = 0; seq < num_seqs; ++seq) {
    const std::vector<int32_t> pages(static_cast<size_t>(layout.PagesFor(length)), 1);
    const std::vector<int32_t> chunks{table.AddChunk(pages, length)};
    table.AddSequence(chunks);
    q_indptr.push_back(q_indptr.back() + length);
  }
  return PlanPagedPrefill(table.View(), q_indptr.data(), layout, 8 * group, true, kH200);
}

TEST(PagedPrefillPlanTest, TilesThatRunTogetherReadWhatL2Holds) {
  struct Batch {
    int32_t num_seqs, length, group;
  };
  for (const Batch& batch : {Batch{16, 1024, 2}, Batch{4, 4096, 4}, Batch{1, 32768, 2}}) {
    SCOPED_TRACE(batch.length);
    const PagedPrefillPlan plan = PlanOfPrompts(batch.num_seqs, batch.length, batch.group);
    const int64_t context_bytes = int64_t{batch.length} * 128 * 2 * 2;  // of one KV head
    for (size_t first = 0; first + kH200.sm_count <= plan.tiles.size(); ++first) {
      std::set<std::pair<int32_t, int32_t>> contexts;
      for (size_t i = first; i < first + kH200.sm_count; ++i) {
        contexts.insert({plan.tiles[i].q_begin / batch.length, plan.tiles[i].kv_head});
      }
      // Tiles of two sections meet where one ends.
      ASSERT_LE(std::ssize(contexts) * context_bytes, kH200.l2_bytes * 2 / 3) << first;
    }
  }
}

TEST(PagedPrefillPlanTest, BlocksEndWithinATileOfEachOther) {
  for (const int32_t length : {100, 1024, 5000}) {
    const PagedPrefillPlan plan = PlanOfPrompts(20, length, 4);
    int64_t longest = 0, first_end = INT64_MAX, last_end = 0;
    for (int32_t block = 0; block < plan.num_blocks; ++block) {
      int64_t end = 0;
      for (int32_t at = block; at >= 0; at = plan.tiles[at].next) {
        const int64_t cost = PagedPrefillTileCost(plan.tiles[at].kv_end);
        longest = std::max(longest, cost);
        end += cost;
      }
      first_end = std::min(first_end, end);
      last_end = std::max(last_end, end);
    }
    EXPECT_LE(last_end - first_end, longest) << length;
  }
}

TEST(PagedPrefillPlanTest, ThereIsRoomForTheTilesOfTheLargestGroup) {
  for (const int32_t new_tokens : {1, 7, 8, 9, 17}) {
    PrefillCase problem({.num_kv_heads = 1,
                         .group = 16,
                         .sequences = std::vector<PrefillSequence>(
                             20, {.chunks = {new_tokens}, .new_tokens = new_tokens})});
    const PagedPrefillPlan plan = PlanPagedPrefill(problem.table.View(), problem.q_indptr.data(),
                                                   problem.layout, 16, true, kH200);
    EXPECT_EQ(plan.tiles.size(), static_cast<size_t>(20 * ((new_tokens + 7) / 8)));
    EXPECT_LE(std::ssize(plan.tiles),
              MaxPagedPrefillTiles(problem.layout, 16, 20, 20 * new_tokens));
  }
}

TEST(PagedPrefillPlanTest, RejectsMoreNewTokensThanTheContextHas) {
  PrefillCase problem({.sequences = {{{20}, 20}}});
  problem.q_indptr.back() = 21;
  EXPECT_THAT(MessageOf([&] {
                PlanPagedPrefill(problem.table.View(), problem.q_indptr.data(), problem.layout,
                                 problem.spec.num_q_heads(), true, kH200);
              }),
              HasSubstr("sequence 0 has 21 new tokens; its context of 20 holds 0 to 20"));
  PrefillCase empty({.sequences = {{{}, 0}}});
  empty.q_indptr.back() = 1;
  EXPECT_THAT(MessageOf([&] {
                PlanPagedPrefill(empty.table.View(), empty.q_indptr.data(), empty.layout,
                                 empty.spec.num_q_heads(), true, kH200);
              }),
              HasSubstr("sequence 0 has 1 new tokens; its context of 0 holds 0 to 0"));
}

TEST(PagedPrefillPlanTest, RejectsMoreTilesThanAnIndexCounts) {
  PrefillCase problem({.num_kv_heads = 128, .group = 16, .sequences = {{{20}, 20}}});
  problem.q_indptr.back() = 1 << 30;
  EXPECT_THAT(MessageOf([&] {
                PlanPagedPrefill(problem.table.View(), problem.q_indptr.data(), problem.layout,
                                 problem.spec.num_q_heads(), true, kH200);
              }),
              HasSubstr("may take 17179869312 tiles; there may be 2147483647"));
}

TEST(PagedPrefillPlanTest, RejectsADeviceWithoutMultiprocessors) {
  PrefillCase problem(RaggedSpec());
  EXPECT_THAT(MessageOf([&] {
                PlanPagedPrefill(problem.table.View(), problem.q_indptr.data(), problem.layout,
                                 problem.spec.num_q_heads(), true, DeviceFacts{});
              }),
              HasSubstr("sm_count is 0; it must be >= 1"));
}

TEST(PagedPrefillPlanTest, BatchWithoutNewTokensHasNoTiles) {
  PrefillCase problem({.sequences = {{{}, 0}, {{20}, 0}}});
  EXPECT_TRUE(PlanPagedPrefill(problem.table.View(), problem.q_indptr.data(), problem.layout, 4,
                               true, kH200)
                  .tiles.empty());
}

TEST(PagedPrefillPlanTest, RejectsHeadsThatDoNotDivide) {
  PrefillCase problem(RaggedSpec());
  EXPECT_THAT(MessageOf([&] {
                PlanPagedPrefill(problem.table.View(), problem.q_indptr.data(), problem.layout, 5,
                                 true, kH200);
              }),
              HasSubstr("num_q_heads is 5 with 2 KV heads"));
}

TEST(PagedPrefillValidateTest, StatesWhatIsWrong) {
  PrefillCase problem(RaggedSpec());
  const struct {
    std::function<void(PagedPrefillParams&)> spoil;
    const char* message;
  } cases[] = {
      {[](auto& p) { p.num_q_heads = 34; }, "num_q_heads is 34 with 2 KV heads"},
      {[](auto& p) { p.num_q_heads = 3; }, "num_q_heads is 3 with 2 KV heads"},
      {[](auto& p) { p.num_q_heads = 0; }, "num_q_heads is 0"},
      {[](auto& p) { p.layout.head_dim = 96; }, "head_dim is 96; supported are 64 and 128"},
      {[](auto& p) { p.layout.page_size = 24; }, "page_size is 24"},
      {[](auto& p) { p.scale = 0; }, "scale is 0; it must be finite and > 0"},
      {[](auto& p) { p.scale = NAN; }, "scale is nan"},
      {[](auto& p) { p.total_tokens = -1; }, "total_tokens is -1"},
      {[](auto& p) { p.table.num_seqs = 0; }, "there are no sequences"},
      {[](auto& p) { p.table.chunk_pages = nullptr; }, "a pointer of the chunk table"},
      {[](auto& p) { p.q_indptr = nullptr; }, "or q_indptr, is null"},
      {[](auto& p) { p.kv = nullptr; }, "kv is at"},
      {[](auto& p) { p.kv = static_cast<const char*>(p.kv) + 8; }, "kv is at"},
      {[](auto& p) { p.q = nullptr; }, "q is null"},
      {[](auto& p) { p.q = static_cast<const char*>(p.q) + 2; }, "rows must be 16 B aligned"},
      {[](auto& p) { p.q_stride += 4; }, "rows must be 16 B aligned"},
      {[](auto& p) { p.q_stride = 248; }, "q_stride is 248; it must be at least"},
      {[](auto& p) { p.out = nullptr; }, "out is null"},
      {[](auto& p) { p.out_stride = 248; }, "out_stride is 248"},
  };
  EXPECT_EQ(MessageOf([&] { Validate(problem.Params()); }), "nothing was thrown");
  for (const auto& [spoil, message] : cases) {
    PagedPrefillParams params = problem.Params();
    spoil(params);
    EXPECT_THAT(MessageOf([&] { Validate(params); }), HasSubstr(message));
  }
}

TEST(PagedPrefillValidateTest, EmptyBatchNeedsNoPointers) {
  PagedPrefillParams params{.num_q_heads = 1, .scale = 1};
  params.layout = {.num_pages = 0, .num_kv_heads = 1, .page_size = 16, .head_dim = 64};
  EXPECT_NO_THROW(Validate(params));
}

TEST(PagedPrefillValidateTest, ChecksLengths) {
  PrefillCase problem(RaggedSpec());
  const auto message = [&](const std::vector<int32_t>& q_indptr, int64_t total) {
    return MessageOf(
        [&] { ValidateLengths(problem.table.View(), q_indptr.data(), problem.layout, total); });
  };
  EXPECT_EQ(message(problem.q_indptr, problem.total_tokens()), "nothing was thrown");
  EXPECT_THAT(message(problem.q_indptr, 1), HasSubstr("q_indptr ends at 86; total_tokens is 1"));
  EXPECT_THAT(message({0, 0, 2, 2, 2, 2, 2}, 2), HasSubstr("sequence 1 has 2 new tokens"));
  EXPECT_THAT(message({0, 0, 1, 0, 0, 0, 0}, 0), HasSubstr("sequence 2 has -1 new tokens"));
  EXPECT_THAT(message({1, 1, 1, 1, 1, 1, 1}, 1), HasSubstr("does not start at 0"));
}

TEST(PagedPrefillValidateTest, RejectsShiftsAndForeignPages) {
  const PagedKvLayout layout{.num_pages = 2, .num_kv_heads = 1, .page_size = 16, .head_dim = 64};
  const std::vector<int32_t> q_indptr{0, 1};
  ChunkTable shifted;
  shifted.AddSequence(std::vector<int32_t>{shifted.AddChunk(std::vector<int32_t>{1}, 3)},
                      std::vector<int32_t>{7});
  EXPECT_THAT(MessageOf([&] { ValidateLengths(shifted.View(), q_indptr.data(), layout, 1); }),
              HasSubstr("sequence 0 has shift 7 on chunk 0"));
  ChunkTable foreign;
  foreign.AddSequence(std::vector<int32_t>{foreign.AddChunk(std::vector<int32_t>{2}, 3)});
  EXPECT_THAT(MessageOf([&] { ValidateLengths(foreign.View(), q_indptr.data(), layout, 1); }),
              HasSubstr("lists page 2"));
}

// Counts visible pairs one by one, and KV tokens as a set of slots.
Cost CountCost(const PagedPrefillParams& params) {
  int64_t pairs = 0;
  std::set<std::pair<int32_t, int32_t>> slots;
  for (int32_t seq = 0; seq < params.table.num_seqs; ++seq) {
    const int64_t rows = params.q_indptr[seq + 1] - params.q_indptr[seq];
    const int64_t length = SequenceLength(params.table, seq);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t token = 0; token < length; ++token) {
        pairs += !params.causal || token <= length - rows + row;
      }
    }
    if (rows == 0) continue;
    testing::ForEachTokenOf(params.table, seq, params.layout.page_size, [&](const auto& token) {
      slots.insert({token.page, token.row});
    });
  }
  const auto row_bytes = static_cast<double>(params.layout.head_dim * SizeOf(params.dtype));
  const auto rows = static_cast<double>(params.total_tokens * params.num_q_heads);
  Cost cost;
  cost.read_bytes =
      row_bytes * (rows + 2.0 * static_cast<double>(slots.size()) * params.layout.num_kv_heads);
  cost.write_bytes = row_bytes * rows + (params.lse_ln ? 4 * rows : 0);
  cost.flops = 4.0 * params.num_q_heads * params.layout.head_dim * static_cast<double>(pairs);
  return cost;
}

TEST(PagedPrefillCostTest, EqualsBruteForce) {
  for (const bool causal : {true, false}) {
    PrefillSpec spec = RaggedSpec();
    spec.causal = causal;
    PrefillCase problem(spec);
    // Sequence 4 has no new tokens; sequence 6 shares the chunks of sequence 3.
    problem.table.AddSequence(std::vector<int32_t>{2, 3, 4, 5});
    problem.q_indptr.push_back(problem.q_indptr.back() + 9);
    PagedPrefillParams params = problem.Params();
    for (float* lse : {params.lse_ln, static_cast<float*>(nullptr)}) {
      params.lse_ln = lse;
      const Cost cost = CostOf(params), counted = CountCost(params);
      EXPECT_EQ(cost.read_bytes, counted.read_bytes);
      EXPECT_EQ(cost.write_bytes, counted.write_bytes);
      EXPECT_EQ(cost.flops, counted.flops);
    }
  }
}

// Computes softmax attention by its definition from the case's own tensors.
void ExpectMatchesDefinition(PrefillCase& problem) {
  const PagedPrefillParams params = problem.Params();
  PagedPrefillReference(params);
  const int32_t dim = problem.spec.head_dim;
  const DType dtype = problem.spec.dtype;
  for (int32_t seq = 0; seq < params.table.num_seqs; ++seq) {
    std::vector<std::pair<int64_t, int32_t>> slots;  // page and row of each token
    testing::ForEachTokenOf(params.table, seq, problem.spec.page_size,
                            [&](const auto& token) { slots.emplace_back(token.page, token.row); });
    const int64_t rows = problem.q_indptr[seq + 1] - problem.q_indptr[seq];
    const auto length = static_cast<int64_t>(slots.size());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t token = problem.q_indptr[seq] + row;
      const int64_t visible = problem.spec.causal ? length - rows + row + 1 : length;
      for (int32_t head = 0; head < params.num_q_heads; ++head) {
        const int64_t offset = problem.RowOffset(token, head);
        std::vector<double> out(dim, 0);
        double sum = 0;
        for (int64_t j = 0; j < visible; ++j) {
          const auto [page, slot] = slots[j];
          const int32_t kv_head = head / problem.spec.group;
          double score = 0;
          for (int32_t d = 0; d < dim; ++d) {
            score += problem.q[offset + d] *
                     problem.kv[problem.layout.KeyOffset(page, kv_head, slot) + d];
          }
          const double weight = std::exp(score * params.scale);
          sum += weight;
          for (int32_t d = 0; d < dim; ++d) {
            out[d] += weight * problem.kv[problem.layout.ValueOffset(page, kv_head, slot) + d];
          }
        }
        for (int32_t d = 0; d < dim; ++d) {
          ASSERT_NEAR(problem.out[offset + d], out[d] / sum,
                      1.001 * testing::HalfUlp(dtype, out[d] / sum) + 1e-9)
              << "token " << token << " head " << head << " column " << d;
        }
        ASSERT_NEAR(problem.lse[token * params.num_q_heads + head], std::log(sum),
                    1e-6 * (1 + std::abs(std::log(sum))));
      }
    }
  }
}

TEST(PagedPrefillReferenceTest, EqualsTheDefinition) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
      for (const bool causal : {true, false}) {
        PrefillSpec spec = RaggedSpec();
        spec.dtype = dtype;
        spec.order = order;
        spec.causal = causal;
        spec.num_kv_heads = 1;
        spec.group = 3;
        spec.page_size = order == KvOrder::kHnd ? 16 : 32;
        PrefillCase problem(spec);
        ExpectMatchesDefinition(problem);
      }
    }
  }
}

TEST(PagedPrefillReferenceTest, FirstTokenReturnsItsValue) {
  PrefillCase problem({.num_kv_heads = 2, .group = 3, .sequences = {{{1}, 1}}});
  PagedPrefillReference(problem.Params());
  const int64_t page = problem.table.View().chunk_pages[0];
  for (int32_t head = 0; head < 6; ++head) {
    for (int32_t d = 0; d < 64; ++d) {
      EXPECT_EQ(problem.out[problem.RowOffset(0, head) + d],
                problem.kv[problem.layout.ValueOffset(page, head / 3, 0) + d]);
    }
  }
}

TEST(PagedPrefillReferenceTest, NewTokensAfterPastEqualTheLastRowsOfAWholePrefill) {
  PrefillCase whole({.dtype = DType::kF32, .sequences = {{{50}, 50}}});
  PrefillCase last({.dtype = DType::kF32, .sequences = {{{50}, 7}}});
  std::memcpy(last.q.data(), whole.q.bytes().data() + whole.RowOffset(43, 0) * 4,
              last.q.bytes().size());
  PagedPrefillReference(whole.Params());
  PagedPrefillReference(last.Params());
  for (int64_t i = 0; i < last.out.size(); ++i) {
    ASSERT_EQ(last.out[i], whole.out[whole.RowOffset(43, 0) + i]) << i;
  }
}

TEST(PagedPrefillReferenceTest, ChunksPagesAndNeighboursDoNotMatter) {
  PrefillCase one({.sequences = {{{60}, 30}}});
  PrefillCase split({.sequences = {{{16, 0, 13, 31}, 30}}}, 77);
  PrefillCase crowd({.sequences = {{{60}, 30}, {{44}, 44}}}, 78);
  PagedPrefillReference(one.Params());
  PagedPrefillReference(split.Params());
  PagedPrefillReference(crowd.Params());
  EXPECT_EQ(one.out, split.out);
  EXPECT_EQ(one.lse, split.lse);
  EXPECT_EQ(std::memcmp(one.out.data(), crowd.out.data(), one.out.bytes().size()), 0);
}

TEST(PagedPrefillReferenceTest, LeavesThePaddingBetweenRowsAlone) {
  PrefillCase problem(RaggedSpec());
  problem.out.FillNan();
  PagedPrefillReference(problem.Params());
  for (int64_t i = 0; i < problem.out.size(); ++i) {
    const bool padding = i % problem.q_stride >= problem.q_stride - problem.spec.row_padding;
    ASSERT_EQ(std::isnan(problem.out[i]), padding) << i;
  }
}

TEST(PagedPrefillReferenceTest, RejectsWhatValidateLengthsRejects) {
  PrefillCase problem(RaggedSpec());
  PagedPrefillParams params = problem.Params();
  params.total_tokens -= 1;
  EXPECT_THROW(PagedPrefillReference(params), InvalidArgument);
}

TEST(PagedPrefillBoundTest, AcceptsTheRoundedReferenceAndRejectsADroppedToken) {
  PrefillCase problem({.dtype = DType::kF16, .sequences = {{{90}, 20}}});
  const PrefillExpectation expected(problem);
  PagedPrefillReference(problem.Params());
  EXPECT_TRUE(testing::KeepsBound(problem.out, expected, DType::kF16, 1));
  problem.spec.sequences[0].chunks[0] = 89;
  PrefillCase shorter(problem.spec);
  PagedPrefillReference(shorter.Params());
  EXPECT_FALSE(testing::KeepsBound(shorter.out, expected, DType::kF16, 1));
}

TEST(PagedPrefillBoundTest, AReplacedTailOfALongContextIsRejected) {
  PrefillCase problem({.dtype = DType::kBf16, .num_kv_heads = 1, .sequences = {{{20'000}, 4}}});
  // Scaled so that the weights are of similar size and no single token stands out.
  for (int64_t i = 0; i < problem.q.size(); ++i) problem.q.Set(i, problem.q[i] / 16);
  const PrefillExpectation expected(problem);
  PagedPrefillReference(problem.Params());
  EXPECT_TRUE(testing::KeepsBound(problem.out, expected, DType::kBf16, 1));
  const ChunkTableView table = problem.table.View();
  for (int32_t token = 19'850; token < 20'000; ++token) {
    const int64_t to = problem.layout.ValueOffset(table.chunk_pages[token / problem.spec.page_size],
                                                  0, token % problem.spec.page_size);
    const int64_t from =
        problem.layout.ValueOffset(table.chunk_pages[(token - 700) / problem.spec.page_size], 0,
                                   (token - 700) % problem.spec.page_size);
    for (int32_t d = 0; d < problem.spec.head_dim; ++d) {
      problem.kv.Set(to + d, problem.kv[from + d]);
    }
  }
  PagedPrefillReference(problem.Params());
  const auto verdict = testing::KeepsBound(problem.out, expected, DType::kBf16, 1);
  EXPECT_THAT(verdict.message(), HasSubstr("root mean square"));
}

}  // namespace
}  // namespace tokline
