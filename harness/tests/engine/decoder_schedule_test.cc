// Tests the decoder under load: a request gives the text that it gives alone, however requests are
// queued, preempted, reused or cancelled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/tests/engine/delayed_backend.h"
#include "harness/tests/engine/golden.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::GoldenCase;
using ::testing::HasSubstr;
using testing::TinyModel;

const std::vector<GoldenCase>& Cases() {
  static const testing::Golden golden = testing::ReadGolden("qwen3_tiny");
  return golden.cases;
}

struct Ended {
  std::vector<int32_t> tokens;
  Finish finish = Finish::kNone;
  bool operator==(const Ended&) const = default;
};

// Runs until nothing is left to do.
void RunAll(Decoder& decoder, std::map<SequenceId, Ended>& texts) {
  const auto take = [&](std::span<const NewToken> tokens) {
    for (const NewToken& token : tokens) {
      Ended& text = texts[token.sequence];
      EXPECT_EQ(text.finish, Finish::kNone) << "a token after the end";
      text.tokens.push_back(token.token);
      text.finish = token.finish;
    }
  };
  while (decoder.HasWork()) take(decoder.Step().tokens);
  take(decoder.Flush());
}

// Prompts that share prefixes, sampled at a high temperature so that texts differ.
std::vector<Request> Workload() {
  std::vector<Request> requests;
  std::mt19937 rng(9);
  for (int i = 0; i < 24; ++i) {
    Request request;
    const GoldenCase& one = Cases()[static_cast<size_t>(i) % Cases().size()];
    request.prompt = one.prompt;
    request.prompt.resize(std::min<size_t>(request.prompt.size(), 12 + rng() % 12));
    if (i % 3 == 1) request.prompt.push_back(static_cast<int32_t>(rng() % 384));
    request.rule = {.temperature = 0.8f, .top_k = 40, .seed = rng()};
    request.max_new_tokens = 20 + static_cast<int64_t>(rng() % 45);
    request.keep = i % 2 == 0;
    if (i % 4 == 0) request.cuts = {static_cast<int64_t>(request.prompt.size() + 1) / 2};
    if (i % 5 == 0) request.stop_ids = {3, 50, 51, 52, 53, 54, 55, 56, 57, 58};
    requests.push_back(request);
  }
  return requests;
}

DecoderOptions Options() {
  return {.max_batch = 6, .max_context = 128, .page_size = 16, .token_budget = 40};
}

