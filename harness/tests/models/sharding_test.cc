// The ranks of a model hold every element exactly once, and reading a rank's weights touches
// nothing else.
#include "harness/models/sharding.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <map>
#include <string>

#include "harness/tests/models/model_files.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::Refuses;
using testing::TempFolder;

ModelSpec Shape(std::string family, int32_t q_heads, int32_t kv_heads, int64_t inner,
                int64_t vocab) {
  return {.family = std::move(family),
          .hidden_size = 64,
          .intermediate_size = inner,
          .num_layers = 1,
          .vocab_size = vocab,
          .num_q_heads = q_heads,
          .num_kv_heads = kv_heads,
          .head_dim = 64};
}

// The head counts, MLPs and vocabularies of published models, one per family.
const ModelSpec kModels[] = {
    Shape("qwen3", 32, 8, 9728, 151936), Shape("llama", 32, 8, 14336, 128256),
    Shape("qwen2", 16, 2, 11008, 151936), Shape("ernie4_5", 16, 2, 3072, 103424),
    Shape("gpt2", 16, 16, 4096, 50257)};

struct Extent {
  int64_t rows, columns;
};

// The shape of a whole tensor, by its name. A vector has one column.
Extent ExtentOf(const ModelSpec& spec, const std::string& name) {
  const int64_t hidden = spec.hidden_size, inner = spec.intermediate_size;
  const std::map<std::string, Extent> extents{{"q", {spec.QSize(), hidden}},
                                              {"k", {spec.KvSize(), hidden}},
                                              {"v", {spec.KvSize(), hidden}},
                                              {"o", {hidden, spec.QSize()}},
                                              {"q_bias", {spec.QSize(), 1}},
                                              {"k_bias", {spec.KvSize(), 1}},
                                              {"v_bias", {spec.KvSize(), 1}},
                                              {"q_norm", {spec.head_dim, 1}},
                                              {"k_norm", {spec.head_dim, 1}},
                                              {"gate", {inner, hidden}},
                                              {"up", {inner, hidden}},
                                              {"down", {hidden, inner}},
                                              {"gate_bias", {inner, 1}},
                                              {"up_bias", {inner, 1}},
                                              {"embedding", {spec.vocab_size, hidden}},
                                              {"lm_head", {spec.vocab_size, hidden}},
                                              {"positions", {1024, hidden}}};
  const auto found = extents.find(name);
  return found == extents.end() ? Extent{hidden, 1} : found->second;
}

// Expects the ranks' ranges to cover [0, size) in order, each index by `copies` neighbouring ranks.
void ExpectTiles(const std::vector<ShardRange>& ranges, int64_t size, int64_t copies,
                 const std::string& what) {
  int64_t next = 0;
  for (size_t r = 0; r < ranges.size(); ++r) {
    if (static_cast<int64_t>(r) % copies != 0) {
      EXPECT_EQ(ranges[r], ranges[r - 1]) << what << ", rank " << r;
      continue;
    }
    if (ranges[r].count == 0) continue;  // the rank does not hold the tensor
    EXPECT_EQ(ranges[r].begin, next) << what << ", rank " << r;
    EXPECT_GT(ranges[r].count, 0) << what << ", rank " << r;
    next = ranges[r].End();
  }
  EXPECT_EQ(next, size) << what;
}

TEST(ModelShardTest, TheRanksTileEveryTensor) {
  for (const ModelSpec& spec : kModels) {
    for (const int32_t world : {1, 2, 4, 8}) {
      const auto expect = [&](std::string_view name, const TensorSharding& sharding) {
        const std::string what = StrCat(spec.family, ", ", world, " ranks, ", name);
        const Extent extent = ExtentOf(spec, std::string(name));
        std::vector<ShardRange> rows, columns;
        for (int32_t rank = 0; rank < world; ++rank) {
          const TensorShard shard =
              ShardOf(ShardModel(spec, world, rank), sharding, extent.rows, extent.columns);
          rows.push_back(shard.rows);
          columns.push_back(shard.columns);
        }
        const bool by_rows = sharding.axis == ShardAxis::kRows;
        const std::vector<ShardRange>& divided = by_rows ? rows : columns;
        const std::vector<ShardRange>& whole = by_rows ? columns : rows;
        int64_t copies = sharding.by == ShardedBy::kNothing ? world : 1;
        if (sharding.by == ShardedBy::kKvHeads && world > spec.num_kv_heads) {
          copies = world / spec.num_kv_heads;
        }
        ExpectTiles(divided, by_rows ? extent.rows : extent.columns, copies, what);
        ExpectTiles(whole, by_rows ? extent.columns : extent.rows, world, what);
      };
      for (const LayerTensorSharding& of : LayerShardings()) expect(of.name, of.sharding);
      for (const ModelTensorSharding& of : ModelShardings()) expect(of.name, of.sharding);
    }
  }
}

