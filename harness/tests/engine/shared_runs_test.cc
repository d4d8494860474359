#include "harness/engine/shared_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "harness/scheduler/page_pool.h"
#include "harness/tests/kernels/devices.h"
#include "kernels/chunk_decode/chunk_decode_sharing.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

using testing::kH200;
constexpr int32_t kMaxRuns = 8;  // of pages

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
  // Appends the chunk that `branch` stands for among those after the same prefix. Fewer tokens than
  // a page, where the row may have one more run.
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
  // What is the row's own.
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
    return FindSharedRuns(chains, registry_, page_size_, group, sharing);
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

// `most`: chunks of a chain.
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
      // A branch that ends within its page, the same for all who take it.
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

AttentionShape ShapeOf(const Forest& forest, const Setting& setting) {
  AttentionShape shape;
  shape.num_seqs = static_cast<int32_t>(forest.rows.size());
  shape.num_tokens = shape.num_seqs;
  for (const Forest::Row& row : forest.rows) shape.max_pages += row.pages.NumPages();
  shape.more_chunks = shape.num_seqs * (kMaxRuns - 1 + kMaxSharedRuns);
  shape.grid = ChunkDecodeFullGrid(setting.layout, kH200);
  shape.shared_runs = kMaxSharedRuns;
  shape.task_members = std::min(shape.num_seqs, kChunkDecodeMaxRows / setting.group);
  return shape;
}

// The arrays of a step of decode rows, with garbage in them and a guard behind.
class Arrays {
 public:
  explicit Arrays(const AttentionShape& shape)
      : shape_{.decode = shape},
        bytes_(PlaceStep(shape_, nullptr).bytes),
        block_(static_cast<size_t>(bytes_) + kGuard, kGarbage),
        arrays_(PlaceStep(shape_, block_.data()).decode) {}

