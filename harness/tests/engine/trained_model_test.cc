// Compares the CPU decoder, the tokenizer and the chat template with transformers on trained
// weights.
#include <gtest/gtest.h>

#include <cstdio>

#include "harness/models/loaded_model.h"
#include "harness/tests/engine/trained_golden.h"
#include "harness/text/chat_template.h"
#include "harness/text/tokenizer.h"

namespace tokline {
namespace {

// Twice the distance that a logit may have. Logits are about 20, where f32 resolves 2e-6; 5.7e-5
// was seen, after 30 layers of which both sides store f32.
constexpr double kNoise = 1e-3;
constexpr size_t kSteps = 8;  // of 32: the CPU path is an oracle and slow
constexpr size_t kEvery = 3;  // every third prompt

class TrainedModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!folder_) GTEST_SKIP() << testing::kNoTrainedModel;
  }
  const nlohmann::json golden_ = testing::ReadTrainedGolden();
  const std::optional<std::filesystem::path> folder_ = testing::TrainedModel(golden_);
};

TEST_F(TrainedModelTest, TokensAreThoseOfTransformersWhereverTheMarginExceedsTheNoise) {
  const LoadedModel model(*folder_);
  Decoder decoder(model.spec, model.weights, {.dtype = DType::kF32, .max_context = 256});
  testing::TrainedParity parity;
  for (size_t i = 0; i < golden_.at("cases").size(); i += kEvery) {
    testing::CompareCase(decoder, golden_.at("cases").at(i), kSteps, kNoise, parity);
  }
  EXPECT_GE(parity.compared, 50);
  EXPECT_LE(parity.logit_error, kNoise / 2);
  std::printf("%lld tokens compared, largest distance of a logit %.2g\n",
              static_cast<long long>(parity.compared), parity.logit_error);
}

TEST_F(TrainedModelTest, PromptsAndTextsAreThoseOfTransformers) {
  const Tokenizer tokenizer = Tokenizer::Load(*folder_);
  const ChatTemplate chat_template = ChatTemplate::Load(*folder_).value();
  for (const nlohmann::json& one : golden_.at("cases")) {
    const auto ids = one.at("prompt_ids").get<std::vector<int32_t>>();
    if (one.contains("text")) {
      EXPECT_EQ(tokenizer.Encode(one.at("text").get<std::string>()), ids);
    } else {
      std::vector<ChatMessage> messages;
      for (const auto& message : one.at("messages")) {
        messages.push_back({message.at("role"), message.at("content")});
      }
      const std::vector<TextPart> parts = chat_template.Render(messages);
      EXPECT_EQ(JoinText(parts), one.at("rendered").get<std::string>());
      EXPECT_EQ(tokenizer.Encode(parts, {.add_special_tokens = false}), ids);
    }
    EXPECT_EQ(tokenizer.Decode(one.at("tokens").get<std::vector<int32_t>>()),
              one.at("continuation").get<std::string>());
  }
}

}  // namespace
}  // namespace tokline
