// Runs conversations on a decoder with random weights: checks exactly how many tokens are reused,
// and that reuse changes no answer.
#include "harness/chat/chat_session.h"

#include <gtest/gtest.h>

#include <optional>

#include "harness/models/checkpoint.h"
#include "harness/models/model_weights.h"
#include "harness/tests/chat/chat_model.h"
#include "harness/tests/text/golden_chat.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::TempFolder;
using testing::WriteChatModel;
using Ids = std::vector<int32_t>;

// The template of Qwen3, which drops the thoughts of earlier answers.
constexpr std::string_view kDropsThoughts = "trl/qwen3";

struct Model {
  explicit Model(const testing::ChatModelOptions& options = {}, std::string_view of_template = {})
      : dir(Write(folder, options)) {
    if (!of_template.empty()) {
      chat_template = testing::ChatGolden().Template(std::string(of_template));
    }
  }
  static std::filesystem::path Write(const TempFolder& folder,
                                     const testing::ChatModelOptions& options) {
    WriteChatModel(folder.Path(), options);
    return folder.Path();
  }
  TempFolder folder;
  std::filesystem::path dir;
  ModelSpec spec = LoadModelSpec(dir);
  Checkpoint checkpoint{dir};
  ModelWeights weights = BindWeights(checkpoint, spec);
  Tokenizer tokenizer = Tokenizer::Load(dir);
  ChatTemplate chat_template = ChatTemplate::Load(dir).value();
};

const Model& Plain() {
  static const Model model;
  return model;
}

// A model that is likely to draw <|im_end|> wherever possible.
const Model& Stopping() {
  static const Model model({.scale = 2});
  return model;
}

// A model that is likely to draw <think>.
const Model& Thinking() {
  static const Model model({.scaled_id = testing::kThink, .scale = -6}, kDropsThoughts);
  return model;
}

constexpr int32_t kPage = 16;

// A session with everything that it needs.
struct Talk {
  explicit Talk(const Model& with, Conversation::Options context = {}, bool reuse = true,
                int64_t max_context = 1024)
      : model(with),
        conversation(model.tokenizer, model.chat_template, std::move(context)),
        decoder(model.spec, model.weights, Options(reuse, max_context)),
        session(conversation, decoder) {
    if (reuse) session.ComputePrefix();
  }
  DecoderOptions Options(bool reuse, int64_t max_context) const {
    DecoderOptions options{.max_context = max_context, .page_size = kPage, .reuse = reuse};
    options.pinned_pages = ChatSession::PagesToPin(conversation, kPage);
    options.kv_pages = max_context / kPage + 8 + options.pinned_pages;
    return options;
  }
  TurnResult Say(std::string_view user, int64_t max_new_tokens = 10, uint64_t seed = 3) {
    text.clear();
    TurnOptions options{.max_new_tokens = max_new_tokens,
                        .rule = {.temperature = 1, .seed = seed},
                        .interrupted = &interrupted,
                        .on_text = [this](std::string_view piece) {
                          text += piece;
                          if (interrupt_at_text) interrupted = true;
                        }};
    options.stop_ids = stop_ids;
    return session.Answer(user, model.tokenizer, options);
  }

  const Model& model;
  Conversation conversation;
  Decoder decoder;
  ChatSession session;
  Ids stop_ids;
  std::atomic<bool> interrupted = false;
  bool interrupt_at_text = false;
  std::string text;
};

Conversation::Options TwoChunks() {
  return {.system = "Know these.",
          .context = {{"notes.md", "one two three four five six seven eight nine ten"},
                      {"code.md", "int main() { return 0; }"}}};
}

TEST(ChatSessionTest, ATurnReusesAllThatCameBefore) {
  Talk talk(Plain(), TwoChunks());
  int64_t before = std::ssize(talk.conversation.Prefix());
  EXPECT_GT(before, 40);
  // Every turn but the first begins inside a page, and so does the second chunk.
  for (int turn = 0; turn < 4; ++turn) {
    const TurnResult result = talk.Say("And now?");
    ASSERT_EQ(result.tokens.size(), 10u);
    EXPECT_FALSE(result.stopped);
    EXPECT_EQ(result.reused_tokens, before) << turn;
    EXPECT_GT(result.prompt_tokens, before);
    EXPECT_GT(result.saved_s, 0);
    before = result.prompt_tokens + 9;  // the last token drawn is not in the cache
  }
}

