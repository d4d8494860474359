// Benches of the tiny model on the CPU: figures that follow from their samples, and the cost of a
// step, summed term by term over the checkpoint's tensors.
#include "harness/measure/throughput.h"

#include <gtest/gtest.h>

#include "harness/tests/engine/golden.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

class ThroughputTest : public ::testing::Test {
 protected:
  ThroughputTest() : model_(testing::LoadTinyModel()) {}

  testing::LoadedModel model_;
  BenchOptions options_{.batch = 3, .prompt_tokens = 20, .new_tokens = 5, .repeats = 4};
};

TEST_F(ThroughputTest, FiguresFollowFromTheSamples) {
  const int64_t budget = 25;  // prefill takes three steps
  Decoder decoder(model_.spec, model_.weights,
                  {.max_batch = 3,
                   .max_context = BenchContextTokens(options_, budget),
                   .page_size = 16,
                   .token_budget = budget});
  const BenchResult result = RunBench(decoder, options_);
  ASSERT_EQ(result.samples.size(), 4u);
  EXPECT_FALSE(result.interrupted);
  EXPECT_FALSE(result.graphs);
  double fastest = 1e9, slowest = 0;
  for (const BenchSample& sample : result.samples) {
    EXPECT_GT(sample.prefill_s, 0);
    EXPECT_GT(sample.decode_s, 0);
    EXPECT_GT(sample.decode_host_s, 0);
    EXPECT_LE(sample.decode_host_s, sample.decode_s);
    fastest = std::min(fastest, sample.decode_s);
    slowest = std::max(slowest, sample.decode_s);
  }
  EXPECT_GE(result.ms_per_step, 1e3 * fastest / 4);
  EXPECT_LE(result.ms_per_step, 1e3 * slowest / 4);
  EXPECT_GT(result.warm_up_s, 0);
  EXPECT_EQ(decoder.Pages().NumFree(), decoder.Pages().NumPages());
  EXPECT_FALSE(decoder.HasWork());
}

// Term by term over every step, from the checkpoint's own tensors.
TEST_F(ThroughputTest, DecodeStepCostCountsEveryWeightOnceAndTheContextOfEachStep) {
  for (const std::string& name : testing::GoldenNames()) {
    const testing::LoadedModel model(testing::ReadGolden(name).checkpoint);
    const ModelSpec& spec = model.spec;
    const double element = 2;
    double weights = 0, matrix_elements = 0;
    for (const auto& [key, tensor] : model.checkpoint.Tensors()) {
      double elements = 1;
      for (const int64_t extent : tensor.shape) elements *= static_cast<double>(extent);
      const bool embedding = key == "model.embed_tokens.weight";
      // Looked up, a row a sequence, and not multiplied with.
      const bool rows = (embedding && !spec.tied_embeddings) || key.ends_with("wpe.weight");
      if (rows) elements = 3.0 * static_cast<double>(spec.hidden_size);
      weights += elements;
      if (tensor.shape.size() == 2 && !rows) matrix_elements += elements;
    }
    options_.depth = 50;
    double read = 0, written = 0, flops = 0;
    const double steps = 4, kv_row = 2.0 * spec.num_layers * spec.num_kv_heads * spec.head_dim;
    for (int step = 0; step < steps; ++step) {
      const double cached = 50 + 20 + step;
      read += (weights + 3 * cached * kv_row) * element;
      written += 3 * kv_row * element;
      flops += 3 * (2 * matrix_elements +
                    (cached + 1) * spec.num_layers * spec.num_q_heads * spec.head_dim * 4.0);
    }
    const Cost cost = DecodeStepCost(spec, model.weights.parameters, DType::kBf16, options_);
    EXPECT_DOUBLE_EQ(cost.read_bytes, read / steps) << name;
    EXPECT_DOUBLE_EQ(cost.write_bytes, written / steps) << name;
    EXPECT_DOUBLE_EQ(cost.flops, flops / steps) << name;
  }
}

// The K and V of a depth are those of the tokens before the prompt.
TEST_F(ThroughputTest, TextAfterADepthIsThatOfTheWholePrompt) {
  const int64_t budget = 25;
  const auto texts = [&](int64_t depth, int64_t prompt_tokens) {
    options_.depth = depth;
    options_.prompt_tokens = prompt_tokens;
    Decoder decoder(model_.spec, model_.weights,
                    {.max_batch = 3,
                     .max_context = BenchContextTokens(options_, budget),
                     .page_size = 16,
                     .token_budget = budget});
    std::vector<std::vector<int32_t>> tokens;
    const BenchRepeat run = TimeRepeat(decoder, options_, 3).value();
    for (const BenchText& text : run.texts) {
      EXPECT_EQ(std::ssize(text.prompt), 43);
      tokens.push_back(text.tokens);
    }
    return tokens;
  };
  EXPECT_EQ(texts(23, 20), texts(0, 43));
}

TEST_F(ThroughputTest, InterruptionEndsTheBenchAndIsMarked) {
  Decoder decoder(model_.spec, model_.weights, {.max_batch = 3, .max_context = 64});
  std::atomic<bool> interrupted = true;
  options_.interrupted = &interrupted;
  const BenchResult result = RunBench(decoder, options_);
  EXPECT_TRUE(result.interrupted);
  EXPECT_TRUE(result.samples.empty());
  EXPECT_EQ(result.ms_per_step, 0);
  EXPECT_EQ(decoder.Pages().NumFree(), decoder.Pages().NumPages());
}

TEST_F(ThroughputTest, TooSmallADecoderAndBadCountsAreRefused) {
  Decoder decoder(model_.spec, model_.weights, {.max_batch = 2, .max_context = 25});
  EXPECT_THROW(RunBench(decoder, options_), InvalidArgument);  // batch
  options_.batch = 2;
  EXPECT_THROW(RunBench(decoder, options_), InvalidArgument);  // context
  options_.prompt_tokens = 8;
  options_.new_tokens = 1;
  EXPECT_THROW(RunBench(decoder, options_), InvalidArgument);
  options_.new_tokens = 2;
  options_.repeats = 0;
  EXPECT_THROW(RunBench(decoder, options_), InvalidArgument);
}

}  // namespace
}  // namespace tokline
