#include "harness/decoder/throughput.h"

#include <gtest/gtest.h>

#include "harness/tests/decoder/golden.h"
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
  EXPECT_GE(result.decode_tokens_per_s, 3 * 4 / slowest);
  EXPECT_LE(result.decode_tokens_per_s, 3 * 4 / fastest);
  EXPECT_NEAR(result.ms_per_step * result.decode_tokens_per_s, 3 * 1e3, 1e-6);
  EXPECT_GT(result.prefill_tokens_per_s, 0);
  EXPECT_GT(result.warm_up_s, 0);
  EXPECT_EQ(decoder.Pages().NumFree(), decoder.Pages().NumPages());
  EXPECT_FALSE(decoder.HasWork());
}

TEST_F(ThroughputTest, InterruptionEndsTheBenchAndIsMarked) {
  Decoder decoder(model_.spec, model_.weights, {.max_batch = 3, .max_context = 64});
  std::atomic<bool> interrupted = true;
  options_.interrupted = &interrupted;
  const BenchResult result = RunBench(decoder, options_);
  EXPECT_TRUE(result.interrupted);
  EXPECT_TRUE(result.samples.empty());
  EXPECT_EQ(result.decode_tokens_per_s, 0);
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
