// Where paged_prefill's plan cuts contexts, without a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "harness/tests/kernels/devices.h"
#include "harness/tests/kernels/paged_prefill_case.h"
#include "harness/tests/message_of.h"
#include "kernels/paged_prefill/paged_prefill_deal.h"

namespace tokline {
namespace {

using testing::Devices;
using ::testing::HasSubstr;
using testing::kH200;
using testing::MessageOf;
using testing::NamedDevice;
using testing::PrefillSequence;

struct Heads {
  int32_t q, kv, dim;
};

// A batch without data.
struct Batch {
  Batch(const std::vector<PrefillSequence>& sequences, Heads the_heads)
      : heads(the_heads),
        layout{.num_pages = 1 << 20,
               .num_kv_heads = heads.kv,
               .page_size = 16,
               .head_dim = heads.dim} {
    int32_t page = 0;
    for (const PrefillSequence& sequence : sequences) {
      std::vector<int32_t> chunks;
      for (const int32_t length : sequence.chunks) {
        std::vector<int32_t> pages(static_cast<size_t>(layout.PagesFor(length)));
        std::iota(pages.begin(), pages.end(), page);
        page += static_cast<int32_t>(pages.size());
        chunks.push_back(table.AddChunk(pages, length));
      }
      table.AddSequence(chunks);
      q_indptr.push_back(q_indptr.back() + sequence.new_tokens);
    }
  }

  PagedPrefillPlan Plan(const DeviceFacts& device, int32_t max_parts, bool causal = true) const {
    return PlanPagedPrefill(table.View(), q_indptr.data(), layout, heads.q, causal, device,
                            max_parts);
  }
  int32_t SequenceOf(const PagedPrefillTile& tile) const {
    return static_cast<int32_t>(std::upper_bound(q_indptr.begin(), q_indptr.end(), tile.q_begin) -
                                q_indptr.begin() - 1);
  }

