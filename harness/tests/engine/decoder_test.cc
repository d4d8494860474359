// Tests the CPU decoder: a sequence's text does not depend on what is scheduled together with it.
#include "harness/engine/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "harness/engine/ablation.h"
#include "harness/engine/convert_elements.h"
#include "harness/engine/generate.h"
#include "harness/tests/engine/delayed_backend.h"
#include "harness/tests/engine/golden.h"
#include "harness/tests/message_of.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::GoldenCase;
using ::testing::HasSubstr;
using testing::RunAll;
using testing::TinyModel;

const std::vector<GoldenCase>& Cases() {
  static const testing::Golden golden = testing::ReadGolden("qwen3_tiny");
  return golden.cases;
}

constexpr int64_t kNewTokens = 24;

std::vector<int32_t> GoldenText(const GoldenCase& one) {
  return {one.tokens.begin(), one.tokens.begin() + kNewTokens};
}

DecoderOptions SmallOptions() { return {.max_batch = 6, .max_context = 128, .page_size = 16}; }

template <typename Error, typename Function>
void ExpectError(Function&& function, const std::vector<std::string>& parts) {
  const std::string message = testing::MessageOf<Error>(function);
  for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part));
}

// From the rows of the embedding to what the final norm and the LM head turn into logits.
TEST(DecoderTest, HiddenStatesBeginWithTheEmbeddingAndEndInTheLogits) {
  const ModelSpec& spec = TinyModel().spec;
  const GoldenCase& one = Cases()[1];
  const auto view = [](const TensorView& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.Rows() * tensor.Columns()));
    ConvertElements(tensor.dtype, tensor.data, DType::kF32, values.data(), std::ssize(values));
    return values;
  };
  const std::vector<float> embedding = view(TinyModel().weights.embedding),
                           head = view(TinyModel().weights.lm_head),
                           norm = view(TinyModel().weights.final_norm);
  std::vector<int32_t> read = one.prompt;
  read.insert(read.end(), one.tokens.begin(), one.tokens.begin() + 3);
  std::vector<float> whole, heads;
  for (const int64_t budget : {64, 5}) {
    DecoderOptions options = SmallOptions();
    options.token_budget = budget;
    Decoder decoder(TinyModel().spec, TinyModel().weights, options);
    const GenerateResult result = Generate(
        decoder, one.prompt, {.max_new_tokens = 4, .want_logits = true, .want_hidden = true});
    const int64_t head_width = spec.QSize() + spec.KvSize();
    ASSERT_EQ(std::ssize(result.heads), std::ssize(read) * spec.num_layers * head_width);
    if (heads.empty()) heads = result.heads;
    EXPECT_EQ(result.heads, heads) << "budget " << budget;
    Decoder other(TinyModel().spec, TinyModel().weights, options);
    const SequenceId id = other.AddSequence(one.prompt, {}, 4);
    while (other.HasWork()) other.Step();
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
      const std::vector<float> keys = other.ReadKv(id, layer).k;
      for (int64_t t = 0; t < std::ssize(read); ++t) {
        const auto key = keys.begin() + t * spec.KvSize();
        EXPECT_TRUE(std::equal(
            key, key + spec.KvSize(),
            result.heads.begin() + (t * spec.num_layers + layer) * head_width + spec.QSize()))
            << layer << ", " << t;
      }
    }
    const int64_t width = spec.hidden_size, states = 2 * spec.num_layers + 1;
    ASSERT_EQ(std::ssize(result.hidden), std::ssize(read) * states * width);
    for (int64_t t = 0; t < std::ssize(read); ++t) {
      const float* const row = result.hidden.data() + t * states * width;
      EXPECT_TRUE(std::equal(row, row + width, embedding.begin() + read[t] * width)) << t;
    }
    for (int64_t step = 0; step < 4; ++step) {
      const float* const last =
          result.hidden.data() + ((std::ssize(one.prompt) + step) * states - 1) * width;
      double squares = 0;
      for (int64_t i = 0; i < width; ++i) squares += double{last[i]} * last[i];
      const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + spec.norm_eps);
      for (int64_t id = 0; id < spec.vocab_size; ++id) {
        double logit = 0;
        for (int64_t i = 0; i < width; ++i)
          logit += last[i] * scale * norm[i] * head[id * width + i];
        ASSERT_NEAR(result.logits[step][id], logit, 1e-4) << step << ", " << id;
      }
    }
    if (whole.empty()) whole = result.hidden;
    EXPECT_EQ(result.hidden, whole) << "budget " << budget;
  }
}

