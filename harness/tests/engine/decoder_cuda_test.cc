// Tests what only the CUDA decoder has: graphs, dependent launches, and a host that is a step
// ahead.
#include "harness/engine/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "harness/engine/ablation.h"
#include "harness/engine/generate.h"
#include "harness/measure/throughput.h"
#include "harness/tests/engine/drawn_model.h"
#include "harness/tests/engine/golden.h"
#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/message_of.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::AllOf;
using testing::GoldenCase;
using ::testing::HasSubstr;
using testing::LoadedModel;

using Texts = std::map<SequenceId, std::vector<int32_t>>;

class DecoderCudaTest : public testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    model_ = std::make_unique<LoadedModel>(testing::LoadTinyModel());
    golden_ = testing::ReadGolden("qwen3_tiny");
  }

  DecoderOptions Options() const {
    return {.device = Device::kCuda,
            .dtype = DType::kBf16,
            .max_batch = 12,
            .max_context = 160,
            .page_size = 16,
            .token_budget = 64};
  }

  std::unique_ptr<Decoder> MakeDecoder(const DecoderOptions& options) const {
    auto decoder = std::make_unique<Decoder>(model_->spec, model_->weights, options);
    decoder->WarmUp();
    return decoder;
  }

  // Runs sequences that come and go at random, drawn with temperature. With `flush`, the host does
  // not work a step ahead.
  Texts ComeAndGo(Decoder& decoder, uint32_t seed, bool flush) const {
    std::mt19937 rng(seed);
    Texts texts;
    std::vector<SequenceId> alive;
    const auto take = [&](std::span<const NewToken> tokens) {
      for (const NewToken& token : tokens) texts[token.sequence].push_back(token.token);
    };
    for (int step = 0; step < 300; ++step) {
      if (alive.size() < 10 && rng() % 4 == 0) {
        const GoldenCase& one = golden_.cases[rng() % golden_.cases.size()];
        const SamplingRule rule{.temperature = 1.0f, .top_k = 50, .top_p = 0.9f, .seed = rng()};
        alive.push_back(decoder.AddSequence(one.prompt, rule, 80));
      }
      if (!alive.empty() && rng() % 12 == 0) {
        const size_t which = rng() % alive.size();
        if (flush) take(decoder.Flush());
        decoder.RemoveSequence(alive[which]);
        alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(which));
      }
      take(decoder.Step().tokens);
      if (flush) take(decoder.Flush());
    }
    take(decoder.Flush());
    for (const SequenceId id : alive) decoder.RemoveSequence(id);
    return texts;
  }

  void ExpectPlainStepsLikeTheCpus(ChunkSharing sharing) const;

  std::unique_ptr<LoadedModel> model_;
  testing::Golden golden_;
};

// If a sequence was removed while its token was in flight, that token is missing on one side.
void ExpectSameTexts(const Texts& ahead, const Texts& waiting) {
  ASSERT_GE(waiting.size(), 20u);
  for (const auto& [id, text] : waiting) {
    const auto found = ahead.find(id);
    const std::vector<int32_t> other =
        found == ahead.end() ? std::vector<int32_t>() : found->second;
    ASSERT_LE(text.size() - other.size(), 1u) << "sequence " << id;
    EXPECT_TRUE(std::equal(other.begin(), other.end(), text.begin())) << "sequence " << id;
  }
}

TEST_F(DecoderCudaTest, HostAStepAheadGivesTheSameTextAsAHostThatWaits) {
  const auto ahead = MakeDecoder(Options()), waiting = MakeDecoder(Options());
  for (const uint32_t seed : {1u, 2u, 3u}) {
    // The ids continue from run to run in both decoders.
    ExpectSameTexts(ComeAndGo(*ahead, seed, false), ComeAndGo(*waiting, seed, true));
  }
  EXPECT_EQ(ahead->PlainSteps(), 0);
  EXPECT_GT(ahead->GraphSteps(), 300);
  EXPECT_EQ(ahead->Pages().NumFree(), ahead->Pages().NumPages());
}

