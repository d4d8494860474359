// decode_step without a device: what it takes, how it divides the work, its cost, its reference,
// and the checks that its CUDA test uses.
#include <gmock/gmock.h>

#include <Eigen/Dense>
#include <complex>
#include <functional>

#include "harness/tests/kernels/decode_step_case.h"
#include "harness/tests/kernels/devices.h"
#include "harness/tests/kernels/sequence_tokens.h"
#include "harness/tests/message_of.h"
#include "kernels/common/error.h"
#include "kernels/decode_step/decode_step_plan.h"

namespace tokline {
namespace {

using testing::Devices;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kH200;
using testing::NamedDevice;
using testing::RowsOf;
using testing::RunReference;
using testing::Step;
using testing::StepModel;
using testing::StepModelShape;
using testing::StepResult;

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

StepModelShape Tiny() { return {.hidden = 64, .inner = 96, .vocab = 32}; }

TEST(DecodeStepTest, ValidateStatesWhatIsWrong) {
  const StepModel model(Tiny());
  Step step(model.shape, {.rows = RowsOf({5, 17, 1})});
  const auto refusal = [&](const std::function<void(DecodeStepParams&)>& change) -> std::string {
    std::vector<float> logits(3 * 32);
    DecodeStepParams params = step.Params(model.Bind(), step.kv.data(), logits.data());
    Validate(params);
    change(params);
    return testing::MessageOf([&] { Validate(params); });
  };
  using P = DecodeStepParams;
  EXPECT_THAT(refusal([](P& p) { p.num_tokens = -1; }), HasSubstr("num_tokens is -1"));
  EXPECT_THAT(refusal([](P& p) { p.model.num_layers = 0; }), HasSubstr("num_layers is 0"));
  EXPECT_THAT(refusal([](P& p) { p.layout.page_size = 24; }), HasSubstr("page_size is 24"));
  EXPECT_THAT(refusal([](P& p) { p.model.num_q_heads = 3; }), HasSubstr("num_q_heads is 3"));
  EXPECT_THAT(refusal([](P& p) { p.model.hidden_size = 0; }), HasSubstr("hidden_size"));
  EXPECT_THAT(refusal([](P& p) { p.num_tokens = 2; }), HasSubstr("3 sequences, the step 2"));
  const std::vector<int32_t> shifts(3);
  EXPECT_THAT(refusal([&](P& p) { p.table.seq_shifts = shifts.data(); }), HasSubstr("shifted"));
  EXPECT_THAT(refusal([](P& p) { p.model.q_norm = p.model.input_norm; }), HasSubstr("k_norm"));
  const std::vector<std::function<void(P&)>> nulls{[](P& p) { p.model.embedding = nullptr; },
                                                   [](P& p) { p.model.final_norm = nullptr; },
                                                   [](P& p) { p.model.lm_head = nullptr; },
                                                   [](P& p) { p.model.input_norm = nullptr; },
                                                   [](P& p) { p.model.qkv = nullptr; },
                                                   [](P& p) { p.model.o = nullptr; },
                                                   [](P& p) { p.model.post_norm = nullptr; },
                                                   [](P& p) { p.model.gate_up = nullptr; },
                                                   [](P& p) { p.model.down = nullptr; },
                                                   [](P& p) { p.token_ids = nullptr; },
                                                   [](P& p) { p.positions = nullptr; },
                                                   [](P& p) { p.slots = nullptr; },
                                                   [](P& p) { p.kv = nullptr; },
                                                   [](P& p) { p.rope_cos_sin = nullptr; },
                                                   [](P& p) { p.logits = nullptr; }};
  for (size_t i = 0; i < nulls.size(); ++i) {
    EXPECT_THAT(refusal(nulls[i]), HasSubstr("null")) << "tensor " << i;
  }
  EXPECT_EQ(refusal([](P& p) { p.num_tokens = 0; }), "nothing was thrown");
}

// The address that many bytes further.
template <typename T>
void Move(T*& pointer, int64_t bytes) {
  pointer =
      reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + static_cast<uintptr_t>(bytes));
}

TEST(DecodeStepTest, TensorsThatVectorsCannotReadAreRefused) {
  StepModelShape shape = Tiny();
  shape.qkv_bias = shape.head_norms = true;
  const StepModel model(shape);
  Step step(shape, {.rows = RowsOf({5})});
  std::vector<float> logits(32);
  const DecodeStepParams good = step.Params(model.Bind(), step.kv.data(), logits.data());
  using P = DecodeStepParams;
  struct Tensor {
    const char* name;
    int64_t alignment;
    std::function<void(P&, int64_t)> move;
  };
  const std::vector<Tensor> tensors{
      {"embedding", 16, [](P& p, int64_t n) { Move(p.model.embedding, n); }},
      {"final_norm", 16, [](P& p, int64_t n) { Move(p.model.final_norm, n); }},
      {"lm_head", 16, [](P& p, int64_t n) { Move(p.model.lm_head, n); }},
      {"input_norm", 16, [](P& p, int64_t n) { Move(p.model.input_norm, n); }},
      {"qkv", 16, [](P& p, int64_t n) { Move(p.model.qkv, n); }},
      {"qkv_bias", 16, [](P& p, int64_t n) { Move(p.model.qkv_bias, n); }},
      {"q_norm", 16, [](P& p, int64_t n) { Move(p.model.q_norm, n); }},
      {"k_norm", 16, [](P& p, int64_t n) { Move(p.model.k_norm, n); }},
      {"o", 16, [](P& p, int64_t n) { Move(p.model.o, n); }},
      {"post_norm", 16, [](P& p, int64_t n) { Move(p.model.post_norm, n); }},
      {"gate_up", 16, [](P& p, int64_t n) { Move(p.model.gate_up, n); }},
      {"down", 16, [](P& p, int64_t n) { Move(p.model.down, n); }},
      {"kv", 16, [](P& p, int64_t n) { Move(p.kv, n); }},
      {"rope_cos_sin", 16, [](P& p, int64_t n) { Move(p.rope_cos_sin, n); }},
      {"token_ids", 4, [](P& p, int64_t n) { Move(p.token_ids, n); }},
      {"positions", 4, [](P& p, int64_t n) { Move(p.positions, n); }},
      {"slots", 8, [](P& p, int64_t n) { Move(p.slots, n); }},
      {"logits", 8, [](P& p, int64_t n) { Move(p.logits, n); }}};
  for (const Tensor& tensor : tensors) {
    const auto message = [&](int64_t bytes) {
      DecodeStepParams params = good;
      tensor.move(params, bytes);
      return testing::MessageOf([&] { Validate(params); });
    };
    EXPECT_EQ(message(tensor.alignment), "nothing was thrown") << tensor.name;
    EXPECT_THAT(message(tensor.alignment / 2), HasSubstr(StrCat(tensor.name, " is at ")));
    EXPECT_THAT(message(tensor.alignment / 2),
                HasSubstr(StrCat("it must be ", tensor.alignment, " B aligned")));
  }
}

TEST(DecodeStepTest, ALaunchNeedsAnAlignedWorkspaceThatIsLargeEnough) {
  const StepModel model(Tiny());
  Step step(model.shape, {.rows = RowsOf({5})});
  std::vector<float> logits(32);
  alignas(kDecodeStepWorkspaceAlignment) static char nowhere[1];
  const auto refusal = [&](const std::function<void(DecodeStepParams&)>& change) {
    DecodeStepParams params = step.Params(model.Bind(), step.kv.data(), logits.data());
    params.parts = step.tiles.data();
    params.workspace = nowhere;
    params.workspace_bytes = DecodeStepWorkspaceBytes(params.model, params.layout, kH200);
    change(params);
    return testing::MessageOf([&] { ValidateLaunch(params, kH200); });
  };
  using P = DecodeStepParams;
  EXPECT_EQ(refusal([](P&) {}), "nothing was thrown");
  EXPECT_THAT(refusal([](P& p) { p.workspace = nullptr; }), HasSubstr("workspace is at 0"));
  EXPECT_THAT(refusal([](P& p) { Move(p.workspace, 128); }),
              HasSubstr("it must be 256 B aligned and not null"));
  EXPECT_THAT(refusal([](P& p) { --p.workspace_bytes; }), HasSubstr("workspace_bytes is "));
  EXPECT_THAT(refusal([](P& p) { p.parts = nullptr; }), HasSubstr("parts"));
  EXPECT_THAT(refusal([](P& p) { p.model.vocab_size = 31; }), HasSubstr("a vocabulary of 31"));
}

TEST(DecodeStepTest, CostMatchesBruteForceCount) {
  for (const bool extras : {false, true}) {
    StepModelShape s = Tiny();
    s.qkv_bias = s.head_norms = extras;
    const StepModel model(s);
    const std::vector<int32_t> lengths{5, 17, 1};
    Step step(s, {.rows = RowsOf(lengths)});
    const int hidden = 64, inner = 96, vocab = 32, q = 4 * 64, k = 2 * 64, tokens = 3;
    double reads = 0, writes = 0, flops = 0;
    const auto matrix = [&](int rows, int cols) {
      for (int row = 0; row < rows; ++row) {
        reads += 2.0 * cols;
        flops += 2.0 * cols * tokens;
      }
    };
    for (int layer = 0; layer < 2; ++layer) {
      reads += 2 * 2.0 * hidden;  // norms
      if (extras) reads += 2.0 * (q + 2 * k) + 2 * 2.0 * 64;
      matrix(q, hidden);
      matrix(2 * k, hidden);
      matrix(hidden, q);
      matrix(2 * inner, hidden);
      matrix(hidden, inner);
      for (const int length : lengths) {
        for (int t = 0; t < length; ++t) {
          const bool is_new = t == length - 1;
          (is_new ? writes : reads) += 2 * 2.0 * k;
          flops += 2.0 * q + 2.0 * q;  // scores, sums of values
        }
      }
    }
    reads += 2.0 * hidden;  // final norm
    matrix(vocab, hidden);
    for (int t = 0; t < tokens; ++t) {
      reads += 2.0 * hidden + 4.0 * 64;  // a row of the embedding, angles
      writes += 4.0 * vocab;
    }
    std::vector<float> logits(3 * 32);
    const Cost cost = CostOf(step.Params(model.Bind(), step.kv.data(), logits.data()));
    EXPECT_EQ(cost.read_bytes, reads);
    EXPECT_EQ(cost.write_bytes, writes);
    EXPECT_EQ(cost.flops, flops);
  }
}

// The model by its definition, in double and without the references: returns logits.
class PlainModel {
 public:
  using Vector = Eigen::VectorXd;