TEST(ChatSessionTest, LongConversationsReuseAllButAPage) {
  Talk talk(Plain(), TwoChunks());
  int64_t before = 0;
  for (int turn = 0; turn < 20; ++turn) {
    const TurnResult result = talk.Say("Go on.", 13);
    EXPECT_GT(result.reused_tokens, before - kPage) << turn;
    before = result.prompt_tokens + 12;
  }
}

// The K and V of a token are computed when it is an input. The host does not wait to see whether a
// token ends the turn if it works a step ahead.
TEST(ChatSessionTest, AllTokensThatWereInputsAreReused) {
  Talk talk(Stopping());
  int64_t before = 0;
  int ended = 0;
  for (int turn = 0; turn < 6; ++turn) {
    const TurnResult result = talk.Say("Well?", 60, static_cast<uint64_t>(turn));
    EXPECT_EQ(result.reused_tokens, before) << turn;
    ended += result.stopped;
    EXPECT_EQ(result.tokens.back() == testing::kImEnd, result.stopped);
    before = result.prompt_tokens + std::ssize(result.tokens) - 1;
  }
  EXPECT_GE(ended, 3);
}

TEST(ChatSessionTest, ReuseChangesNoAnswer) {
  for (const Model* model : {&Plain(), &Stopping()}) {
    Talk with(*model, TwoChunks());
    Talk without(*model, TwoChunks(), false);
    for (int turn = 0; turn < 9; ++turn) {
      const std::string user = "turn " + std::to_string(turn * turn);
      const TurnResult reused = with.Say(user, 17);
      const TurnResult computed = without.Say(user, 17);
      EXPECT_GT(reused.reused_tokens, 0);
      EXPECT_EQ(computed.reused_tokens, 0);
      EXPECT_EQ(computed.saved_s, 0);
      EXPECT_EQ(reused.prompt_tokens, computed.prompt_tokens);
      ASSERT_EQ(reused.tokens, computed.tokens) << turn;
      EXPECT_EQ(with.text, without.text);
    }
  }
}

TEST(ChatSessionTest, ChunksStayThroughResetsAndWhateverElseNeedsPages) {
  Talk talk(Plain(), TwoChunks(), true, 256);
  const int64_t prefix = std::ssize(talk.conversation.Prefix());
  EXPECT_EQ(talk.decoder.Schedule().Chunks().PinnedPages(),
            ChatSession::PagesToPin(talk.conversation, kPage));
  for (int round = 0; round < 6; ++round) {
    talk.conversation.Reset();
    const TurnResult first = talk.Say("round " + std::to_string(round), 100);
    EXPECT_GE(first.reused_tokens, prefix);
    EXPECT_LT(first.reused_tokens, prefix + 8);  // at most the markup after it
  }
}

TEST(ChatSessionTest, InterruptedAnswerStaysAsFarAsItCame) {
  Talk talk(Plain());
  talk.interrupt_at_text = true;
  const TurnResult cut = talk.Say("Tell me.", 500);
  EXPECT_TRUE(cut.interrupted);
  EXPECT_FALSE(cut.tokens.empty());
  EXPECT_LT(cut.tokens.size(), 20u);
  EXPECT_FALSE(talk.text.empty());
  EXPECT_EQ(talk.decoder.Schedule().NumSequences(), 0);
  talk.interrupt_at_text = false;
  talk.interrupted = false;
  const TurnResult next = talk.Say("Go on.", 5);
  EXPECT_FALSE(next.interrupted);
  EXPECT_GT(next.prompt_tokens, cut.prompt_tokens + std::ssize(cut.tokens));
  EXPECT_EQ(next.tokens.size(), 5u);
}