TEST(ModelShardTest, EveryTensorIsListedOnce) {
  // A TensorView is all that the structures hold apart from a few counts, so a forgotten member
  // shows in the size.
  EXPECT_EQ(LayerShardings().size(), sizeof(LayerWeights) / sizeof(TensorView));
  LayerWeights layer;
  for (const LayerTensorSharding& of : LayerShardings()) {
    EXPECT_EQ((layer.*of.tensor).bytes, 0) << of.name << " is listed twice";
    (layer.*of.tensor).bytes = 1;
  }
  ModelWeights model;
  for (const ModelTensorSharding& of : ModelShardings()) {
    EXPECT_EQ((model.*of.tensor).bytes, 0) << of.name << " is listed twice";
    (model.*of.tensor).bytes = 1;
  }
}

TEST(ModelShardTest, QueryHeadsStayWithTheirKvHead) {
  for (const ModelSpec& spec : kModels) {
    const int64_t group = spec.num_q_heads / spec.num_kv_heads;
    for (const int32_t world : AllowedWorldSizes(spec)) {
      for (int32_t rank = 0; rank < world; ++rank) {
        const ModelShard plan = ShardModel(spec, world, rank);
        EXPECT_EQ(plan.local.num_q_heads * world, spec.num_q_heads);
        EXPECT_EQ(plan.local.num_q_heads % plan.local.num_kv_heads, 0);
        const int64_t local_group = plan.local.num_q_heads / plan.local.num_kv_heads;
        for (int64_t head = 0; head < plan.q_heads.count; ++head) {
          EXPECT_EQ(plan.kv_heads.begin + head / local_group, (plan.q_heads.begin + head) / group)
              << spec.family << ", rank " << rank << " of " << world;
        }
      }
    }
  }
}

TEST(ModelShardTest, TheLocalModelHasTheRanksSizes) {
  const ModelShard plan = ShardModel(Shape("gpt2", 12, 12, 3072, 50257), 4, 3);
  EXPECT_EQ(plan.local.num_q_heads, 3);
  EXPECT_EQ(plan.local.num_kv_heads, 3);
  EXPECT_EQ(plan.local.intermediate_size, 768);
  EXPECT_EQ(plan.vocabulary.begin % 8, 0);
  EXPECT_EQ(plan.vocabulary.End(), 50257);
  EXPECT_EQ(plan.local.vocab_size, plan.vocabulary.count);
  EXPECT_EQ(plan.local.hidden_size, 64);
  // 3 units of 8 neurons: one rank has two of them.
  EXPECT_EQ(ShardModel(Shape("qwen3", 2, 2, 24, 64), 2, 0).local.intermediate_size, 8);
  EXPECT_EQ(ShardModel(Shape("qwen3", 2, 2, 24, 64), 2, 1).local.intermediate_size, 16);
}

TEST(ModelShardTest, RefusalsListTheAllowedNumbersOfRanks) {
  EXPECT_EQ(AllowedWorldSizes(Shape("qwen3", 32, 8, 9728, 151936)),
            (std::vector<int32_t>{1, 2, 4, 8, 16, 32}));
  EXPECT_EQ(AllowedWorldSizes(Shape("qwen2", 14, 2, 4864, 151936)),
            (std::vector<int32_t>{1, 2, 14}));
  EXPECT_EQ(AllowedWorldSizes(Shape("qwen3", 32, 8, 32, 151936)), (std::vector<int32_t>{1, 2, 4}));
  EXPECT_EQ(AllowedWorldSizes(Shape("qwen3", 4, 4, 4, 4)), (std::vector<int32_t>{1}));
  const ModelSpec spec = Shape("qwen2", 14, 2, 4864, 151936);
  const auto refused = [&](int32_t world, int32_t rank, const std::vector<std::string>& says) {
    return Refuses<InvalidArgument>([&] { ShardModel(spec, world, rank); }, says);
  };
  EXPECT_TRUE(refused(4, 0, {"14 query heads, 2 KV heads", "among 4 ranks; allowed: 1, 2, 14"}));
  EXPECT_TRUE(refused(0, 0, {"among 0 ranks; allowed: 1, 2, 14"}));
  EXPECT_TRUE(refused(-2, 0, {"among -2 ranks"}));
  EXPECT_TRUE(refused(2, 2, {"rank is 2; it must be 0 to 1"}));
  EXPECT_TRUE(refused(2, -1, {"rank is -1"}));
}

