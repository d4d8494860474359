// Tests the search for shared runs, and the tables and plans that follow from it, on random forests
// of chunks.
#include "harness/engine/shared_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "harness/scheduler/page_pool.h"
#include "harness/tests/kernels/devices.h"
#include "harness/tests/kernels/sequence_tokens.h"

namespace tokline {
namespace {

using testing::kH200;
constexpr int32_t kMaxRuns = 8;  // runs of pages per row
using SharedRuns = std::vector<SharedRun>;

// Sequences whose chunks form a forest.
class Forest {
 public:
  struct Row {
    std::vector<ChunkId> chunks;
    SequencePages pages;
    std::vector<int64_t> cuts;
    int64_t length = 0;
  };

  explicit Forest(int32_t page_size)
      : page_size_(page_size), pool_(1 << 16), registry_(pool_, {.page_size = page_size}) {}

  Row NewRow() const { return {.chunks = {}, .pages = SequencePages(page_size_), .cuts = {}}; }
  // Appends the chunk that `branch` identifies among those after the same prefix. A chunk of less
  // than a page is left out if the row may not have another run.
  void Extend(Row& row, int32_t branch, int32_t tokens) {
    if (tokens % page_size_ != 0 && std::ssize(row.cuts) == kMaxRuns - 1) return;
    const std::vector<int32_t> text(static_cast<size_t>(tokens), branch);
    const ChunkId parent = row.chunks.empty() ? kRootChunk : row.chunks.back();
    ChunkId chunk = registry_.Find(parent, text);
    if (chunk == kRootChunk) {
      std::vector<int32_t> page;
      pool_.Allocate(1, page);
      chunk = registry_.Seal(parent, text, page);
    } else {
      registry_.Acquire(chunk);
    }
    row.chunks.push_back(chunk);
    row.pages.Pages().push_back(registry_.Get(chunk).pages[0]);
    row.length += tokens;
    if (tokens % page_size_ != 0) row.cuts.push_back(row.length);
  }
  // Ends the row with `tokens` tokens of its own.
  void Finish(Row row, int64_t tokens) {
    row.length += tokens;
    row.pages.Cut(row.length, row.cuts);
    const int64_t missing = row.pages.PagesFor(row.length, {}) - row.pages.NumPages();
    pool_.Allocate(static_cast<int32_t>(missing), row.pages.Pages());
    rows.push_back(std::move(row));
  }

  SharedRuns Find(int32_t group, ChunkSharing sharing) const {
    std::vector<std::span<const ChunkId>> chains;
    for (const Row& row : rows) chains.emplace_back(row.chunks);
    return SharedRunsOfChains(chains, registry_, PagesOfSize(page_size_), group, sharing);
  }
  const ChunkRegistry& Registry() const { return registry_; }
  int32_t NumPages() const { return pool_.NumPages(); }

  std::vector<Row> rows;

