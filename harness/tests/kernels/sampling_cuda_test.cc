// Sampling on the device: each draw falls into its token's part of the reference's probabilities,
// under mixed rules, special values and ties.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "harness/tests/kernels/cuda_test.h"
#include "reference/sampling.h"

namespace tokline {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class SamplingCudaTest : public testing::CudaTest {};

// Rows of logits, each with a rule.
struct SamplingCase {
  int64_t vocab_size = 0;
  int64_t stride = 0;
  int64_t offset = 0;  // elements before the first row, to break its alignment
  std::vector<float> logits;
  std::vector<SamplingRule> rules;

  int64_t num_rows() const { return static_cast<int64_t>(rules.size()); }
  const float* Row(int64_t row) const { return logits.data() + offset + row * stride; }
  SamplingCase Alone(int64_t row) const {
    return {.vocab_size = vocab_size,
            .stride = 1,  // one row needs no stride
            .logits = std::vector<float>(Row(row), Row(row) + vocab_size),
            .rules = {rules[static_cast<size_t>(row)]}};
  }
};

SamplingCase RandomCase(int64_t vocab_size, const std::vector<SamplingRule>& rules, float scale,
                        uint64_t seed, int64_t gap = 0, int64_t offset = 0) {
  SamplingCase c{.vocab_size = vocab_size,
                 .stride = vocab_size + gap,
                 .offset = offset,
                 .logits = {},
                 .rules = rules};
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  // The gap holds a value that would win if it were read.
  c.logits.assign(static_cast<size_t>(offset + c.num_rows() * c.stride), 1e30f);
  for (int64_t r = 0; r < c.num_rows(); ++r) {
    for (int64_t i = 0; i < vocab_size; ++i) {
      c.logits[static_cast<size_t>(offset + r * c.stride + i)] = normal(rng);
    }
  }
  return c;
}

std::vector<int32_t> RunOnDevice(const SamplingCase& c, const std::vector<uint64_t>& best = {},
                                 int32_t best_parts = 0) {
  const DeviceBuffer logits(c.logits), rules(c.rules), best_logits(best);
  DeviceBuffer tokens(c.num_rows() * 4);
  DeviceBuffer workspace(SamplingWorkspaceBytes(c.num_rows(), c.vocab_size));
  tokens.Fill(0xff);
  workspace.Fill(0xff);  // the workspace needs no zeroing
  Launch({.num_rows = c.num_rows(),
          .vocab_size = c.vocab_size,
          .logits = logits.as<float>() + c.offset,
          .logits_stride = c.stride,
          .rules = rules.as<SamplingRule>(),
          .best = best_logits.as<uint64_t>(),
          .best_parts = best_parts,
          .tokens = tokens.as<int32_t>(),
          .workspace = workspace.data(),
          .workspace_bytes = workspace.bytes()},
         {});
  return tokens.ToHost<int32_t>();
}

// The draw must fall into the token's interval of the cumulative probabilities, up to the rounding
// of fp32 exponentials. Away from the interval's ends this is equality with the reference.
void ExpectDrawsMatchReference(const SamplingCase& c) {
  const std::vector<int32_t> tokens = RunOnDevice(c);
  constexpr double kTolerance = 1e-5;
  for (int64_t r = 0; r < c.num_rows(); ++r) {
    const SamplingRule& rule = c.rules[static_cast<size_t>(r)];
    SCOPED_TRACE(StrCat("row ", r, " vocab_size ", c.vocab_size, " temperature ", rule.temperature,
                        " top_k ", rule.top_k, " top_p ", rule.top_p));
    const std::vector<double> probabilities = TokenProbabilities(c.Row(r), c.vocab_size, rule);
    const int32_t token = tokens[static_cast<size_t>(r)];
    ASSERT_GE(token, 0);
    ASSERT_LT(token, c.vocab_size);
    EXPECT_GT(probabilities[static_cast<size_t>(token)], 0) << "token " << token << " was dropped";
    if (rule.temperature == 0) continue;
    double below = 0;
    for (int32_t i = 0; i < token; ++i) below += probabilities[static_cast<size_t>(i)];
    const double draw = UniformDraw(rule);
    EXPECT_GE(draw, below - kTolerance) << "token " << token;
    EXPECT_LE(draw, below + probabilities[static_cast<size_t>(token)] + kTolerance)
        << "token " << token;
  }
}

// Each row's token is the same if the row is alone. More blocks may share the row then.
void ExpectSameTokensAlone(const SamplingCase& batch) {
  const std::vector<int32_t> together = RunOnDevice(batch);
  for (int64_t r = 0; r < batch.num_rows(); ++r) {
    EXPECT_EQ(RunOnDevice(batch.Alone(r))[0], together[static_cast<size_t>(r)]) << "row " << r;
  }
}

std::vector<SamplingRule> MixedRules() {
  std::vector<SamplingRule> rules = {{},
                                     {.temperature = 1},
                                     {.temperature = 0.7f, .top_k = 20, .top_p = 0.8f},
                                     {.temperature = 1, .top_k = 50},
                                     {.temperature = 1, .top_p = 0.9f},
                                     {.temperature = 0.3f, .top_p = 0.95f},
                                     {.temperature = 1, .top_k = 192},
                                     {.temperature = 1, .top_k = 193},
                                     {.temperature = 0.8f, .top_k = 512, .top_p = 0.9f},
                                     {.temperature = 1, .top_k = 513},
                                     {.temperature = 2, .top_k = 5000, .top_p = 0.5f},
                                     {.temperature = 1, .top_k = 1},
                                     {.temperature = 1, .top_p = 1e-7f},
                                     {.temperature = 1e-4f, .top_p = 0.5f},
                                     {.temperature = 1e-30f},
                                     {.temperature = 1e30f, .top_p = 0.5f},
                                     {.top_k = 7, .top_p = 0.1f},
                                     {.temperature = 1.3f, .top_p = 0.9999999f}};
  for (size_t i = 0; i < rules.size(); ++i) {
    rules[i].seed = 77 + i;
    rules[i].offset = 1000 * i;
  }
  return rules;
}

TEST_F(SamplingCudaTest, MixedRulesMatchReferenceAcrossVocabularies) {
  for (const int64_t vocab : {1, 2, 31, 1000, 4095, 4096, 4099, 50'257, 151'936}) {
    for (const float scale : {0.5f, 3.0f}) {
      ExpectDrawsMatchReference(RandomCase(vocab, MixedRules(), scale, vocab + 1));
    }
  }
}

TEST_F(SamplingCudaTest, UnalignedRowsAndGapsMatchReference) {
  ExpectDrawsMatchReference(RandomCase(5003, MixedRules(), 2, 5, 6, 1));
  ExpectDrawsMatchReference(RandomCase(5004, MixedRules(), 2, 6, 4, 0));
  ExpectDrawsMatchReference(RandomCase(5004, MixedRules(), 2, 7, 0, 3));
}

// Each path draws with many seeds, so that each part of the vocabulary is hit.
TEST_F(SamplingCudaTest, ManyDrawsOfOneRuleMatchReference) {
  for (SamplingRule rule : {SamplingRule{.temperature = 1},
                            {.temperature = 1, .top_k = 40, .top_p = 0.9f},
                            {.temperature = 1, .top_p = 0.6f},
                            {.temperature = 1, .top_k = 3000}}) {
    std::vector<SamplingRule> rules;
    for (uint64_t i = 0; i < 40; ++i) {
      rule.offset = i;
      rules.push_back(rule);
    }
    ExpectDrawsMatchReference(RandomCase(20'011, rules, 1.5f, 3));
  }
}

TEST_F(SamplingCudaTest, DrawsFollowTheProbabilities) {
  const std::vector<float> row = {0.3f, -1.2f, 2.0f, 0.3f, -kInf, 1.1f, -0.4f, 0.9f};
  for (const SamplingRule& rule : {SamplingRule{.temperature = 0.8f, .seed = 5},
                                   SamplingRule{.temperature = 0.8f, .top_k = 6, .seed = 6},
                                   SamplingRule{.temperature = 1.5f, .top_p = 0.9f, .seed = 7}}) {
    constexpr int kDraws = 20'000;
    SamplingCase c{.vocab_size = 8, .stride = 8, .logits = {}, .rules = {}};
    for (uint64_t i = 0; i < kDraws; ++i) {
      c.logits.insert(c.logits.end(), row.begin(), row.end());
      c.rules.push_back(rule);
      c.rules.back().offset = i;
    }
    const std::vector<int32_t> tokens = RunOnDevice(c);
    const std::vector<double> probabilities = TokenProbabilities(row.data(), 8, rule);
    double chi_square = 0;
    for (int32_t id = 0; id < 8; ++id) {
      const auto count = std::count(tokens.begin(), tokens.end(), id);
      const double expected = kDraws * probabilities[static_cast<size_t>(id)];
      if (expected == 0) {
        EXPECT_EQ(count, 0) << "token " << id;
      } else {
        chi_square += std::pow(static_cast<double>(count) - expected, 2) / expected;
      }
    }
    EXPECT_LT(chi_square, 22.5);  // the 0.1 % quantile at six degrees of freedom
  }
}

TEST_F(SamplingCudaTest, TokenDoesNotDependOnItsBatch) {
  const SamplingCase batch = RandomCase(30'001, MixedRules(), 2, 11);
  EXPECT_EQ(RunOnDevice(batch), RunOnDevice(batch)) << "two runs differ";
  ExpectSameTokensAlone(batch);
}

TEST_F(SamplingCudaTest, TopKOfOneAndTinyTopPEqualGreedy) {
  const SamplingCase greedy = RandomCase(151'936, std::vector<SamplingRule>(8), 2, 13);
  const std::vector<int32_t> expected = RunOnDevice(greedy);
  SamplingCase one = greedy, tiny = greedy;
  for (SamplingRule& rule : one.rules) rule = {.temperature = 1.5f, .top_k = 1, .seed = 3};
  for (SamplingRule& rule : tiny.rules) rule = {.temperature = 1.5f, .top_p = 1e-12f, .seed = 3};
  EXPECT_EQ(RunOnDevice(one), expected);
  EXPECT_EQ(RunOnDevice(tiny), expected);
  for (int64_t r = 0; r < greedy.num_rows(); ++r) {
    EXPECT_EQ(expected[static_cast<size_t>(r)],
              std::max_element(greedy.Row(r), greedy.Row(r) + greedy.vocab_size) - greedy.Row(r));
  }
}

TEST_F(SamplingCudaTest, GreedyTakesTheLowestIdAmongEqualsInAnyChunk) {
  for (const int64_t vocab : {5, 4096, 151'936}) {
    for (const int64_t first : {int64_t{0}, vocab / 2, vocab - 1}) {
      SamplingCase c{.vocab_size = vocab, .stride = vocab, .logits = {}, .rules = {{}}};
      c.logits.assign(static_cast<size_t>(vocab), -1.0f);
      for (int64_t i = first; i < vocab; i += 1 + i % 97) c.logits[static_cast<size_t>(i)] = 4;
      EXPECT_EQ(RunOnDevice(c)[0], first);
    }
  }
  EXPECT_EQ(RunOnDevice({3, 3, 0, {-0.0f, 0.0f, -1}, {{}}})[0], 0);
}

TEST_F(SamplingCudaTest, SpecialValuesMatchReference) {
  const std::vector<SamplingRule> rules = MixedRules();
  for (const int64_t vocab : {9001, 61'441}) {  // eight blocks share a row of the latter, if alone
    SamplingCase c = RandomCase(vocab, rules, 2, 17);
    const auto expect = [&] {
      ExpectDrawsMatchReference(c);
      ExpectSameTokensAlone(c);
    };
    for (int64_t r = 0; r < c.num_rows(); ++r) {
      for (int64_t i = 0; i < c.vocab_size; ++i) {
        float& logit = c.logits[static_cast<size_t>(r * c.stride + i)];
        if (i % 3 == 0) logit = kNan;
        if (i % 3 == 1) logit = -kInf;
      }
    }
    expect();
    for (float& logit : c.logits) logit = std::signbit(logit) ? -kInf : kNan;
    EXPECT_EQ(RunOnDevice(c), std::vector<int32_t>(rules.size(), 0));
    ExpectSameTokensAlone(c);
    // All logits are equal, so everything ties and no rule drops anything.
    for (float& logit : c.logits) logit = 1.25f;
    expect();
    // Infinities count as the largest float and share the mass.
    for (int64_t r = 0; r < c.num_rows(); ++r) {
      c.logits[static_cast<size_t>(r * c.stride + 5000)] = kInf;
      c.logits[static_cast<size_t>(r * c.stride + 6000)] = kInf;
    }
    expect();
  }
}

TEST_F(SamplingCudaTest, TiesWithTheKthAreKept) {
  SamplingCase c = RandomCase(40'000, {}, 1, 19);
  c.rules.clear();
  for (uint64_t i = 0; i < 64; ++i) {
    c.rules.push_back({.temperature = 1, .top_k = 10, .seed = 1, .offset = i});
  }
  std::vector<float> row(40'000, -3.0f);
  for (size_t i = 0; i < 500; ++i) row[i * 80] = 2.0f;  // far more than k, in as many groups
  for (size_t r = 0; r < c.rules.size(); ++r) {
    c.logits.insert(c.logits.end(), row.begin(), row.end());
  }
  ExpectDrawsMatchReference(c);
}

// Logits in [begin, end), `step` apart, are `value`, and all others `rest`; of every rule.
SamplingCase StepsCase(int64_t vocab_size, const std::vector<SamplingRule>& rules, int64_t begin,
                       int64_t end, int64_t step, float value, float rest) {
  std::vector<float> row(static_cast<size_t>(vocab_size), rest);
  for (int64_t i = begin; i < end; i += step) row[static_cast<size_t>(i)] = value;
  SamplingCase c{.vocab_size = vocab_size, .stride = vocab_size, .logits = {}, .rules = rules};
  for (size_t r = 0; r < rules.size(); ++r) c.logits.insert(c.logits.end(), row.begin(), row.end());
  return c;
}

std::vector<SamplingRule> DrawnOften(const SamplingRule& rule) {
  std::vector<SamplingRule> rules(16, rule);
  for (size_t i = 0; i < rules.size(); ++i) rules[i].offset = i;
  return rules;
}

// More maxima than a pass over them holds at once, the largest logits last.
TEST_F(SamplingCudaTest, LargeVocabulariesMatchReference) {
  for (const int64_t vocab : {262'144, 400'003}) {
    SamplingCase c = RandomCase(vocab, MixedRules(), 1, vocab);
    for (int64_t r = 0; r < c.num_rows(); ++r) {
      for (int64_t i = vocab - 20; i < vocab; ++i) c.logits[r * c.stride + i] += 6;
    }
    ExpectDrawsMatchReference(c);
  }
}

// As many ties as fit the candidates' groups, or the candidates, and one more; far more; and more
// that hold too little mass. A tie is alone in its group, or shares it with 31 others.
TEST_F(SamplingCudaTest, TiesAtTheLimitsOfTheCandidatesMatchReference) {
  constexpr int64_t kVocab = 40'000;
  for (const SamplingRule& rule : {SamplingRule{.temperature = 1, .top_k = 10},
                                   {.temperature = 1, .top_k = 10, .top_p = 0.5f},
                                   {.temperature = 1, .top_p = 0.5f},
                                   {.temperature = 1, .top_p = 0.9f}}) {
    for (const int64_t ties : {511, 512, 513, 1000}) {
      for (const int64_t step : {int64_t{1}, int64_t{39}}) {
        for (const float value : {2.0f, kInf}) {
          SCOPED_TRACE(StrCat(ties, " ties, ", step, " apart, of ", value));
          ExpectDrawsMatchReference(StepsCase(kVocab, DrawnOften(rule), 7, 7 + ties * step, step,
                                              value, value == kInf ? 0 : -3));
        }
      }
    }
    // 4,096 candidates in 128 groups, which top-p of 0.9 finds too light.
    ExpectDrawsMatchReference(StepsCase(kVocab, DrawnOften(rule), 8192, 12'288, 1, 1, 0));
  }
}

// Eight blocks share a row that is alone, if it has 16 chunks. Ties at the limits of the
// candidates, in the chunks of one block or of all.
TEST_F(SamplingCudaTest, TiesOfARowAloneMatchReference) {
  constexpr int64_t kVocab = 61'441;
  uint64_t draw = 0;
  for (const SamplingRule& rule : {SamplingRule{.temperature = 1, .top_k = 10},
                                   {.temperature = 1, .top_k = 10, .top_p = 0.5f},
                                   {.temperature = 1, .top_p = 0.5f},
                                   {.temperature = 1, .top_p = 0.9f}}) {
    for (const int64_t ties : {512, 513, 1000}) {
      for (const int64_t step : {int64_t{1}, int64_t{61}}) {
        for (const float value : {2.0f, kInf}) {
          SCOPED_TRACE(StrCat(ties, " ties, ", step, " apart, of ", value));
          SamplingCase c =
              StepsCase(kVocab, {rule}, 7, 7 + ties * step, step, value, value == kInf ? 0 : -3);
          c.rules[0].offset = ++draw;
          ExpectDrawsMatchReference(c);
        }
      }
    }
  }
}

// Rules that usually select over the whole row, whose blocks share it.
std::vector<SamplingRule> WholeRowRules() {
  std::vector<SamplingRule> rules;
  for (const float p : {1e-6f, 0.5f, 0.9f, 0.999f, 0.9999999f}) {
    rules.push_back({.temperature = 1, .top_p = p});
  }
  rules.push_back({.temperature = 0.4f, .top_p = 0.95f});
  rules.push_back({.temperature = 1, .top_k = 2000});
  rules.push_back({.temperature = 1, .top_k = 3000, .top_p = 0.7f});
  for (size_t i = 0; i < rules.size(); ++i) rules[i].seed = 31 + i;
  return rules;
}

// Replaces each row's logits by f(row, i, the logit).
template <typename F>
SamplingCase Changed(SamplingCase c, const F& f) {
  for (int64_t r = 0; r < c.num_rows(); ++r) {
    for (int64_t i = 0; i < c.vocab_size; ++i) {
      float& logit = c.logits[static_cast<size_t>(c.offset + r * c.stride + i)];
      logit = f(r, i, logit);
    }
  }
  return c;
}

TEST_F(SamplingCudaTest, WholeRowsMatchReferenceAcrossVocabularies) {
  for (const int64_t vocab : {1, 31, 8191, 32'000, 128'256, 151'936, 262'144}) {
    SCOPED_TRACE(StrCat("vocab ", vocab));
    const SamplingCase flat = RandomCase(vocab, WholeRowRules(), 0.5f, vocab);
    ExpectDrawsMatchReference(flat);
    ExpectDrawsMatchReference(RandomCase(vocab, WholeRowRules(), 2, vocab, 1, 3));
    // A few logits have half of the mass.
    ExpectDrawsMatchReference(Changed(flat, [&](int64_t, int64_t i, float logit) {
      return i % 10'007 == 5 ? std::log(static_cast<float>(vocab) / 15) : logit;
    }));
  }
}

TEST_F(SamplingCudaTest, TheLargestVocabularyMatchesReference) {
  ExpectDrawsMatchReference(RandomCase(
      int64_t{1} << 22,
      {{.temperature = 1, .top_p = 0.9f}, {.temperature = 1, .top_k = 5000, .top_p = 0.5f}}, 1, 3));
}

TEST_F(SamplingCudaTest, WholeRowsOfTiesAndSpecialValuesMatchReference) {
  constexpr int64_t kVocab = 70'001;
  const SamplingCase flat = RandomCase(kVocab, WholeRowRules(), 0.5f, 37);
  const auto expect = [&](const char* what, const auto& f) {
    SCOPED_TRACE(what);
    const SamplingCase c = Changed(flat, f);
    ExpectDrawsMatchReference(c);
    ExpectSameTokensAlone(c);  // eight blocks share such a row, four each of eight
  };
  expect("all equal", [](int64_t, int64_t, float) { return -1.25f; });
  expect("all zero", [](int64_t, int64_t i, float) { return i % 2 == 0 ? 0.0f : -0.0f; });
  expect("few values", [](int64_t, int64_t, float x) { return std::round(4 * x) / 4; });
  expect("few floats", [](int64_t, int64_t i, float) {
    return 1 + static_cast<float>(i % 5) * std::numeric_limits<float>::epsilon();
  });
  expect("denormal", [](int64_t, int64_t i, float) {
    return static_cast<float>(i % 7 - 3) * std::numeric_limits<float>::denorm_min();
  });
  expect("dense", [](int64_t, int64_t, float x) { return 100 + 1e-3f * x; });
  expect("dense around zero", [](int64_t, int64_t, float x) { return 1e-4f * x; });
  expect("NaN and -inf", [](int64_t, int64_t i, float x) {
    return i % 3 == 0 ? kNan : i % 3 == 1 ? -kInf : x;
  });
  expect("many infinities", [](int64_t, int64_t i, float x) { return i % 9 == 4 ? kInf : x; });
  expect("few infinities", [](int64_t, int64_t i, float x) { return i % 9001 == 4 ? kInf : x; });
}

// As many blocks share a row as the number of rows allows, and the token is the same.
TEST_F(SamplingCudaTest, TokenDoesNotDependOnHowManyBlocksShareItsRow) {
  std::vector<SamplingRule> rules;
  for (size_t i = 0; i < 140; ++i) {
    const std::vector<SamplingRule> cycle = WholeRowRules();
    rules.push_back(i % 11 == 10 ? MixedRules()[i % 3] : cycle[i % 11 % cycle.size()]);
    rules.back().offset = i;
  }
  SamplingCase c = RandomCase(66'000, rules, 0.7f, 41);  // 17 chunks, enough for eight blocks
  const std::vector<int32_t> expected = RunOnDevice(c);
  for (const size_t rows : {1, 4, 5, 16, 17, 64}) {
    c.rules.assign(rules.begin(), rules.begin() + static_cast<int64_t>(rows));
    EXPECT_EQ(RunOnDevice(c),
              std::vector<int32_t>(expected.begin(), expected.begin() + static_cast<int64_t>(rows)))
        << rows << " rows";
  }
}

// Two blocks share a row of four to seven chunks.
TEST_F(SamplingCudaTest, RowsOfTwoBlocksMatchReference) {
  std::vector<SamplingRule> rules = WholeRowRules();
  for (const SamplingRule& rule : MixedRules()) rules.push_back(rule);
  for (const int64_t vocab : {12'289, 20'000, 28'672}) {
    for (const size_t rows : {4, 16}) {
      for (size_t first = 0; first + rows <= rules.size(); first += rows) {
        SCOPED_TRACE(StrCat(rows, " rows from rule ", first));
        const auto begin = rules.begin() + static_cast<int64_t>(first);
        ExpectDrawsMatchReference(RandomCase(vocab, {begin, begin + static_cast<int64_t>(rows)},
                                             0.7f, static_cast<uint64_t>(vocab) + first));
      }
    }
  }
}

// A flat row drawn often, by each number of blocks that share it.
TEST_F(SamplingCudaTest, ManyDrawsOfWholeRowsMatchReference) {
  for (const size_t draws : {4, 16, 60}) {
    std::vector<SamplingRule> rules(draws, {.temperature = 1, .top_p = 0.8f});
    for (size_t i = 0; i < draws; ++i) rules[i].offset = i;
    ExpectDrawsMatchReference(RandomCase(70'003, rules, 1, draws));
  }
}

// One captured launch works with other rules and logits, because the device reads both.
TEST_F(SamplingCudaTest, CapturedGraphFollowsNewRulesAndLogits) {
  SamplingCase first = RandomCase(10'000, MixedRules(), 2, 23);
  SamplingCase second = RandomCase(10'000, MixedRules(), 2, 29);
  std::reverse(second.rules.begin(), second.rules.end());
  DeviceBuffer logits(first.logits), rules(first.rules), tokens(first.num_rows() * 4);
  const DeviceBuffer workspace(SamplingWorkspaceBytes(first.num_rows(), first.vocab_size));
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  TOKLINE_CUDA(cudaStreamCreate(&stream));
  TOKLINE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  Launch({.num_rows = first.num_rows(),
          .vocab_size = first.vocab_size,
          .logits = logits.as<float>(),
          .logits_stride = first.stride,
          .rules = rules.as<SamplingRule>(),
          .tokens = tokens.as<int32_t>(),
          .workspace = workspace.data(),
          .workspace_bytes = workspace.bytes()},
         {.stream = stream});
  TOKLINE_CUDA(cudaStreamEndCapture(stream, &graph));
  TOKLINE_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (const SamplingCase* c : {&first, &second, &first}) {
    logits.CopyFrom(c->logits.data(), logits.bytes());
    rules.CopyFrom(c->rules.data(), rules.bytes());
    TOKLINE_CUDA(cudaGraphLaunch(executable, stream));
    EXPECT_EQ(tokens.ToHost<int32_t>(), RunOnDevice(*c));
  }
  TOKLINE_CUDA(cudaGraphExecDestroy(executable));
  TOKLINE_CUDA(cudaGraphDestroy(graph));
  TOKLINE_CUDA(cudaStreamDestroy(stream));
}

// The next launch may not write the workspace before this one has read it. Two batches alternate,
// and each launch leaves its tokens in a place of its own.
TEST_F(SamplingCudaTest, DependentLaunchesMayShareAWorkspace) {
  constexpr int64_t kVocab = 66'000, kLaunches = 8;
  const UniqueStream stream = MakeStream();
  std::vector<SamplingRule> cycle = WholeRowRules();
  for (const SamplingRule& rule : MixedRules()) cycle.push_back(rule);
  for (const int64_t rows : {1, 4, 16, 64}) {
    std::vector<SamplingRule> rules;
    for (uint64_t i = 0; i < static_cast<uint64_t>(rows); ++i) {
      rules.push_back(cycle[(i + 1) % cycle.size()]);
      rules.back().offset = i;
    }
    const SamplingCase first = RandomCase(kVocab, rules, 0.7f, 43);
    std::reverse(rules.begin(), rules.end());
    for (SamplingRule& rule : rules) ++rule.seed;
    const SamplingCase second = RandomCase(kVocab, rules, 2, 47);
    const std::vector<int32_t> apart[] = {RunOnDevice(first), RunOnDevice(second)};
    std::vector<int32_t> expected;
    for (int64_t launch = 0; launch < kLaunches; ++launch) {
      const std::vector<int32_t>& own = apart[launch % 2];
      expected.insert(expected.end(), own.begin(), own.end());
    }

    const DeviceBuffer logits[] = {DeviceBuffer(first.logits), DeviceBuffer(second.logits)};
    const DeviceBuffer on_device[] = {DeviceBuffer(first.rules), DeviceBuffer(second.rules)};
    const DeviceBuffer workspace(SamplingWorkspaceBytes(rows, kVocab));
    DeviceBuffer tokens(kLaunches * rows * 4);
    const auto launch_all = [&] {
      for (int64_t launch = 0; launch < kLaunches; ++launch) {
        Launch({.num_rows = rows,
                .vocab_size = kVocab,
                .logits = logits[launch % 2].as<float>(),
                .logits_stride = kVocab,
                .rules = on_device[launch % 2].as<SamplingRule>(),
                .tokens = tokens.as<int32_t>() + launch * rows,
                .workspace = workspace.data(),
                .workspace_bytes = workspace.bytes()},
               {.stream = stream.get(), .dependent = launch > 0});
      }
    };
    const UniqueGraphExec graph = CaptureGraph(stream.get(), launch_all, 2 * kLaunches);
    for (const bool captured : {false, true, false, true}) {
      tokens.Fill(0xff);
      TOKLINE_CUDA(cudaDeviceSynchronize());
      if (captured) {
        TOKLINE_CUDA(cudaGraphLaunch(graph.get(), stream.get()));
      } else {
        launch_all();
      }
      EXPECT_EQ(tokens.ToHost<int32_t>(), expected)
          << rows << " rows, " << (captured ? "captured" : "not captured");
    }
  }
}

TEST_F(SamplingCudaTest, NoRowsLaunchNothing) { EXPECT_NO_THROW(Launch({.vocab_size = 10}, {})); }

// Logits of greedy rows are then not read, and rows with a temperature are drawn as ever.
void ExpectBestIsTaken(int64_t vocab_size, const std::vector<SamplingRule>& rules) {
  SamplingCase c = RandomCase(vocab_size, rules, 3, 1);
  const std::vector<int32_t> expected = RunOnDevice(c);
  constexpr int32_t kParts = 1500;  // more than a block has threads
  std::vector<uint64_t> best;
  for (int64_t row = 0; row < c.num_rows(); ++row) {
    for (int32_t part = 0; part < kParts; ++part) {
      // Parts whose values ascend, and descend after the one that holds the token.
      const uint64_t value =
          uint64_t{1} << 31 | static_cast<uint64_t>(2000 - std::abs(part - 1200));
      const auto id = part == 1200 ? expected[static_cast<size_t>(row)] : part;
      best.push_back(value << 32 | static_cast<uint32_t>(~id));
    }
    if (rules[static_cast<size_t>(row)].temperature > 0) continue;
    std::fill_n(c.logits.begin() + row * c.stride, c.vocab_size, kNan);
  }
  EXPECT_EQ(RunOnDevice(c, best, kParts), expected);
}

TEST_F(SamplingCudaTest, GreedyRowsTakeTheBestThatIsGiven) {
  std::vector<SamplingRule> rules(6);
  rules[1] = {.temperature = 1, .seed = 5};
  rules[4] = {.temperature = 0.7f, .top_k = 20, .top_p = 0.9f, .seed = 6};
  ExpectBestIsTaken(9000, rules);
}

// A block takes several chunks of rows with other rules, whole chunks and last ones, and leaves out
// some between. Rules are drawn, so that no number of SMs is in step with them. Racecheck sees what
// the chunks share.
TEST_F(SamplingCudaTest, BlocksTakeChunksOfRowsWithOtherRules) {
  const std::vector<SamplingRule> mixed = MixedRules();
  std::mt19937 rng(1);
  std::vector<SamplingRule> rules;
  for (int row = 0; row < 500; ++row) {
    rules.push_back(rng() % 10 < 4 ? SamplingRule{} : mixed[1 + rng() % 5]);
    rules.back().seed = static_cast<uint64_t>(row);
  }
  constexpr int64_t kVocab = 17'003;  // five chunks, and rows that are not aligned for vectors
  ExpectDrawsMatchReference(RandomCase(kVocab, rules, 3, 1));
  ExpectBestIsTaken(kVocab, rules);
}

}  // namespace
}  // namespace tokline
