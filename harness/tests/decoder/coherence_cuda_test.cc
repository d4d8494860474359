// The embedded model gives the right answers through the CUDA decoder: every context length,
// storage type, page size, batch (and so split of attention), piece of a prompt and ablation, with
// graphs.
#include <gtest/gtest.h>

#include <string>

#include "harness/decoder/ablation.h"
#include "harness/tests/decoder/coherence_gate.h"
#include "harness/tests/kernels/cuda_test.h"
#include "kernels/common/dtype.h"

namespace tokline {
namespace {

using testing::CoherenceScore;

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

TEST_F(CoherenceCudaTest, PreemptedAnswersAreRight) {
  for (const bool reuse : {false, true}) {
    DecoderOptions options = Options();
    options.max_batch = 12;
    options.max_context = 320;
    options.page_size = 16;
    options.reuse = reuse;
    options.kv_pages = 28;
    options.token_budget = 32;
    const CoherenceScore score =
        Gate().Check({.length = 300, .chat = reuse, .count = 12}, options, 8);
    EXPECT_GT(score.counts.preemptions, 0) << (reuse ? "with reuse" : "without");
  }
}

TEST_F(CoherenceCudaTest, SharedReadsAnswerRight) {
  for (const ChunkSharing sharing : {ChunkSharing::kNever, ChunkSharing::kAlways}) {
    DecoderOptions options = Options();
    options.max_batch = 48;
    options.reuse = true;
    options.sharing = sharing;
    const CoherenceScore score = Gate().Check({.length = 4096, .count = 96}, options);
    if (sharing == ChunkSharing::kAlways) {
      EXPECT_LT(score.reads.tokens, score.reads.of_each / 2);
    }
  }
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

}  // namespace
}  // namespace tokline