  Heads heads;
  PagedKvLayout layout;
  ChunkTable table;
  std::vector<int32_t> q_indptr{0};
};

// `count` sequences of `new_tokens` behind `past`, each context in one chunk.
std::vector<PrefillSequence> Equal(int count, int32_t new_tokens, int32_t past) {
  return std::vector<PrefillSequence>(count, {{past + new_tokens}, new_tokens});
}

std::vector<PrefillSequence> OneLong(int count, int32_t new_tokens, int32_t past,
                                     int32_t long_past) {
  std::vector<PrefillSequence> sequences = Equal(count, new_tokens, past);
  sequences[sequences.size() / 2].chunks = {long_past + new_tokens};
  return sequences;
}

bool Same(const PagedPrefillTile& a, const PagedPrefillTile& b) {
  const auto fields = [](const PagedPrefillTile& t) {
    return std::tuple(t.q_begin, t.num_tokens, t.kv_head, t.kv_end, t.next_chunk, t.chunk_length,
                      t.page_begin, t.left, t.next);
  };
  return fields(a) == fields(b);
}

// When the last block ends, merge included.
uint64_t EndOf(const PagedPrefillPlan& plan) {
  uint64_t last = 0;
  for (int32_t block = 0; block < plan.num_blocks; ++block) {
    uint64_t end = 0;
    for (int32_t at = block; at >= 0; at = plan.tiles[at].next) {
      const auto i = static_cast<size_t>(at);
      end += PagedPrefillTileCost(i < plan.parts.size() ? plan.parts[i].end - plan.parts[i].begin
                                                        : plan.tiles[i].kv_end);
    }
    last = std::max(last, end);
  }
  return last + PagedPrefillMergeCost(plan.parts.size());
}

// Every query tile of the plan without parts is in this one, once whole or once in parts.
void ExpectCovered(const Batch& batch, const PagedPrefillPlan& plan,
                   const PagedPrefillPlan& whole) {
  const ChunkTableView table = batch.table.View();
  std::vector<int> visits(plan.tiles.size(), 0);
  for (int32_t block = 0; block < plan.num_blocks; ++block) {
    int32_t left = plan.tiles[block].left;
    for (int32_t at = block; at >= 0; at = plan.tiles[at].next, --left) {
      ASSERT_EQ(plan.tiles[at].left, left);
      ++visits[at];
    }
    ASSERT_EQ(left, 0);
  }
  EXPECT_EQ(visits, std::vector<int>(plan.tiles.size(), 1));

  using Key = std::tuple<int32_t, int16_t>;  // first token, KV head
  std::map<Key, std::vector<PagedPrefillPart>> parts;
  std::map<Key, PagedPrefillTile> tiles;
  std::vector<int> states(plan.parts.size(), 0);
  for (size_t i = 0; i < plan.tiles.size(); ++i) {
    const PagedPrefillTile& tile = plan.tiles[i];
    const Key key{tile.q_begin, tile.kv_head};
    if (i >= plan.parts.size()) {
      EXPECT_TRUE(tiles.emplace(key, tile).second) << "a tile twice";
      continue;
    }
    const PagedPrefillPart& part = plan.parts[i];
    ++states.at(part.first_state + part.index);
    parts[key].push_back(part);
    // The walk begins where a KV tile of the whole walk begins.
    int32_t chunk_begin = 0, at = table.seq_chunk_indptr[batch.SequenceOf(tile)];
    for (; at < tile.next_chunk - 1; ++at) chunk_begin += table.chunk_lengths[table.seq_chunks[at]];
    const int32_t chunk = table.seq_chunks[at];
    ASSERT_EQ(part.begin, chunk_begin + part.token);
    ASSERT_EQ(part.token % kPagedPrefillKvTokens, 0);
    ASSERT_LE(part.token, table.chunk_lengths[chunk]);
    ASSERT_EQ(tile.chunk_length, table.chunk_lengths[chunk]);
    ASSERT_EQ(tile.page_begin, table.chunk_page_indptr[chunk]);
    tiles.emplace(key, tile);
  }
  EXPECT_EQ(states, std::vector<int>(plan.parts.size(), 1));
  ASSERT_EQ(tiles.size(), whole.tiles.size());
  for (const PagedPrefillTile& tile : whole.tiles) {
    const Key key{tile.q_begin, tile.kv_head};
    ASSERT_TRUE(tiles.contains(key));
    EXPECT_EQ(tiles[key].kv_end, tile.kv_end);
    EXPECT_EQ(tiles[key].num_tokens, tile.num_tokens);
    if (!parts.contains(key)) continue;
    std::vector<PagedPrefillPart>& own = parts[key];
    std::ranges::sort(own, {}, &PagedPrefillPart::index);
    int32_t end = 0;
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_EQ(own[i].index, static_cast<int32_t>(i));
      EXPECT_EQ(own[i].count, static_cast<int32_t>(own.size()));
      EXPECT_EQ(own[i].first_state, own[0].first_state);
      EXPECT_EQ(own[i].begin, end);
      EXPECT_GT(own[i].end, own[i].begin);
      end = own[i].end;
    }
    EXPECT_GE(own.size(), 2u);
    EXPECT_EQ(end, tile.kv_end);
  }
}

TEST(PagedPrefillPartsTest, PartsCoverEachContextOnceOnEveryDevice) {
  std::mt19937_64 rng(11);
  int cut = 0;
  for (int round = 0; round < 400; ++round) {
    const NamedDevice& device = Devices()[round % Devices().size()];
    const auto group = static_cast<int32_t>(1 + rng() % 16);
    const auto kv_heads = static_cast<int32_t>(1 + rng() % 3);
    std::vector<PrefillSequence> sequences(1 + rng() % 12);
    for (PrefillSequence& sequence : sequences) {
      const auto longest = static_cast<int32_t>(rng() % 5 == 0 ? 40'000 : 3000);
      int32_t length = 0;
      for (int chunks = 1 + rng() % 5; chunks > 0; --chunks) {
        sequence.chunks.push_back(
            static_cast<int32_t>(rng() % 4 == 0 ? rng() % 3 : rng() % longest));
        length += sequence.chunks.back();
      }
      sequence.new_tokens = static_cast<int32_t>(rng() % (std::min(length, 300) + 1));
    }
    const Batch batch(sequences, {group * kv_heads, kv_heads, 64});
    const bool causal = rng() % 4 != 0;
    const auto max_parts =
        static_cast<int32_t>(rng() % 4 == 0 ? rng() % 20 : MaxPagedPrefillParts(device.facts));
    SCOPED_TRACE(StrCat("round ", round, " ", ::testing::PrintToString(device)));
    const PagedPrefillPlan whole = batch.Plan(device.facts, 0, causal);
    const PagedPrefillPlan plan = batch.Plan(device.facts, max_parts, causal);
    ASSERT_TRUE(whole.parts.empty());
    ASSERT_LE(std::ssize(plan.parts), max_parts);
    ASSERT_LE(std::ssize(plan.tiles), std::ssize(whole.tiles) + std::ssize(plan.parts));
    ExpectCovered(batch, plan, whole);
    if (plan.parts.empty()) continue;
    ++cut;
    EXPECT_LT(EndOf(plan), EndOf(whole) * 9 / 10);
  }
  EXPECT_GT(cut, 100);
}

TEST(PagedPrefillPartsTest, BatchesThatKeepAllBlocksBusyStayAsTheyAre) {
  const struct {
    std::vector<PrefillSequence> sequences;
    Heads heads;
  } batches[] = {{Equal(16, 1024, 0), {16, 8, 128}},    {Equal(4, 4096, 0), {32, 8, 128}},
                 {Equal(1, 16384, 0), {32, 8, 128}},    {Equal(1, 2048, 0), {16, 8, 128}},
                 {Equal(1, 1024, 0), {16, 8, 128}},     {Equal(8, 512, 8192), {32, 8, 128}},
                 {Equal(1, 512, 65'536), {32, 8, 128}}, {Equal(256, 1, 200), {31, 31, 64}},
                 {Equal(1, 16, 500), {8, 1, 128}},      {Equal(20, 128, 16'384), {32, 8, 128}},
                 {Equal(34, 128, 16'384), {32, 8, 128}}};
  for (const auto& [sequences, heads] : batches) {
    const Batch batch(sequences, heads);
    const PagedPrefillPlan whole = batch.Plan(kH200, 0);
    const PagedPrefillPlan plan = batch.Plan(kH200, MaxPagedPrefillParts(kH200));
    EXPECT_TRUE(plan.parts.empty());
    EXPECT_EQ(plan.num_blocks, whole.num_blocks);
    EXPECT_TRUE(std::ranges::equal(plan.tiles, whole.tiles, Same));
  }
}

// The ends in hundredths of 1.48 us: before, and at most afterwards.
TEST(PagedPrefillPartsTest, LongContextsOfFewTilesEndEarlier) {
  const struct {
    std::vector<PrefillSequence> sequences;
    Heads heads;
    uint64_t before, after;
  } batches[] = {{OneLong(5, 26, 0, 131'072), {7, 1, 128}, 102'710, 2700},
                 {OneLong(6, 13, 100, 15'800), {13, 1, 64}, 12'610, 1400},
                 {OneLong(11, 100, 900, 3273), {2, 2, 128}, 2910, 1300},
                 {Equal(1, 512, 16'384), {16, 8, 128}, 13'410, 7600},
                 {Equal(1, 512, 65'536), {16, 8, 128}, 51'810, 26'800},
                 {Equal(1, 64, 32'768), {16, 8, 128}, 25'910, 2700},
                 {Equal(4, 128, 8192), {16, 8, 128}, 6710, 4200},
                 {Equal(1, 256, 2048), {16, 8, 128}, 2010, 1240},
                 {Equal(1, 16, 1024), {8, 1, 128}, 1110, 700},
                 // A long context among many short ones.
                 {OneLong(400, 40, 0, 60'000), {8, 1, 128}, 47'210, 4500},
                 // 88 tiles for 132 blocks: the rests of two contexts share a block.
                 {Equal(88, 8, 12'800), {16, 1, 128}, 10'310, 7900},
                 // More tiles than 132 blocks, and few of them in the last round.
                 {Equal(9, 64, 16'384), {32, 8, 128}, 26'220, 15'100},
                 {Equal(17, 32, 16'384), {32, 8, 128}, 26'220, 14'300},
                 {Equal(13, 128, 16'384), {32, 8, 128}, 52'440, 42'300},
                 {Equal(3, 200, 32'768), {32, 8, 128}, 51'920, 34'700},
                 {Equal(1, 1100, 65'536), {32, 8, 128}, 154'930, 111'700},
                 {Equal(150, 8, 16'384), {8, 1, 128}, 26'220, 15'800}};
  for (const auto& [sequences, heads, before, after] : batches) {
    SCOPED_TRACE(sequences[0].chunks[0]);
    const Batch batch(sequences, heads);
    EXPECT_EQ(EndOf(batch.Plan(kH200, 0)), before);
    const PagedPrefillPlan plan = batch.Plan(kH200, MaxPagedPrefillParts(kH200));
    EXPECT_LE(EndOf(plan), after) << plan.parts.size() << " parts";
    ExpectCovered(batch, plan, batch.Plan(kH200, 0));
  }
}

TEST(PagedPrefillPartsTest, NeedNoMoreThanTheirRoom) {
  const Batch batch(OneLong(5, 26, 0, 131'072), {7, 1, 128});
  for (const int32_t max_parts : {0, 1}) EXPECT_TRUE(batch.Plan(kH200, max_parts).parts.empty());
  for (const int32_t max_parts : {2, 7, 40}) {
    EXPECT_LE(std::ssize(batch.Plan(kH200, max_parts).parts), max_parts);
  }
}

TEST(PagedPrefillPartsTest, ValidateStatesWhatIsWrong) {
  testing::PrefillCase problem({.head_dim = 128, .sequences = {{{20}, 20}}});
  alignas(16) static char somewhere[16];
  PagedPrefillParams good = problem.Params();
  good.num_tiles = 5;
  good.num_parts = 3;
  good.parts = reinterpret_cast<const PagedPrefillPart*>(somewhere);
  good.workspace = somewhere;
  good.workspace_bytes = PagedPrefillWorkspaceBytes(128, 3);
  EXPECT_EQ(good.workspace_bytes, 3 * 128 * (128 + 2) * 4);
  EXPECT_EQ(MessageOf([&] { Validate(good); }), "nothing was thrown");
  const struct {
    std::function<void(PagedPrefillParams&)> spoil;
    const char* message;
  } cases[] = {
      {[](auto& p) { p.num_parts = -1; }, "num_parts is -1 with 5 tiles; it must be 0 to that"},
      {[](auto& p) { p.num_parts = 6; }, "num_parts is 6 with 5 tiles; it must be 0 to that"},
      {[](auto& p) { p.parts = nullptr; }, "parts is at"},
      {[](auto& p) { p.workspace = nullptr; }, "workspace is at"},
      {[](auto& p) { p.workspace = static_cast<char*>(p.workspace) + 8; }, "workspace is at"},
      {[](auto& p) { p.workspace_bytes -= 1; },
       "workspace_bytes is 199679; 3 parts with head_dim 128 need 199680"},
  };
  for (const auto& [spoil, message] : cases) {
    PagedPrefillParams params = good;
    spoil(params);
    EXPECT_THAT(MessageOf([&] { Validate(params); }), HasSubstr(message));
  }
}

}  // namespace
}  // namespace tokline