 private:
  int32_t page_size_;
  PagePool pool_;
  ChunkRegistry registry_;
};

enum class Kind : uint8_t { kRandom, kCaterpillar, kOneChain, kPairs, kBinary, kAlone, kCount };

// A chain has at most `most` chunks.
std::unique_ptr<Forest> MakeForest(Kind kind, int32_t num_rows, int32_t page_size, int32_t most,
                                   std::mt19937& rng) {
  auto forest = std::make_unique<Forest>(page_size);
  const auto upto = [&rng](int32_t n) {
    return static_cast<int32_t>(rng() % static_cast<uint32_t>(n));
  };
  const int32_t depth = 1 + upto(most);
  for (int32_t i = 0; i < num_rows; ++i) {
    Forest::Row row = forest->NewRow();
    const int32_t length = kind == Kind::kRandom        ? upto(most + 1)
                           : kind == Kind::kCaterpillar ? 1 + i * most / num_rows
                                                        : depth;
    for (int32_t at = 0; at < length; ++at) {
      int32_t branch = 0;
      if (kind == Kind::kRandom) branch = upto(8) == 0 ? 1 + upto(2) : 0;
      if (kind == Kind::kPairs) branch = i / 2;
      if (kind == Kind::kBinary) branch = at % 2 == 0 ? (i >> (at / 2)) & 1 : 0;
      if (kind == Kind::kAlone) branch = i;
      // Whether a branch ends within its page depends only on the branch.
      const bool partial = (branch * 7 + at * 3 + depth) % 5 == 0;
      forest->Extend(row, branch, partial ? 1 + (branch + at) % (page_size - 1) : page_size);
    }
    forest->Finish(std::move(row), upto(4) == 0 ? 1 : 1 + upto(3 * page_size));
  }
  return forest;
}

struct Setting {
  PagedKvLayout layout;
  int32_t group = 1;
};

AttentionShape ShapeOf(const Forest& forest, const Setting& setting, const ChunkDecodeGrid& grid) {
  AttentionShape shape;
  shape.num_seqs = static_cast<int32_t>(forest.rows.size());
  shape.num_tokens = shape.num_seqs;
  for (const Forest::Row& row : forest.rows) shape.max_pages += row.pages.NumPages();
  shape.more_chunks = shape.num_seqs * (kMaxRuns - 1 + kMaxSharedRuns);
  shape.grid = grid;
  shape.shared_runs = kMaxSharedRuns;
  shape.task_members = std::min(shape.num_seqs, kChunkDecodeMaxRows / setting.group);
  shape.run_task_members = std::min(shape.num_seqs, kChunkDecodeRunRows / setting.group);
  return shape;
}

ChunkDecodeGrid FullGrid(const Setting& setting) {
  return ChunkDecodeFullGrid(setting.layout, kH200);
}

// The arrays of a decode step, initialised with garbage and followed by a guard.
class Arrays {
 public:
  explicit Arrays(const AttentionShape& shape)
      : shape_{.decode = shape},
        bytes_(PlaceStep(shape_, nullptr).bytes),
        block_(static_cast<size_t>(bytes_) + kGuard, kGarbage),
        arrays_(PlaceStep(shape_, block_.data()).decode) {}

  void Write(const Forest& forest, SharedRuns& shared, int32_t page_size) {
    TableWriter table(shape_.decode, arrays_);
    SharedTableWriter contexts(table, shared, PagesOfSize(page_size));
    for (size_t row = 0; row < forest.rows.size(); ++row) {
      contexts.Add(row, forest.rows[row].pages, forest.rows[row].length);
    }
  }
  void Plan(const Setting& setting, const SharedRuns& read_once) {
    PlanAttention(shape_.decode, arrays_, setting.layout,
                  setting.layout.num_kv_heads * setting.group, kH200, read_once);
  }
  bool GuardIntact() const {
    return std::all_of(block_.begin() + bytes_, block_.end(),
                       [](std::byte b) { return b == kGarbage; });
  }
  ChunkDecodePlanView Planned() const { return DecodeRoomOf(shape_.decode).View(arrays_.plan); }
  ChunkTableView Table() const { return arrays_.Table(shape_.decode); }
  const AttentionShape& Shape() const { return shape_.decode; }

