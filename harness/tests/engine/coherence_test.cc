// Checks that the embedded model answers right through the CPU decoder at every context length,
// storage type, page size, schedule and set of ops. TOKLINE_COHERENCE=full asks more questions
// (docs/embedded_model.md).
#include <gtest/gtest.h>

#include <string>

#include "harness/engine/ablation.h"
#include "harness/tests/engine/coherence_gate.h"
#include "kernels/common/dtype.h"

namespace tokline {
namespace {

using testing::CoherenceGate;
using testing::CoherenceScore;

const CoherenceGate& Gate() {
  static const CoherenceGate gate;
  return gate;
}

// The facts of the one context form a chunk, which is computed once.
DecoderOptions Sharing(DType dtype) {
  return {.dtype = dtype,
          .max_batch = 4,
          .max_context = testing::kLongestContext,
          .kv_pages = 2 * testing::kLongestContext / 16,
          .page_size = 16,
          .token_budget = 512,
          .reuse = true};
}

class CoherenceTest : public ::testing::TestWithParam<DType> {};

TEST_P(CoherenceTest, AnswersAreRightAtEveryLengthAndDepth) {
  const bool full = testing::FullCoherence();
  for (const int64_t length : {32, 48, 64, 100, 180, 256, 420, 700, 1024, 1500, 2048, 3072, 4096}) {
    if (!full && (length == 1500 || length == 3072)) continue;
    if (!full && length > 700 && GetParam() == DType::kF16) continue;
    for (const bool chat : {false, true}) {
      if (!full && length > 700 && chat == (length == 2048)) continue;
      const bool many = length <= 256;
      const CoherenceScore score = Gate().Check({.length = length,
                                                 .chat = chat,
                                                 .count = full ? (many ? 10 : 25) : (many ? 2 : 16),
                                                 .contexts = many ? 12 : (full ? 4 : 1)},
                                                Sharing(GetParam()));
      std::printf("%s, %lld tokens, %s: %d of %d right\n", std::string(Name(GetParam())).c_str(),
                  static_cast<long long>(length), chat ? "chat" : "bare", score.right, score.asked);
      // All questions except those that begin together find the facts in the cache.
      if (!many && !full) {
        EXPECT_GE(score.counts.reused_tokens, (score.asked - 8) * (length - 50));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CoherenceTest,
                         ::testing::Values(DType::kF32, DType::kBf16, DType::kF16),
                         [](const auto& info) { return std::string(Name(info.param)); });

constexpr int64_t kLength = 300;

DecoderOptions Alone() {
  return {.dtype = DType::kBf16, .max_batch = 3, .max_context = 320, .page_size = 16};
}

TEST(CoherenceScheduleTest, PagesOfEverySize) {
  for (const int32_t page_size : {16, 32, 64, 128, 256}) {
    SCOPED_TRACE(page_size);
    DecoderOptions options = Alone();
    options.page_size = page_size;
    Gate().Check({.length = kLength,
                  .chat = page_size % 3 == 0,
                  .count = 4,
                  .seed = static_cast<uint32_t>(page_size)},
                 options);
  }
}

TEST(CoherenceScheduleTest, PromptsInPiecesOfAnySize) {
  for (const int64_t budget : {1, 5, 16, 77, 301}) {
    SCOPED_TRACE(budget);
    DecoderOptions options = Alone();
    options.token_budget = budget;
    Gate().Check({.length = kLength,
                  .chat = budget % 2 == 0,
                  .count = 4,
                  .seed = static_cast<uint32_t>(budget)},
                 options);
  }
}

TEST(CoherenceScheduleTest, BatchesOfAnySize) {
  for (const int32_t batch : {1, 2, 7, 16}) {
    SCOPED_TRACE(batch);
    DecoderOptions options = Alone();
    options.max_batch = batch;
    Gate().Check({.length = kLength, .chat = batch % 2 == 0, .count = std::max(4, batch)}, options);
  }
}

TEST(CoherenceScheduleTest, PreemptedAnswersAreRight) { Gate().CheckPreempted(Alone()); }

TEST(CoherenceScheduleTest, SharedReadsAnswerRight) {
  DecoderOptions options = Alone();
  options.max_batch = 6;
  Gate().CheckSharedReads(options, kLength);
}

TEST(CoherenceScheduleTest, RanksAnswerRight) {
  DecoderOptions options = Alone();
  options.ranks = 2;
  options.reuse = true;
  options.sharing = ChunkSharing::kAlways;
  Gate().Check({.length = kLength, .count = 6}, options);
}

TEST(CoherenceScheduleTest, EveryAblationAnswersRight) {
  for (const AblationEntry& entry : AllAblations()) {
    SCOPED_TRACE(entry.name);
    DecoderOptions options = Alone();
    options.ablate.Add(entry.ablation);
    Gate().Check({.length = kLength, .count = 4}, options);
  }
}

}  // namespace
}  // namespace tokline
