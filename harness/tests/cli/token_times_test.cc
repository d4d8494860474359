// Tests that everything that reports a first token, a time between tokens or a rate gives the same
// figures, and the right ones: by a clock that stands still, on a backend whose prefill takes 100
// ms and whose decode steps take 10 ms, whether or not the host works a step ahead.
#include "harness/engine/token_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/chat/chat_session.h"
#include "harness/engine/generate.h"
#include "harness/measure/throughput.h"
#include "harness/measure/workload_run.h"
#include "harness/tests/chat/chat_model.h"
#include "harness/tests/engine/delayed_backend.h"
#include "harness/tests/engine/golden.h"

namespace tokline {
namespace {

using testing::Delayed;
using ::testing::DoubleNear;
using testing::FakeClock;
using ::testing::Pointwise;

constexpr double kPrefillS = 0.1;
constexpr double kDecodeS = 0.01;
constexpr double kRate = 1 / kDecodeS;
constexpr double kError = 1e-6;  // of times that the clock rounds to nanoseconds
constexpr int kPromptTokens = 6;

// The parameter says whether the backend is asynchronous.
class TokenTimesTest : public ::testing::TestWithParam<bool> {
 protected:
  // Every run draws `new_tokens`, so each prefill step is followed by new_tokens - 1 decode steps.
  Decoder MakeDecoder(const ModelSpec& spec, const ModelWeights& weights, int64_t new_tokens) {
    return Decoder(spec, weights, {.max_context = 256, .page_size = 16},
                   Delayed(GetParam(), [new_tokens](int step) {
                     return step % new_tokens == 0 ? kPrefillS : kDecodeS;
                   }));
  }
  Decoder MakeDecoder(int64_t new_tokens) {
    return MakeDecoder(model_.spec, model_.weights, new_tokens);
  }
  void Check(const TokenTimes& times, int64_t tokens) {
    EXPECT_EQ(times.Tokens(), tokens);
    EXPECT_NEAR(times.FirstTokenS(), kPrefillS, kError) << tokens << " tokens";
    EXPECT_NEAR(times.DecodeS(), static_cast<double>(tokens - 1) * kDecodeS, kError);
    EXPECT_NEAR(times.TokensPerSecond(), tokens == 1 ? 0 : kRate, kError) << tokens << " tokens";
  }

