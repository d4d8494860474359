// Shifted spans: what is copied, what it leads to, and what it does not touch.
#include "harness/measure/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "harness/tests/engine/golden.h"
#include "harness/tests/engine/shifted_model.h"
#include "harness/tests/message_of.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::ChunkedRequest;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::LoadedModel;
using testing::RunAll;

// With the rounding of a rotation in f32 as the only difference, of which 1e-10 is seen.
constexpr double kRoundingKl = 1e-8;

DecoderOptions Options() {
  return {.dtype = DType::kF32,
          .max_batch = 2,
          .max_context = 160,
          .page_size = 16,
          .token_budget = 30,
          .reuse = true};
}

TEST(KlDivergenceTest, GivesTheValuesOfItsDefinition) {
  const std::vector<float> even{0, 0}, odd{0, std::log(3.0f)}, far{500, -500};
  EXPECT_EQ(KlDivergence(odd, odd), 0);
  EXPECT_NEAR(KlDivergence(even, odd), 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3), 1e-7);
  EXPECT_NEAR(KlDivergence(odd, even), 0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-7);
  EXPECT_NEAR(KlDivergence(even, far), 500 - std::log(2.0), 1e-6);
  const std::vector<float> nan{0, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(std::isnan(KlDivergence(odd, nan)));
  EXPECT_THROW(KlDivergence(odd, std::vector<float>{0}), InvalidArgument);
}

TEST(KlDivergenceTest, SummarizesByMeanNearestRankAndLargest) {
  const std::vector<double> kl{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0};
  const KlSummary summary = SummarizeKl(kl);
  EXPECT_NEAR(summary.mean, 0.55, 1e-12);
  EXPECT_EQ(summary.p90, 0.9);
  EXPECT_EQ(summary.max, 1.0);
  EXPECT_TRUE(std::isnan(SummarizeKl(std::vector<double>{0.1, std::nan(""), 0.2}).max));
  EXPECT_THROW(SummarizeKl({}), InvalidArgument);
}

class ShiftedModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  LoadedModel model_{testing::ReadGolden(GetParam()).checkpoint};
};

TEST_P(ShiftedModelTest, CopiesValuesBitForBitAndTurnsKeysToTheirPositions) {
  for (const int64_t prefix : {0, 9}) {
    Decoder decoder(model_.spec, model_.weights, Options());
    const Request request = ChunkedRequest(model_.spec.vocab_size, 1, prefix);
    const SequenceId id = decoder.AddSequence(request);
    while (decoder.Schedule().Get(id).drawn == 0) decoder.Step();
    EXPECT_EQ(decoder.Schedule().Counts().shifted_tokens, 39 + 18);
    for (size_t i = 1; i < request.shifted.size(); ++i) {
      const ShiftedSpan& span = request.shifted[i];
      const auto begin = request.prompt.begin();
      std::vector<int32_t> alone(begin, begin + prefix);
      alone.insert(alone.end(), begin + span.begin, begin + span.end);
      Decoder other(model_.spec, model_.weights, Options());
      const SequenceId source = other.AddSequence(alone, {}, 2);
      // In the exact text layer 0 has the keys that the rotation must lead to.
      const SequenceId exact = other.AddSequence(request.prompt, {}, 2);
      while (other.Schedule().Get(exact).drawn == 0) other.Step();
      const auto row = static_cast<size_t>(model_.spec.KvSize());
      const auto rows = [&](const std::vector<float>& of, int64_t first) {
        return std::span(of).subspan(static_cast<size_t>(first) * row,
                                     static_cast<size_t>(span.Size()) * row);
      };
      for (int64_t layer = 0; layer < model_.spec.num_layers; ++layer) {
        const KvRows copied = decoder.ReadKv(id, layer), from = other.ReadKv(source, layer);
        EXPECT_TRUE(std::ranges::equal(rows(copied.v, span.begin), rows(from.v, prefix)))
            << "layer " << layer;
        if (layer > 0) continue;
        const KvRows there = other.ReadKv(exact, layer);
        testing::RelativeError error;
        error.Add(rows(copied.k, span.begin), rows(there.k, span.begin));
        EXPECT_LE(error.Value(), 1e-6);  // a shift off by one gives 0.1 and more
      }
    }
  }
}

TEST_P(ShiftedModelTest, IsExactUpToRoundingWhereKeysDoNotDependOnTheText) {
  testing::KeepFirstLayer(model_);
  Decoder decoder(model_.spec, model_.weights, Options());
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const Request request =
        ChunkedRequest(model_.spec.vocab_size, seed, static_cast<int64_t>(seed) * 5);
    const Divergence divergence = MeasureDivergence(decoder, request);
    EXPECT_EQ(divergence.shifted_tokens, 39 + 18);
    EXPECT_EQ(divergence.same_top, 24);
    EXPECT_TRUE(divergence.SameAnswer());
    EXPECT_LE(SummarizeKl(divergence.kl).max, kRoundingKl);
  }
}

