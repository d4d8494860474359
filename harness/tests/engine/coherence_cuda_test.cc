// Checks that the embedded model answers right through the CUDA decoder, with graphs, at every
// context length, storage type, page size, batch (and thus split of attention), prefill piece and
// ablation, and divided among two GPUs.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "harness/engine/ablation.h"
#include "harness/tests/engine/coherence_gate.h"
#include "harness/tests/kernels/cuda_test.h"
#include "kernels/common/dtype.h"

namespace tokline {
namespace {

class CoherenceCudaTest : public testing::CudaTest {
 protected:
  static const testing::CoherenceGate& Gate() {
    static const testing::CoherenceGate gate;
    return gate;
  }
  static DecoderOptions Options() {
    return {.device = Device::kCuda,
            .dtype = DType::kBf16,
            .max_batch = 16,
            .max_context = testing::kLongestContext,
            .token_budget = 2048};
  }
};

TEST_F(CoherenceCudaTest, AnswersAreRightAtEveryLengthAndDepth) {
  const int contexts = testing::FullCoherence() ? 16 : 4;
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const bool reuse : {false, true}) {
      for (const int64_t length :
           {32, 48, 64, 100, 180, 256, 420, 700, 1024, 1500, 2048, 3072, 4096}) {
        SCOPED_TRACE(Name(dtype));
        DecoderOptions options = Options();
        options.dtype = dtype;
        options.reuse = reuse;
        Gate().Check({.length = length, .chat = reuse, .count = 25, .contexts = contexts}, options);
      }
    }
  }
}

TEST_F(CoherenceCudaTest, EveryPageSizeAndBatchAnswersRight) {
  for (const int32_t page_size : {16, 64, 256}) {
    for (const int32_t batch : {1, 2, 5, 8, 33, 64}) {
      SCOPED_TRACE(page_size * 1000 + batch);
      DecoderOptions options = Options();
      options.page_size = page_size;
      options.max_batch = batch;
      Gate().Check({.length = 4096, .chat = batch % 2 == 0, .count = std::max(16, batch)}, options);
    }
  }
}

TEST_F(CoherenceCudaTest, PromptsInPiecesOfAnySize) {
  for (const int64_t budget : {17, 64, 129, 1000}) {
    SCOPED_TRACE(budget);
    DecoderOptions options = Options();
    options.token_budget = budget;
    Gate().Check({.length = 3000, .chat = budget % 2 == 0, .count = 8}, options);
  }
}

TEST_F(CoherenceCudaTest, PreemptedAnswersAreRight) { Gate().CheckPreempted(Options()); }

TEST_F(CoherenceCudaTest, SharedReadsAnswerRight) {
  DecoderOptions options = Options();
  options.max_batch = 48;
  Gate().CheckSharedReads(options, testing::kLongestContext);
}

TEST_F(CoherenceCudaTest, EveryAblationAnswersRight) {
  for (const AblationEntry& entry : AllAblations()) {
    for (const int64_t length : {300, 4096}) {
      SCOPED_TRACE(entry.name);
      DecoderOptions options = Options();
      options.ablate.Add(entry.ablation);
      Gate().Check({.length = length, .count = 32}, options);
    }
  }
}

// Sums of few rows, of many, in several steps, and of sequences that share what they read.
TEST_F(CoherenceCudaTest, TwoRanksAnswerRight) {
  if (CudaDeviceCount() < 2) {
    GTEST_SKIP() << "needs 2 GPUs; this process sees " << CudaDeviceCount();
  }
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int32_t batch : {1, 5, 40}) {
      for (const int64_t length : {48, 700, 4096}) {
        SCOPED_TRACE(batch);
        DecoderOptions options = Options();
        options.ranks = 2;
        options.dtype = dtype;
        options.max_batch = batch;
        options.reuse = batch == 40;
        options.sharing = ChunkSharing::kAlways;
        Gate().Check({.length = length, .chat = batch == 5, .count = std::max(16, batch)}, options);
      }
    }
  }
}

// A draw depends only on the request's seed and its position, but the last bits of the logits
// depend on the batch. A text may therefore change at a draw that falls between two tokens. The
// test prints how many texts change.
class SameTextsCudaTest : public testing::CudaTest {
 protected:
  static constexpr int kTexts = 256;
  static constexpr int64_t kNewTokens = 48;

  static DecoderOptions Options(int32_t batch) {
    return {.device = Device::kCuda,
            .dtype = DType::kBf16,
            .max_batch = batch,
            .max_context = 512,
            .page_size = 16,
            .token_budget = 2048};
  }
  std::vector<std::vector<int32_t>> Texts(const DecoderOptions& options, float temperature) const {
    Decoder decoder(model_.spec, model_.weights, options);
    decoder.WarmUp();
    std::mt19937 rng(7);
    std::map<SequenceId, size_t> places;
    for (const testing::LookupQuestion& one : task_.Draw(rng, 300, /*chat=*/false, kTexts)) {
      const SamplingRule rule{.temperature = temperature, .seed = 1000 + places.size()};
      const SequenceId id =
          decoder.Submit({.prompt = one.prompt, .rule = rule, .max_new_tokens = kNewTokens});
      places.emplace(id, places.size());
    }
    std::vector<std::vector<int32_t>> texts(kTexts);
    for (const auto& [id, text] : testing::RunAll(decoder)) texts[places.at(id)] = text;
    preemptions_ = decoder.Schedule().Counts().preemptions;
    return texts;
  }
  static double EqualShare(const std::vector<std::vector<int32_t>>& a,
                           const std::vector<std::vector<int32_t>>& b) {
    int equal = 0;
    for (int i = 0; i < kTexts; ++i) equal += a[i] == b[i];
    return static_cast<double>(equal) / kTexts;
  }

  testing::LookupTask task_;
  testing::LoadedModel model_{testing::LookupModelFolder()};
  mutable int64_t preemptions_ = 0;
};

TEST_F(SameTextsCudaTest, WhateverTheBatchAroundThem) {
  DecoderOptions scarce = Options(64);
  scarce.kv_pages = 240;
  for (const float temperature : {0.0f, 0.6f, 1.0f}) {
    const auto alone = Texts(Options(1), temperature);
    const double in_batch = EqualShare(alone, Texts(Options(64), temperature));
    const double preempted = EqualShare(alone, Texts(scarce, temperature));
    EXPECT_GT(preemptions_, 0);
    std::printf(
        "temperature %.1f: of %d texts of %d tokens, %.1f %% are the same alone and in batches of "
        "64, %.1f %% alone and preempted\n",
        temperature, kTexts, static_cast<int>(kNewTokens), 100 * in_batch, 100 * preempted);
    EXPECT_GT(in_batch, 0.5);
    EXPECT_GT(preempted, 0.5);
  }
}

}  // namespace
}  // namespace tokline
