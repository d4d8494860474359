// Tests models of random weights: only config.json is read, the seed alone determines the weights,
// and the logits are as peaked as those of a trained model.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <numeric>

#include "harness/engine/generate.h"
#include "harness/models/loaded_model.h"
#include "harness/tests/engine/golden.h"
#include "harness/tests/models/model_files.h"

namespace tokline {
namespace {

using testing::TempFolder;
using testing::WriteFile;

nlohmann::json SmallConfig(const std::string& family) {
  const std::filesystem::path folder =
      std::filesystem::path(TOKLINE_SOURCE_DIR) / "harness/tests/golden" / family;
  return nlohmann::json::parse(testing::ReadFile(folder / "config.json"));
}

// Logits along a random text.
std::vector<std::vector<float>> LogitsOf(const LoadedModel& model, int64_t tokens) {
  Decoder decoder(model.spec, model.weights, {.max_context = 128, .page_size = 16});
  GenerateOptions options{.max_new_tokens = tokens, .want_logits = true};
  for (int64_t i = 0; i < tokens; ++i) {
    options.force_ids.push_back(static_cast<int32_t>(i * 7919 % model.spec.vocab_size));
  }
  return Generate(decoder, std::vector<int32_t>{1, 2, 3}, options).logits;
}

// Returns the mean probability of the most likely token.
double MeanTopProbability(const std::vector<std::vector<float>>& logits) {
  double sum = 0;
  for (const std::vector<float>& row : logits) {
    const float most = std::ranges::max(row);
    sum += 1 / std::accumulate(row.begin(), row.end(), 0.0, [most](double all, float logit) {
             return all + std::exp(double{logit} - most);
           });
  }
  return sum / static_cast<double>(logits.size());
}

TEST(DrawWeightsTest, NeitherReadsNorNeedsAFileOfWeights) {
  for (const std::string& name : testing::GoldenNames()) {
    TempFolder folder;
    WriteFile(folder / "config.json", SmallConfig(name).dump());
    // Whoever opens it for reading waits for ever.
    ASSERT_EQ(::mkfifo((folder / "model.safetensors").c_str(), 0600), 0);
    const LoadedModel model(folder.Path(), 7);
    EXPECT_EQ(model.weights.parameters,
              testing::LoadedModel(testing::ReadGolden(name).checkpoint).weights.parameters)
        << name;
    for (const std::vector<float>& row : LogitsOf(model, 2)) {
      for (const float logit : row) ASSERT_TRUE(std::isfinite(logit)) << name;
    }
  }
}

TEST(DrawWeightsTest, TheSeedAloneDeterminesTheWeights) {
  TempFolder folder;
  WriteFile(folder / "config.json", SmallConfig("qwen3_tiny").dump());
  const auto logits = [&](uint64_t seed) { return LogitsOf(LoadedModel(folder.Path(), seed), 2); };
  EXPECT_EQ(logits(1), logits(1));
  EXPECT_NE(logits(1), logits(2));
}

// SmolLM2-135M-Instruct has 0.58 on its own texts (docs/measuring.md).
TEST(DrawWeightsTest, LogitsAreAsPeakedAsThoseOfATrainedModelWhateverTheVocabulary) {
  for (const char* family : {"qwen3_tiny", "qwen3_untied_group3", "gpt2_tiny"}) {
    for (const int vocabulary : {2000, 50000}) {
      nlohmann::json config = SmallConfig(family);
      config["vocab_size"] = vocabulary;
      TempFolder folder;
      WriteFile(folder / "config.json", config.dump());
      const double mean = MeanTopProbability(LogitsOf(LoadedModel(folder.Path(), 3), 100));
      std::printf("%s of %d tokens: mean top-1 probability %.3f\n", family, vocabulary, mean);
      EXPECT_NEAR(mean, 0.58, 0.12) << family << " " << vocabulary;
    }
  }
}

}  // namespace
}  // namespace tokline