TEST(DecoderTest, PrefillInPiecesGivesTheSameText) {
  for (const int64_t budget : {1, 7, 16, 36}) {
    DecoderOptions options = SmallOptions();
    options.token_budget = budget;
    Decoder decoder(TinyModel().spec, TinyModel().weights, options);
    std::vector<SequenceId> ids;
    for (const GoldenCase& one : Cases()) {
      ids.push_back(decoder.AddSequence(one.prompt, {}, kNewTokens));
    }
    auto texts = RunAll(decoder);
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(texts[ids[i]], GoldenText(Cases()[i])) << "case " << i << ", budget " << budget;
    }
  }
}

TEST(DecoderTest, SequencesThatComeAndGoKeepTheirTexts) {
  DecoderOptions options = SmallOptions();
  options.token_budget = 23;
  Decoder decoder(TinyModel().spec, TinyModel().weights, options);
  std::mt19937 rng(11);
  struct Expected {
    std::vector<int32_t> text;
    std::vector<int32_t> got;
  };
  std::map<SequenceId, Expected> alive;
  int64_t finished = 0, aborted = 0, padded_steps = 0;
  const auto take = [&](std::span<const NewToken> tokens) {
    for (const NewToken& token : tokens) {
      ASSERT_TRUE(alive.contains(token.sequence)) << "a token of a sequence that has left";
      alive[token.sequence].got.push_back(token.token);
    }
  };
  for (int step = 0; step < 250; ++step) {
    if (alive.size() < 5 && rng() % 3 == 0) {
      const GoldenCase& one = Cases()[rng() % Cases().size()];
      const auto count = static_cast<int64_t>(1 + rng() % kNewTokens);
      const SequenceId id = decoder.AddSequence(one.prompt, {}, count);
      alive[id].text = {one.tokens.begin(), one.tokens.begin() + count};
    }
    if (!alive.empty() && rng() % 17 == 0) {
      const SequenceId id = alive.begin()->first;  // in the lowest seat, which becomes a hole
      decoder.RemoveSequence(id);
      alive.erase(id);
      ++aborted;
      padded_steps += !alive.empty();
    }
    take(decoder.Step().tokens);
    for (auto it = alive.begin(); it != alive.end();) {
      const auto& [text, got] = it->second;
      ASSERT_TRUE(std::equal(got.begin(), got.end(), text.begin())) << "step " << step;
      if (got.size() < text.size()) {
        ++it;
        continue;
      }
      decoder.RemoveSequence(it->first);
      it = alive.erase(it);
      ++finished;
    }
  }
  EXPECT_GE(finished, 10);
  EXPECT_GE(aborted, 3);
  EXPECT_GE(padded_steps, 3);
  for (const auto& [id, expected] : alive) decoder.RemoveSequence(id);
  EXPECT_EQ(decoder.Pages().NumFree(), decoder.Pages().NumPages());
}

TEST(DecoderTest, PageSizeDoesNotChangeTheText) {
  for (const int32_t page_size : {16, 64, 256}) {
    DecoderOptions options = SmallOptions();
    options.page_size = page_size;
    Decoder decoder(TinyModel().spec, TinyModel().weights, options);
    GenerateOptions generate;
    generate.max_new_tokens = kNewTokens;
    EXPECT_EQ(Generate(decoder, Cases()[2].prompt, generate).tokens, GoldenText(Cases()[2]));
  }
}