// The bounds that hold on CUDA, where nothing is computed in f32.
TEST_P(ShiftedModelTest, InBf16TheKeysAreRoundedTwice) {
  testing::KeepFirstLayer(model_);
  DecoderOptions options = Options();
  options.dtype = DType::kBf16;
  Decoder decoder(model_.spec, model_.weights, options);
  Request request = ChunkedRequest(model_.spec.vocab_size, 2, 5);
  EXPECT_LE(SummarizeKl(MeasureDivergence(decoder, request).kl).max, testing::kBf16Kl);
  const SequenceId shifted = decoder.AddSequence(request);
  request.shifted.clear();
  const SequenceId exact = decoder.AddSequence(request);
  const auto drawn = [&](SequenceId id) { return decoder.Schedule().Get(id).drawn > 0; };
  while (!drawn(shifted) || !drawn(exact)) decoder.Step();
  testing::RelativeError error;
  const auto first = [&](const std::vector<float>& rows) {
    return std::span(rows).first(request.prompt.size() * static_cast<size_t>(model_.spec.KvSize()));
  };
  const KvRows copied = decoder.ReadKv(shifted, 0), computed = decoder.ReadKv(exact, 0);
  error.Add(first(copied.k), first(computed.k));
  EXPECT_LE(error.Value(), testing::kBf16KeyError);
  EXPECT_GT(error.Value(), 0);
}

TEST_P(ShiftedModelTest, WithoutAShiftTheDivergenceIsZero) {
  Decoder decoder(model_.spec, model_.weights, Options());
  Request request = ChunkedRequest(model_.spec.vocab_size, 4);
  request.shifted.resize(1);  // which stands where it was computed
  const Divergence divergence = MeasureDivergence(decoder, request);
  EXPECT_THAT(divergence.kl, Each(0.0));
  EXPECT_EQ(divergence.shifted_tokens, 0);
  EXPECT_TRUE(divergence.SameAnswer());
}

TEST_P(ShiftedModelTest, ShiftsAcrossLayersDivergeAndTheNextUseComputesNoSource) {
  Decoder decoder(model_.spec, model_.weights, Options());
  const Request request = ChunkedRequest(model_.spec.vocab_size, 5);
  const Divergence first = MeasureDivergence(decoder, request);
  EXPECT_GT(SummarizeKl(first.kl).max, 1e3 * kRoundingKl);
  EXPECT_EQ(first.source_tokens, 39 + 18);
  const Divergence again = MeasureDivergence(decoder, request);
  EXPECT_EQ(again.source_tokens, 0);
  EXPECT_EQ(again.kl, first.kl);
  EXPECT_EQ(again.shifted, first.shifted);
}

// Two that begin alike go on within a page; the chunk that is kept ends there.
TEST_P(ShiftedModelTest, HeldSequencesStayAsTheyEndedThoughTheirBeginningIsKept) {
  std::vector<KvRows> alone, together;
  const auto requests = [&](size_t from, size_t to) {
    std::vector<Request> some;
    for (size_t i = from; i < to; ++i) {
      some.push_back({.prompt = {1, 2, 3, 4, 5}, .max_new_tokens = 4, .keep = true});
      for (int32_t id = 0; id < 30; ++id) {
        some.back().prompt.push_back(10 * static_cast<int32_t>(i) + id % 10);
      }
      some.back().shifted = {{.begin = 5, .end = 17}};
    }
    return some;
  };
  const auto run = [&](const std::vector<Request>& some, std::vector<KvRows>& rows) {
    Decoder decoder(model_.spec, model_.weights, Options());
    std::vector<SequenceId> ids;
    for (const Request& request : some) ids.push_back(decoder.AddSequence(request));
    while (decoder.HasWork()) decoder.Step();
    decoder.Flush();
    for (const SequenceId id : ids) {
      for (int64_t layer = 0; layer < model_.spec.num_layers; ++layer) {
        rows.push_back(decoder.ReadKv(id, layer));
      }
    }
  };
  run(requests(0, 1), alone);
  run(requests(1, 2), alone);
  run(requests(0, 2), together);
  ASSERT_EQ(alone.size(), together.size());
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(alone[i].k, together[i].k) << i;
    EXPECT_EQ(alone[i].v, together[i].v) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, ShiftedModelTest, ::testing::ValuesIn(testing::RopeModels()),
                         [](const auto& info) { return info.param; });