// On an asynchronous backend the host works a step ahead, so requests are scheduled before their
// newest tokens are known. The parameter says which backend it is.
class DecoderScheduleTest : public ::testing::TestWithParam<bool> {
 protected:
  static Decoder MakeDecoder(const DecoderOptions& options) {
    return Decoder(TinyModel().spec, TinyModel().weights, options,
                   testing::Delayed(GetParam(), [](int) { return 0; }));
  }
  static std::vector<Ended> TextsOf(const DecoderOptions& options,
                                    SchedulerCounts* counts = nullptr) {
    Decoder decoder = MakeDecoder(options);
    std::map<SequenceId, Ended> texts;
    for (const Request& request : Workload()) texts[decoder.Submit(request)] = {};
    RunAll(decoder, texts);
    EXPECT_EQ(decoder.Schedule().NumSequences(), 0);
    EXPECT_EQ(decoder.Pages().NumFree() + decoder.Schedule().Chunks().IdlePages(),
              decoder.Pages().NumPages());
    if (counts != nullptr) *counts = decoder.Schedule().Counts();
    std::vector<Ended> result;
    for (const auto& [id, text] : texts) result.push_back(text);
    return result;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, DecoderScheduleTest, ::testing::Bool(), [](const auto& suite) {
  return suite.param ? "Asynchronous" : "Synchronous";
});

TEST_P(DecoderScheduleTest, TextsDoNotDependOnBatchPoolOrReuse) {
  const std::vector<Request> requests = Workload();
  std::vector<Ended> alone;
  {
    Decoder decoder = MakeDecoder(Options());
    for (const Request& request : requests) {
      std::map<SequenceId, Ended> text;
      decoder.Submit(request);
      RunAll(decoder, text);
      alone.push_back(text.begin()->second);
      const bool stopped = alone.back().finish == Finish::kStop;
      EXPECT_TRUE(stopped ||
                  static_cast<int64_t>(alone.back().tokens.size()) == request.max_new_tokens);
    }
  }
  SchedulerCounts counts;
  EXPECT_EQ(TextsOf(Options(), &counts), alone);
  EXPECT_EQ(counts.preemptions, 0);

  DecoderOptions tiny = Options();
  tiny.kv_pages = 6;  // the longest request needs all of them
  EXPECT_EQ(TextsOf(tiny, &counts), alone);
  EXPECT_GE(counts.preemptions, 8);

  DecoderOptions reusing = Options();
  reusing.reuse = true;
  EXPECT_EQ(TextsOf(reusing, &counts), alone);
  EXPECT_GE(counts.reused_tokens, 40);

  reusing.kv_pages = 7;
  EXPECT_EQ(TextsOf(reusing, &counts), alone);
  EXPECT_GE(counts.preemptions, 1);
  EXPECT_GE(counts.reused_tokens, 20);

  reusing.ablate = ParseAblations("chunk_decode,paged_prefill");
  EXPECT_EQ(TextsOf(reusing), alone);
}

TEST_P(DecoderScheduleTest, ReusedPrefixGivesTheLogitsOfAComputedOne) {
  DecoderOptions options = Options();
  options.reuse = true;
  const std::vector<int32_t>& prompt = Cases()[3].prompt;
  Decoder fresh = MakeDecoder(options);
  const SequenceId first = fresh.AddSequence(prompt, {}, 2);
  while (fresh.Schedule().Get(first).drawn == 0) fresh.Step();
  const std::vector<float> computed = fresh.Logits(first);
  for (const size_t shared : {prompt.size(), prompt.size() - 1, prompt.size() / 2}) {
    Decoder decoder = MakeDecoder(options);
    Request before{.prompt = {prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(shared)},
                   .max_new_tokens = 1,
                   .keep = true};
    std::map<SequenceId, Ended> texts;
    decoder.Submit(before);
    RunAll(decoder, texts);
    const SequenceId id = decoder.AddSequence(prompt, {}, 2);
    while (decoder.Schedule().Get(id).drawn == 0) decoder.Step();
    EXPECT_EQ(decoder.Schedule().Counts().reused_tokens,
              static_cast<int64_t>(std::min(shared, prompt.size() - 1)));
    testing::RelativeError error;
    error.Add(decoder.Logits(id), computed);
    EXPECT_LE(error.Value(), 1e-5) << shared << " tokens shared";
  }
}

TEST_P(DecoderScheduleTest, DefaultCacheHasRoomForThePagesThatCutsLeavePartlyEmpty) {
  DecoderOptions options = Options();
  options.max_batch = 1;
  options.max_context = 32;
  options.reuse = true;
  Decoder decoder = MakeDecoder(options);
  Request request{.prompt = Cases()[1].prompt, .max_new_tokens = 8};
  request.prompt.resize(24, 5);
  request.cuts = {1, 2, 3, 4, 5, 6, 7};
  std::map<SequenceId, Ended> texts;
  const SequenceId id = decoder.Submit(request);
  RunAll(decoder, texts);
  EXPECT_EQ(texts[id].tokens.size(), 8u);
}

TEST_P(DecoderScheduleTest, PreemptionKeepsSequencesThatAreLookedAt) {
  DecoderOptions options = Options();
  options.kv_pages = 3;
  Decoder decoder = MakeDecoder(options);
  const GoldenCase& one = Cases()[1];  // 16 tokens fill one page; the first step needs a second one
  const SequenceId first = decoder.AddSequence(one.prompt, {}, 24);
  const SequenceId second = decoder.AddSequence(one.prompt, {}, 24);
  std::map<SequenceId, Ended> texts;
  const std::vector<int32_t> text(one.tokens.begin(), one.tokens.begin() + 24);
  EXPECT_THAT([&] { RunAll(decoder, texts); },
              ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("the KV cache is full")));
  EXPECT_EQ(texts[first].tokens, text);
  decoder.RemoveSequence(first);
  RunAll(decoder, texts);
  EXPECT_EQ(texts[second].tokens, text);
  EXPECT_GE(decoder.Schedule().Counts().preemptions + decoder.Schedule().Counts().stalls, 1);
}

TEST_P(DecoderScheduleTest, CancelledRequestsHarmNobody) {
  DecoderOptions options = Options();
  options.kv_pages = 9;
  options.reuse = true;
  const std::vector<Ended> expected = TextsOf(options);
  Decoder decoder = MakeDecoder(options);
  std::map<SequenceId, Ended> texts;
  std::vector<SequenceId> ids;
  for (const Request& request : Workload()) ids.push_back(decoder.Submit(request));
  for (size_t step = 0; decoder.HasWork(); ++step) {
    for (const NewToken& token : decoder.Step().tokens) {
      texts[token.sequence].tokens.push_back(token.token);
      texts[token.sequence].finish = token.finish;
    }
    // Removes every third request at some point, in whatever state it is.
    const auto next =
        std::ranges::find_if(ids, [&](SequenceId id) { return id % 3 == 0 && decoder.Has(id); });
    if (step % 11 == 3 && next != ids.end()) decoder.RemoveSequence(*next);
  }
  RunAll(decoder, texts);
  EXPECT_GE(decoder.Schedule().Counts().removed, 2);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] % 3 == 0) continue;
    EXPECT_EQ(texts[ids[i]], expected[i]) << "request " << i;
  }
  EXPECT_EQ(decoder.Pages().NumFree() + decoder.Schedule().Chunks().IdlePages(), 9);
}

}  // namespace
}  // namespace tokline