TEST(DecoderTest, EveryAblationGivesTheSameLogits) {
  DecoderOptions options = SmallOptions();
  options.token_budget = 30;  // the longest prompt takes three steps
  const auto run = [&](const DecoderOptions& with) {
    Decoder decoder(TinyModel().spec, TinyModel().weights, with);
    std::vector<std::vector<float>> logits;
    std::vector<SequenceId> ids;
    ids.push_back(decoder.AddSequence(Cases()[0].prompt, {}, 40));
    decoder.Step();
    decoder.RemoveSequence(ids[0]);  // seat 0 is free until the next sequence takes it
    ids.assign(1, decoder.AddSequence(Cases()[1].prompt, {}, 40));
    ids.push_back(decoder.AddSequence(Cases()[3].prompt, {}, 40));
    ids.push_back(decoder.AddSequence(Cases()[2].prompt, {}, 40));
    for (int step = 0; step < 8; ++step) decoder.Step();
    decoder.RemoveSequence(ids[0]);  // row 0 is padding from here on
    for (int step = 0; step < 3; ++step) decoder.Step();
    logits.push_back(decoder.Logits(ids[1]));
    logits.push_back(decoder.Logits(ids[2]));
    return logits;
  };
  const auto plain = run(options);
  for (const AblationEntry& entry : AllAblations()) {
    options.ablate = ParseAblations(entry.name);
    const auto ablated = run(options);
    for (size_t i = 0; i < plain.size(); ++i) {
      testing::RelativeError error;
      error.Add(ablated[i], plain[i]);
      EXPECT_LE(error.Value(), 2e-5) << entry.name << ", sequence " << i;
    }
  }
}

TEST(DecoderTest, AllAblationsTogetherGiveTheGoldenText) {
  DecoderOptions options = SmallOptions();
  for (const AblationEntry& entry : AllAblations()) options.ablate.Add(entry.ablation);
  Decoder decoder(TinyModel().spec, TinyModel().weights, options);
  GenerateOptions generate;
  generate.max_new_tokens = kNewTokens;
  EXPECT_EQ(Generate(decoder, Cases()[3].prompt, generate).tokens, GoldenText(Cases()[3]));
}

// On an asynchronous backend, which works while the host goes on.
Decoder MakeAsynchronous() {
  return Decoder(TinyModel().spec, TinyModel().weights, SmallOptions(),
                 testing::Delayed(true, [](int) { return 0; }));
}

TEST(DecoderTest, StepHandsOutItsOwnTokensIfTheyAreThere) {
  Decoder decoder(TinyModel().spec, TinyModel().weights, SmallOptions());
  decoder.AddSequence(Cases()[1].prompt, {}, 3);
  for (const int32_t expected : std::span(Cases()[1].tokens).first(3)) {
    const StepReport report = decoder.Step();
    ASSERT_EQ(report.tokens.size(), 1u);
    EXPECT_EQ(report.tokens[0].token, expected);
    EXPECT_TRUE(decoder.Flush().empty());
  }
  EXPECT_FALSE(decoder.HasWork());
}

TEST(DecoderTest, StepHandsOutTheTokensOfTheStepBeforeOtherwise) {
  Decoder decoder = MakeAsynchronous();
  const SequenceId id = decoder.AddSequence(Cases()[1].prompt, {}, 3);
  const auto& text = Cases()[1].tokens;
  StepReport report = decoder.Step();
  EXPECT_EQ(report.prefill_tokens, 16);
  EXPECT_EQ(report.decode_rows, 0);
  EXPECT_TRUE(report.tokens.empty());
  report = decoder.Step();
  EXPECT_EQ(report.prefill_tokens, 0);
  EXPECT_EQ(report.decode_rows, 1);
  ASSERT_EQ(report.tokens.size(), 1u);
  EXPECT_EQ(report.tokens[0].sequence, id);
  EXPECT_EQ(report.tokens[0].token, text[0]);
  report = decoder.Step();
  ASSERT_EQ(report.tokens.size(), 1u);
  EXPECT_EQ(report.tokens[0].token, text[1]);
  EXPECT_FALSE(decoder.HasWork());
  report = decoder.Step();  // nothing to enqueue, but one token is in flight
  EXPECT_EQ(report.decode_rows, 0);
  ASSERT_EQ(report.tokens.size(), 1u);
  EXPECT_EQ(report.tokens[0].token, text[2]);
  EXPECT_TRUE(decoder.Flush().empty());
}