// Positions, lengths and pages of the steps differ from those of the capture, so a graph that froze
// any of them would give other texts.
TEST_F(DecoderCudaTest, GraphsPlainAndIndependentLaunchesGiveTheSameText) {
  const auto graphs = MakeDecoder(Options());
  const Texts expected = ComeAndGo(*graphs, 5, false);
  for (const char* name : {"graphs", "pdl", "graphs,pdl"}) {
    DecoderOptions options = Options();
    options.ablate = ParseAblations(name);
    const auto decoder = MakeDecoder(options);
    EXPECT_EQ(ComeAndGo(*decoder, 5, false), expected) << name;
    EXPECT_EQ(decoder->GraphSteps() == 0, options.ablate.Has(Ablation::kGraphs));
  }
}

TEST_F(DecoderCudaTest, WithoutWarmUpStepsAreLaunchedPlainly) {
  Decoder cold(model_->spec, model_->weights, Options());
  const auto warm = MakeDecoder(Options());
  GenerateOptions options;
  options.max_new_tokens = 40;
  const auto text = Generate(cold, golden_.cases[3].prompt, options).tokens;
  EXPECT_EQ(text.size(), 40u);
  EXPECT_EQ(text, Generate(*warm, golden_.cases[3].prompt, options).tokens);
  EXPECT_GT(cold.PlainSteps(), 0);
  EXPECT_EQ(cold.GraphSteps(), 0);
}

TEST_F(DecoderCudaTest, RepeatedRunsGiveTheSameBits) {
  const auto decoder = MakeDecoder(Options());
  const auto logits = [&] {
    std::vector<std::vector<float>> rows;
    std::vector<SequenceId> ids;
    for (const GoldenCase& one : golden_.cases) {
      ids.push_back(decoder->AddSequence(one.prompt, {}, 60));
    }
    for (int step = 0; step < 50; ++step) decoder->Step();
    for (const SequenceId id : ids) {
      rows.push_back(decoder->Logits(id));
      decoder->RemoveSequence(id);
    }
    return rows;
  };
  const auto first = logits();
  for (int run = 0; run < 5; ++run) EXPECT_EQ(logits(), first);
}

// Without graphs, so that racecheck can follow every kernel of a prefill and of decode steps.
TEST_F(DecoderCudaTest, HiddenStatesQueriesAndKeysAreThoseOfTheCpu) {
  DecoderOptions cpu_options = Options();
  cpu_options.device = Device::kCpu;
  cpu_options.dtype = DType::kF32;
  const GoldenCase& one = golden_.cases[1];
  const auto generated = [&](const DecoderOptions& options) {
    Decoder decoder(model_->spec, model_->weights, options);
    return Generate(decoder, one.prompt,
                    {.max_new_tokens = 4,
                     .force_ids = {one.tokens.begin(), one.tokens.begin() + 4},
                     .want_hidden = true});
  };
  const GenerateResult expected = generated(cpu_options), actual = generated(Options());
  const ModelSpec& spec = model_->spec;
  const int64_t tokens = std::ssize(one.prompt) + 3;
  const auto expect_near = [&](const std::vector<float>& values, const std::vector<float>& wanted,
                               int64_t parts, int64_t width) {
    ASSERT_EQ(std::ssize(wanted), tokens * parts * width);
    ASSERT_EQ(values.size(), wanted.size());
    for (int64_t part = 0; part < parts; ++part) {
      testing::RelativeError error;
      for (int64_t at = part * width; at < std::ssize(wanted); at += parts * width) {
        error.Add(std::span(values).subspan(at, width), std::span(wanted).subspan(at, width));
      }
      // The logits' error is that of the last state and of the LM head.
      EXPECT_LE(error.Value(), 1.25 * golden_.bf16_relative_l2) << part;
    }
  };
  expect_near(actual.hidden, expected.hidden, 2 * spec.num_layers + 1, spec.hidden_size);
  expect_near(actual.heads, expected.heads, spec.num_layers, spec.QSize() + spec.KvSize());
  for (int64_t token = 0; token < tokens; ++token) {  // embeddings are copied
    const auto row = token * (2 * spec.num_layers + 1) * spec.hidden_size;
    EXPECT_TRUE(std::equal(actual.hidden.begin() + row,
                           actual.hidden.begin() + row + spec.hidden_size,
                           expected.hidden.begin() + row));
  }
}

