// Performs random operations on a scheduler and its model. TOKLINE_MODEL_OPERATIONS sets their
// number, TOKLINE_MODEL_SEED the first seed. A failure prints the shortest list of operations found
// to reproduce it, and TOKLINE_MODEL_REPLAY="SEED WORD WORD ..." runs only these.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "harness/tests/scheduler/scheduler_model.h"

namespace tokline {
namespace {

using testing::ModelCounts;
using testing::SchedulerModel;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Returns what went wrong, or nothing. Any exception is a failure.
std::optional<std::string> RunModel(uint64_t seed, const std::vector<uint64_t>& words,
                                    ModelCounts* counts = nullptr) {
  try {
    SchedulerModel model(seed);
    for (const uint64_t word : words) model.Apply(word);
    model.Drain();
    if (counts != nullptr) counts->Add(model.Counts());
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::nullopt;
}

// Shrinks a failing list of operations by leaving out ever shorter parts.
std::vector<uint64_t> Shrink(uint64_t seed, std::vector<uint64_t> words) {
  for (size_t length = words.size() / 2; length > 0; length /= 2) {
    for (size_t begin = 0; begin + length <= words.size();) {
      std::vector<uint64_t> fewer = words;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(begin),
                  fewer.begin() + static_cast<std::ptrdiff_t>(begin + length));
      if (RunModel(seed, fewer)) {
        words = std::move(fewer);
      } else {
        begin += length;
      }
    }
  }
  return words;
}

std::string Replay(uint64_t seed, const std::vector<uint64_t>& words) {
  std::ostringstream text;
  text << "TOKLINE_MODEL_REPLAY=\"" << seed;
  for (const uint64_t word : words) text << ' ' << word;
  text << '"';
  return text.str();
}

TEST(SchedulerModelTest, RandomRunsKeepEveryInvariantAndEveryText) {
  if (const char* replay = std::getenv("TOKLINE_MODEL_REPLAY")) {
    std::istringstream in(replay);
    uint64_t seed = 0, word = 0;
    std::vector<uint64_t> words;
    in >> seed;
    while (in >> word) words.push_back(word);
    EXPECT_EQ(RunModel(seed, words).value_or("no failure"), "no failure");
    return;
  }
  const auto operations =
      static_cast<int64_t>(FromEnvironment("TOKLINE_MODEL_OPERATIONS", 400'000));
  const uint64_t first = FromEnvironment("TOKLINE_MODEL_SEED", 1);
  ModelCounts counts;
  uint64_t seed = first;
  for (; counts.operations < operations; ++seed) {
    std::mt19937_64 rng(seed * 2654435761u + 1);
    std::vector<uint64_t> words(100 + rng() % 300);
    for (uint64_t& word : words) word = rng() >> 20;
    if (!RunModel(seed, words, &counts)) continue;
    words = Shrink(seed, std::move(words));
    FAIL() << RunModel(seed, words).value_or("the failure does not repeat") << "\n"
           << words.size() << " operations show it: " << Replay(seed, words);
  }
  std::cout << counts.operations << " operations in " << seed - first << " runs: " << counts.steps
            << " steps, " << counts.tokens << " tokens, " << counts.finished << " finished, "
            << counts.cancelled << " cancelled, " << counts.refused << " refused, "
            << counts.preemptions << " preemptions, " << counts.recomputed_tokens
            << " tokens computed again, " << counts.stalls << " stalls, " << counts.reused_tokens
            << " tokens reused, " << counts.rewritten_last << " whole prompts reused, "
            << counts.evictions << " evictions, " << counts.pins << " pins, " << counts.moves
            << " moves, " << counts.replaced << " tokens replaced, " << counts.shifted_tokens
            << " tokens shifted, " << counts.source_tokens << " computed for it, "
            << counts.copied_again << " copies made again\n";
  if (operations < 100'000) return;
  // A run in which one of these events never occurs does not test it.
  for (const int64_t count :
       {counts.tokens, counts.finished, counts.cancelled, counts.refused, counts.preemptions,
        counts.stalls, counts.reused_tokens, counts.rewritten_last, counts.evictions, counts.pins,
        counts.moves, counts.replaced, counts.drained_requests, counts.shifted_tokens,
        counts.source_tokens, counts.recomputed_tokens}) {
    EXPECT_GE(count, operations / 2000);
  }
  EXPECT_GE(counts.copied_again, operations / 10000);
}

}  // namespace
}  // namespace tokline
