// Compares the CPU decoder with transformers on every committed checkpoint.
#include <gtest/gtest.h>

#include "harness/engine/convert_elements.h"
#include "harness/tests/engine/golden.h"

namespace tokline {
namespace {

using testing::CompareWithGolden;
using testing::Golden;
using testing::LoadedModel;
using testing::ParityResult;
using testing::ReadGolden;

constexpr double kMostFp32Error = 1e-4;

class DecoderGoldenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(DecoderGoldenTest, Fp32LogitsAndGreedyTokensAreThoseOfTransformers) {
  const Golden golden = ReadGolden(GetParam());
  const LoadedModel model(golden.checkpoint);
  ASSERT_EQ(model.spec.vocab_size, golden.vocab_size);
  Decoder decoder(model.spec, model.weights, {.dtype = DType::kF32, .max_context = 160});
  const ParityResult parity = CompareWithGolden(decoder, golden);
  EXPECT_LE(parity.relative_l2, kMostFp32Error);
  EXPECT_EQ(parity.different_tokens, 0);
}

TEST_P(DecoderGoldenTest, UnforcedTextIsTheGoldenText) {
  const Golden golden = ReadGolden(GetParam());
  const LoadedModel model(golden.checkpoint);
  Decoder decoder(model.spec, model.weights,
                  {.dtype = DType::kF32, .max_context = 160, .page_size = 16});
  for (const testing::GoldenCase& one : golden.cases) {
    GenerateOptions options;
    options.max_new_tokens = static_cast<int64_t>(one.tokens.size());
    EXPECT_EQ(Generate(decoder, one.prompt, options).tokens, one.tokens);
  }
}

// Detects rounding in the wrong place (after a norm's weight, or not at all), because K-norm
// weights of up to 96.5 amplify it.
TEST_P(DecoderGoldenTest, Bf16ErrorIsThatOfTransformersInBf16) {
  const Golden golden = ReadGolden(GetParam());
  const LoadedModel model(golden.checkpoint);
  Decoder decoder(model.spec, model.weights, {.dtype = DType::kBf16, .max_context = 160});
  const ParityResult parity = CompareWithGolden(decoder, golden);
  EXPECT_LE(parity.relative_l2, 1.25 * golden.bf16_relative_l2);
  EXPECT_GT(parity.relative_l2, 0);
}

// A dense copy of a tensor in fp32, each element times `factor`.
class ScaledTensor {
 public:
  ScaledTensor(const TensorView& from, float factor)
      : values_(static_cast<size_t>(from.Rows() * from.Columns())), view_(from) {
    ConvertMatrix(from.dtype, from.data, from.row_stride, from.column_stride, DType::kF32,
                  values_.data(), from.Rows(), from.Columns());
    for (float& value : values_) value *= factor;
    view_.dtype = DType::kF32;
    view_.data = values_.data();
    view_.bytes = std::ssize(values_) * int64_t{sizeof(float)};
    view_.row_stride = from.Columns();
    view_.column_stride = 1;
  }
  const TensorView& View() const { return view_; }

 private:
  std::vector<float> values_;
  TensorView view_;
};

// Without such an error the logits are within 1e-4; with one of 1 % they are off by 2.4e-3 or more.
TEST_P(DecoderGoldenTest, AThousandthTooMuchInOneProjectionOfOneLayerIsDetected) {
  const Golden golden = ReadGolden(GetParam());
  LoadedModel model(golden.checkpoint);
  for (size_t i = 0; i < model.weights.layers.size(); ++i) {
    LayerWeights& layer = model.weights.layers[i];
    // A norm of the heads would remove a factor in q or k.
    const bool head_norms = layer.q_norm.data != nullptr;
    for (TensorView* weight :
         {head_norms ? &layer.q_norm : &layer.q, head_norms ? &layer.k_norm : &layer.k, &layer.v,
          &layer.o, &layer.gate, &layer.up, &layer.down}) {
      if (weight->data == nullptr) continue;  // an MLP without a gate
      const TensorView right = *weight;
      const ScaledTensor wrong(right, 1.001f);
      *weight = wrong.View();
      Decoder decoder(model.spec, model.weights, {.dtype = DType::kF32, .max_context = 160});
      EXPECT_GT(CompareWithGolden(decoder, golden).relative_l2, kMostFp32Error)
          << "layer " << i << ", weight of " << right.Rows() << " x " << right.Columns();
      *weight = right;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, DecoderGoldenTest,
                         ::testing::ValuesIn(testing::GoldenNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tokline
