// The regret of texts: computed by hand, of the tiny model's own text and another one, and of draws
// under errors as large as those of bf16.
#include "harness/measure/text_regret.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "harness/measure/throughput.h"
#include "harness/tests/engine/golden.h"
#include "kernels/common/error.h"
#include "reference/sampling.h"
#include "tokline_rules.h"

namespace tokline {
namespace {

using Rows = std::vector<std::vector<float>>;
using Ids = std::vector<int32_t>;

TEST(MeanRegretTest, IsTheShareOfTheWayFromTheLargestLogitToTheMean) {
  const Rows logits = {{0, 4, 2, 2}, {8, 0, 0, 0}};
  EXPECT_EQ(MeanRegret(logits, Ids{1, 0}), 0);
  EXPECT_EQ(MeanRegret(logits, Ids{2, 0}), 0.5);          // (4 - 2) / (4 - 2) and 0
  EXPECT_EQ(MeanRegret(logits, Ids{1, 3}), 8.0 / 6 / 2);  // 0 and (8 - 0) / (8 - 2)
}

TEST(MeanRegretTest, RowsThatSayNothingGiveNan) {
  EXPECT_TRUE(std::isnan(MeanRegret(Rows{{1, 1, 1}}, Ids{0})));
  EXPECT_TRUE(std::isnan(MeanRegret(Rows{{0, 3, std::nanf("")}}, Ids{1})));
  EXPECT_TRUE(std::isnan(MeanRegret(Rows{{0, 3, 1}, {std::nanf(""), 3, 1}}, Ids{1, 1})));
}

TEST(MeanRegretTest, WhatDoesNotFitIsRefused) {
  EXPECT_THROW(MeanRegret(Rows{}, Ids{}), InvalidArgument);
  EXPECT_THROW(MeanRegret(Rows{{0, 1}}, Ids{0, 1}), InvalidArgument);
  EXPECT_THROW(MeanRegret(Rows{{0, 1}}, Ids{2}), InvalidArgument);
  EXPECT_THROW(MeanRegret(Rows{{0, 1}}, Ids{-1}), InvalidArgument);
}

// Greedy texts of the bench are likely to a decoder of plain ops; tokens of another text are not.
TEST(MeanRegretTest, TellsTheModelsTextFromAnother) {
  const testing::LoadedModel model = testing::LoadTinyModel();
  const BenchOptions bench{.batch = 3, .prompt_tokens = 20, .new_tokens = 24, .repeats = 1};
  DecoderOptions options{.max_batch = 3, .max_context = 64, .page_size = 16};
  Decoder decoder(model.spec, model.weights, options);
  const std::vector<BenchText> texts = RunBench(decoder, bench).texts;
  ASSERT_EQ(texts.size(), 2u);
  options.max_batch = 1;
  for (const AblationEntry& entry : AllAblations()) options.ablate.Add(entry.ablation);
  Decoder judge(model.spec, model.weights, options);
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSERT_EQ(texts[i].prompt.size(), 20u);
    ASSERT_EQ(texts[i].tokens.size(), 24u);
    const GenerateResult own =
        Generate(judge, texts[i].prompt,
                 {.max_new_tokens = 24, .force_ids = texts[i].tokens, .want_logits = true});
    EXPECT_LE(MeanRegret(own.logits, texts[i].tokens), 1e-3);
    EXPECT_GE(MeanRegret(own.logits, texts[1 - i].tokens), 0.5);
  }
}

// Equal logits of 4 ids: id i has the part [i/4, (i+1)/4) of the draws.
TEST(MeanRegretTest, OfADrawIsTheWayToTheTokensPart) {
  const Rows flat(1, std::vector<float>(4, 1.0f));
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const SamplingRule rule = {.temperature = 0.5f, .seed = seed, .offset = 3};
    const double draw = UniformDraw(rule);
    for (int32_t id = 0; id < 4; ++id) {
      const double expected = std::max({0.0, id / 4.0 - draw, draw - (id + 1) / 4.0});
      EXPECT_NEAR(MeanRegret(flat, Ids{id}, std::vector{rule}), expected, 1e-12);
    }
  }
  const SamplingRule rule = {.temperature = 0.5f};
  EXPECT_TRUE(std::isnan(MeanRegret(Rows{{1, std::nanf("")}}, Ids{0}, std::vector{rule})));
  EXPECT_THROW(MeanRegret(flat, Ids{0}, std::vector{rule, rule}), InvalidArgument);
  EXPECT_EQ(MeanRegret(Rows{{0, 4}}, Ids{1}, std::vector{SamplingRule{}}), 0);  // greedy
}

// What differs in two decoders of one model in bf16 is an error of each logit, here of logits with
// a standard deviation of 2.5; `error` is in units of that.
double RegretOfErrors(double error, int64_t seed) {
  constexpr size_t kVocab = 151'936, kTokens = 64;
  std::mt19937_64 rng(static_cast<uint64_t>(seed));
  std::normal_distribution<float> normal(0, 2.5f);
  double sum = 0;
  for (size_t i = 0; i < kTokens; ++i) {
    Rows drawn(1, std::vector<float>(kVocab)), judging(1, std::vector<float>(kVocab));
    for (size_t id = 0; id < kVocab; ++id) {
      drawn[0][id] = normal(rng);
      judging[0][id] = drawn[0][id] + static_cast<float>(error) * normal(rng);
    }
    const std::vector rules = {SamplingRule{.temperature = 0.6f, .seed = rng()}};
    const std::vector<double> probabilities = TokenProbabilities(drawn[0].data(), kVocab, rules[0]);
    double left = UniformDraw(rules[0]);
    int32_t token = 0;
    while (left >= probabilities[static_cast<size_t>(token)]) {
      left -= probabilities[static_cast<size_t>(token++)];
    }
    EXPECT_LT(MeanRegret(drawn, Ids{token}, rules), 1e-9);
    sum += MeanRegret(judging, Ids{token}, rules);
  }
  return sum / kTokens;
}

// The records of parity have errors of 1.3 % of the standard deviation.
TEST(MeanRegretTest, DrawsOfDecodersThatDifferByThreeTimesWhatBf16CausesPassAndByThirtyDoNot) {
  double sum = 0;
  for (int64_t seed = 1; seed <= 4; ++seed) {
    const double regret = RegretOfErrors(0.04, seed);
    EXPECT_LE(regret, kMaxMeanDrawRegret) << seed;
    EXPECT_GT(RegretOfErrors(0.36, seed), kMaxMeanDrawRegret) << seed;
    sum += regret;
  }
  EXPECT_NEAR(sum / 4, 0.005, 0.002);  // three standard deviations of 256 tokens
}

}  // namespace
}  // namespace tokline
