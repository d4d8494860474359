// Asks the embedded model questions with known answers, through a decoder.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/tests/engine/golden.h"
#include "harness/tests/engine/lookup_prompts.h"

namespace tokline::testing {

inline constexpr double kMinRight = 0.99;  // share of right answers
inline constexpr int64_t kLongestContext = 4096;
inline constexpr int64_t kAnswerTokens = 12;

// TOKLINE_COHERENCE=full asks more questions, at more lengths.
inline bool FullCoherence() {
  const char* text = std::getenv("TOKLINE_COHERENCE");
  return text != nullptr && std::string_view(text) == "full";
}

struct CoherenceScore {
  int right = 0;
  int asked = 0;
  SchedulerCounts counts = {};
  DecodeReads reads = {};
};

class CoherenceGate {
 public:
  // An answer is right if all its tokens are right and it ends where it must. All questions are
  // submitted at once, after `others` unrelated requests. Prints the first failures.
  CoherenceScore Ask(const std::vector<LookupQuestion>& questions, const DecoderOptions& options,
                     int others) const {
    Decoder decoder(model_.spec, model_.weights, options);
    if (options.device == Device::kCuda) decoder.WarmUp();
    for (int i = 0; i < others; ++i) {
      const std::vector<int32_t> prompt(questions[0].prompt.begin(),
                                        questions[0].prompt.begin() + 20 + i);
      decoder.Submit({.prompt = prompt, .max_new_tokens = 10 * kAnswerTokens});
    }
    std::map<SequenceId, const LookupQuestion*> asked;
    for (const LookupQuestion& question : questions) {
      const SequenceId id =
          decoder.Submit({.prompt = question.prompt,
                          .max_new_tokens = static_cast<int64_t>(question.answer.size()),
                          .stop_ids = model_.spec.eos_token_ids,
                          .cuts = {question.facts}});
      asked[id] = &question;
    }
    auto texts = RunAll(decoder);
    CoherenceScore score{.asked = static_cast<int>(questions.size()),
                         .counts = decoder.Schedule().Counts(),
                         .reads = decoder.Reads()};
    int printed = 0;
    for (const auto& [id, question] : asked) {
      const std::vector<int32_t>& answer = texts[id];
      score.right += answer == question->answer;
      if (answer != question->answer && ++printed <= 3) {
        std::printf("of %zu tokens: \"%s\" for \"%s\"\n", question->prompt.size(),
                    task_.Text().Decode(answer).c_str(),
                    task_.Text().Decode(question->answer).c_str());
      }
    }
    return score;
  }

  // Draws `count` questions about each of `contexts` contexts, and expects kMinRight of all
  // answers to be right.
  struct Draws {
    int64_t length = 0;
    bool chat = false;
    int count = 0;
    int contexts = 1;
    uint32_t seed = 1;
  };
  CoherenceScore Check(const Draws& draws, const DecoderOptions& options, int others = 0) const {
    std::mt19937 rng(draws.seed * 8192 + static_cast<uint32_t>(draws.length));
    std::vector<LookupQuestion> questions;
    for (int i = 0; i < draws.contexts; ++i) {
      for (LookupQuestion& one : task_.Draw(rng, draws.length, draws.chat, draws.count)) {
        questions.push_back(std::move(one));
      }
    }
    const CoherenceScore score = Ask(questions, options, others);
    EXPECT_GE(score.right, kMinRight * score.asked)
        << draws.length << " tokens, " << (draws.chat ? "chat" : "bare") << ", seed " << draws.seed;
    return score;
  }

  // Requests that grow by many pages preempt the questions, which are younger.
  void CheckPreempted(DecoderOptions options) const {
    for (const bool reuse : {false, true}) {
      options.max_batch = 12;
      options.max_context = 320;
      options.page_size = 16;
      options.reuse = reuse;
      options.kv_pages = 28;  // the longest needs 20
      options.token_budget = 32;
      const CoherenceScore score = Check({.length = 300, .chat = reuse, .count = 12}, options, 8);
      EXPECT_GT(score.counts.preemptions, 0) << (reuse ? "with reuse" : "without");
    }
  }

  // Twice as many questions as the batch takes are about one context of this length.
  void CheckSharedReads(DecoderOptions options, int64_t length) const {
    options.reuse = true;
    for (const ChunkSharing sharing : {ChunkSharing::kNever, ChunkSharing::kAlways}) {
      options.sharing = sharing;
      const CoherenceScore score =
          Check({.length = length, .count = 2 * options.max_batch}, options);
      if (sharing == ChunkSharing::kAlways) {
        EXPECT_LT(score.reads.tokens, score.reads.unshared_tokens / 2);
      }
    }
  }

 private:
  LookupTask task_;
  LoadedModel model_{LookupModelFolder()};
};

}  // namespace tokline::testing