TEST(ShiftedTest, LearnedPositionsAreRefused) {
  const LoadedModel model(testing::ReadGolden("gpt2_tiny").checkpoint);
  Decoder decoder(model.spec, model.weights, {.max_context = 100, .page_size = 16, .reuse = true});
  EXPECT_THAT(
      [&] {
        decoder.Submit({.prompt = {1, 2, 3, 4}, .shifted = {{1, 2}}});
      },
      ::testing::ThrowsMessage<InvalidArgument>(
          HasSubstr("family gpt2 has learned positions; chunks can be shifted with rope")));
}

TEST(ShiftedTest, BadSpansAreRefusedWithTheirValues) {
  const LoadedModel model = testing::LoadTinyModel();
  const auto message = [&](const DecoderOptions& options, const Request& request) {
    Decoder decoder(model.spec, model.weights, options);
    return testing::MessageOf([&] { decoder.Submit(request); });
  };
  const std::vector<int32_t> prompt(40, 1);
  DecoderOptions options = Options();
  EXPECT_THAT(message(options, {.prompt = prompt, .shifted = {{5, 5}}}),
              HasSubstr("a shifted span of 5 to 5"));
  EXPECT_THAT(message(options, {.prompt = prompt, .shifted = {{5, 41}}}),
              HasSubstr("the prompt of 40 tokens"));
  EXPECT_THAT(message(options, {.prompt = prompt, .shifted = {{5, 9}, {8, 12}}}),
              HasSubstr("8 to 12 after 9"));
  EXPECT_THAT(message(options, {.prompt = prompt, .shifted = {{5, 9}}, .shifted_after = 6}),
              HasSubstr("5 to 9 after 6"));
  EXPECT_THAT(message(options, {.prompt = prompt, .shifted = {{5, 9}}, .shifted_after = -1}),
              HasSubstr("shifted_after is -1"));
  options.kv_pages = 5;  // the prompt's 4 with its answer, and 2 for the source
  EXPECT_THAT(message(options, {.prompt = prompt, .shifted = {{5, 25}}}),
              HasSubstr("needs 6 pages of the KV cache, with those that its shifted spans"));
  EXPECT_EQ(message(options, {.prompt = prompt, .shifted = {{5, 20}}}), "nothing was thrown");
  options.reuse = false;
  EXPECT_THAT(message(options, {.prompt = prompt, .shifted = {{5, 9}}}),
              HasSubstr("a decoder that reuses chunks"));
}

// Shifted and exact requests of the same prompts, drawn hot, so that texts differ.
std::vector<Request> MixedRequests(int64_t vocab_size) {
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 10; ++i) {
    Request request = ChunkedRequest(vocab_size, i / 4, static_cast<int64_t>(i / 4) * 3);
    request.rule = {.temperature = 0.8f, .seed = i};
    request.max_new_tokens = 50 + static_cast<int64_t>(i);
    request.keep = i % 3 == 0;
    if (i % 2 == 1) request.shifted.clear();
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST(ShiftedTest, TextsDoNotDependOnBatchPoolOrWhoElseReuses) {
  const LoadedModel model = testing::LoadTinyModel();
  const std::vector<Request> requests = MixedRequests(model.spec.vocab_size);
  std::vector<std::vector<int32_t>> alone;
  for (const Request& request : requests) {
    Decoder decoder(model.spec, model.weights, Options());
    decoder.Submit(request);
    alone.push_back(RunAll(decoder).begin()->second);
    EXPECT_EQ(static_cast<int64_t>(alone.back().size()), request.max_new_tokens);
  }
  EXPECT_NE(alone[4], alone[5]);
  int64_t copied = 0;
  for (const int64_t pages : {0, 27, 24, 16}) {  // enough, and ever fewer
    DecoderOptions options = Options();
    options.max_batch = 6;
    options.kv_pages = pages;
    Decoder decoder(model.spec, model.weights, options);
    std::vector<SequenceId> ids;
    for (const Request& request : requests) ids.push_back(decoder.Submit(request));
    const auto texts = RunAll(decoder);
    ASSERT_EQ(texts.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(texts.at(ids[i]), alone[i]) << i;
    const SchedulerCounts& counts = decoder.Schedule().Counts();
    copied += counts.shifted_tokens;
    EXPECT_EQ(counts.finished, 10);
    EXPECT_EQ(decoder.Schedule().NumSequences(), 0);
    EXPECT_EQ(decoder.Pages().NumFree() + decoder.Schedule().Chunks().IdlePages(),
              decoder.Pages().NumPages());
  }
  EXPECT_GT(copied, 4 * 5 * (39 + 18)) << "nobody was preempted and copied again";
}

}  // namespace
}  // namespace tokline
