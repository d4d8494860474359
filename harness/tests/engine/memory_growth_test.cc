// Checks that a decoder holds no more memory after many requests than after a few.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/measure/workload_run.h"
#include "harness/platform/process_memory.h"
#include "harness/tests/engine/golden.h"

namespace tokline {
namespace {

constexpr int64_t kPages = 24;
constexpr int kRequests = 24;  // per round

int32_t InFlight(const Decoder& decoder) {
  return decoder.Schedule().NumRunning() + decoder.Schedule().NumWaiting();
}

class MemoryGrowthTest : public ::testing::TestWithParam<bool> {
 protected:
  // Serves requests of several kinds: prompts that share a prefix, prompts that do not, and some
  // that are cancelled.
  void Serve(Decoder& decoder, uint64_t seed) {
    std::mt19937_64 rng(seed);
    const auto draw = [&rng](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(rng);
    };
    int submitted = 0;
    SequenceId cancelled = -1;
    while (submitted < kRequests || decoder.HasWork()) {
      while (submitted < kRequests && InFlight(decoder) < 6) {
        Request request;
        request.prompt.assign(static_cast<size_t>(draw(1, 40)), 7);
        for (size_t i = static_cast<size_t>(draw(0, 30)); i < request.prompt.size(); ++i) {
          request.prompt[i] = static_cast<int32_t>(draw(0, 300));
        }
        request.max_new_tokens = draw(1, 12);
        request.keep = submitted % 3 == 0;
        const SequenceId id = decoder.Submit(request);
        if (++submitted % 7 == 0) cancelled = id;
      }
      decoder.Step();
      if (cancelled >= 0 && decoder.Has(cancelled)) decoder.RemoveSequence(cancelled);
      cancelled = -1;
    }
    decoder.Flush();
  }
};

TEST_P(MemoryGrowthTest, ManyRequestsLeaveNoMoreThanAFew) {
  const testing::LoadedModel model = testing::LoadTinyModel();
  Decoder decoder(model.spec, model.weights,
                  {.max_batch = 4,
                   .max_context = 64,
                   .kv_pages = kPages,
                   .page_size = 16,
                   .token_budget = 64,
                   .reuse = GetParam()});
  constexpr int kWarmUpRounds = 3, kRounds = 12;
  int64_t heap_before = 0;
  for (int round = 0; round < kRounds; ++round) {
    // The rounds repeat the first ones exactly, so they must end with the same memory.
    decoder.EvictIdle();
    Serve(decoder, static_cast<uint64_t>(round % kWarmUpRounds));
    const MemoryPoint point = MemoryOf(decoder, int64_t{round + 1} * kRequests);
    EXPECT_EQ(point.sequences, 0) << "round " << round;
    EXPECT_LE(point.chunks, kPages) << "round " << round;
    EXPECT_LE(point.chunk_ids, kPages) << "round " << round;
    EXPECT_LE(point.kv_pages, GetParam() ? kPages : 0) << "round " << round;
    if (round % kWarmUpRounds != kWarmUpRounds - 1) continue;
    if (round >= 2 * kWarmUpRounds) {
      // Hash tables and free lists may still grow a little. A request takes a kilobyte.
      EXPECT_LE(point.host.heap_in_use - heap_before, 4096) << "round " << round;
    } else {
      heap_before = point.host.heap_in_use;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reuse, MemoryGrowthTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "WithReuse" : "WithoutReuse";
});

}  // namespace
}  // namespace tokline