TEST(ChatSessionTest, ThoughtsThatAreCutShortAreNotReadAgainAndTheQuestionIsReused) {
  int cut_short = 0;
  for (const bool interrupt : {false, true}) {
    for (const std::string user : {"One?", "Two and three?", "What of the other one?"}) {
      Talk talk(Thinking(), TwoChunks());
      talk.interrupt_at_text = interrupt;
      const TurnResult cut = talk.Say(user, 2 * kPage);
      if (cut.tokens.front() != testing::kThink || cut.stopped) continue;
      ++cut_short;
      EXPECT_EQ(cut.interrupted, interrupt);
      talk.interrupt_at_text = false;
      talk.interrupted = false;
      const TurnResult next = talk.Say("Go on.", 4);
      // The question's chunk ends before the markup that precedes the answer.
      const Ids opening =
          Thinking().tokenizer.Encode("<|im_start|>assistant\n", {.allow_special = true});
      EXPECT_EQ(next.reused_tokens, cut.prompt_tokens - std::ssize(opening));
      Talk told(Thinking(), TwoChunks());
      told.conversation.BeginTurn(user);
      told.conversation.EndTurn(Ids{testing::kImEnd}, true);
      const TurnResult wanted = told.Say("Go on.", 4);
      EXPECT_EQ(next.prompt_tokens, wanted.prompt_tokens);
      EXPECT_EQ(next.tokens, wanted.tokens);
    }
  }
  EXPECT_GE(cut_short, 4);
}

TEST(ChatSessionTest, TurnWithoutATokenIsDropped) {
  Talk talk(Plain()), fresh(Plain());
  talk.interrupted = true;
  const TurnResult none = talk.Say("Never heard.");
  EXPECT_TRUE(none.interrupted);
  EXPECT_TRUE(none.tokens.empty());
  talk.interrupted = false;
  EXPECT_EQ(talk.Say("Hi").tokens, fresh.Say("Hi").tokens);
}

TEST(ChatSessionTest, FullContextIsRefusedWithBothNumbersAndResetHelps) {
  Talk talk(Plain(), TwoChunks(), true, 128);
  TurnResult result;
  const std::string long_turn(200, 'x');
  EXPECT_TRUE(testing::Refuses<InvalidArgument>([&] { talk.Say(long_turn); },
                                                {"the context is full", "the context has 128"}));
  // An answer that reaches the end of the context is cut off there, and then nothing fits.
  result = talk.Say("Hi", 1000);
  EXPECT_TRUE(result.at_context);
  EXPECT_EQ(result.prompt_tokens + std::ssize(result.tokens), 128);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(testing::Refuses<InvalidArgument>([&] { talk.Say("Hi"); },
                                                  {"the context is full", "has 128"}));
  }
  talk.conversation.Reset();
  result = talk.Say("Hi", 5);
  EXPECT_EQ(result.tokens.size(), 5u);
  EXPECT_GE(result.reused_tokens, std::ssize(talk.conversation.Prefix()));
}

TEST(ChatSessionTest, PrefixBeyondTheContextOrThePoolIsRefusedWithTheNumbers) {
  const std::string text(400, 'x');
  EXPECT_TRUE(testing::Refuses<InvalidArgument>(
      [&] {
        Talk(Plain(), {.context = {{"long.md", text}}}, true, 128);
      },
      {"the system text and the chunks have", "the context has 128"}));
  const Conversation conversation(Plain().tokenizer, Plain().chat_template,
                                  {.context = {{"long.md", text}}});
  Conversation own = conversation;
  Decoder decoder(Plain().spec, Plain().weights,
                  {.max_context = 1024, .kv_pages = 4, .page_size = kPage, .reuse = true});
  EXPECT_TRUE(testing::Refuses<InvalidArgument>([&] { ChatSession(own, decoder).ComputePrefix(); },
                                                {"pages of the KV cache", "4 of 4"}));
}

TEST(ChatSessionTest, OtherStopIdsEndAnAnswerAndAreNoPartOfIt) {
  Talk talk(Plain());
  const TurnResult free = talk.Say("Hi", 8);
  Talk stopped(Plain());
  stopped.stop_ids = {free.tokens[4]};
  const TurnResult result = stopped.Say("Hi", 8);
  EXPECT_EQ(result.tokens, Ids(free.tokens.begin(), free.tokens.begin() + 5));
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(stopped.text,
            Plain().tokenizer.Decode(Ids(free.tokens.begin(), free.tokens.begin() + 4),
                                     {.skip_special = true}));
}

}  // namespace
}  // namespace tokline