TEST(ShardWeightsTest, RandomWeightsAreRefused) {
  const ModelSpec spec = Shape("qwen3", 2, 2, 16, 16);
  EXPECT_TRUE(Refuses<InvalidArgument>(
      [&] { ShardWeights(RandomWeights(spec, 1), ShardModel(spec, 2, 0)); }, {"random weights"}));
}

// Pages whose every access outside of `Allow` ends the process.
class GuardedPages {
 public:
  static constexpr int64_t kPage = 4096;

  explicit GuardedPages(int64_t pages)
      : bytes_(static_cast<size_t>(pages * kPage)),
        data_(::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::runtime_error("mmap failed");
  }
  ~GuardedPages() { ::munmap(data_, bytes_); }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  const std::byte* Data() const { return static_cast<const std::byte*>(data_); }
  void Allow(int64_t page) {
    ASSERT_EQ(::mprotect(static_cast<std::byte*>(data_) + page * kPage, kPage, PROT_READ), 0);
  }

 private:
  size_t bytes_;
  void* data_;
};

double SumOf(const TensorView& view) {
  double sum = 0;
  for (int64_t r = 0; r < view.Rows(); ++r) {
    for (int64_t c = 0; c < view.Columns(); ++c) {
      sum += static_cast<const float*>(view.data)[r * view.row_stride + c * view.column_stride];
    }
  }
  return sum;
}

// A tensor of 4 rows of 4 pages each, of which a rank may read only its own pages: two rows where
// rows are divided, half of each row where columns are. Stored transposed it is the other way
// round.
TEST(ShardWeightsTest, ReadingAShardTouchesOnlyItsPages) {
  constexpr int64_t kLine = 4 * GuardedPages::kPage / sizeof(float);
  for (const bool transposed : {false, true}) {
    for (const bool by_columns : {false, true}) {
      for (const int32_t rank : {0, 1}) {
        const bool lines_divided = by_columns == transposed;
        GuardedPages pages(16);
        for (int64_t line = 0; line < 4; ++line) {
          for (int64_t page = 0; page < 4; ++page) {
            if ((lines_divided ? line : page) / 2 == rank) pages.Allow(4 * line + page);
          }
        }
        const TensorView whole{.dtype = DType::kF32,
                               .shape = {transposed ? kLine : 4, transposed ? 4 : kLine},
                               .data = pages.Data(),
                               .bytes = 4 * kLine * int64_t{sizeof(float)},
                               .row_stride = transposed ? 1 : kLine,
                               .column_stride = transposed ? kLine : 1};
        ModelShard plan = ShardModel(Shape("qwen3", 2, 2, lines_divided ? 16 : kLine, 16), 2, rank);
        if (lines_divided) plan.intermediate = {2 * rank, 2};
        ModelWeights weights;
        weights.layers.resize(1);
        (by_columns ? weights.layers[0].down : weights.layers[0].up) = whole;
        const ModelWeights shard = ShardWeights(weights, plan);
        const TensorView& part = by_columns ? shard.layers[0].down : shard.layers[0].up;
        EXPECT_EQ(part.bytes, whole.bytes / 2);
        EXPECT_EQ(part.Rows() * part.Columns(), 2 * kLine);
        EXPECT_EQ(SumOf(part), 0);
        EXPECT_EQ(shard.bytes, whole.bytes / 2);
        EXPECT_EQ(shard.parameters, 2 * kLine);
      }
    }
  }
}

}  // namespace
}  // namespace tokline