  PlainModel(const StepModel& model, const Step& step) : model_(model), step_(step) {}

  Vector Logits(int64_t token) const {
    const StepModelShape& s = model_.shape;
    const int64_t id = step_.ids[static_cast<size_t>(token)];
    Vector x = Vector::Zero(s.hidden);
    for (int64_t i = 0; i < s.hidden && id >= 0 && id < s.vocab; ++i) {
      x[i] = model_.embedding[id * s.hidden + i];
    }
    for (int32_t layer = 0; layer < s.layers; ++layer) {
      const Vector n = Norm(x).cwiseProduct(Row(layer, model_.input_norm));
      Vector qkv = Times(layer, model_.qkv, n);
      if (s.qkv_bias) qkv += Row(layer, model_.qkv_bias);
      x += Times(layer, model_.o, Attend(layer, token, qkv));
      const Vector m = Norm(x).cwiseProduct(Row(layer, model_.post_norm));
      const Vector gate_up = Times(layer, model_.gate_up, m);
      const Eigen::ArrayXd gate = gate_up.head(s.inner).array();
      x += Times(layer, model_.down,
                 (gate / (1 + (-gate).exp()) * gate_up.tail(s.inner).array()).matrix());
    }
    Vector logits = Vector::Zero(s.vocab);
    const Vector n = Norm(x);
    for (int64_t v = 0; v < s.vocab; ++v) {
      for (int64_t i = 0; i < s.hidden; ++i) {
        logits[v] += n[i] * model_.final_norm[i] * model_.lm_head[v * s.hidden + i];
      }
    }
    return logits;
  }

