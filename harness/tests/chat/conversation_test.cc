// Checks the prompts of conversations with every known template: what they share with earlier
// prompts, and that they match the rendered text.
#include "harness/chat/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <random>

#include "harness/tests/models/model_files.h"
#include "harness/tests/text/golden_chat.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Ids = std::vector<int32_t>;

struct Family {
  std::string tokenizer;
  std::string chat_template;  // its name in chat.json
};

void PrintTo(const Family& family, std::ostream* out) { *out << family.chat_template; }

ChatTemplate Template(const std::string& name) { return testing::ChatGolden().Template(name); }

bool BeginsWith(const Ids& ids, const Ids& prefix) {
  return ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
}

int64_t CommonPrefix(const Ids& a, const Ids& b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

Ids Joined(Ids ids, const Ids& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

class ConversationTest : public ::testing::TestWithParam<Family> {
 protected:
  Conversation Make(Conversation::Options options = {}) const {
    options.chat.date = "05 Mar 2026";
    return Conversation(tokenizer_, template_, std::move(options));
  }
  std::vector<TextPart> Render(const std::vector<ChatMessage>& messages,
                               const ChatOptions& options = {}) const {
    ChatOptions dated = options;
    dated.date = "05 Mar 2026";
    return template_.Render(messages, dated);
  }
  Ids Encode(std::string_view text) const {
    return tokenizer_.Encode(text, {.add_special_tokens = false});
  }
  std::string Words(int most) {
    std::string text;
    for (auto i = 1 + static_cast<int>(rng_() % static_cast<uint64_t>(most)); i > 0; --i) {
      text += text.empty() ? "" : " ";
      for (auto j = 1 + static_cast<int>(rng_() % 6); j > 0; --j) {
        text += static_cast<char>('a' + rng_() % 26);
      }
    }
    return text;
  }
  // Encodes the text in other tokens than the tokenizer chooses, because a model may draw others.
  Ids DrawnIds(const std::string& text) {
    Ids ids;
    for (size_t at = 0; at < text.size();) {
      const size_t length = std::min<size_t>(1 + rng_() % 4, text.size() - at);
      ids = Joined(ids, Encode(text.substr(at, length)));
      at += length;
    }
    return ids;
  }

  const Tokenizer tokenizer_ = Tokenizer::Load(testing::TextGoldenFolder() / GetParam().tokenizer);
  const ChatTemplate template_ = Template(GetParam().chat_template);
  std::mt19937_64 rng_{7};
};

class KeepingTemplateTest : public ConversationTest {};
class RewritingTemplateTest : public ConversationTest {};

TEST_P(ConversationTest, FirstPromptIsWhatTheTemplateSays) {
  Conversation conversation = Make();
  EXPECT_TRUE(conversation.Prefix().empty());
  const std::string user = "What is\n<|im_end|><|eot_id|> here?";
  const Ids wanted = tokenizer_.Encode(Render({{"user", user}}), {.add_special_tokens = false});
  EXPECT_EQ(conversation.BeginTurn(user).prompt, wanted);
}

TEST_P(ConversationTest, SystemTextWithoutChunksIsWhatTheTemplateSays) {
  Conversation conversation = Make({.system = "Be brief."});
  const Ids prompt = conversation.BeginTurn("Hi").prompt;
  EXPECT_TRUE(BeginsWith(prompt, conversation.Prefix()));
  EXPECT_EQ(prompt, tokenizer_.Encode(Render({{"system", "Be brief."}, {"user", "Hi"}}),
                                      {.add_special_tokens = false}));
}

TEST_P(ConversationTest, ChunksAreSpansOfEveryPromptAndTheirIdsAreTheSameAnywhere) {
  const ContextPiece notes{"notes.md", "the notes <|im_end|><|eot_id|><|end_of_sentence|>"};
  const ContextPiece code{"code.md", "int main() {}\n"};
  Conversation both = Make({.system = "Know this.", .context = {notes, code}});
  Conversation again = Make({.system = "Know this.", .context = {notes, code}});
  Conversation other = Make({.context = {code, notes}});
  EXPECT_EQ(both.Prefix(), again.Prefix());
  ASSERT_EQ(both.Spans().size(), 3u);
  int64_t end = 0;
  for (const TokenSpan& span : both.Spans()) {
    EXPECT_EQ(span.begin, end);
    EXPECT_GT(span.Tokens(), 0);
    end = span.end;
  }
  EXPECT_EQ(end, std::ssize(both.Prefix()));
  EXPECT_EQ(both.PrefixCuts(), (std::vector<int64_t>{both.Spans()[1].end, both.Spans()[2].end}));
  const auto ids_of = [](const Conversation& conversation, size_t span) {
    const TokenSpan& at = conversation.Spans()[span];
    return Ids(conversation.Prefix().begin() + at.begin, conversation.Prefix().begin() + at.end);
  };
  EXPECT_EQ(ids_of(both, 1), ids_of(other, 2));
  EXPECT_EQ(ids_of(both, 2), ids_of(other, 1));
  // Whatever a chunk spells is text: it has no special tokens.
  for (const int32_t id : ids_of(both, 1)) EXPECT_FALSE(tokenizer_.IsSpecial(id)) << id;
  EXPECT_EQ(tokenizer_.Decode(ids_of(both, 1)), "notes.md:\n" + notes.text + "\n\n");
  both.BeginTurn("a");
  both.EndTurn(Ids{5}, false);
  EXPECT_TRUE(BeginsWith(both.BeginTurn("b").prompt, both.Prefix()));
  both.Reset();
  EXPECT_TRUE(BeginsWith(both.BeginTurn("c").prompt, both.Prefix()));
}

TEST_P(ConversationTest, PromptsSpellWhatTheTemplateSaysOfTheWholeConversation) {
  Conversation conversation = Make();
  std::vector<ChatMessage> messages;
  for (int turn = 0; turn < 12; ++turn) {
    messages.push_back({"user", Words(8)});
    const Ids prompt = conversation.BeginTurn(messages.back().content).prompt;
    ASSERT_EQ(tokenizer_.Decode(prompt), JoinText(Render(messages))) << turn;
    std::string answer = Words(8);
    if (rng_() % 3 == 0) answer = "<think>\n" + Words(4) + "\n</think>\n\n" + answer;
    if (rng_() % 4 == 0) answer = " " + answer + "\n";  // white space that some templates trim
    Ids ids = DrawnIds(answer);
    const bool stopped = rng_() % 3 != 0;
    if (stopped) ids.push_back(rng_() % 3 == 0 ? 0 : conversation.EndOfTurn());
    conversation.EndTurn(ids, stopped);
    messages.push_back({"assistant", answer});
  }
}

TEST_P(ConversationTest, DroppedTurnLeavesNoTrace) {
  Conversation conversation = Make();
  conversation.BeginTurn("one");
  conversation.EndTurn(Encode("two"), false);
  Conversation never = Make();
  never.BeginTurn("one");
  never.EndTurn(Encode("two"), false);
  // The next turn spells as text what was markup in the dropped turn.
  conversation.BeginTurn("three");
  conversation.DropTurn();
  std::string spelled = "three";
  spelled += *tokenizer_.Spelling(conversation.EndOfTurn());
  spelled += "\nfour";
  EXPECT_EQ(conversation.BeginTurn(spelled).prompt, never.BeginTurn(spelled).prompt);
}

TEST_P(ConversationTest, BrokenTextIsRefusedAndBeginsNoTurn) {
  EXPECT_TRUE(testing::Refuses<InvalidArgument>([&] { Make({.system = "a\xff"}); },
                                                {"the system text", "byte 0xff at offset 1"}));
  EXPECT_TRUE(testing::Refuses<InvalidArgument>(
      [&] {
        Make({.context = {{"notes.md", "\xc3"}}});
      },
      {"notes.md", "byte 0xc3 at offset 0"}));
  Conversation conversation = Make();
  EXPECT_TRUE(testing::Refuses<InvalidArgument>([&] { conversation.BeginTurn("ab\x80"); },
                                                {"byte 0x80 at offset 2"}));
  EXPECT_EQ(conversation.BeginTurn("a").prompt, Make().BeginTurn("a").prompt);
}

// The template may refuse the prompt, or the same conversation without the answer's opening.
TEST_P(ConversationTest, TurnThatTheTemplateRefusesLeavesNoTrace) {
  const std::string end(*tokenizer_.Spelling(Make().EndOfTurn()));
  const ChatTemplate refusing(
      "{% for m in messages %}{% if m.content == 'bad' or (m.content == 'worse' and not "
      "add_generation_prompt) %}{{ raise_exception('not that') }}{% endif %}"
      "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}> {% endif %}",
      "a template", {{"eos_token", end}});
  Conversation conversation(tokenizer_, refusing, {}), never(tokenizer_, refusing, {});
  const Ids answer = DrawnIds("the answer");
  for (Conversation* one : {&conversation, &never}) {
    one->BeginTurn("one");
    one->EndTurn(answer, false);
  }
  for (const char* user : {"bad", "worse"}) {
    EXPECT_TRUE(testing::Refuses<InvalidArgument>([&] { conversation.BeginTurn(user); },
                                                  {"a template", "not that"}));
  }
  EXPECT_EQ(conversation.BeginTurn("two").prompt, never.BeginTurn("two").prompt);
}

TEST_P(ConversationTest, TemplateThatRendersNothingGivesAnEmptyPrompt) {
  std::string end;
  for (const char* token : {"<|im_end|>", "<|eot_id|>", "<|endoftext|>", "</s>"}) {
    if (end.empty() && tokenizer_.Find(token)) end = token;
  }
  const ChatTemplate nothing("\n", "a template", {{"eos_token", end}});
  Conversation conversation(tokenizer_, nothing, {});
  EXPECT_TRUE(conversation.BeginTurn("hi").prompt.empty());
}

// This guarantee makes reuse possible, whatever the model drew.
TEST_P(KeepingTemplateTest, PromptBeginsWithThePromptBeforeAndItsAnswerAsDrawn) {
  Conversation conversation = Make({.context = {{"notes.md", "some notes"}}});
  ASSERT_TRUE(conversation.KeepsAnswers());
  Ids before = conversation.Prefix();
  int drawn_otherwise = 0;
  for (int turn = 0; turn < 40; ++turn) {
    const Request request = conversation.BeginTurn(Words(6));
    ASSERT_TRUE(BeginsWith(request.prompt, before)) << turn;
    EXPECT_TRUE(request.keep);
    EXPECT_TRUE(request.cuts.empty());
    const std::string text = Words(6);
    Ids answer = DrawnIds(text);
    drawn_otherwise += answer != Encode(text);
    // Models also draw broken UTF-8 and special tokens; not tested with templates that trim.
    if (answer.size() > 3) {
      if (rng_() % 3 == 0) answer[1] = static_cast<int32_t>(rng_() % 1000);
      if (rng_() % 4 == 0) answer[2] = conversation.EndOfTurn();
    }
    switch (rng_() % 3) {
      case 0:  // cut short
        conversation.EndTurn(answer, false);
        before = Joined(request.prompt, answer);
        break;
      case 1:
        answer.push_back(conversation.EndOfTurn());
        conversation.EndTurn(answer, true);
        before = Joined(request.prompt, answer);
        break;
      default:  // another stop id is not part of the conversation
        before = Joined(request.prompt, answer);
        answer.push_back(conversation.EndOfTurn() - 1);
        conversation.EndTurn(answer, true);
    }
  }
  EXPECT_GT(drawn_otherwise, 10);
}

TEST_P(RewritingTemplateTest, ThoughtsOfEarlierTurnsGoAndTheQuestionsAreShared) {
  for (const bool thinking : {true, false}) {
    Conversation conversation = Make({.chat = {.enable_thinking = thinking}});
    EXPECT_FALSE(conversation.KeepsAnswers());
    Ids before;
    int64_t cut = 0;
    std::vector<ChatMessage> messages;
    for (int turn = 0; turn < 4; ++turn) {
      messages.push_back({"user", Words(6)});
      const Request request = conversation.BeginTurn(messages.back().content);
      EXPECT_FALSE(request.keep);
      EXPECT_EQ(tokenizer_.Decode(request.prompt),
                JoinText(Render(messages, {.enable_thinking = thinking})));
      EXPECT_GE(CommonPrefix(before, request.prompt), cut) << turn;
      ASSERT_EQ(request.cuts.size(), 1u);
      EXPECT_GT(request.cuts[0], cut);
      cut = request.cuts[0];
      before = request.prompt;
      const std::string thought = thinking ? "<think>\nsecret\n</think>\n\n" : "";
      Ids answer = DrawnIds(thought + "public" + std::to_string(turn));
      answer.push_back(conversation.EndOfTurn());
      conversation.EndTurn(answer, true);
      messages.push_back({"assistant", thought + "public" + std::to_string(turn)});
    }
    const std::string last = tokenizer_.Decode(conversation.BeginTurn("x").prompt);
    EXPECT_THAT(last, Not(HasSubstr("secret")));
    EXPECT_THAT(last, HasSubstr("public0"));
  }
}

// Cut short by Ctrl-C, by the length limit or by the end of the turn.
TEST_P(RewritingTemplateTest, ThoughtsThatWereCutShortGoToo) {
  for (const std::string answer : {"<think>", "<think>\nsecret", "\n<think>secret <think> and"}) {
    for (const bool stopped : {false, true}) {
      Conversation conversation = Make();
      const Request asked = conversation.BeginTurn("one");
      Ids ids = DrawnIds(answer);
      if (stopped) ids.push_back(conversation.EndOfTurn());
      conversation.EndTurn(ids, stopped);
      const Ids prompt = conversation.BeginTurn("two").prompt;
      EXPECT_EQ(tokenizer_.Decode(prompt),
                JoinText(Render({{"user", "one"}, {"assistant", ""}, {"user", "two"}})));
      EXPECT_GE(CommonPrefix(asked.prompt, prompt), asked.cuts.at(0));
    }
  }
}

TEST_P(RewritingTemplateTest, AnswersThatSpeakOfThoughtsStay) {
  for (const std::string answer :
       {"The tag is <think>.", "<think>\nsecret\n</think>\n\nThe tag is <think>."}) {
    Conversation conversation = Make();
    conversation.BeginTurn("one");
    conversation.EndTurn(DrawnIds(answer), false);
    EXPECT_EQ(
        tokenizer_.Decode(conversation.BeginTurn("two").prompt),
        JoinText(Render({{"user", "one"}, {"assistant", "The tag is <think>."}, {"user", "two"}})));
  }
}

// If the template drops no thoughts, everything that was drawn is the answer.
TEST_P(KeepingTemplateTest, AnswerThatBeginsLikeAThoughtStays) {
  Conversation conversation = Make();
  Ids before = conversation.BeginTurn("one").prompt;
  const Ids answer = DrawnIds("<think>\npublic");
  conversation.EndTurn(answer, false);
  EXPECT_TRUE(BeginsWith(conversation.BeginTurn("two").prompt, Joined(before, answer)));
}

const Family kKeeping[] = {
    {"llama3", "own/trimming"},          {"llama3", "own/dated"},   {"qwen", "trl/qwen2_5"},
    {"qwen", "trl/qwen3_instruct_2507"}, {"smollm", "own/smollm2"}, {"embedded", "own/embedded"},
    {"ernie45", "own/worded"},
};
const Family kRewriting[] = {{"qwen", "trl/qwen3"}};
const auto kName = [](const auto& info) {
  return info.param.chat_template.substr(info.param.chat_template.find('/') + 1);
};

INSTANTIATE_TEST_SUITE_P(Keeping, ConversationTest, ::testing::ValuesIn(kKeeping), kName);
INSTANTIATE_TEST_SUITE_P(Rewriting, ConversationTest, ::testing::ValuesIn(kRewriting), kName);
INSTANTIATE_TEST_SUITE_P(Templates, KeepingTemplateTest, ::testing::ValuesIn(kKeeping), kName);
INSTANTIATE_TEST_SUITE_P(Templates, RewritingTemplateTest, ::testing::ValuesIn(kRewriting), kName);

// Prepend and Metaspace put a space before a text, Prepend also after an added token. A turn that
// is encoded on its own must have it only where the whole prompt has it.
TEST(ConversationPrefixTest, ATurnGetsAPrefixWhereTheWholePromptHasOne) {
  const std::string after_text =
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
  const std::string after_token =
      "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
      "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}";
  for (const std::string name : {"llama2", "metaspace", "mistral"}) {
    const Tokenizer tokenizer = Tokenizer::Load(testing::TextGoldenFolder() / name);
    for (const std::string& program : {after_text, after_token}) {
      const ChatTemplate chat_template(program, "t.jinja", {{"eos_token", "</s>"}});
      const auto whole = [&](const std::vector<ChatMessage>& messages) {
        return tokenizer.Encode(chat_template.Render(messages, {}), {.add_special_tokens = false});
      };
      Conversation conversation(tokenizer, chat_template, {});
      std::vector<ChatMessage> messages = {{"user", "one two"}};
      const Ids asked = conversation.BeginTurn("one two").prompt;
      EXPECT_EQ(asked, whole(messages)) << name << program;
      messages.push_back({"assistant", "three"});
      const Ids answered = whole(messages);
      ASSERT_TRUE(BeginsWith(answered, asked)) << name << program;
      if (program == after_token) {
        conversation.EndTurn(std::span(answered).subspan(asked.size()), true);
      } else {  // the answer is encoded with what follows
        conversation.EndTurn(std::string("three"));
      }
      messages.push_back({"user", "four"});
      EXPECT_EQ(conversation.BeginTurn("four").prompt, whole(messages)) << name << program;
    }
  }
}

// A conversation with a program of this test.
struct Own {
  explicit Own(const std::string& program, Conversation::Options options = {})
      : chat_template(program, "t.jinja"),
        conversation(tokenizer, chat_template, std::move(options)) {}

  Ids Encode(std::string_view text) const {
    return tokenizer.Encode(text, {.add_special_tokens = false});
  }
  // The text of the prompt of the turn after this one.
  std::string PromptAfter(const std::string& answer) {
    conversation.BeginTurn("one");
    conversation.EndTurn(Encode(answer), false);
    return tokenizer.Decode(conversation.BeginTurn("two").prompt);
  }

  const Tokenizer tokenizer = Tokenizer::Load(testing::TextGoldenFolder() / "qwen");
  const ChatTemplate chat_template;
  Conversation conversation;
};

void SetTimeZone(const char* zone) {
  ::setenv("TZ", zone, 1);
  ::tzset();
}

TEST(ConversationTimeTest, TimeThatTheTemplateWritesStaysThatOfTheStart) {
  SetTimeZone("UTC-3");
  Own own(
      "{{ strftime_now('%H:%M') }}{% for m in messages %}<|im_start|>{{ m.role }}\n"
      "{{ m.content }}<|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
      {.system = "Be brief."});
  const Ids asked = own.conversation.BeginTurn("one").prompt;
  const Ids answer = own.Encode("two");
  own.conversation.EndTurn(answer, false);
  SetTimeZone("UTC-9");
  EXPECT_TRUE(BeginsWith(own.conversation.BeginTurn("three").prompt, Joined(asked, answer)));
  SetTimeZone("UTC");
}

// Some generation prompts open the thoughts, so that the answer has only their end.
constexpr const char* kOpens =
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";

TEST(ConversationThoughtsTest, ThoughtsThatThePromptOpensAreDroppedAsOthers) {
  const std::string dropping =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n"
      "{{ m.content.split('</think>')[-1].lstrip('\n') }}<|im_end|>\n{% endfor %}";
  // In this one only what begins with an opening is a thought.
  const std::string looking =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content.startswith('<think>') %}"
      "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}"
      "<|im_end|>\n{% endfor %}";
  for (const std::string& program : {dropping, looking}) {
    const auto after = [&](const std::string& answer) {
      Own own(program + kOpens);
      EXPECT_FALSE(own.conversation.KeepsAnswers());
      return own.PromptAfter(answer);
    };
    const auto wanted = [](const std::string& answer) {
      return "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n" + answer +
             "<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n<think>\n";
    };
    EXPECT_EQ(after("secret"), wanted(""));  // cut short
    EXPECT_EQ(after("secret\n</think>\n\npublic"), wanted("public"));
    EXPECT_EQ(after("secret\n</think>\n\nThe tag is <think>."), wanted("The tag is <think>."));
    Own stopped(program + kOpens);
    stopped.conversation.BeginTurn("one");
    stopped.conversation.EndTurn(std::string("secret"));
    EXPECT_EQ(stopped.tokenizer.Decode(stopped.conversation.BeginTurn("two").prompt), wanted(""));
    Own finished(program + kOpens);
    finished.conversation.BeginTurn("one");
    Ids answer = finished.Encode("plain");
    answer.push_back(answer.back());  // the stop id
    finished.conversation.EndTurn(answer, true);
    EXPECT_EQ(finished.tokenizer.Decode(finished.conversation.BeginTurn("two").prompt),
              wanted("plain"));
  }
}

TEST(ConversationThoughtsTest, ThoughtsThatThePublishedTemplateOpensAreDropped) {
  const Tokenizer tokenizer = Tokenizer::Load(testing::TextGoldenFolder() / "qwen");
  const ChatTemplate chat_template = Template("trl/qwen3_5_think");
  Conversation conversation(tokenizer, chat_template, {});
  const Request asked = conversation.BeginTurn("one");
  conversation.EndTurn(tokenizer.Encode("secret", {.add_special_tokens = false}), false);
  const Ids prompt = conversation.BeginTurn("two").prompt;
  const std::vector<ChatMessage> messages = {{"user", "one"}, {"assistant", ""}, {"user", "two"}};
  EXPECT_EQ(tokenizer.Decode(prompt), JoinText(chat_template.Render(messages)));
  EXPECT_GE(CommonPrefix(asked.prompt, prompt), asked.cuts.at(0));
}

TEST(ConversationThoughtsTest, ThoughtsThatThePromptOpensAreKeptByTemplatesThatKeepAnswers) {
  const std::string begin = "{% for m in messages %}<|im_start|>{{ m.role }}\n";
  const std::string end = "{{ m.content }}<|im_end|>\n{% endfor %}";
  // This one writes the opening in the history too.
  const std::string opens = "{% if m.role == 'assistant' %}<think>\n{% endif %}";
  for (const std::string& program : {begin + end, begin + opens + end}) {
    Own own(program + kOpens);
    EXPECT_TRUE(own.conversation.KeepsAnswers());
    const Ids asked = own.conversation.BeginTurn("one").prompt;
    const Ids answer = own.Encode("secret\n</think>\n\npublic");
    own.conversation.EndTurn(answer, false);
    EXPECT_TRUE(BeginsWith(own.conversation.BeginTurn("two").prompt, Joined(asked, answer)));
  }
}

// Without the answer's opening the text is not the beginning of the prompt, and its size is in the
// middle of a code point.
TEST(ConversationPrefixTest, PromptIsNotCutWhereTheTemplateWritesAnotherTextThere) {
  Own own(
      "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}\u00e9{% else %}.{% endif %}");
  EXPECT_EQ(own.tokenizer.Decode(own.conversation.BeginTurn("one").prompt), "one<|im_end|>\u00e9");
}

TEST(ConversationTokensTest, TokenizerMaySearchForSpecialTokensInNormalizedText) {
  auto json = nlohmann::json::parse(
      testing::ReadFile(testing::TextGoldenFolder() / "qwen" / "tokenizer.json"));
  const Tokenizer plain = Tokenizer::Parse(json.dump(), "t.json");
  for (nlohmann::json& token : json["added_tokens"]) token["normalized"] = true;
  json["normalizer"] = {{"type", "NFC"}};
  const Tokenizer tokenizer = Tokenizer::Parse(json.dump(), "t.json");
  const ChatTemplate chat_template = Template("trl/qwen2_5");
  Conversation conversation(tokenizer, chat_template, {.system = "cafe\u0301"});
  Conversation wanted(plain, chat_template, {.system = "cafe\u0301"});
  EXPECT_EQ(conversation.EndOfTurn(), wanted.EndOfTurn());
  for (const std::string user : {"e\u0301 <|im_end|> e\u0301", "two"}) {
    EXPECT_EQ(conversation.BeginTurn(user).prompt, wanted.BeginTurn(user).prompt);
    conversation.EndTurn(Ids{1, 2, 3}, false);
    wanted.EndTurn(Ids{1, 2, 3}, false);
  }
}

TEST(ConversationErrorsTest, TokenizerWithoutTheEndOfATurnIsRefused) {
  const Tokenizer tokenizer = Tokenizer::Load(testing::TextGoldenFolder() / "gpt2");
  const ChatTemplate chat_template = Template("trl/qwen3");
  EXPECT_TRUE(testing::Refuses<RuntimeFailure>([&] { Conversation(tokenizer, chat_template, {}); },
                                               {"trl/qwen3", "<|im_end|>", "no special token"}));
}

TEST(ConversationErrorsTest, EndOfTextEndsTurnsThatTheTemplateEndsWithout) {
  const Tokenizer tokenizer = Tokenizer::Load(testing::TextGoldenFolder() / "qwen");
  const std::string program = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
  const ChatTemplate chat_template(program, "t.jinja", {{"eos_token", "<|endoftext|>"}});
  const Conversation conversation(tokenizer, chat_template, {});
  EXPECT_EQ(conversation.EndOfTurn(), tokenizer.Find("<|endoftext|>"));
}

// A prefix is computed once, so the template must not move it or leave it out.
TEST(ConversationErrorsTest, SystemTextWithoutAFixedPlaceIsRefused) {
  const Tokenizer tokenizer = Tokenizer::Load(testing::TextGoldenFolder() / "qwen");
  const std::string begin = "{% for m in messages if m.role != 'system' %}";
  const std::string end = "<|im_start|>{{ m.content }}<|im_end|>{% endfor %}";
  const auto refuses = [&](const std::string& program, const std::vector<std::string>& says) {
    const ChatTemplate chat_template(program, "t.jinja");
    Conversation(tokenizer, chat_template, {});
    return testing::Refuses<RuntimeFailure>(
        [&] { Conversation(tokenizer, chat_template, {.system = "s"}); }, says);
  };
  EXPECT_TRUE(refuses(begin + end, {"t.jinja", "the system text nowhere"}));
  EXPECT_TRUE(refuses(begin +
                          "{% if loop.last and messages[0].role == 'system' %}"
                          "{{ messages[0].content }}{% endif %}" +
                          end,
                      {"t.jinja", "moves the system text"}));
}

}  // namespace
}  // namespace tokline
