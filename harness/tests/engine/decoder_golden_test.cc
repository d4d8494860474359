// Compares the CPU decoder with transformers on every committed checkpoint.
#include <gtest/gtest.h>

#include "harness/tests/engine/golden.h"

namespace tokline {
namespace {

using testing::CompareWithGolden;
using testing::Golden;
using testing::LoadedModel;
using testing::ParityResult;
using testing::ReadGolden;

class DecoderGoldenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(DecoderGoldenTest, Fp32LogitsAndGreedyTokensAreThoseOfTransformers) {
  const Golden golden = ReadGolden(GetParam());
  const LoadedModel model(golden.checkpoint);
  ASSERT_EQ(model.spec.vocab_size, golden.vocab_size);
  Decoder decoder(model.spec, model.weights, {.dtype = DType::kF32, .max_context = 160});
  const ParityResult parity = CompareWithGolden(decoder, golden);
  EXPECT_LE(parity.relative_l2, 1e-4);
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

INSTANTIATE_TEST_SUITE_P(Checkpoints, DecoderGoldenTest,
                         ::testing::ValuesIn(testing::GoldenNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tokline