 private:
  static Vector Norm(const Vector& x) {
    return x / std::sqrt(x.squaredNorm() / static_cast<double>(x.size()) + 1e-6);
  }
  Vector Row(int32_t layer, const testing::LayerTensor& tensor) const {
    Vector row(tensor.cols);
    for (int64_t i = 0; i < tensor.cols; ++i) {
      row[i] = model_.layers[layer * model_.layer_elements + tensor.at + i];
    }
    return row;
  }
  Vector Times(int32_t layer, const testing::LayerTensor& tensor, const Vector& x) const {
    Vector y = Vector::Zero(tensor.rows);
    for (int64_t i = 0; i < tensor.Size(); ++i) {
      y[i / tensor.cols] +=
          model_.layers[layer * model_.layer_elements + tensor.at + i] * x[i % tensor.cols];
    }
    return y;
  }
  // Norm and rotation of a head, as complex numbers of its two halves.
  Vector Place(const Vector& head, int32_t layer, const testing::LayerTensor& norm,
               int32_t position) const {
    Vector v = head;
    if (model_.shape.head_norms) v = Norm(v).cwiseProduct(Row(layer, norm));
    const int64_t half = v.size() / 2;
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          position * std::pow(1e4, -2.0 * static_cast<double>(i) / static_cast<double>(v.size()));
      const std::complex<double> turned = std::complex(v[i], v[i + half]) * std::polar(1.0, angle);
      v[i] = turned.real();
      v[i + half] = turned.imag();
    }
    return v;
  }
  Vector Attend(int32_t layer, int64_t token, const Vector& qkv) const {
    const StepModelShape& s = model_.shape;
    const auto at = static_cast<size_t>(token);
    const ChunkTableView table = step_.table.View();
    Vector out(s.Q());
    for (int32_t head = 0; head < s.QHeads(); ++head) {
      const int32_t kv_head = head / s.group;
      const auto slice = [&](int32_t index) -> Vector {
        return qkv.segment(int64_t{index} * s.head_dim, s.head_dim);
      };
      const Vector query = Place(slice(head), layer, model_.q_norm, step_.positions[at]);
      const Vector own_key =
          Place(slice(s.QHeads() + kv_head), layer, model_.k_norm, step_.positions[at]);
      const Vector own_value = slice(s.QHeads() + s.kv_heads + kv_head);
      Vector sum = Vector::Zero(s.head_dim);
      double weights = 0;
      const int32_t page_size = step_.layout.page_size;
      const auto attend = [&](const testing::SequenceToken& of) {
        Vector key = own_key, value = own_value;
        if (int64_t{of.page} * page_size + of.row != step_.slots[at]) {
          const int64_t pool = layer * step_.layout.NumElements();
          for (int32_t d = 0; d < s.head_dim; ++d) {
            key[d] = step_.kv[pool + step_.layout.KeyOffset(of.page, kv_head, of.row) + d];
            value[d] = step_.kv[pool + step_.layout.ValueOffset(of.page, kv_head, of.row) + d];
          }
        }
        const double weight = std::exp(query.dot(key) / std::sqrt(s.head_dim));
        weights += weight;
        sum += weight * value;
      };
      testing::ForEachTokenOf(table, static_cast<int32_t>(token), page_size, attend);
      out.segment(int64_t{head} * s.head_dim, s.head_dim) =
          weights > 0 ? Vector(sum / weights) : sum;
    }
    return out;
  }