  const FakeClock clock_;
  const testing::LoadedModel model_ = testing::LoadTinyModel();
  const std::vector<int32_t> prompt_ = std::vector<int32_t>(kPromptTokens, 5);
};

INSTANTIATE_TEST_SUITE_P(Backends, TokenTimesTest, ::testing::Bool(), [](const auto& suite) {
  return suite.param ? "Asynchronous" : "Synchronous";
});

TEST_P(TokenTimesTest, GenerateStreamsEachTokenWhenItIsThere) {
  for (const int64_t tokens : {1, 2, 3, 5}) {
    Decoder decoder = MakeDecoder(tokens);
    const double begin_s = FakeClock::NowS();
    std::vector<double> seen, expected;
    GenerateOptions options{.max_new_tokens = tokens};
    options.on_token = [&](int32_t) {
      seen.push_back(FakeClock::NowS() - begin_s);
      return true;
    };
    Check(Generate(decoder, prompt_, options).times, tokens);
    for (int i = 0; i < tokens; ++i) expected.push_back(kPrefillS + i * kDecodeS);
    EXPECT_THAT(seen, Pointwise(DoubleNear(kError), expected));
  }
}

// The host has enqueued another step by then, which the rate must not contain.
TEST_P(TokenTimesTest, AStopEndsTheTimeAtItsToken) {
  Decoder decoder = MakeDecoder(9);
  int left = 3;
  Check(Generate(decoder, prompt_,
                 {.max_new_tokens = 9, .on_token = [&](int32_t) { return --left > 0; }})
            .times,
        3);
}

TEST_P(TokenTimesTest, ChatCountsTheSame) {
  const testing::TempFolder folder;
  testing::WriteChatModel(folder.Path());
  const testing::LoadedModel model(folder.Path());
  const Tokenizer tokenizer = Tokenizer::Load(folder.Path());
  const ChatTemplate chat_template = ChatTemplate::Load(folder.Path()).value();
  for (const int64_t tokens : {1, 2, 5}) {
    Decoder decoder = MakeDecoder(model.spec, model.weights, tokens);
    Conversation conversation(tokenizer, chat_template, {});
    ChatSession session(conversation, decoder);
    Check(session.Answer("hello", tokenizer, {.max_new_tokens = tokens}).times, tokens);
  }
}

TEST_P(TokenTimesTest, BenchCountsTheSame) {
  for (const int64_t tokens : {2, 5}) {
    Decoder decoder = MakeDecoder(tokens);
    const BenchResult result =
        RunBench(decoder, {.prompt_tokens = kPromptTokens, .new_tokens = tokens, .repeats = 2});
    for (const BenchSample& sample : result.samples) {
      EXPECT_NEAR(sample.prefill_s, kPrefillS, kError);
      EXPECT_NEAR(sample.decode_s, static_cast<double>(tokens - 1) * kDecodeS, kError);
    }
    EXPECT_NEAR(result.ms_per_step, 1e3 * kDecodeS, 1e3 * kError);
    const double last_s = kPrefillS + static_cast<double>(tokens - 1) * kDecodeS;
    EXPECT_NEAR(result.latencies.first_token_s->median, kPrefillS, kError);
    EXPECT_NEAR(result.latencies.between_tokens_s->median, kDecodeS, kError);
    EXPECT_EQ(result.latencies.between_tokens_s->count, 2 * (tokens - 1));
    EXPECT_NEAR(result.latencies.end_to_end_s->median, last_s, kError);
  }
}

// The depth takes three steps of its own, and the prefill of the batch two, after the first of
// which one sequence decodes while the other one waits.
TEST_P(TokenTimesTest, BenchBeginsItsTimesAfterTheDepth) {
  constexpr int kSteps = 3 + 2 + 4;
  Decoder decoder(model_.spec, model_.weights,
                  {.max_batch = 2, .max_context = 256, .page_size = 16, .token_budget = 6},
                  Delayed(GetParam(), [](int step) {
                    return step % kSteps < 3 ? 7.0 : step % kSteps < 5 ? kPrefillS : kDecodeS;
                  }));
  const BenchResult result = RunBench(
      decoder,
      {.batch = 2, .depth = 9, .prompt_tokens = kPromptTokens, .new_tokens = 5, .repeats = 10});
  for (const BenchSample& sample : result.samples) {
    EXPECT_NEAR(sample.prefill_s, 2 * kPrefillS, kError);
    EXPECT_NEAR(sample.decode_s, 4 * kDecodeS, kError);
  }
  const auto& [first, between, end] = result.latencies;
  EXPECT_EQ(first->count, 20);
  EXPECT_NEAR(first->median, kPrefillS, kError);
  EXPECT_NEAR(first->p90.value(), 2 * kPrefillS, kError);
  EXPECT_FALSE(first->p99.has_value());
  EXPECT_EQ(between->count, 2 * 4 * 10);
  EXPECT_NEAR(between->median, kDecodeS, kError);
  EXPECT_NEAR(end->median, 2 * kPrefillS + 3 * kDecodeS, kError);
  EXPECT_NEAR(end->p90.value(), 2 * kPrefillS + 4 * kDecodeS, kError);
}

TEST_P(TokenTimesTest, WorkloadsCountTheSame) {
  constexpr int64_t kTokens = 5;
  Decoder decoder = MakeDecoder(kTokens);
  Workload workload{.name = "twenty"};
  for (int i = 0; i < 20; ++i) {  // the decoder runs one after the other
    workload.requests.push_back({.request = {.prompt = prompt_, .max_new_tokens = kTokens}});
  }
  const WorkloadResult result = RunWorkload(decoder, workload);
  const double request_s = kPrefillS + (kTokens - 1) * kDecodeS;
  const auto& [first, between, end] = result.serving.latencies;
  EXPECT_EQ(first->count, 20);
  EXPECT_NEAR(first->median, 9 * request_s + kPrefillS, kError);
  EXPECT_NEAR(first->p90.value(), 17 * request_s + kPrefillS, kError);
  EXPECT_EQ(between->count, 20 * (kTokens - 1));
  EXPECT_NEAR(between->median, kDecodeS, kError);
  EXPECT_NEAR(between->p90.value(), kDecodeS, kError);
  EXPECT_NEAR(end->median, 10 * request_s, kError);
  EXPECT_NEAR(result.total_s, 20 * request_s, kError);
  const auto good = [&](const LatencyBound& bound) {
    return std::ranges::count_if(result.waits,
                                 [&](const auto& wait) { return bound.IsMetBy(wait); });
  };
  const double third_s = 2 * request_s + kPrefillS;
  EXPECT_EQ(good({}), 20);
  EXPECT_EQ(good({.first_token_s = third_s + kError}), 3);
  EXPECT_EQ(good({.first_token_s = third_s - kError}), 2);
  EXPECT_EQ(good({.mean_between_s = kDecodeS + kError}), 20);
  EXPECT_EQ(good({.first_token_s = third_s + kError, .mean_between_s = kDecodeS - kError}), 0);
  EXPECT_EQ(result.new_tokens, 20 * kTokens);
}

// The user gives up during the first of three steps of the prefill, or during the last one, which
// draws a token: nothing is shown from then on.
TEST_P(TokenTimesTest, AnInterruptDuringThePrefillEndsWithoutAToken) {
  for (const int interrupted_step : {0, 2}) {
    std::atomic<bool> interrupted = false;
    const double begin_s = FakeClock::NowS();
    Decoder decoder(model_.spec, model_.weights,
                    {.max_context = 256, .page_size = 16, .token_budget = kPromptTokens / 3},
                    Delayed(GetParam(), [&](int step) {
                      interrupted = step >= interrupted_step;
                      return kPrefillS;
                    }));
    GenerateOptions options{.interrupted = &interrupted};
    options.on_token = [](int32_t) {
      ADD_FAILURE() << "a token after the interrupt";
      return true;
    };
    const GenerateResult result = Generate(decoder, prompt_, options);
    EXPECT_TRUE(result.interrupted);
    EXPECT_TRUE(result.tokens.empty());
    EXPECT_LE(FakeClock::NowS() - begin_s, (interrupted_step + 1) * kPrefillS + kError);
    EXPECT_FALSE(decoder.HasWork());
  }
}

TEST_P(TokenTimesTest, ThePrefillReportsHowFarItIs) {
  Decoder decoder(model_.spec, model_.weights,
                  {.max_context = 256, .page_size = 16, .token_budget = 4},
                  Delayed(GetParam(), [](int) { return kPrefillS; }));
  std::vector<int64_t> computed;
  GenerateOptions options{.max_new_tokens = 3};
  options.on_prefill = [&](int64_t tokens) { computed.push_back(tokens); };
  Generate(decoder, prompt_, options);
  EXPECT_THAT(computed, ::testing::ElementsAre(4, kPromptTokens));
}

}  // namespace
}  // namespace tokline
