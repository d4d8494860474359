// Checks whether the embedded model still finds facts in chunks that were computed at other
// positions. TOKLINE_COHERENCE=full asks more questions.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

#include "harness/measure/divergence.h"
#include "harness/tests/engine/golden.h"
#include "harness/text/tokenizer.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using Ids = std::vector<int32_t>;

const std::filesystem::path kFolder = TOKLINE_SOURCE_DIR "/models/qwen3-lookup";

struct Score {
  int64_t asked = 0, exact = 0, shifted = 0, tokens = 0;
  std::vector<double> kl;
  int64_t same_top = 0;
};

class ShiftedLookupTest : public ::testing::Test {
 protected:
  // Makes texts of `files` files with `facts` facts each. A chunk ends `behind` tokens after the
  // beginning of each file. If `behind` is 0, asks for random facts, otherwise for facts that are
  // cut in two.
  Score Ask(int files, int facts, int64_t behind) {
    const bool full = std::getenv("TOKLINE_COHERENCE") != nullptr;
    std::mt19937 rng(static_cast<uint32_t>(files * 100 + facts));
    Score score;
    for (int i = 0; i < (full ? 100 : 6); ++i)
      AskAbout(files, facts, behind, full ? 10 : 4, rng, score);
    const KlSummary kl = SummarizeKl(score.kl);
    std::cout << files << " chunks of " << facts << " facts, cut " << behind << " tokens behind, "
              << score.tokens << " tokens: exact " << score.exact << ", shifted " << score.shifted
              << " of " << score.asked << " right; KL mean " << kl.mean << ", p90 " << kl.p90
              << ", max " << kl.max << "; top-1 " << score.same_top << " of " << score.kl.size()
              << "\n";
    return score;
  }

 private:
  void AskAbout(int files, int facts, int64_t behind, int questions, std::mt19937& rng,
                Score& score) {
    std::vector<std::string> names = Names();
    std::ranges::shuffle(names, rng);
    std::vector<std::string> answers;
    Request context{.max_new_tokens = 16, .stop_ids = model_.spec.eos_token_ids};
    for (int file = 0; file < files; ++file) {
      const int64_t begin = std::ssize(context.prompt) + (file > 0 ? behind : 0);
      if (file > 0) context.shifted.back().end = begin;
      context.shifted.push_back({begin, begin});
      for (int i = 0; i < facts; ++i) {
        answers.push_back(StrCat("The code of ", names[answers.size()], " is ",
                                 std::to_string(10'000 + rng() % 10'000).substr(1), "."));
        Append(context.prompt, answers.back() + "\n");
      }
    }
    score.tokens = std::ssize(context.prompt);
    context.shifted.back().end = score.tokens;
    Decoder decoder(model_.spec, model_.weights,
                    {.max_context = 4096, .kv_pages = 1024, .page_size = 16, .reuse = true});
    for (int i = 0; i < questions; ++i) {
      const auto about = behind > 0 ? static_cast<size_t>((1 + i % (files - 1)) * facts)
                                    : static_cast<size_t>(rng() % answers.size());
      Request request = context;
      Append(request.prompt, StrCat("What is the code of ", names[about], "?"));
      const Divergence one = MeasureDivergence(decoder, request);
      const auto right = [&](const Ids& ids) {
        return tokenizer_.Decode(ids, {.skip_special = true}) == " " + answers[about];
      };
      ++score.asked;
      score.exact += right(one.exact);
      score.shifted += right(one.shifted);
      score.same_top += one.same_top;
      score.kl.insert(score.kl.end(), one.kl.begin(), one.kl.end());
    }
  }

  static std::vector<std::string> Names() {
    std::ifstream file(TOKLINE_SOURCE_DIR "/scripts/python/lookup_names.txt");
    return {std::istream_iterator<std::string>(file), {}};
  }
  void Append(Ids& ids, const std::string& text) const {
    const Ids more = tokenizer_.Encode(text);
    ids.insert(ids.end(), more.begin(), more.end());
  }

  testing::LoadedModel model_{kFolder};
  Tokenizer tokenizer_ = Tokenizer::Load(kFolder);
};

TEST_F(ShiftedLookupTest, WholeFactsAreFoundWhereverTheyWereComputed) {
  for (const int facts : {4, 16}) {
    const Score score = Ask(4, facts, 0);
    EXPECT_GE(score.exact, 0.99 * static_cast<double>(score.asked));
    EXPECT_GE(score.shifted, 0.9 * static_cast<double>(score.asked));
  }
}

// "The code of amber is" is in one chunk and its digits are in the next, so the digits were
// computed without the name. The divergence shows it.
TEST_F(ShiftedLookupTest, FactsThatAreCutInTwoAreLostAndTheDivergenceShowsIt) {
  const Score score = Ask(4, 8, 5);
  EXPECT_GE(score.exact, 0.99 * static_cast<double>(score.asked));
  EXPECT_LE(score.shifted, 0.5 * static_cast<double>(score.asked));
  EXPECT_GT(SummarizeKl(score.kl).max, 1);
}

}  // namespace
}  // namespace tokline