  const StepModel& model_;
  const Step& step_;
};

TEST(DecodeStepReferenceTest, EqualsThePlainModelInSinglePrecision) {
  for (const bool extras : {false, true}) {
    for (const int32_t head_dim : {64, 128}) {
      const StepModel model({.dtype = DType::kF32,
                             .layers = 3,
                             .hidden = 96,
                             .inner = 160,
                             .vocab = 50,
                             .kv_heads = 2,
                             .group = 3,
                             .head_dim = head_dim,
                             .qkv_bias = extras,
                             .head_norms = extras});
      const Step step(model.shape, {.rows = {{.chunks = {1}},
                                             {.chunks = {7, 20, 33}},
                                             testing::PaddingRow(),
                                             {.chunks = {17}, .append = false},
                                             {.chunks = {16, 40}, .id = 50}}});
      const StepResult result = RunReference(model, step);
      EXPECT_TRUE(OnlyItsSlotsChanged(result, step));
      const PlainModel plain(model, step);
      for (int64_t t = 0; t < step.Tokens(); ++t) {
        const Eigen::VectorXd expected = plain.Logits(t);
        const double rms = std::sqrt(expected.squaredNorm() / 50);
        for (int64_t v = 0; v < 50; ++v) {
          // Some thousand roundings of fp32 on the way, most of which cancel.
          ASSERT_NEAR(result.logits[static_cast<size_t>(t * 50 + v)], expected[v], 1e-5 * rms)
              << "token " << t << ", logit " << v;
        }
      }
    }
  }
}

TEST(DecodeStepReferenceTest, PagesAndDeadSlotsChangeNothing) {
  const StepModel model(Tiny());
  testing::StepOptions options{.rows = {{.chunks = {40, 3}}, {.chunks = {100}}}};
  const StepResult once = RunReference(model, Step(model.shape, options));
  options.page_seed = 2;
  EXPECT_EQ(RunReference(model, Step(model.shape, options)).logits, once.logits);
  options.nan_in_dead_slots = false;
  EXPECT_EQ(RunReference(model, Step(model.shape, options)).logits, once.logits);
  options.seed = 2;
  EXPECT_NE(RunReference(model, Step(model.shape, options)).logits, once.logits);
}

// The bounds of the CUDA test must tell a right result from one in which little is wrong.
class DecodeStepBoundTest : public ::testing::TestWithParam<DType> {
 protected:
  DecodeStepBoundTest()
      : model_({.dtype = GetParam(),
                .hidden = 576,
                .inner = 704,
                .vocab = 256,
                .kv_heads = 3,
                .group = 3,
                .head_norms = true}),
        step_(model_.shape, {.rows = RowsOf({1, 17, 300})}),
        expected_(RunReference(model_, step_)),
        tolerance_(ToleranceOf(model_, step_, expected_)) {}

