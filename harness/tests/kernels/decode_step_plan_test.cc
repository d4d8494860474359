// How decode_step divides a model and its contexts among blocks, and what it refuses.
#include <gmock/gmock.h>

#include <functional>

#include "harness/tests/kernels/devices.h"
#include "kernels/common/rounding.h"
#include "kernels/decode_step/decode_step_plan.h"

namespace tokline {
namespace {

using testing::Devices;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kH200;
using testing::NamedDevice;

// A model's shape without its tensors.
struct Shape {
  DecodeStepModel model;
  PagedKvLayout layout;
};
Shape ShapeOf(int64_t hidden, int64_t inner, int32_t q_heads, int32_t kv_heads, int32_t head_dim,
              int32_t layers = 2) {
  return {.model = {.num_layers = layers,
                    .num_q_heads = q_heads,
                    .vocab_size = 1000,
                    .hidden_size = hidden,
                    .intermediate_size = inner},
          .layout = {.num_pages = 8, .num_kv_heads = kv_heads, .head_dim = head_dim}};
}
Shape Qwen06B() { return ShapeOf(1024, 3072, 16, 8, 128, 28); }
Shape Qwen4B() { return ShapeOf(2560, 9728, 32, 8, 128, 36); }

TEST(DecodeStepPlanTest, OnlyHopperCodeRunsIt) {
  for (const NamedDevice& device : Devices()) {
    const Shape shape = Qwen06B();
    const std::string refusal = DecodeStepRefusal(shape.model, shape.layout, 1, device.facts);
    if (device.facts.HasHopperCode()) {
      EXPECT_THAT(refusal, IsEmpty()) << device.name;
    } else {
      EXPECT_THAT(refusal, HasSubstr("sm_90a")) << device.name;
    }
  }
}

TEST(DecodeStepPlanTest, TakesUsualModels) {
  for (const Shape& shape : {Qwen06B(), Qwen4B(), ShapeOf(2048, 8192, 32, 8, 64, 16),
                             ShapeOf(896, 4864, 14, 2, 64), ShapeOf(4096, 12288, 32, 8, 128)}) {
    const auto taken = [&](int64_t tokens) {
      return DecodeStepRefusal(shape.model, shape.layout, tokens, kH200).empty();
    };
    EXPECT_TRUE(taken(1)) << "hidden size " << shape.model.hidden_size;
    for (int64_t tokens = 2; tokens <= kMaxDecodeStepTokens; ++tokens) {
      EXPECT_TRUE(taken(tokens - 1) || !taken(tokens))
          << "hidden size " << shape.model.hidden_size << ": " << tokens
          << " tokens are taken, but not one less";
    }
  }
  const Shape small = Qwen06B();
  EXPECT_THAT(DecodeStepRefusal(small.model, small.layout, kMaxDecodeStepTokens, kH200), IsEmpty());
}

std::string RefusalOf(const std::function<void(Shape&, int64_t&, DeviceFacts&)>& change) {
  Shape shape = Qwen06B();
  int64_t tokens = kMaxDecodeStepTokens;
  DeviceFacts device = kH200;
  change(shape, tokens, device);
  return DecodeStepRefusal(shape.model, shape.layout, tokens, device);
}

TEST(DecodeStepPlanTest, RefusalsStateWhatIsTaken) {
  using S = Shape;
  using D = DeviceFacts;
  EXPECT_THAT(RefusalOf([](S&, int64_t& tokens, D&) { tokens = 5; }),
              HasSubstr("5 tokens; it takes 1 to 4"));
  EXPECT_THAT(RefusalOf([](S&, int64_t& tokens, D&) { tokens = 0; }), HasSubstr("0 tokens"));
  EXPECT_THAT(RefusalOf([](S& s, int64_t&, D&) { s.layout.order = KvOrder::kNhd; }),
              HasSubstr("NHD"));
  EXPECT_THAT(RefusalOf([](S& s, int64_t&, D&) { s.layout.head_dim = 96; }),
              HasSubstr("head_dim 96; it takes 64 and 128"));
  EXPECT_THAT(RefusalOf([](S& s, int64_t&, D&) { s.layout.num_kv_heads = 3; }),
              HasSubstr("16 query heads on 3 KV heads"));
  EXPECT_THAT(RefusalOf([](S& s, int64_t&, D&) { s.layout.num_kv_heads = 0; }),
              HasSubstr("on 0 KV heads"));
  EXPECT_THAT(RefusalOf([](S& s, int64_t&, D&) { s.layout.num_kv_heads = 1; }),
              HasSubstr("groups of 1 to 8"));
  EXPECT_THAT(RefusalOf([](S& s, int64_t&, D&) { s.model.hidden_size = 1040; }),
              HasSubstr("hidden size 1040; it takes multiples of 32"));
  EXPECT_THAT(RefusalOf([](S& s, int64_t&, D&) { s.model.intermediate_size = 3080; }),
              HasSubstr("intermediate size 3080; it takes multiples of 32"));
  EXPECT_THAT(RefusalOf([](S& s, int64_t&, D&) { s.model.vocab_size = 1001; }),
              HasSubstr("vocabulary of 1001; it takes even sizes"));
  EXPECT_THAT(RefusalOf([](S&, int64_t&, D& d) { d.sm_count = 15; }),
              HasSubstr("15 SMs are too few for hidden size 1024"));
  EXPECT_THAT(RefusalOf([](S& s, int64_t&, D& d) {
                s.model.hidden_size = 64;
                d.sm_count = 3;
              }),
              HasSubstr("4 tokens of 8 KV heads; it takes 24 in all"));
  EXPECT_THAT(RefusalOf([](S&, int64_t&, D& d) { d.shared_bytes_per_block = 99 << 10; }),
              HasSubstr("stages of weights; it needs 3"));
}

// Parts of shared memory must not overlap, and everything must fit.
TEST(DecodeStepPlanTest, GeometryFitsEachDeviceOrIsRefused) {
  int taken = 0, refused = 0;
  for (const NamedDevice& named : Devices()) {
    for (const int64_t shared_kib : {100, 164, 196, 227}) {
      DeviceFacts device = named.facts;
      device.shared_bytes_per_block = std::min(device.shared_bytes_per_block, shared_kib << 10);
      for (const int64_t hidden : {64, 576, 1024, 2560, 4096}) {
        for (const int32_t head_dim : {64, 128}) {
          for (const int32_t group : {1, 3, 8}) {
            for (int64_t tokens = 1; tokens <= kMaxDecodeStepTokens; ++tokens) {
              const Shape s = ShapeOf(hidden, 1536, 4 * group, 4, head_dim);
              if (!DecodeStepRefusal(s.model, s.layout, tokens, device).empty()) {
                ++refused;
                continue;
              }
              ++taken;
              const DecodeStepGeometry g = DecodeStepGeometryOf(s.model, s.layout, tokens, device);
              ASSERT_LE(g.shared_bytes + kDecodeStepStaticBytes, device.shared_bytes_per_block);
              ASSERT_EQ(g.blocks, device.sm_count);
              ASSERT_GT(g.in_flight, 0);
              ASSERT_LE(g.in_flight, kDecodeStepMostInFlight);
              ASSERT_LT(kDecodeStepMostInFlight, g.stages);
              EXPECT_LE(g.stages * kDecodeStepStageBytes, g.x);
              EXPECT_LE(g.x + static_cast<int32_t>(tokens) * DecodeStepXPitch(hidden), g.sums);
              EXPECT_LT(g.sums, g.states);
              EXPECT_LE(g.states + kDecodeStepWarps * (group * (head_dim + 4) + 2 * 8) * 4,
                        g.tiles);
              EXPECT_LE(g.tiles + kDecodeStepMaxTiles * 4, g.barriers);
              EXPECT_LE(g.barriers + g.stages * 2 * 8, g.shared_bytes);
              for (const int32_t begin : {g.x, g.sums, g.states, g.tiles, g.barriers}) {
                EXPECT_EQ(begin % 16, 0);
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(taken, 0);
  EXPECT_GT(refused, 0);
}

int32_t TilesOf(int32_t length) { return static_cast<int32_t>(DivideUp(length, 16)); }
std::vector<int32_t> TilesOf(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> tiles;
  for (const int32_t length : lengths) tiles.push_back(TilesOf(length));
  return tiles;
}

struct PartsCase {
  int32_t kv_heads;
  std::vector<int32_t> lengths;
};
std::vector<PartsCase> PartsCases() {
  std::vector<PartsCase> cases;
  for (const int32_t kv_heads : {1, 2, 3, 4, 8, 32}) {
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{1},
                                                {16},
                                                {17},
                                                {256},
                                                {257},
                                                {300},
                                                {4096},
                                                {8000},
                                                {1, 256, 257, 5000},
                                                {0, 0, 40, 0},
                                                {700, 700, 700, 700},
                                                {1, 2, 7, 6000},
                                                {4096, 0, 511, 17}}) {
      cases.push_back({kv_heads, lengths});
    }
  }
  return cases;
}

TEST(DecodeStepPlanTest, PartsStayWithinTheBlocksAndNoneIsEmpty) {
  for (const auto& [kv_heads, lengths] : PartsCases()) {
    const PagedKvLayout layout{.num_pages = 1, .num_kv_heads = kv_heads, .head_dim = 128};
    const std::vector<int32_t> parts = DecodeStepParts(TilesOf(lengths), layout, kH200);
    ASSERT_EQ(parts.size(), lengths.size());
    int32_t sum = 0;
    bool cut = false;
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_GE(parts[i], 1);
      EXPECT_LE(parts[i], std::max(1, TilesOf(lengths[i])));
      if (lengths[i] <= 64) {
        EXPECT_EQ(parts[i], 1) << lengths[i] << " tokens are not worth a cut";
      }
      for (size_t j = 0; j < parts.size(); ++j) {
        EXPECT_TRUE(lengths[j] > lengths[i] || parts[j] <= parts[i]) << lengths[j];
      }
      sum += parts[i];
      cut = cut || parts[i] > 1;
    }
    // Parts of one context wait for each other, so then no block may have two tasks.
    if (cut) {
      EXPECT_LE(sum * kv_heads, kH200.sm_count) << kv_heads << " KV heads";
    } else {
      EXPECT_EQ(sum, static_cast<int32_t>(lengths.size()));
    }
    EXPECT_LE(sum * kv_heads, DecodeStepMaxPartials(layout, kH200.sm_count));
    EXPECT_EQ(parts, DecodeStepParts(TilesOf(lengths), layout, kH200));
  }
}

TEST(DecodeStepPlanTest, ALongContextTakesAllBlocks) {
  const PagedKvLayout layout{.num_pages = 1, .num_kv_heads = 8, .head_dim = 128};
  EXPECT_EQ(DecodeStepParts(std::vector{256}, layout, kH200), std::vector{16});
  EXPECT_EQ(DecodeStepParts(std::vector{2048}, layout, kH200), std::vector{16});
  EXPECT_EQ(DecodeStepParts(std::vector{32}, layout, kH200), std::vector{6});
}

// A block lists the tiles of all its tasks in shared memory.
TEST(DecodeStepPlanTest, ContextsThatNoBlockCanListGiveNoParts) {
  for (const int32_t kv_heads : {1, 8, 32}) {
    const PagedKvLayout layout{.num_pages = 1, .num_kv_heads = kv_heads, .head_dim = 128};
    bool fit_before = true;
    int taken = 0, refused = 0;
    for (int32_t length = 1 << 12; length <= 1 << 22; length *= 2) {
      const std::vector<int32_t> lengths{length, 100};
      const std::vector<int32_t> parts = DecodeStepParts(TilesOf(lengths), layout, kH200);
      parts.empty() ? ++refused : ++taken;
      EXPECT_FALSE(!fit_before && !parts.empty()) << "a longer context fits";
      fit_before = !parts.empty();
      if (parts.empty()) continue;
      std::vector<int32_t> tiles(static_cast<size_t>(kH200.sm_count));
      size_t task = 0;
      for (size_t i = 0; i < lengths.size(); ++i) {
        const int64_t all = TilesOf(lengths[i]);
        for (int32_t part = 0; part < parts[i]; ++part) {
          for (int32_t head = 0; head < kv_heads; ++head, ++task) {
            tiles[task % tiles.size()] +=
                static_cast<int32_t>((part + 1) * all / parts[i] - part * all / parts[i]);
          }
        }
      }
      EXPECT_LE(*std::max_element(tiles.begin(), tiles.end()), kDecodeStepMaxTiles) << length;
    }
    EXPECT_GT(taken, 0);
    EXPECT_GT(refused, 0);
  }
}

TEST(DecodeStepPlanTest, WorkspaceHoldsTwoSetsOfWords) {
  for (const Shape& shape : {Qwen06B(), ShapeOf(576, 1536, 9, 3, 64)}) {
    const int64_t head_dim = shape.layout.head_dim, kv_heads = shape.layout.num_kv_heads;
    const int64_t q = shape.model.num_q_heads * head_dim;
    const int64_t of_token = (q + 2 * kv_heads * head_dim + q + 2 * shape.model.hidden_size +
                              shape.model.intermediate_size) /
                             2;
    const int64_t of_part = shape.model.num_q_heads / kv_heads * (head_dim + 2);
    const int64_t parts = std::max<int64_t>(kH200.sm_count, kMaxDecodeStepTokens * kv_heads);
    const int64_t least =
        2 * 4 * shape.model.num_layers * (kMaxDecodeStepTokens * of_token + parts * of_part);
    const int64_t bytes = DecodeStepWorkspaceBytes(shape.model, shape.layout, kH200);
    EXPECT_GE(bytes, least);
    EXPECT_LE(bytes, least + least / 100 + 4096);
  }
}

}  // namespace
}  // namespace tokline
