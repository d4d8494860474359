// decode_step without a device: what it checks, its cost, its reference, and the checks that its
// CUDA test uses.
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

using ::testing::HasSubstr;
using testing::kH200;
using testing::RowsOf;
using testing::RunReference;
using testing::Step;
using testing::StepModel;
using testing::StepModelShape;
using testing::StepResult;

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