  bool Passes(const StepModel& wrong) {
    return static_cast<bool>(
        Matches(RunReference(wrong, step_), expected_, tolerance_, model_, step_));
  }
  // The model in which the products of some inputs of a matrix are missing in layer `layer`.
  StepModel Without(const testing::LayerTensor& tensor, int32_t layer, int64_t first,
                    int64_t count) const {
    StepModel wrong = model_;
    for (int64_t row = 0; row < tensor.rows; ++row) {
      for (int64_t col = first; col < first + count; ++col) {
        wrong.layers.Set(layer * model_.layer_elements + tensor.at + row * tensor.cols + col, 0);
      }
    }
    return wrong;
  }

  StepModel model_;
  Step step_;
  StepResult expected_;
  testing::StepTolerance tolerance_;
};

TEST_P(DecodeStepBoundTest, AcceptsFlipsAndIsTight) {
  StepModel flipped = model_;
  std::mt19937_64 rng(99);
  Flip(flipped.layers, 1.0 / 256, rng);
  EXPECT_TRUE(Passes(flipped));
  for (int64_t t = 0; t < step_.Tokens(); ++t) {
    double squares = 0;
    for (int64_t v = 0; v < 256; ++v) {
      squares += std::pow(expected_.logits[static_cast<size_t>(t * 256 + v)], 2);
    }
    const double rms = std::sqrt(squares / 256);
    EXPECT_LT(tolerance_.logits[static_cast<size_t>(t)], 4 * Epsilon(GetParam()) * rms) << t;
  }
}

// One word in f16. In bf16 one word of many may be less than what roundings do; the exact models
// find it.
TEST_P(DecodeStepBoundTest, FindsFewMissingInputsOfEachProduct) {
  const int64_t missing = GetParam() == DType::kF16 ? 2 : 16;
  for (const testing::LayerTensor& tensor : {model_.qkv, model_.o, model_.gate_up, model_.down}) {
    for (const int32_t layer : {0, 1}) {
      for (const int64_t first : {int64_t{0}, tensor.cols - missing}) {
        EXPECT_FALSE(Passes(Without(tensor, layer, first, missing)))
            << tensor.cols << " inputs, layer " << layer << ", from input " << first;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, DecodeStepBoundTest, ::testing::Values(DType::kBf16, DType::kF16),
                         [](const auto& info) { return std::string(Name(info.param)); });

// The exact models must tell apart what no bound does.
TEST(DecodeStepExactTest, FindsOneMissingTokenAndOneMissingWord) {
  using testing::ExactPart;
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    StepModelShape shape{.dtype = dtype, .hidden = 192, .inner = 288, .kv_heads = 1, .group = 3};
    const StepModel attention = testing::ExactModel(shape, ExactPart::kAttention);
    Step step(attention.shape, {.rows = {{.chunks = {300, 212}}, {.chunks = {64}}}});
    MakeExact(step);
    EXPECT_TRUE(EqualsExactly(RunReference(attention, step), attention, step));
    Step shorter(attention.shape, {.rows = {{.chunks = {299, 212}}, {.chunks = {64}}}});
    MakeExact(shorter);
    StepResult wrong = RunReference(attention, step);
    wrong.logits = RunReference(attention, shorter).logits;
    EXPECT_FALSE(EqualsExactly(wrong, attention, step)) << "a token is missing";

    const StepModel mlp = testing::ExactModel(shape, ExactPart::kMlp);
    const StepResult right = RunReference(mlp, step);
    EXPECT_TRUE(EqualsExactly(right, mlp, step));
    wrong = right;
    step.ForSlot(step.slots[0], [&](int64_t at) {
      const double unit = 2 * testing::HalfUlp(dtype, wrong.kv[at]);
      if (step.IsValue(at)) wrong.kv.Set(at, wrong.kv[at] + 2 * unit);
    });
    EXPECT_FALSE(EqualsExactly(wrong, mlp, step)) << "each value is off by two units";
    for (int64_t word = 0; word < shape.inner / 2; ++word) {
      StepModel missing = mlp;
      missing.SetEach(mlp.down, [&](int64_t row, int64_t col) {
        return col / 2 == word ? 0.0 : mlp.layers[mlp.down.at + row * mlp.down.cols + col];
      });
      wrong.logits = RunReference(missing, step).logits;
      wrong.kv = right.kv;
      ASSERT_FALSE(EqualsExactly(wrong, mlp, step)) << "word " << word << " is missing";
    }
  }
}

}  // namespace
}  // namespace tokline
