// Sampling without a device: Philox against its published answers, the reference's probabilities
// and draws, cost, plan, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "harness/tests/kernels/devices.h"
#include "kernels/common/error.h"
#include "kernels/sampling/philox.h"
#include "kernels/sampling/sampling_plan.h"
#include "reference/sampling.h"

namespace tokline {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using ::testing::ThrowsMessage;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int32_t Sample(const std::vector<float>& logits, const SamplingRule& rule) {
  int32_t token = -1;
  SamplingReference({.num_rows = 1,
                     .vocab_size = static_cast<int64_t>(logits.size()),
                     .logits = logits.data(),
                     .rules = &rule,
                     .tokens = &token});
  return token;
}

std::vector<double> Probabilities(const std::vector<float>& logits, const SamplingRule& rule) {
  return TokenProbabilities(logits.data(), static_cast<int64_t>(logits.size()), rule);
}

// Logits whose softmax equals `probabilities`.
std::vector<float> LogitsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// Known answers of Random123 1.09, kat_vectors, philox4x32 10.
TEST(SamplingTest, PhiloxGivesTheKnownAnswers) {
  const auto words = [](Philox4x32 counter, uint32_t key0, uint32_t key1) {
    const Philox4x32 out = Philox(counter, key0, key1);
    return std::vector<uint32_t>(out.word, out.word + 4);
  };
  EXPECT_THAT(words({{0, 0, 0, 0}}, 0, 0),
              ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  constexpr uint32_t kOnes = 0xffffffffu;
  EXPECT_THAT(words({{kOnes, kOnes, kOnes, kOnes}}, kOnes, kOnes),
              ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(
      words({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, 0xa4093822u, 0x299f31d0u),
      ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

TEST(SamplingTest, DrawUsesAllBitsOfSeedAndOffset) {
  const uint64_t base = DrawBits(7, 9);
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_NE(DrawBits(7 ^ uint64_t{1} << bit, 9), base) << "seed bit " << bit;
    EXPECT_NE(DrawBits(7, 9 ^ uint64_t{1} << bit), base) << "offset bit " << bit;
  }
}

TEST(SamplingTest, GreedyTakesTheLowestIdAmongEquals) {
  EXPECT_EQ(Sample({1, 5, 3, 5, 5}, {}), 1);
  EXPECT_EQ(Sample({-0.0f, 0.0f, -1}, {}), 0);
  EXPECT_EQ(Sample({-kInf, -7, kNan}, {}), 1);
  EXPECT_EQ(Sample({3, kInf, std::numeric_limits<float>::max()}, {}), 1);
}

TEST(SamplingTest, RowsOfOnlyNanOrMinusInfinityGiveTokenZero) {
  for (const float temperature : {0.0f, 1.0f}) {
    EXPECT_EQ(Sample({kNan, kNan, kNan}, {.temperature = temperature}), 0);
    EXPECT_EQ(Sample({-kInf, kNan, -kInf}, {.temperature = temperature, .top_k = 2}), 0);
  }
}

TEST(SamplingTest, TemperatureDividesLogits) {
  const std::vector<float> logits = LogitsOf({0.5, 0.3, 0.2});
  EXPECT_THAT(Probabilities(logits, {.temperature = 1}),
              Pointwise(DoubleNear(1e-7), {0.5, 0.3, 0.2}));
  const double total = 0.25 + 0.09 + 0.04;
  EXPECT_THAT(Probabilities(logits, {.temperature = 0.5f}),
              Pointwise(DoubleNear(1e-7), {0.25 / total, 0.09 / total, 0.04 / total}));
}

TEST(SamplingTest, TopKKeepsTheLargestAndWhatTiesWithTheKth) {
  const std::vector<float> logits = LogitsOf({0.1, 0.4, 0.1, 0.3, 0.1});
  EXPECT_THAT(Probabilities(logits, {.temperature = 1, .top_k = 2}),
              Pointwise(DoubleNear(1e-7), {0.0, 4.0 / 7, 0.0, 3.0 / 7, 0.0}));
  EXPECT_THAT(Probabilities(logits, {.temperature = 1, .top_k = 3}),
              Pointwise(DoubleNear(1e-7), {0.1, 0.4, 0.1, 0.3, 0.1}));
  EXPECT_THAT(Probabilities(logits, {.temperature = 1, .top_k = 99}),
              Pointwise(DoubleNear(1e-7), {0.1, 0.4, 0.1, 0.3, 0.1}));
}

TEST(SamplingTest, TopPKeepsTheFewestThatReachTheMassAndTies) {
  const std::vector<float> logits = LogitsOf({0.15, 0.4, 0.05, 0.25, 0.15});
  EXPECT_THAT(Probabilities(logits, {.temperature = 1, .top_p = 0.6f}),
              Pointwise(DoubleNear(1e-7), {0.0, 0.4 / 0.65, 0.0, 0.25 / 0.65, 0.0}));
  // The third largest ties with the fourth.
  EXPECT_THAT(
      Probabilities(logits, {.temperature = 1, .top_p = 0.7f}),
      Pointwise(DoubleNear(1e-7), {0.15 / 0.95, 0.4 / 0.95, 0.0, 0.25 / 0.95, 0.15 / 0.95}));
  EXPECT_THAT(Probabilities(logits, {.temperature = 1, .top_p = 1e-9f}),
              Pointwise(DoubleNear(1e-7), {0.0, 1.0, 0.0, 0.0, 0.0}));
}

TEST(SamplingTest, TopPAppliesToWhatTopKLeft) {
  const std::vector<float> logits = LogitsOf({0.4, 0.3, 0.2, 0.1});
  // Two of the three tokens that top-k keeps suffice: 0.4 / 0.9 + 0.3 / 0.9 >= 0.75.
  EXPECT_THAT(Probabilities(logits, {.temperature = 1, .top_k = 3, .top_p = 0.75f}),
              Pointwise(DoubleNear(1e-7), {4.0 / 7, 3.0 / 7, 0.0, 0.0}));
  // Of all tokens, 0.75 would need three.
  EXPECT_THAT(Probabilities(logits, {.temperature = 1, .top_p = 0.75f}),
              Pointwise(DoubleNear(1e-7), {4.0 / 9, 3.0 / 9, 2.0 / 9, 0.0}));
}

// The temperature is so high that all masses round to the same double; larger logits still come
// first.
TEST(SamplingTest, TopPOrdersByLogitWhereMassesAreEqual) {
  EXPECT_THAT(Probabilities({1, 4, 2, 3}, {.temperature = 1e30f, .top_p = 0.5f}),
              ElementsAre(0, 0.5, 0, 0.5));
}

TEST(SamplingTest, SeedAndOffsetReproduceTheDraw) {
  const std::vector<float> logits(1000, 0.0f);
  std::vector<int32_t> first, second, other_seed;
  for (uint64_t offset = 0; offset < 50; ++offset) {
    first.push_back(Sample(logits, {.temperature = 1, .seed = 3, .offset = offset}));
    second.push_back(Sample(logits, {.temperature = 1, .seed = 3, .offset = offset}));
    other_seed.push_back(Sample(logits, {.temperature = 1, .seed = 4, .offset = offset}));
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other_seed);
  EXPECT_GT(std::accumulate(first.begin(), first.end(), 0), 15'000);  // each has a mean of 499.5
}

// Compares 40,000 draws with a fixed seed against the probabilities.
TEST(SamplingTest, DrawsFollowTheProbabilities) {
  const std::vector<float> logits = {0.3f, -1.2f, 2.0f, 0.3f, -kInf, 1.1f, -0.4f, 0.9f};
  const SamplingRule rule{.temperature = 0.8f, .top_k = 6, .top_p = 0.97f, .seed = 12};
  const std::vector<double> probabilities = Probabilities(logits, rule);
  constexpr int kDraws = 40'000;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    SamplingRule drawn = rule;
    drawn.offset = static_cast<uint64_t>(i);
    ++counts[static_cast<size_t>(Sample(logits, drawn))];
  }
  double chi_square = 0;
  int kept = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (probabilities[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i;
      continue;
    }
    ++kept;
    const double expected = kDraws * probabilities[i];
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_EQ(kept, 5);
  EXPECT_LT(chi_square, 18.5);  // the 0.1 % quantile at four degrees of freedom
}

TEST(SamplingTest, RowsFollowTheirOwnRulesAtTheirStride) {
  const std::vector<float> logits = {0, 9, 1, kNan, 5, 5, 4, 77, 1, 2, 3, 99};
  const SamplingRule rules[] = {{}, {.temperature = 1, .top_k = 1, .seed = 8}, {.top_k = 2}};
  int32_t tokens[3];
  SamplingReference({.num_rows = 3,
                     .vocab_size = 3,
                     .logits = logits.data(),
                     .logits_stride = 4,
                     .rules = rules,
                     .tokens = tokens});
  EXPECT_EQ(tokens[0], 1);
  EXPECT_THAT(tokens[1], ::testing::AnyOf(0, 1));  // logits that tie with the first are kept
  EXPECT_EQ(tokens[2], 2);
}

TEST(SamplingTest, CostMatchesBruteForceCount) {
  double read = 0, written = 0, flops = 0;
  for (int row = 0; row < 3; ++row) {
    read += sizeof(SamplingRule);
    written += 4;
    for (int i = 0; i < 1001; ++i) {
      read += 4;
      flops += 1;
    }
  }
  const Cost cost = CostOf({.num_rows = 3, .vocab_size = 1001});
  EXPECT_EQ(cost.read_bytes, read);
  EXPECT_EQ(cost.write_bytes, written);
  EXPECT_EQ(cost.flops, flops);
}

TEST(SamplingTest, WorkspaceHoldsStatsAndMaximaOfEveryRow) {
  for (const int64_t rows : {1, 3, 64}) {
    for (const int64_t vocab : {1, 4096, 4097, 151'936}) {
      const int64_t bytes = SamplingWorkspaceBytes(rows, vocab);
      std::vector<char> memory(static_cast<size_t>(bytes) + 256);
      const auto address = reinterpret_cast<uintptr_t>(memory.data());
      SamplingParams params{.num_rows = rows, .vocab_size = vocab, .logits_stride = vocab};
      params.workspace = memory.data() + (256 - address % 256);
      params.workspace_bytes = bytes;
      const SamplingPlan plan = PlanSampling(params);
      EXPECT_GE(plan.num_chunks * int64_t{kSamplingChunk}, vocab);
      EXPECT_GE(reinterpret_cast<char*>(plan.group_maxima),
                reinterpret_cast<char*>(plan.stats + rows * plan.num_chunks));
      EXPECT_LE(reinterpret_cast<char*>(plan.group_maxima + rows * plan.num_groups),
                static_cast<char*>(params.workspace) + bytes);
      params.workspace_bytes = bytes - 1;
      EXPECT_THAT([&] { PlanSampling(params); },
                  ThrowsMessage<InvalidArgument>(HasSubstr("workspace_bytes is")));
      params.workspace_bytes = bytes;
      params.workspace = static_cast<char*>(params.workspace) + 128;
      EXPECT_THAT([&] { PlanSampling(params); },
                  ThrowsMessage<InvalidArgument>(HasSubstr("256 B aligned")));
    }
  }
}

TEST(SamplingTest, VectorLoadsNeedAlignedRows) {
  std::vector<char> memory(1 << 16);
  alignas(16) float logits[8] = {};
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  SamplingParams params{.num_rows = 2,
                        .vocab_size = 3,
                        .logits = logits,
                        .logits_stride = 4,
                        .workspace = memory.data() + (256 - address % 256),
                        .workspace_bytes = 1 << 15};
  EXPECT_TRUE(PlanSampling(params).vector_loads);
  params.logits_stride = 3;
  EXPECT_FALSE(PlanSampling(params).vector_loads);
  params.num_rows = 1;
  EXPECT_TRUE(PlanSampling(params).vector_loads);
  params.logits = logits + 1;
  EXPECT_FALSE(PlanSampling(params).vector_loads);
}

TEST(SamplingTest, BlocksOfTheScanRunAtOnceOnEveryDevice) {
  for (const testing::NamedDevice& device : testing::Devices()) {
    SCOPED_TRACE(::testing::PrintToString(device));
    EXPECT_LE(kChunkScanBlocks * kChunkScanThreads, device.threads_per_sm);
    EXPECT_EQ(ChunkScanGrid(2, 38, device.facts), 76);
    EXPECT_EQ(ChunkScanGrid(256, 38, device.facts), kChunkScanBlocks * device.facts.sm_count);
    // So many chunks exceed 32 bits where they are counted before they are bounded.
    EXPECT_EQ(ChunkScanGrid(int64_t{1} << 31, 38, device.facts),
              kChunkScanBlocks * device.facts.sm_count);
  }
}

TEST(SamplingTest, RanksOfARowRunAtOnceAndHaveTwoChunksEach) {
  for (const testing::NamedDevice& device : testing::Devices()) {
    SCOPED_TRACE(::testing::PrintToString(device));
    for (const int32_t chunks : {1, 2, 7, 38, 1024}) {
      for (int64_t rows = 1; rows <= 300; ++rows) {
        const int32_t ranks = PickRanks(rows, chunks, device.facts);
        ASSERT_TRUE(ranks == 1 || ranks == 2 || ranks == 4 || ranks == kMaxPickRanks) << ranks;
        if (ranks == 1) continue;
        ASSERT_LE(2 * ranks, chunks);
        ASSERT_TRUE(device.facts.HasClusters());
        ASSERT_LE(rows * ranks, device.facts.sm_count);
      }
    }
  }
  const DeviceFacts hopper{
      .sm_count = 132, .compute_major = 9, .code_architecture = 90, .code_is_sm90a = true};
  EXPECT_EQ(PickRanks(1, 38, hopper), 8);
  EXPECT_EQ(PickRanks(4, 38, hopper), 8);
  EXPECT_EQ(PickRanks(4, 15, hopper), 4);
  EXPECT_EQ(PickRanks(1, 16, hopper), 8);
  EXPECT_EQ(PickRanks(16, 7, hopper), 2);
  EXPECT_EQ(PickRanks(4, 4, hopper), 2);
  EXPECT_EQ(PickRanks(1, 3, hopper), 1);
  EXPECT_EQ(PickRanks(5, 38, hopper), 4);
  EXPECT_EQ(PickRanks(16, 38, hopper), 4);
  EXPECT_EQ(PickRanks(17, 38, hopper), 1);
  EXPECT_EQ(PickRanks(int64_t{1} << 31, 1, hopper), 1);
  DeviceFacts slice = hopper;
  slice.sm_count = 16;
  EXPECT_EQ(PickRanks(1, 38, slice), 8);
  EXPECT_EQ(PickRanks(4, 38, slice), 2);
  EXPECT_EQ(PickRanks(8, 38, slice), 1);
}

TEST(SamplingTest, InvalidRulesAreRefusedWithTheirValues) {
  const auto expect = [](const SamplingRule& rule, const char* message) {
    EXPECT_THAT([&] { Validate(rule); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
    EXPECT_THAT([&] { Sample({1, 2}, rule); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  EXPECT_NO_THROW(Validate(SamplingRule{}));
  expect({.temperature = -0.5f}, "temperature is -0.5");
  expect({.temperature = kNan}, "temperature is nan");
  expect({.temperature = kInf}, "temperature is inf");
  expect({.top_k = -1}, "top_k is -1");
  expect({.top_p = 0}, "top_p is 0");
  expect({.top_p = 1.5f}, "top_p is 1.5");
  expect({.top_p = kNan}, "top_p is nan");
}

TEST(SamplingTest, InvalidParamsAreRefusedWithTheirValues) {
  const auto expect = [](auto change, const char* message) {
    const std::vector<float> logits(8);
    const std::vector<SamplingRule> rules(2);
    std::vector<int32_t> tokens(2);
    SamplingParams params{.num_rows = 2,
                          .vocab_size = 4,
                          .logits = logits.data(),
                          .logits_stride = 4,
                          .rules = rules.data(),
                          .tokens = tokens.data()};
    EXPECT_NO_THROW(Validate(params));
    change(params);
    EXPECT_THAT([&] { Validate(params); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  expect([](auto& p) { p.num_rows = -1; }, "num_rows is -1");
  expect([](auto& p) { p.vocab_size = 0; }, "vocab_size is 0");
  expect([](auto& p) { p.vocab_size = 5'000'000; }, "vocab_size is 5000000; it must be 1 to");
  expect([](auto& p) { p.num_rows = int64_t{1} << 31; }, "num_rows is 2147483648");
  expect([](auto& p) { p.logits_stride = 3; },
         "logits_stride is 3; it must be at least vocab_size, 4");
  expect([](auto& p) { p.logits = nullptr; }, "is null with 2 rows");
  expect([](auto& p) { p.tokens = nullptr; }, "is null with 2 rows");
}

}  // namespace
}  // namespace tokline