 private:
  static constexpr int64_t kGuard = 4096;
  static constexpr std::byte kGarbage{0xab};
  StepShape shape_;
  int64_t bytes_;
  std::vector<std::byte> block_;
  AttentionArrays arrays_;
};

std::vector<int64_t> SlotsOf(const Forest::Row& row) {
  std::vector<int64_t> slots;
  for (int64_t at = 0; at < row.length; ++at) slots.push_back(row.pages.SlotOf(at));
  return slots;
}

// Indices of the runs of a row.
std::vector<size_t> RunsOf(const SharedRuns& shared, size_t row) {
  std::vector<size_t> runs;
  for (size_t run = 0; run < shared.size(); ++run) {
    if (std::ranges::count(shared[run].members, SharedRun::Member{static_cast<int32_t>(row), 0})) {
      runs.push_back(run);
    }
  }
  return runs;
}

void ExpectRunsAreCommon(const Forest& forest, const SharedRuns& shared) {
  std::vector<int64_t> begins(shared.size(), -1);
  for (size_t row = 0; row < forest.rows.size(); ++row) {
    const auto runs = RunsOf(shared, row);
    ASSERT_LE(runs.size(), static_cast<size_t>(kMaxSharedRuns));
    int64_t at = 0;
    for (const size_t run : runs) {
      if (begins[run] < 0) begins[run] = at;
      ASSERT_EQ(begins[run], at) << "run " << run << " of row " << row;
      ASSERT_GT(shared[run].tokens, 0);
      at += shared[run].tokens;
    }
    ASSERT_LE(at, forest.rows[row].length);
  }
  for (size_t run = 0; run < shared.size(); ++run) {
    const auto& members = shared[run].members;
    ASSERT_GE(members.size(), 2u);
    const SequencePages& first = forest.rows[static_cast<size_t>(members[0].seq)].pages;
    for (size_t i = 0; i < members.size(); ++i) {
      ASSERT_TRUE(i == 0 || members[i - 1].seq < members[i].seq);
      const SequencePages& pages = forest.rows[static_cast<size_t>(members[i].seq)].pages;
      for (const int64_t at : {begins[run], begins[run] + shared[run].tokens - 1}) {
        ASSERT_EQ(pages.SlotOf(at), first.SlotOf(at));
      }
    }
  }
}

// Expects that a search of the table finds the runs for which it was written.
void ExpectTableTellsTheRuns(const SharedRuns& shared, const ChunkTableView& table, int32_t group,
                             ChunkSharing sharing) {
  const SharedRuns found = SharedRunsOfTable(table, group, sharing);
  ASSERT_EQ(found.size(), shared.size());
  for (size_t run = 0; run < shared.size(); ++run) {
    ASSERT_EQ(found[run].members, shared[run].members) << run;
    ASSERT_EQ(found[run].chunks, shared[run].chunks) << run;
    ASSERT_EQ(found[run].tokens, shared[run].tokens) << run;
  }
}

// Expects that each row's table entries are its context, token by token.
void ExpectTableIsThatOfTheRows(const Forest& forest, const Arrays& arrays, int32_t page_size) {
  const ChunkTableView table = arrays.Table();
  for (size_t row = 0; row < forest.rows.size(); ++row) {
    std::vector<int64_t> slots;
    testing::ForEachTokenOf(table, static_cast<int32_t>(row), page_size, [&](const auto& token) {
      slots.push_back(int64_t{token.page} * page_size + token.row);
    });
    ASSERT_EQ(slots, SlotsOf(forest.rows[row])) << "row " << row;
  }
}

// Expects that the plan reads each token of each row once, and that the partial states of a
// sequence are adjacent.
void ExpectPlanCoversTheRows(const Forest& forest, const Arrays& arrays, const Setting& setting) {
  const int32_t page_size = setting.layout.page_size;
  const ChunkDecodePlanView plan = arrays.Planned();
  const int32_t* chunk_pages = arrays.Table().chunk_pages;
  std::vector<std::vector<int64_t>> slots(forest.rows.size());
  std::vector<std::vector<int32_t>> partials(forest.rows.size());
  const int32_t num_tasks = plan.lane_task_indptr[plan.grid.AllLanes()];
  for (int32_t t = 0; t < num_tasks; ++t) {
    const ChunkDecodeTask& task = plan.tasks[t];
    const bool by_run_lane = t >= plan.lane_task_indptr[plan.grid.num_lanes];
    ASSERT_LE(task.member_count * setting.group,
              by_run_lane ? kChunkDecodeRunRows : kChunkDecodeMaxRows);
    for (int32_t m = task.member_begin; m < task.member_begin + task.member_count; ++m) {
      const auto row = static_cast<size_t>(plan.members[m].seq);
      partials[row].push_back(plan.members[m].partial);
      for (int32_t r = task.range_begin; r < task.range_end; ++r) {
        const ChunkDecodeRange& range = plan.ranges[r];
        for (int32_t at = range.token_begin; at < range.token_end; ++at) {
          const int32_t page = chunk_pages[range.page_begin + at / page_size];
          slots[row].push_back(int64_t{page} * page_size + at % page_size);
        }
      }
    }
  }
  for (size_t row = 0; row < forest.rows.size(); ++row) {
    std::vector<int64_t> expected = SlotsOf(forest.rows[row]);
    std::ranges::sort(expected);
    std::ranges::sort(slots[row]);
    ASSERT_EQ(slots[row], expected) << "row " << row;
    std::ranges::sort(partials[row]);
    const int32_t begin = plan.seq_partial_indptr[row];
    const int32_t count = plan.seq_partial_indptr[row + 1] - begin;
    if (partials[row][0] == -1) {  // the row's only task, but for those of run lanes
      ASSERT_TRUE(count == 0 || plan.grid.block_lanes > 1) << "row " << row;
      partials[row].erase(partials[row].begin());
    }
    ASSERT_EQ(static_cast<size_t>(count), partials[row].size()) << "row " << row;
    for (int32_t i = 0; i < count; ++i) ASSERT_EQ(partials[row][i], begin + i) << "row " << row;
  }
}

// Decides as a decoder does that launches the full grid if run lanes read nothing, on a device that
// has run lanes or not.
ChunkDecodeChoice Choose(const Forest& forest, const Setting& setting, SharedRuns& shared,
                         ChunkSharing sharing, bool run_lanes) {
  DeviceFacts device = kH200;
  device.code_is_sm90a = run_lanes;
  Arrays arrays(ShapeOf(forest, setting, {}));
  arrays.Write(forest, shared, setting.layout.page_size);
  return ChooseChunkDecodeSharing(arrays.Table(), shared, setting.layout,
                                  setting.layout.num_kv_heads * setting.group, device, sharing,
                                  FullGrid(setting));
}

int64_t TokensOf(const Arrays& arrays) {
  const ChunkDecodePlanView plan = arrays.Planned();
  int64_t tokens = 0;
  const int32_t num_tasks = plan.lane_task_indptr[plan.grid.AllLanes()];
  const int32_t num_ranges = num_tasks == 0 ? 0 : plan.tasks[num_tasks - 1].range_end;
  for (int32_t r = 0; r < num_ranges; ++r) {
    tokens += plan.ranges[r].token_end - plan.ranges[r].token_begin;
  }
  return tokens;
}

int64_t TokensOf(const Forest& forest) {
  int64_t tokens = 0;
  for (const Forest::Row& row : forest.rows) tokens += row.length;
  return tokens;
}

Setting RandomSetting(std::mt19937& rng) {
  return {.layout = {.num_pages = 1 << 16,
                     .num_kv_heads = 1 << rng() % 5,
                     .page_size = 16 << 2 * (rng() % 3),
                     .head_dim = 128},
          .group = 1 + static_cast<int32_t>(rng() % 16)};
}

TEST(SharedRunsTest, RandomForestsAreReadTokenByTokenOnceARow) {
  std::mt19937 rng(5);
  int read_once = 0, by_run_lanes = 0, by_warps = 0;
  for (int round = 0; round < 700; ++round) {
    Setting setting = RandomSetting(rng);
    if (round % 3 == 0) setting.group = 2;
    const auto kind = static_cast<Kind>(round % static_cast<int>(Kind::kCount));
    const auto forest =
        MakeForest(kind, 1 + static_cast<int32_t>(rng() % (round % 8 == 3 ? 150 : 24)),
                   setting.layout.page_size, 1 + 2048 / setting.layout.page_size, rng);
    for (const ChunkSharing sharing : {ChunkSharing::kAlways, ChunkSharing::kWhenItPays}) {
      SCOPED_TRACE(StrCat("round ", round, " sharing ", static_cast<int>(sharing)));
      SharedRuns shared = forest->Find(setting.group, sharing);
      ASSERT_NO_FATAL_FAILURE(ExpectRunsAreCommon(*forest, shared));
      EXPECT_TRUE(kind != Kind::kAlone || shared.empty());
      const ChunkDecodeChoice choice =
          Choose(*forest, setting, shared, sharing, /*run_lanes=*/round % 2 == 1);
      const ChunkDecodeGrid& grid = choice.grid;
      Arrays arrays(ShapeOf(*forest, setting, grid));
      arrays.Write(*forest, shared, setting.layout.page_size);
      ASSERT_NO_THROW(Validate(arrays.Table(), setting.layout));
      ASSERT_NO_FATAL_FAILURE(
          ExpectTableIsThatOfTheRows(*forest, arrays, setting.layout.page_size));
      ASSERT_NO_FATAL_FAILURE(
          ExpectTableTellsTheRuns(shared, arrays.Table(), setting.group, sharing));
      const bool once = !choice.runs.empty();
      arrays.Plan(setting, once ? shared : SharedRuns{});
      ASSERT_TRUE(arrays.GuardIntact());
      ASSERT_NO_FATAL_FAILURE(ExpectPlanCoversTheRows(*forest, arrays, setting));
      ASSERT_EQ(TokensOf(arrays), TokensOf(*forest) - choice.tokens_saved);
      read_once += once && sharing == ChunkSharing::kWhenItPays;
      by_run_lanes += once && grid.run_lanes > 0;
      by_warps += once && grid.run_lanes > 0 && grid.block_lanes > 1;
    }
  }
  EXPECT_GE(read_once, 20);
  EXPECT_GE(by_run_lanes, 20);
  EXPECT_GE(by_warps, 10);
}

// Graphs reserve room for plans. Chains have one chunk per page, so that trees are as deep as
// possible.
TEST(SharedRunsTest, PlansOfThousandsOfForestsHaveRoomInGraphs) {
  std::mt19937 rng(6);
  double fullest = 0;
  for (int round = 0; round < 4000; ++round) {
    const Setting setting = RandomSetting(rng);
    const auto kind = static_cast<Kind>(round % static_cast<int>(Kind::kCount));
    const auto forest =
        MakeForest(kind, 2 + static_cast<int32_t>(rng() % 64), setting.layout.page_size,
                   1 + static_cast<int32_t>(rng() % 24), rng);
    for (const ChunkSharing sharing : {ChunkSharing::kAlways, ChunkSharing::kWhenItPays}) {
      SharedRuns shared = forest->Find(setting.group, sharing);
      const ChunkDecodeGrid grid =
          Choose(*forest, setting, shared, ChunkSharing::kAlways, round % 2 == 1).grid;
      const AttentionShape shape = ShapeOf(*forest, setting, grid);
      const ChunkDecodePlanRoom room = DecodeRoomOf(shape);
      Arrays arrays(shape);
      ASSERT_NO_THROW(arrays.Write(*forest, shared, setting.layout.page_size)) << round;
      const auto plan_of = [&](std::span<const SharedRun> runs) {
        return PlanChunkDecode(arrays.Table(), setting.layout,
                               setting.layout.num_kv_heads * setting.group, kH200,
                               {.runs = runs, .grid = grid});
      };
      const ChunkDecodePlan plan = plan_of(shared);
      ASSERT_TRUE(room.Holds(plan.size)) << round;
      ASSERT_TRUE(room.Holds(plan_of({}).size)) << round;  // the same table without sharing
      ASSERT_LE(plan.num_partials, room.members) << round;
      ASSERT_TRUE(arrays.GuardIntact());
      fullest = std::max(
          fullest, static_cast<double>(plan.num_partials) / static_cast<double>(room.members));
    }
  }
  EXPECT_GE(fullest, 0.8);  // the bound is not wasteful
}

// Uses the shapes of `scripts/maintain/record --only sharing`. A gain within the model's error does
// not count.
TEST(SharedRunsTest, SmallGainsAreLeft) {
  const Setting setting{
      .layout = {.num_pages = 1 << 16, .num_kv_heads = 8, .page_size = 256, .head_dim = 128},
      .group = 2};
  const auto shares = [&](int32_t rows, int32_t chunks) {
    Forest forest(256);
    for (int32_t i = 0; i < rows; ++i) {
      Forest::Row row = forest.NewRow();
      for (int32_t at = 0; at < chunks; ++at) forest.Extend(row, 0, 256);
      forest.Finish(std::move(row), 50);
    }
    SharedRuns shared = forest.Find(setting.group, ChunkSharing::kWhenItPays);
    return !Choose(forest, setting, shared, ChunkSharing::kWhenItPays, false).runs.empty();
  };
  EXPECT_FALSE(shares(2, 16));
  EXPECT_FALSE(shares(2, 32));  // 2.2 us by the model
  EXPECT_FALSE(shares(32, 2));
  EXPECT_TRUE(shares(32, 16));
  EXPECT_TRUE(shares(256, 2));
  EXPECT_TRUE(shares(256, 16));
}

TEST(SharedRunsTest, RunsFollowTheTreeAndTakeInWhatDoesNotPayAlone) {
  Forest forest(64);
  // Eight rows share 32 chunks, four of them one more, and two of those another 63.
  for (int32_t i = 0; i < 8; ++i) {
    Forest::Row row = forest.NewRow();
    for (int32_t at = 0; at < 32; ++at) forest.Extend(row, 0, 64);
    if (i < 4) forest.Extend(row, 1, 64);
    for (int32_t at = 0; i < 2 && at < 63; ++at) forest.Extend(row, 2, 64);
    forest.Finish(std::move(row), 10);
  }
  SharedRuns shared = forest.Find(2, ChunkSharing::kWhenItPays);
  ASSERT_NO_FATAL_FAILURE(ExpectRunsAreCommon(forest, shared));
  ASSERT_EQ(shared.size(), 2u);
  EXPECT_EQ(shared[0].members.size(), 8u);
  EXPECT_EQ(shared[0].tokens, 32 * 64);
  EXPECT_EQ(shared[1].members.size(), 2u);
  EXPECT_EQ(shared[1].tokens, (96 - 32) * 64);
  EXPECT_EQ(forest.Find(2, ChunkSharing::kAlways).size(), 3u);
  EXPECT_TRUE(forest.Find(2, ChunkSharing::kNever).empty());
}

TEST(SharedRunsTest, RunsDivideNoTileAndAreAtMostFourASequence) {
  Forest forest(16);
  // The 62 shared chunks are 15 tiles and 32 tokens. Two of the rows share another 48 chunks.
  for (int32_t i = 0; i < 8; ++i) {
    Forest::Row row = forest.NewRow();
    for (int32_t at = 0; at < 62; ++at) forest.Extend(row, 0, 16);
    for (int32_t at = 0; i < 2 && at < 48; ++at) forest.Extend(row, 1, 16);
    forest.Finish(std::move(row), 10);
  }
  SharedRuns shared = forest.Find(2, ChunkSharing::kWhenItPays);
  ASSERT_NO_FATAL_FAILURE(ExpectRunsAreCommon(forest, shared));
  ASSERT_EQ(shared.size(), 2u);
  EXPECT_EQ(shared[0].tokens, 960);
  EXPECT_EQ(shared[1].tokens, 62 * 16 + 48 * 16 - 32 - 960);
  EXPECT_EQ(forest.Find(2, ChunkSharing::kAlways)[0].tokens, 992);

  Forest deep(16);
  for (int32_t i = 0; i < 9; ++i) {
    Forest::Row row = deep.NewRow();
    for (int32_t at = 0; at <= i; ++at) deep.Extend(row, 0, 16);
    deep.Finish(std::move(row), 1);
  }
  const SharedRuns levels = deep.Find(1, ChunkSharing::kAlways);
  EXPECT_EQ(levels.size(), 4u);
  EXPECT_EQ(RunsOf(levels, 0).size(), 1u);
  EXPECT_EQ(RunsOf(levels, 8).size(), 4u);
}

}  // namespace
}  // namespace tokline