  void Write(const Forest& forest, const SharedRuns& shared, int32_t page_size) {
    TableWriter table(shape_.decode, arrays_);
    SharedTableWriter contexts(table, shared, page_size);
    for (size_t row = 0; row < forest.rows.size(); ++row) {
      contexts.Add(row, forest.rows[row].pages, forest.rows[row].length);
    }
  }
  bool Plan(const Setting& setting, ChunkSharing sharing) {
    return PlanAttention(shape_.decode, arrays_, setting.layout,
                         setting.layout.num_kv_heads * setting.group, kH200, sharing)
        .reads_once;
  }
  bool GuardIntact() const {
    return std::all_of(block_.begin() + bytes_, block_.end(),
                       [](std::byte b) { return b == kGarbage; });
  }
  const AttentionArrays& operator*() const { return arrays_; }
  const AttentionArrays* operator->() const { return &arrays_; }
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

void ExpectRunsAreCommon(const Forest& forest, const SharedRuns& shared) {
  std::vector<std::vector<size_t>> rows_of(shared.runs.size());
  for (size_t row = 0; row < forest.rows.size(); ++row) {
    const auto runs = shared.Of(row);
    ASSERT_LE(runs.size(), static_cast<size_t>(kMaxSharedRuns));
    int64_t end = 0;
    for (const int32_t run : runs) {
      ASSERT_EQ(shared.runs[run].begin, end);
      end = shared.runs[run].end;
      ASSERT_GT(end, shared.runs[run].begin);
      rows_of[run].push_back(row);
    }
    ASSERT_LE(end, forest.rows[row].length);
  }
  for (size_t run = 0; run < shared.runs.size(); ++run) {
    ASSERT_GE(shared.runs[run].members, 2);
    ASSERT_EQ(static_cast<size_t>(shared.runs[run].members), rows_of[run].size());
    const SequencePages& first = forest.rows[rows_of[run][0]].pages;
    for (const size_t row : rows_of[run]) {
      for (const int64_t at : {shared.runs[run].begin, shared.runs[run].end - 1}) {
        ASSERT_EQ(forest.rows[row].pages.SlotOf(at), first.SlotOf(at));
      }
    }
  }
}

// Each row's table entries are its context, token by token.
void ExpectTableIsThatOfTheRows(const Forest& forest, const Arrays& arrays, int32_t page_size) {
  const ChunkTableView table = arrays.Table();
  for (size_t row = 0; row < forest.rows.size(); ++row) {
    std::vector<int64_t> slots;
    for (int32_t i = table.seq_chunk_indptr[row]; i < table.seq_chunk_indptr[row + 1]; ++i) {
      const int32_t chunk = table.seq_chunks[i];
      for (int32_t t = 0; t < table.chunk_lengths[chunk]; ++t) {
        const int32_t page = table.chunk_pages[table.chunk_page_indptr[chunk] + t / page_size];
        slots.push_back(int64_t{page} * page_size + t % page_size);
      }
    }
    ASSERT_EQ(slots, SlotsOf(forest.rows[row])) << "row " << row;
  }
}

// The plan reads each token of each row once, and each sequence's states lie side by side.
void ExpectPlanCoversTheRows(const Forest& forest, const Arrays& arrays, const Setting& setting) {
  const int32_t page_size = setting.layout.page_size;
  const AttentionShape& shape = arrays.Shape();
  std::vector<std::vector<int64_t>> slots(forest.rows.size());
  std::vector<std::vector<int32_t>> partials(forest.rows.size());
  const int32_t num_tasks = arrays->lane_task_indptr[shape.grid.num_lanes];
  for (int32_t t = 0; t < num_tasks; ++t) {
    const ChunkDecodeTask& task = arrays->tasks[t];
    ASSERT_LE(task.member_count * setting.group, kChunkDecodeMaxRows);
    for (int32_t m = task.member_begin; m < task.member_begin + task.member_count; ++m) {
      const auto row = static_cast<size_t>(arrays->members[m].seq);
      partials[row].push_back(arrays->members[m].partial);
      for (int32_t r = task.range_begin; r < task.range_end; ++r) {
        const ChunkDecodeRange& range = arrays->ranges[r];
        for (int32_t at = range.token_begin; at < range.token_end; ++at) {
          const int32_t page = arrays->chunk_pages[range.page_begin + at / page_size];
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
    const int32_t begin = arrays->seq_partial_indptr[row];
    const int32_t count = arrays->seq_partial_indptr[row + 1] - begin;
    if (partials[row].size() == 1) {
      ASSERT_TRUE(count == 0 && partials[row][0] == -1) << "row " << row;
      continue;
    }
    ASSERT_EQ(static_cast<size_t>(count), partials[row].size()) << "row " << row;
    for (int32_t i = 0; i < count; ++i) ASSERT_EQ(partials[row][i], begin + i) << "row " << row;
  }
}

int64_t TokensOf(const Arrays& arrays) {
  int64_t tokens = 0;
  const int32_t num_tasks = arrays->lane_task_indptr[arrays.Shape().grid.num_lanes];
  const int32_t num_ranges = num_tasks == 0 ? 0 : arrays->tasks[num_tasks - 1].range_end;
  for (int32_t r = 0; r < num_ranges; ++r) {
    tokens += arrays->ranges[r].token_end - arrays->ranges[r].token_begin;
  }
  return tokens;
}

int64_t TokensToRead(const Forest& forest, const SharedRuns& shared, int32_t group) {
  int64_t tokens = -shared.TokensSaved(group);
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
  int read_once = 0;
  for (int round = 0; round < 700; ++round) {
    Setting setting = RandomSetting(rng);
    if (round % 3 == 0) setting.group = 2;
    const auto kind = static_cast<Kind>(round % static_cast<int>(Kind::kCount));
    const auto forest =
        MakeForest(kind, 1 + static_cast<int32_t>(rng() % 24), setting.layout.page_size,
                   1 + 2048 / setting.layout.page_size, rng);
    for (const ChunkSharing sharing : {ChunkSharing::kAlways, ChunkSharing::kWhenItPays}) {
      SCOPED_TRACE(StrCat("round ", round, " sharing ", static_cast<int>(sharing)));
      const SharedRuns shared = forest->Find(setting.group, sharing);
      ASSERT_NO_FATAL_FAILURE(ExpectRunsAreCommon(*forest, shared));
      EXPECT_TRUE(kind != Kind::kAlone || shared.Empty());
      Arrays arrays(ShapeOf(*forest, setting));
      arrays.Write(*forest, shared, setting.layout.page_size);
      ASSERT_NO_THROW(Validate(arrays.Table(), setting.layout));
      ASSERT_NO_FATAL_FAILURE(
          ExpectTableIsThatOfTheRows(*forest, arrays, setting.layout.page_size));
      const bool once = !shared.Empty() && arrays.Plan(setting, sharing);
      if (!once) {
        arrays.Write(*forest, {}, setting.layout.page_size);
        arrays.Plan(setting, ChunkSharing::kNever);
      }
      ASSERT_TRUE(arrays.GuardIntact());
      ASSERT_NO_FATAL_FAILURE(ExpectPlanCoversTheRows(*forest, arrays, setting));
      const SharedRuns read = once ? shared : SharedRuns{};
      ASSERT_EQ(TokensOf(arrays), TokensToRead(*forest, read, setting.group));
      read_once += once && sharing == ChunkSharing::kWhenItPays;
    }
  }
  EXPECT_GE(read_once, 20);
}

// What graphs have room for. Chains of one chunk a page, so that trees are as deep as can be.
TEST(SharedRunsTest, PlansOfThousandsOfForestsHaveRoomInGraphs) {
  std::mt19937 rng(6);
  double fullest = 0;
  for (int round = 0; round < 4000; ++round) {
    const Setting setting = RandomSetting(rng);
    const auto kind = static_cast<Kind>(round % static_cast<int>(Kind::kCount));
    const auto forest =
        MakeForest(kind, 2 + static_cast<int32_t>(rng() % 64), setting.layout.page_size,
                   1 + static_cast<int32_t>(rng() % 24), rng);
    const AttentionShape shape = ShapeOf(*forest, setting);
    const DecodeRoom room = DecodeRoomOf(shape);
    for (const ChunkSharing sharing : {ChunkSharing::kAlways, ChunkSharing::kWhenItPays}) {
      const SharedRuns shared = forest->Find(setting.group, sharing);
      Arrays arrays(shape);
      ASSERT_NO_THROW(arrays.Write(*forest, shared, setting.layout.page_size)) << round;
      const ChunkDecodePlan plan = PlanChunkDecode(arrays.Table(), setting.layout,
                                                   setting.layout.num_kv_heads * setting.group,
                                                   kH200, {.sharing = sharing, .grid = shape.grid});
      ASSERT_LE(std::ssize(plan.tasks), room.tasks) << round;
      ASSERT_LE(std::ssize(plan.ranges), room.ranges) << round;
      ASSERT_LE(std::ssize(plan.members), room.members) << round;
      ASSERT_LE(plan.num_partials, room.members) << round;
      ASSERT_TRUE(arrays.GuardIntact());
      fullest = std::max(
          fullest, static_cast<double>(plan.num_partials) / static_cast<double>(room.members));
    }
  }
  EXPECT_GE(fullest, 0.8);  // the bound is no waste
}

// By the model's own figures: reading once, if it is chosen, ends before reading alone, where all
// that others have read comes from the L2.
TEST(SharedRunsTest, PlanThatReadsOnceIsNeverTheSlowerOne) {
  constexpr ChunkDecodeTimes kTimes;
  std::mt19937 rng(7);
  int once = 0;
  for (int round = 0; round < 800; ++round) {
    const Setting setting = RandomSetting(rng);
    const auto kind = static_cast<Kind>(round % static_cast<int>(Kind::kCount));
    const int32_t page_size = setting.layout.page_size;
    const auto forest = MakeForest(kind, 2 + static_cast<int32_t>(rng() % 64), page_size,
                                   1 + static_cast<int32_t>(rng() % 8192) / page_size, rng);
    const AttentionShape shape = ShapeOf(*forest, setting);
    const int32_t heads = setting.layout.num_kv_heads * setting.group;
    const SharedRuns shared = forest->Find(setting.group, ChunkSharing::kWhenItPays);
    Arrays arrays(shape), apart(shape);
    arrays.Write(*forest, shared, page_size);
    const ChunkTableView table = arrays.Table();
    const ChunkDecodePlan plan =
        PlanChunkDecode(table, setting.layout, heads, kH200, {.grid = shape.grid});
    if (plan.members.size() == plan.tasks.size()) continue;
    ++once;
    // Listings of a chunk beyond the first find it in the L2.
    double tiles = 0, cached = 0;
    std::vector<bool> listed(static_cast<size_t>(table.num_chunks), false);
    for (int32_t i = 0; i < table.seq_chunk_indptr[table.num_seqs]; ++i) {
      const auto chunk = static_cast<size_t>(table.seq_chunks[i]);
      const auto count = static_cast<double>(DivideUp(table.chunk_lengths[chunk], 64));
      tiles += count;
      if (listed[chunk]) cached += count;
      listed[chunk] = true;
    }
    const double tile_us =
        kTimes.memory_tile_us + (kTimes.cached_tile_us - kTimes.memory_tile_us) * cached / tiles;
    apart.Write(*forest, {}, page_size);
    const ChunkDecodePlan alone =
        PlanChunkDecode(apart.Table(), setting.layout, heads, kH200,
                        {.sharing = ChunkSharing::kNever, .grid = shape.grid});
    EXPECT_LT(EstimateUs(plan, setting.group, kTimes.memory_tile_us) + kTimes.least_gain_us,
              EstimateUs(alone, setting.group, tile_us))
        << round;
  }
  EXPECT_GE(once, 60);
}

// The shapes of `scripts/maintain/record --only sharing`: a gain within the model's error is none.
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
    const AttentionShape shape = ShapeOf(forest, setting);
    Arrays arrays(shape);
    arrays.Write(forest, forest.Find(setting.group, ChunkSharing::kWhenItPays), 256);
    const ChunkDecodePlan plan =
        PlanChunkDecode(arrays.Table(), setting.layout, 16, kH200, {.grid = shape.grid});
    return plan.members.size() != plan.tasks.size();
  };
  EXPECT_FALSE(shares(2, 16));
  EXPECT_FALSE(shares(32, 2));
  EXPECT_TRUE(shares(32, 16));
  EXPECT_TRUE(shares(256, 2));
  EXPECT_TRUE(shares(256, 16));
}

TEST(SharedRunsTest, PlanWithoutRoomIsNotWritten) {
  std::mt19937 rng(8);
  const Setting setting{
      .layout = {.num_pages = 1 << 16, .num_kv_heads = 8, .page_size = 64, .head_dim = 128},
      .group = 2};
  const auto forest = MakeForest(Kind::kOneChain, 32, 64, 64, rng);
  const SharedRuns shared = forest->Find(setting.group, ChunkSharing::kAlways);
  ASSERT_FALSE(shared.Empty());
  AttentionShape shape = ShapeOf(*forest, setting);
  shape.shared_runs = 0;  // as if nobody shared
  shape.task_members = 1;
  Arrays arrays(shape);
  arrays.Write(*forest, shared, 64);
  EXPECT_FALSE(arrays.Plan(setting, ChunkSharing::kAlways));
  arrays.Write(*forest, {}, 64);
  arrays.Plan(setting, ChunkSharing::kNever);
  EXPECT_TRUE(arrays.GuardIntact());
  ExpectPlanCoversTheRows(*forest, arrays, setting);
}

TEST(SharedRunsTest, RunsFollowTheTreeAndTakeInWhatDoesNotPayAlone) {
  Forest forest(64);
  // Eight rows have 32 chunks in common, four of these one more, and two of those 63 more.
  for (int32_t i = 0; i < 8; ++i) {
    Forest::Row row = forest.NewRow();
    for (int32_t at = 0; at < 32; ++at) forest.Extend(row, 0, 64);
    if (i < 4) forest.Extend(row, 1, 64);
    for (int32_t at = 0; i < 2 && at < 63; ++at) forest.Extend(row, 2, 64);
    forest.Finish(std::move(row), 10);
  }
  const SharedRuns shared = forest.Find(2, ChunkSharing::kWhenItPays);
  ASSERT_EQ(shared.runs.size(), 2u);
  EXPECT_EQ(shared.runs[0].members, 8);
  EXPECT_EQ(shared.runs[0].end, 32 * 64);
  EXPECT_EQ(shared.runs[1].members, 2);
  EXPECT_EQ(shared.runs[1].begin, 32 * 64);
  EXPECT_EQ(shared.runs[1].end, 96 * 64);
  EXPECT_EQ(forest.Find(2, ChunkSharing::kAlways).runs.size(), 3u);
  EXPECT_TRUE(forest.Find(2, ChunkSharing::kNever).Empty());
}

TEST(SharedRunsTest, RunsDivideNoTileAndAreAtMostFourASequence) {
  Forest forest(16);
  // 62 chunks in common are 15 tiles and 32 tokens; two of the rows go on together for 48 chunks.
  for (int32_t i = 0; i < 8; ++i) {
    Forest::Row row = forest.NewRow();
    for (int32_t at = 0; at < 62; ++at) forest.Extend(row, 0, 16);
    for (int32_t at = 0; i < 2 && at < 48; ++at) forest.Extend(row, 1, 16);
    forest.Finish(std::move(row), 10);
  }
  const SharedRuns shared = forest.Find(2, ChunkSharing::kWhenItPays);
  ASSERT_EQ(shared.runs.size(), 2u);
  EXPECT_EQ(shared.runs[0].end, 960);
  EXPECT_EQ(shared.runs[1].begin, 960);
  EXPECT_EQ(shared.runs[1].end, 62 * 16 + 48 * 16 - 32);
  EXPECT_EQ(forest.Find(2, ChunkSharing::kAlways).runs[0].end, 992);

  Forest deep(16);
  for (int32_t i = 0; i < 9; ++i) {
    Forest::Row row = deep.NewRow();
    for (int32_t at = 0; at <= i; ++at) deep.Extend(row, 0, 16);
    deep.Finish(std::move(row), 1);
  }
  const SharedRuns levels = deep.Find(1, ChunkSharing::kAlways);
  EXPECT_EQ(levels.runs.size(), 4u);
  EXPECT_EQ(levels.Of(0).size(), 1u);
  EXPECT_EQ(levels.Of(8).size(), 4u);
}

TEST(SharedRunsTest, PolicySharesLongRunsOfManyAndPacksRowsByTheirTime) {
  EXPECT_TRUE(SharingPays(64, 256, 4));
  EXPECT_TRUE(SharingPays(2, 8, 2));
  EXPECT_FALSE(SharingPays(2, 2, 2));
  EXPECT_FALSE(SharingPays(1, 1000, 2));
  EXPECT_FALSE(SharingPays(3, 1000, 16));  // one tile of rows each, whoever reads
  for (int32_t group = 1; group <= 16; ++group) {
    for (int32_t members = 1; members <= 200; ++members) {
      int32_t parts = 0;
      for (int32_t left = members; left > 0; ++parts) {
        const int32_t part = SharedPartMembers(left, group);
        ASSERT_GE(part, 1);
        ASSERT_LE(part * group, kChunkDecodeMaxRows);
        left -= part;
      }
      ASSERT_EQ(parts, NumSharedParts(members, group));
      for (int64_t tiles : {1, 3, 10, 100}) {  // what pays once pays for longer
        ASSERT_LE(SharingPays(members, tiles, group), SharingPays(members, tiles + 1, group));
      }
    }
  }
  EXPECT_EQ(NumSharedParts(24, 2), 3);  // of 16 rows
  EXPECT_EQ(NumSharedParts(25, 2), 1);  // of 50
  EXPECT_EQ(NumSharedParts(32, 4), 2);  // of 64
}

}  // namespace
}  // namespace tokline