// Three sequences of 71, 79 and 100 tokens that begin alike, prefilled in pieces, then decoded
// together along the CPU's greedy text: the logits are those of the CPU. Without graphs and without
// the kernel of a whole step, so that racecheck can follow every op's kernel.
void DecoderCudaTest::ExpectPlainStepsLikeTheCpus(ChunkSharing sharing) const {
  DecoderOptions options = Options(), cpu_options = Options();
  options.reuse = cpu_options.reuse = true;
  options.sharing = sharing;
  options.ablate = ParseAblations("persistent");
  cpu_options.device = Device::kCpu;
  cpu_options.dtype = DType::kF32;
  Decoder cpu(model_->spec, model_->weights, cpu_options);
  Decoder cuda(model_->spec, model_->weights, options);
  std::vector<SequenceId> ids;
  for (const int32_t own : {1, 9, 30}) {
    std::vector<int32_t> prompt = golden_.cases[3].prompt;
    for (int32_t i = 0; i < own; ++i) prompt.push_back(own + i);
    ids.push_back(cpu.AddSequence(prompt, {}, 40));
    ASSERT_EQ(cuda.AddSequence(prompt, {}, 40), ids.back());
  }
  testing::RelativeError error;
  for (int step = 0; step < 8; ++step) {
    for (Decoder* decoder : {&cpu, &cuda}) {
      decoder->Step();
      decoder->Flush();
    }
    for (const SequenceId id : ids) {
      if (cpu.Schedule().Get(id).last_draw != cpu.Schedule().Counts().steps) continue;
      const std::vector<float> expected = cpu.Logits(id);
      error.Add(cuda.Logits(id), expected);
      const auto token = std::ranges::max_element(expected) - expected.begin();
      for (Decoder* decoder : {&cpu, &cuda}) {
        decoder->ReplaceNewestToken(id, static_cast<int32_t>(token));
      }
    }
  }
  EXPECT_GT(error.Value(), 0);
  EXPECT_LE(error.Value(), 1.25 * golden_.bf16_relative_l2);
  EXPECT_EQ(cuda.GraphSteps(), 0);
  EXPECT_EQ(cuda.Reads().tokens < cuda.Reads().unshared_tokens, sharing == ChunkSharing::kAlways);
}

TEST_F(DecoderCudaTest, PlainStepsOfARaggedBatchGiveTheLogitsOfTheCpu) {
  ExpectPlainStepsLikeTheCpus(ChunkSharing::kNever);
}

TEST_F(DecoderCudaTest, PlainStepsOfABatchThatReadsItsSharedRunOnceGiveTheLogitsOfTheCpu) {
  ExpectPlainStepsLikeTheCpus(ChunkSharing::kAlways);
}

TEST_F(DecoderCudaTest, KeysAndValuesOfTheFirstLayerAreThoseOfTheCpu) {
  DecoderOptions cpu_options = Options();
  cpu_options.device = Device::kCpu;
  cpu_options.dtype = DType::kF32;
  Decoder cpu(model_->spec, model_->weights, cpu_options);
  const auto cuda = MakeDecoder(Options());
  const auto rows = [&](Decoder& decoder) {
    decoder.AddSequence(golden_.cases[1].prompt, {}, 1);
    const SequenceId id = decoder.AddSequence(golden_.cases[3].prompt, {}, 4);
    decoder.Step();  // 64 of 86 prompt tokens
    decoder.Step();
    return decoder.ReadKv(id, 0);
  };
  const KvRows expected = rows(cpu), actual = rows(*cuda);
  ASSERT_EQ(actual.k.size(), static_cast<size_t>(70 * model_->spec.KvSize()));
  testing::RelativeError k, v;
  k.Add(actual.k, expected.k);
  v.Add(actual.v, expected.v);
  // Allows half a unit in the last place for each rounding: two in the norm, one in the projection,
  // and for K two in the head norm and one in RoPE.
  EXPECT_LE(v.Value(), 3 * Epsilon(DType::kBf16) / 2);
  EXPECT_LE(k.Value(), 6 * Epsilon(DType::kBf16) / 2);
}

// What a step shares changes as sequences come and go, so no graph may freeze it.
TEST_F(DecoderCudaTest, GraphsServeStepsThatShareAndStepsThatDoNot) {
  DecoderOptions options = Options();
  options.reuse = true;
  options.sharing = ChunkSharing::kAlways;
  const auto graphs = MakeDecoder(options);
  const Texts expected = ComeAndGo(*graphs, 6, false);
  EXPECT_EQ(graphs->PlainSteps(), 0);
  EXPECT_LT(graphs->Reads().tokens, graphs->Reads().unshared_tokens);
  options.ablate = ParseAblations("graphs");
  const auto plain = MakeDecoder(options);
  EXPECT_EQ(ComeAndGo(*plain, 6, false), expected);
  EXPECT_EQ(plain->GraphSteps(), 0);
  EXPECT_EQ(plain->Reads().tokens, graphs->Reads().tokens);
}