TEST(DecoderTest, TokenOfARemovedSequenceIsDroppedEvenIfItsSlotIsTakenAgain) {
  Decoder decoder = MakeAsynchronous();
  const SequenceId first = decoder.AddSequence(Cases()[1].prompt, {}, 10);
  decoder.Step();
  decoder.RemoveSequence(first);
  const SequenceId second = decoder.AddSequence(Cases()[2].prompt, {}, 1);
  EXPECT_TRUE(decoder.Step().tokens.empty());
  const auto tokens = decoder.Flush();
  ASSERT_EQ(tokens.size(), 1u);
  EXPECT_EQ(tokens[0].sequence, second);
  EXPECT_EQ(tokens[0].token, Cases()[2].tokens[0]);
}

TEST(DecoderTest, KvDoesNotDependOnHowThePromptWasCut) {
  std::vector<KvRows> rows;
  for (const int64_t budget : {1000, 5}) {
    DecoderOptions options = SmallOptions();
    options.token_budget = budget;
    Decoder decoder(TinyModel().spec, TinyModel().weights, options);
    const SequenceId id = decoder.AddSequence(Cases()[2].prompt, {}, 2);
    while (decoder.HasWork()) decoder.Step();
    rows.push_back(decoder.ReadKv(id, TinyModel().spec.num_layers - 1));
  }
  // The 37 tokens of the prompt and the first new token.
  ASSERT_EQ(rows[0].k.size(), static_cast<size_t>(38 * TinyModel().spec.KvSize()));
  testing::RelativeError k, v;
  k.Add(rows[1].k, rows[0].k);
  v.Add(rows[1].v, rows[0].v);
  EXPECT_LE(k.Value(), 1e-5);
  EXPECT_LE(v.Value(), 1e-5);
}

TEST(DecoderTest, SampledTextDependsOnItsSeedAloneNotOnItsBatch) {
  const SamplingRule rule{.temperature = 1.0f, .top_k = 20, .top_p = 0.95f, .seed = 77};
  GenerateOptions alone;
  alone.max_new_tokens = kNewTokens;
  alone.rule = rule;
  Decoder decoder(TinyModel().spec, TinyModel().weights, SmallOptions());
  const std::vector<int32_t> text = Generate(decoder, Cases()[2].prompt, alone).tokens;
  EXPECT_NE(text, GoldenText(Cases()[2]));

  decoder.AddSequence(Cases()[0].prompt, {}, kNewTokens);
  SamplingRule other = rule;
  other.seed = 78;
  const SequenceId differs = decoder.AddSequence(Cases()[2].prompt, other, kNewTokens);
  decoder.Step();
  const SequenceId same = decoder.AddSequence(Cases()[2].prompt, rule, kNewTokens);
  auto texts = RunAll(decoder);
  EXPECT_EQ(texts[same], text);
  EXPECT_NE(texts[differs], text);
}

// The temperature is so high that all tokens are equally likely and only the draws decide.
TEST(DecoderTest, EveryPositionHasADrawOfItsOwn) {
  Decoder decoder(TinyModel().spec, TinyModel().weights, SmallOptions());
  GenerateOptions options;
  options.max_new_tokens = kNewTokens;
  options.rule = {.temperature = 1e4f, .seed = 3};
  const auto tokens = Generate(decoder, Cases()[2].prompt, options).tokens;
  EXPECT_GE(std::set<int32_t>(tokens.begin(), tokens.end()).size(), 18u);
}

// RoPE does not rotate position 0, so the first key is the head norm of the projection, which this
// test computes itself.
TEST(DecoderTest, FirstTokensKeyIsNotRotated) {
  const ModelSpec& spec = TinyModel().spec;
  const LayerWeights& layer = TinyModel().weights.layers[0];
  const auto values = [](const TensorView& view) {
    std::vector<float> out(static_cast<size_t>(view.bytes / SizeOf(view.dtype)));
    ConvertElements(view.dtype, view.data, DType::kF32, out.data(),
                    static_cast<int64_t>(out.size()));
    return out;
  };
  const auto normed = [&](std::vector<double> x, const std::vector<float>& weight) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + spec.norm_eps);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= scale * weight[i];
    return x;
  };
  const int32_t token = 42;
  const auto hidden = static_cast<size_t>(spec.hidden_size);
  const auto head_dim = static_cast<size_t>(spec.head_dim);
  const std::vector<float> embedding = values(TinyModel().weights.embedding), k = values(layer.k);
  const auto row = embedding.begin() + static_cast<std::ptrdiff_t>(token * hidden);
  const std::vector<double> x =
      normed({row, row + static_cast<std::ptrdiff_t>(hidden)}, values(layer.input_norm));
  std::vector<float> expected;
  for (size_t head = 0; head < static_cast<size_t>(spec.num_kv_heads); ++head) {
    std::vector<double> key(head_dim, 0);
    for (size_t d = 0; d < head_dim; ++d) {
      for (size_t i = 0; i < hidden; ++i) key[d] += k[(head * head_dim + d) * hidden + i] * x[i];
    }
    for (const double value : normed(key, values(layer.k_norm))) {
      expected.push_back(static_cast<float>(value));
    }
  }
  Decoder decoder(spec, TinyModel().weights, SmallOptions());
  const SequenceId id = decoder.AddSequence(std::vector<int32_t>{token}, {}, 1);
  decoder.Step();
  testing::RelativeError error;
  error.Add(decoder.ReadKv(id, 0).k, expected);
  EXPECT_LE(error.Value(), 1e-6);
}

