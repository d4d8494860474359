// Reads files of conversations: which question becomes a request and how long its answer may be,
// what is left out and counted, and what is refused.
#include "harness/measure/conversations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "harness/tests/message_of.h"

namespace tokline {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

Json Turn(const char* from, const std::string& value) { return {{"from", from}, {"value", value}}; }
Json Conversation(const Json& turns) { return {{"id", "x"}, {"conversations", turns}}; }
Json Answered(const std::string& question, const std::string& answer) {
  return Conversation({Turn("human", question), Turn("gpt", answer)});
}

// An id for each word, and 0 before a prompt.
std::vector<int32_t> EncodeWords(std::string_view text, bool is_prompt) {
  std::vector<int32_t> ids;
  if (is_prompt) ids.push_back(0);
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) ids.push_back(static_cast<int32_t>(word.size()));
  return ids;
}

class ConversationsTest : public ::testing::Test {
 protected:
  Workload Read(const std::string& text) {
    std::ofstream(file_) << text;
    counts_ = {};
    return ReadConversations(file_, EncodeWords, limits_, counts_);
  }
  std::string Refusal(const std::string& text) {
    return testing::MessageOf([&] { Read(text); });
  }

  const std::filesystem::path file_ =
      std::filesystem::path(::testing::TempDir()) / "conversations_test.json";
  ConversationLimits limits_{.max_context = 60};
  ConversationCounts counts_;
};

TEST_F(ConversationsTest, TheFirstAnsweredQuestionIsAsLongAsItsTokens) {
  const std::string question = "What is the code of amber?", answer = "The code of amber is 4821.";
  const Workload workload =
      Read(Json{Conversation({Turn("system", "Be brief."), Turn("gpt", "Hello."),
                              Turn("human", "Forget me."), Turn("human", question),
                              Turn("gpt", answer), Turn("human", "Thanks."), Turn("gpt", "Bye.")})}
               .dump());
  ASSERT_EQ(workload.requests.size(), 1u);
  const Request& request = workload.requests[0].request;
  EXPECT_EQ(request.prompt, EncodeWords(question, true));
  EXPECT_EQ(request.max_new_tokens, 6);
  EXPECT_EQ(request.rule.temperature, 0);
  EXPECT_TRUE(request.stop_ids.empty());
  EXPECT_EQ(workload.name, "conversations_test.json");
}

TEST_F(ConversationsTest, WhatIsLeftOutIsCounted) {
  std::string longer;
  for (int i = 0; i < 60; ++i) longer += "x ";
  const Json all = {
      Answered("a", "b"),          Answered(std::string(5 << 20, 'x'), "b"),
      Answered("a", ""),           Answered(longer, "b"),
      Answered("a", longer),       Conversation({Turn("gpt", "b"), Turn("human", "a")}),
      Conversation(Json::array()), Answered("c", "d"),
      Answered("never", "read")};
  limits_.requests = 2;
  EXPECT_EQ(Read(all.dump()).requests.size(), 2u);
  EXPECT_EQ(counts_.Text(2),
            "8 conversations read: 2 taken, 2 without an answer, 1 empty, 3 too long");
}

TEST_F(ConversationsTest, APromptAndItsAnswerMayFillTheContext) {
  const std::string text = Json{Answered("one two three", "four five")}.dump();
  const WorkloadRequest fits = Read(text).requests.at(0);
  limits_.max_context = fits.Context();
  EXPECT_EQ(Read(text).requests.size(), 1u);
  --limits_.max_context;
  EXPECT_THAT(Refusal(text), HasSubstr("has no request to run: 1 conversation read: 0 taken"));
}

TEST_F(ConversationsTest, BadFilesAreRefusedWithTheConversation) {
  const std::string good = Answered("a", "b").dump() + ", ";
  EXPECT_THAT(Refusal("[" + good + "7]"),
              HasSubstr("conversation 2: it is not an object with a list \"conversations\""));
  EXPECT_THAT(Refusal("[" + good + R"({"conversations": "a"}])"), HasSubstr("conversation 2: "));
  EXPECT_THAT(Refusal("[" + good + R"({"conversations": [{"from": "human"}]}])"),
              HasSubstr("conversation 2: a turn has no text \"value\""));
  EXPECT_THAT(Refusal("[" + good), HasSubstr("after conversation 1: "));
  EXPECT_THAT(Refusal("[" + good + std::string(100, '[')), HasSubstr("nests deeper than 32"));
  EXPECT_THAT(Refusal("[]"), HasSubstr("has no request to run: 0 conversations read"));
}

TEST_F(ConversationsTest, AListIsToldFromLinesAndFromWhatIsNoFile) {
  const auto has = [&](const std::string& text) {
    std::ofstream(file_) << text;
    return HasConversations(file_);
  };
  EXPECT_TRUE(has("\n [{}]"));
  EXPECT_FALSE(has("{\"prompt_ids\": [1]}"));
  EXPECT_FALSE(has(""));
  EXPECT_FALSE(HasConversations("/dev/zero"));
  EXPECT_FALSE(HasConversations("/no/such/file"));
}

}  // namespace
}  // namespace tokline