// Twelve sequences share a prefix and are forced along one text. A step that reads the prefix once
// gives the same logits as one that reads it for each sequence, except for rounding in bf16, and
// the same greedy tokens unless that rounding can change them.
TEST_F(DecoderCudaTest, ReadingSharedRunsOnceGivesTheLogitsOfReadingThemAlone) {
  const GoldenCase& one = golden_.cases[3];
  DecoderOptions options = Options();
  options.reuse = true;
  options.sharing = ChunkSharing::kNever;
  const auto alone = MakeDecoder(options);
  options.sharing = ChunkSharing::kAlways;
  const auto once = MakeDecoder(options);
  std::vector<SequenceId> ids;
  for (int32_t i = 0; i < 12; ++i) {
    std::vector<int32_t> prompt = one.prompt;
    prompt.push_back(i);  // differs
    ids.push_back(alone->AddSequence(prompt, {}, 40));
    ASSERT_EQ(once->AddSequence(prompt, {}, 40), ids.back());
  }
  const double bound = 1.25 * golden_.bf16_relative_l2;  // for either; see DecoderGoldenCudaTest
  testing::RelativeError error;
  for (int step = 0; step < 40; ++step) {
    for (Decoder* decoder : {alone.get(), once.get()}) {
      decoder->Step();
      decoder->Flush();
    }
    for (const SequenceId id : ids) {
      if (alone->Schedule().Get(id).last_draw != alone->Schedule().Counts().steps) continue;
      const std::vector<float> expected = alone->Logits(id), actual = once->Logits(id);
      error.Add(actual, expected);
      const auto token = std::ranges::max_element(expected) - expected.begin();
      const auto other = std::ranges::max_element(actual) - actual.begin();
      double square = 0;
      for (const float logit : expected) square += double{logit} * logit;
      EXPECT_LE(expected[token] - expected[other], 2 * bound * std::sqrt(square))
          << "sequence " << id << ", step " << step;
      alone->ReplaceNewestToken(id, static_cast<int32_t>(token));
      once->ReplaceNewestToken(id, static_cast<int32_t>(token));
    }
  }
  EXPECT_LE(error.Value(), 2 * bound);
  EXPECT_GT(error.Value(), 0);  // the sums are split differently
  EXPECT_LT(once->Reads().tokens, once->Reads().unshared_tokens / 2);
  EXPECT_EQ(alone->Reads().tokens, alone->Reads().unshared_tokens);
}

// Reuses the whole prompt except its last token, and half of the prompt.
TEST_F(DecoderCudaTest, ReusedPrefixGivesTheLogitsOfAComputedOne) {
  const std::vector<int32_t>& prompt = golden_.cases[3].prompt;
  const auto first_logits = [&prompt](Decoder& decoder) {
    const SequenceId id = decoder.AddSequence(prompt, {}, 2);
    while (decoder.Schedule().Get(id).drawn == 0) decoder.Step();
    return decoder.Logits(id);
  };
  DecoderOptions options = Options();
  const std::vector<float> computed = first_logits(*MakeDecoder(options));
  options.reuse = true;
  for (const size_t shared : {prompt.size(), prompt.size() / 2}) {
    const auto decoder = MakeDecoder(options);
    decoder->Submit(
        {.prompt = {prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(shared)},
         .max_new_tokens = 1,
         .keep = true});
    while (decoder->HasWork()) decoder->Step();
    decoder->Flush();
    testing::RelativeError error;
    error.Add(first_logits(*decoder), computed);
    EXPECT_EQ(decoder->Schedule().Counts().reused_tokens,
              static_cast<int64_t>(std::min(shared, prompt.size() - 1)));
    EXPECT_LE(error.Value(), 2 * 1.25 * golden_.bf16_relative_l2) << shared << " tokens shared";
  }
}