TEST(DecoderTest, ReplacedTokenIsWhatTheModelReadsNext) {
  Decoder decoder(TinyModel().spec, TinyModel().weights, SmallOptions());
  std::vector<int32_t> prompt = Cases()[1].prompt;
  const SequenceId id = decoder.AddSequence(prompt, {}, 2);
  decoder.Step();
  decoder.Flush();
  decoder.ReplaceNewestToken(id, 5);
  decoder.Step();
  const std::vector<float> replaced = decoder.Logits(id);
  decoder.RemoveSequence(id);
  prompt.push_back(5);
  const SequenceId whole = decoder.AddSequence(prompt, {}, 1);
  decoder.Step();
  testing::RelativeError error;
  error.Add(replaced, decoder.Logits(whole));
  EXPECT_LE(error.Value(), 1e-5);
  EXPECT_THROW(decoder.ReplaceNewestToken(whole, 384), InvalidArgument);
}

TEST(DecoderTest, StopIdsEndTheTextAndInterruptionIsSeen) {
  Decoder decoder(TinyModel().spec, TinyModel().weights, SmallOptions());
  const GoldenCase& one = Cases()[2];
  GenerateOptions options;
  options.max_new_tokens = kNewTokens;
  options.stop_ids = {one.tokens[4]};
  std::vector<int32_t> seen;
  options.on_token = [&](int32_t token) {
    seen.push_back(token);
    return true;
  };
  GenerateResult result = Generate(decoder, one.prompt, options);
  const auto stop = std::ranges::find(one.tokens, one.tokens[4]);
  EXPECT_EQ(result.tokens, std::vector<int32_t>(one.tokens.begin(), stop + 1));
  EXPECT_EQ(seen, result.tokens);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(decoder.Pages().NumFree(), decoder.Pages().NumPages());

  std::atomic<bool> interrupted = false;
  options.stop_ids.clear();
  options.interrupted = &interrupted;
  options.on_token = [&](int32_t) {
    interrupted = true;
    return true;
  };
  result = Generate(decoder, one.prompt, options);
  EXPECT_TRUE(result.interrupted);
  EXPECT_LE(result.tokens.size(), 3u);
  EXPECT_FALSE(result.stopped);

  options.interrupted = nullptr;
  options.on_token = [&](int32_t token) { return token != one.tokens[4]; };
  result = Generate(decoder, one.prompt, options);
  EXPECT_EQ(result.tokens, seen);
  EXPECT_TRUE(result.stopped);
}