TEST_F(DecoderCudaTest, BenchRunsAsGraphsAndMeasuresTheHost) {
  BenchOptions bench{.batch = 4, .prompt_tokens = 30, .new_tokens = 20, .repeats = 3};
  DecoderOptions options = Options();
  options.max_context = BenchContextTokens(bench, options.token_budget);
  Decoder decoder(model_->spec, model_->weights, options);
  const BenchResult result = RunBench(decoder, bench);
  EXPECT_TRUE(result.graphs);
  ASSERT_EQ(result.samples.size(), 3u);
  EXPECT_GT(result.ms_per_step, 0);
  EXPECT_GT(result.host_share, 0);
  EXPECT_LE(result.host_share, 1);
}

// A vocabulary of which every SM has a tile, so that the LM head finds the largest logits itself.
class LargeVocabularyTest : public testing::HopperCudaTest {
 protected:
  static ModelSpec Spec() {
    ModelSpec spec = testing::FamilyShapes().front();
    spec.hidden_size = 256;
    spec.vocab_size = 300 * int64_t{QueryDeviceFacts().sm_count};
    return spec;
  }
  static DecoderOptions Options(int32_t batch) {
    return {.device = Device::kCuda,
            .dtype = DType::kBf16,
            .max_batch = batch,
            .max_context = 40,
            .page_size = 16};
  }
  // Every third one is drawn with a temperature.
  static std::vector<SequenceId> Add(Decoder& decoder, int32_t batch) {
    std::vector<SequenceId> ids;
    for (int32_t i = 0; i < batch; ++i) {
      const SamplingRule rule{.temperature = i % 3 == 1 ? 1.0f : 0.0f, .seed = uint64_t(i)};
      ids.push_back(decoder.AddSequence(std::vector<int32_t>{i, 7 * i, 3}, rule, 20));
    }
    return ids;
  }
};

TEST_F(LargeVocabularyTest, RowsWhoseLogitsAreNotKeptGetTheSameTokens) {
  const testing::DrawnModel model(Spec());
  std::map<bool, Texts> texts;
  for (const bool keeps : {true, false}) {
    DecoderOptions options = Options(40);
    options.keep_logits = keeps;
    Decoder decoder(model.spec, model.weights, options);
    decoder.WarmUp();
    const std::vector<SequenceId> ids = Add(decoder, 40);
    texts[keeps] = testing::RunAll(decoder);
    if (!keeps) {
      EXPECT_THROW(decoder.Logits(ids[0]), InvalidArgument);
    }
  }
  EXPECT_EQ(texts[true].size(), 40u);
  EXPECT_EQ(texts[false], texts[true]);
}

TEST_F(LargeVocabularyTest, GreedyTokensAreThoseOfTheLargestLogits) {
  const testing::DrawnModel model(Spec());
  for (const int32_t batch : {4, 40, 100}) {
    Decoder decoder(model.spec, model.weights, Options(batch));
    decoder.WarmUp();
    const std::vector<SequenceId> ids = Add(decoder, batch);
    for (int step = 0; step < 4; ++step) {
      decoder.Step();
      std::map<SequenceId, int32_t> drawn;
      for (const NewToken& token : decoder.Flush()) drawn[token.sequence] = token.token;
      ASSERT_EQ(drawn.size(), ids.size());
      for (size_t i = 0; i < ids.size(); ++i) {
        if (i % 3 == 1) continue;
        const std::vector<float> logits = decoder.Logits(ids[i]);
        EXPECT_EQ(drawn[ids[i]], std::ranges::max_element(logits) - logits.begin())
            << "sequence " << i << " of " << batch << ", step " << step;
      }
    }
  }
}

TEST_F(DecoderCudaTest, Fp32AndTooLargeACacheAreRefusedWithTheValues) {
  DecoderOptions options = Options();
  options.dtype = DType::kF32;
  EXPECT_THROW(Decoder(model_->spec, model_->weights, options), InvalidArgument);
  options = Options();
  options.kv_pages = 1'000'000'000;
  const int64_t needed = MemoryNeedsOf(model_->spec, options, QueryDeviceFacts()).Total();  // 24 TB
  EXPECT_THAT(testing::MessageOf<RuntimeFailure>(
                  [&] { Decoder decoder(model_->spec, model_->weights, options); }),
              AllOf(HasSubstr(std::to_string(needed)), HasSubstr("are free")));
}

}  // namespace
}  // namespace tokline