TEST(DecoderTest, BadSequencesAreRefusedWithTheValues) {
  DecoderOptions options = SmallOptions();
  options.kv_pages = 5;
  options.max_batch = 2;
  Decoder decoder(TinyModel().spec, TinyModel().weights, options);
  const auto add = [&](const std::vector<int32_t>& prompt, int64_t count) {
    return [&decoder, prompt, count] { decoder.AddSequence(prompt, {}, count); };
  };
  ExpectError<InvalidArgument>(add({}, 1), {"prompt is empty"});
  ExpectError<InvalidArgument>(add({1, 384}, 1), {"384", "0 to 383"});
  ExpectError<InvalidArgument>(add({1, -1}, 1), {"-1", "0 to 383"});
  ExpectError<InvalidArgument>(add({1}, 0), {"max_new_tokens is 0"});
  ExpectError<InvalidArgument>(add(std::vector<int32_t>(120, 1), 9), {"120", "9", "128"});
  ExpectError<InvalidArgument>(add(std::vector<int32_t>(81, 1), 1), {"6 pages", "5 of 5"});
  ExpectError<InvalidArgument>(
      [&] { decoder.AddSequence(std::vector<int32_t>{1}, {.temperature = -1}, 1); }, {"-1"});
  EXPECT_FALSE(decoder.HasWork());
  decoder.AddSequence(std::vector<int32_t>{1}, {}, 1);
  decoder.AddSequence(std::vector<int32_t>{1}, {}, 1);
  ExpectError<InvalidArgument>(add({1}, 1), {"full", "2"});
  ExpectError<InvalidArgument>([&] { decoder.RemoveSequence(99); }, {"99"});
}

TEST(DecoderTest, BadOptionsAreRefusedWithTheValues) {
  const auto make = [](auto&& change) {
    return [change] {
      DecoderOptions options = SmallOptions();
      change(options);
      Decoder decoder(TinyModel().spec, TinyModel().weights, options);
    };
  };
  using Options = DecoderOptions&;
  ExpectError<InvalidArgument>(make([](Options o) { o.max_batch = 0; }), {"max_batch is 0"});
  ExpectError<InvalidArgument>(make([](Options o) { o.max_context = 4097; }), {"4097", "4096"});
  ExpectError<InvalidArgument>(make([](Options o) { o.page_size = 0; }), {"page_size is 0"});
  ExpectError<InvalidArgument>(make([](Options o) { o.page_size = 48; }), {"page_size is 48"});
  ExpectError<InvalidArgument>(make([](Options o) { o.token_budget = 0; }), {"token_budget is 0"});
  ExpectError<InvalidArgument>(make([](Options o) { o.kv_pages = -1; }), {"kv_pages is -1"});
  ExpectError<InvalidArgument>(make([](Options o) { o.kv_pages = o.pinned_pages = 4; }),
                               {"pinned_pages is 4", "0 to 3"});
}

TEST(DecoderTest, MemoryThatDoesNotSufficeIsRefusedWithNeededAndFree) {
  const MemoryNeeds plan{.weight_bytes = 1000,
                         .kv_bytes = 200,
                         .activation_bytes = 30,
                         .workspace_bytes = 4,
                         .table_bytes = 5};
  EXPECT_NO_THROW(RequireRoom(plan, 1239));
  ExpectError<RuntimeFailure>([&] { RequireRoom(plan, 1238); },
                              {"1239 bytes are needed", "weights 1000", "KV cache 200",
                               "activations 30", "workspaces 4", "tables 5", "1238 are free"});
}

TEST(DecoderTest, MemoryPlanIsTheSumOfWhatTheModelAsksFor) {
  const ModelSpec& spec = TinyModel().spec;
  const DecoderOptions options{
      .dtype = DType::kF32, .max_batch = 3, .max_context = 100, .page_size = 64};
  const MemoryNeeds plan = MemoryNeedsOf(spec, options, {});
  EXPECT_EQ(plan.kv_bytes, 3 * 2 * 64 * spec.KvBytesPerToken(DType::kF32));
  const int64_t parameters = TinyModel().weights.parameters;
  EXPECT_GE(plan.weight_bytes, parameters * 4);
  EXPECT_LE(plan.weight_bytes, parameters * 4 + 256 * (3 + 12 * spec.num_layers));
  EXPECT_GE(plan.activation_bytes, 3 * spec.vocab_size * 4);
  EXPECT_GE(plan.table_bytes, 100 * spec.head_dim * 4);
  EXPECT_EQ(plan.workspace_bytes, 0);
  EXPECT_EQ(plan.Total(), plan.weight_bytes + plan.kv_bytes + plan.activation_bytes +
                              plan.workspace_bytes + plan.table_bytes);
  DecoderOptions scratch = options;
  scratch.ablate = ParseAblations("chunk_decode");
  EXPECT_EQ(MemoryNeedsOf(spec, scratch, {}).kv_bytes - plan.kv_bytes,
            64 * spec.KvBytesPerToken(DType::kF32));
}

}  // namespace
}  // namespace tokline
