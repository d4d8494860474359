// Tests tokline chat in a pipe and on a terminal.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "harness/tests/chat/chat_model.h"
#include "harness/tests/cli/program_run.h"
#include "harness/tests/cli/terminal.h"
#include "harness/text/tokenizer.h"
#include "harness/text/utf8.h"

namespace tokline {
namespace {

using testing::Args;
using testing::FailsWith;
using testing::Program;
using testing::ProgramResult;
using testing::ProgramStreams;
using testing::RunToklineOn;
using testing::TempFolder;
using testing::Terminal;
using testing::With;
using testing::WriteChatModel;
using testing::WriteFile;

const std::filesystem::path& Model() {
  static const TempFolder folder;
  static const bool written = (WriteChatModel(folder.Path(), {.positions = 50'000}), true);
  static_cast<void>(written);
  return folder.Path();
}

Args Chat(const Args& more = {}, const std::filesystem::path& model = Model()) {
  return With({"chat", "--device", "cpu", "--model", model.string(), "--page-size", "16"}, more);
}

Args Lines(const std::string& text) {
  Args lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

bool Contains(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

// The error is the last line, after those of successful turns.
::testing::AssertionResult LastLineFails(const ProgramResult& result, int exit_code,
                                         const Args& says) {
  ProgramResult last = result;
  if (const Args lines = Lines(result.err); !lines.empty()) last.err = lines.back() + "\n";
  return FailsWith(last, exit_code, says);
}

class ChatCommandTest : public ::testing::Test {
 protected:
  ChatCommandTest() {
    WriteFile(dir_ / "system.txt", "You know two files.\n");
    WriteFile(dir_ / "notes.md", "one two three four five six seven eight\n");
    WriteFile(dir_ / "code.md", "int main() { return 0; }\n");
  }
  Args WithChunks(const Args& more) const {
    return With(Chat({"--system", dir_ / "system.txt", "--chunk", dir_ / "notes.md", "--chunk",
                      dir_ / "code.md", "--max-new-tokens", "8"}),
                more);
  }
  TempFolder dir_;
};

TEST_F(ChatCommandTest, PipeGivesAnAnswerATurnAndSaysWhatWasReused) {
  const ProgramResult result = RunToklineOn("Hello\n\nAnd now?", WithChunks({}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(Contains(result.out, "> "));
  EXPECT_FALSE(Contains(result.out, "reused"));
  const Args lines = Lines(result.err);
  ASSERT_EQ(lines.size(), 3u) << result.err;
  EXPECT_TRUE(Contains(lines[0], "[context of ")) << lines[0];
  for (const char* part :
       {"[reused ", " prompt tokens (system ", ", notes.md ", ", code.md ", "), saved about ",
        " by estimate; first token ", ", 8 tokens, ", "cut short by --max-new-tokens 8]"}) {
    EXPECT_TRUE(Contains(lines[1], part)) << part << " in " << lines[1];
  }
  EXPECT_FALSE(Contains(lines[1], "history")) << lines[1];
  EXPECT_TRUE(Contains(lines[2], ", history ")) << lines[2];
  EXPECT_FALSE(Contains(result.err, "\x1b")) << "dim where nobody sees it";
  // The same turns give the same answers, and the first turn does not depend on the second.
  EXPECT_EQ(RunToklineOn("Hello\nAnd now?\n", WithChunks({})).out, result.out);
  EXPECT_TRUE(result.out.starts_with(RunToklineOn("Hello\n", WithChunks({})).out));
}

TEST_F(ChatCommandTest, EmbeddedModelAnswersFromItsChunksTurnAfterTurn) {
  WriteFile(dir_ / "notes.md", "The code of amber is 4821.\nThe code of river is 0377.\n");
  WriteFile(dir_ / "code.md", "The code of moon is 1234.\nThe code of castle is 7301.\n");
  const ProgramResult result = RunToklineOn(
      "What is the code of river?\nAnd the code of moon?\nWhat is the code of amber?\n",
      {"chat", "--device", "cpu", "--model", testing::EmbeddedModel().string(), "--chunk",
       dir_ / "notes.md", "--chunk", dir_ / "code.md"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "The code of river is 0377.\nThe code of moon is 1234.\nThe code of amber is 4821.\n");
  const Args lines = Lines(result.err);
  ASSERT_EQ(lines.size(), 4u) << result.err;
  for (size_t turn = 1; turn < 4; ++turn) {
    EXPECT_FALSE(Contains(lines[turn], "cut short")) << lines[turn];
    EXPECT_EQ(Contains(lines[turn], "history "), turn > 1) << lines[turn];
  }
}

TEST_F(ChatCommandTest, JsonHasTheIdsAndTextsOfEachTurn) {
  const Args quick = {"--max-new-tokens", "4", "--json", dir_ / "out.json"};
  const ProgramResult result = RunToklineOn("Hello\n/reset\nAnd now?\n", Chat(quick));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(std::ifstream(dir_ / "out.json"));
  ASSERT_EQ(json.at("turns").size(), 2u);
  const auto& turn = json.at("turns").at(0);
  EXPECT_EQ(turn.at("user"), "Hello");
  EXPECT_EQ(turn.at("prompt_text"), "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(turn.at("tokens").size(), 4u);
  EXPECT_EQ(result.out, turn.at("text").get<std::string>() + "\n" +
                            json.at("turns").at(1).at("text").get<std::string>() + "\n");
  const Tokenizer tokenizer = Tokenizer::Load(Model());
  EXPECT_EQ(turn.at("prompt").get<std::vector<int32_t>>(),
            tokenizer.Encode(turn.at("prompt_text").get<std::string>(),
                             {.add_special_tokens = false, .allow_special = true}));
}

TEST_F(ChatCommandTest, StopTextEndsAnAnswerAndTheNextTurnGoesOnWithoutIt) {
  WriteFile(dir_ / "notes.md", "The code of amber is 4821.\nThe code of river is 0377.\n");
  const ProgramResult result = RunToklineOn(
      "What is the code of river?\nGo on\n",
      {"chat", "--device", "cpu", "--model", testing::EmbeddedModel().string(), "--chunk",
       dir_ / "notes.md", "--stop", "r is 03", "--json", dir_ / "out.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("The code of rive\n")) << result.out;
  EXPECT_FALSE(Contains(Lines(result.err).at(1), "cut short"));
  const auto turns = nlohmann::json::parse(std::ifstream(dir_ / "out.json")).at("turns");
  EXPECT_EQ(turns.at(0).at("text"), "The code of rive");
  EXPECT_EQ(turns.at(0).at("stop"), "r is 03");
  EXPECT_TRUE(Contains(turns.at(1).at("prompt_text").get<std::string>(),
                       "assistant\nThe code of rive<|im_end|>\n<|im_start|>user\nGo on"));
  EXPECT_TRUE(FailsWith(RunToklineOn("Hello\n", Chat({"--stop", "\xff"})), 2,
                        {"a stop string is not valid UTF-8"}));
}

TEST_F(ChatCommandTest, CommandsResetListAndEnd) {
  const ProgramResult result =
      RunToklineOn("Hello\n/chunks\n/help\n/reset\nHello\n/quit\nnever\n", WithChunks({}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string once = RunToklineOn("Hello\n", WithChunks({})).out;
  EXPECT_EQ(result.out, once + once);  // the second turn knows nothing of the first
  for (const char* part :
       {"\n[notes.md: ", " tokens, ", " KiB of KV]", "\n[system: ", "\n[code.md: ",
        "[all turns are dropped, the chunks stay]", "[/reset drops all turns"}) {
    EXPECT_TRUE(Contains(result.err, part)) << part << " in " << result.err;
  }
  EXPECT_TRUE(Contains(RunToklineOn("/chunks\n", Chat()).err, "[no chunks]"));
  EXPECT_TRUE(FailsWith(RunToklineOn("/bye\nHello\n", Chat()), 1,
                        {"unknown command \"/bye\"", "/reset, /chunks, /quit, /help"}));
  const Args few = {"--max-new-tokens", "4"};
  EXPECT_NE(RunToklineOn("//bye\n", Chat(few)).out, "");
}

TEST_F(ChatCommandTest, ModelsThatCannotChatAreRefusedWithTheFilesThatWereLookedFor) {
  TempFolder base;
  WriteChatModel(base.Path(), {.chat_template = false});
  const auto refused = [&](const Args& says) {
    const ProgramResult result = RunToklineOn("Hello\n", Chat({}, base.Path()));
    EXPECT_EQ(result.out, "");
    return FailsWith(result, 1, says);
  };
  EXPECT_TRUE(refused({"has no chat template", (base / "chat_template.jinja").string(),
                       (base / "tokenizer_config.json").string(), "tokline generate"}));
  WriteFile(base / "chat_template.jinja", "{{ messages | urlize }}");
  EXPECT_TRUE(refused({(base / "chat_template.jinja").string(), "line 1",
                       "the filter \"urlize\" is not supported"}));
  std::filesystem::remove(base / "chat_template.jinja");
  std::filesystem::copy_file(testing::EmbeddedModel() / "tokenizer_config.json",
                             base / "tokenizer_config.json");
  std::filesystem::copy_file(testing::GoldenTextFile("gpt2/tokenizer.json"),
                             base / "tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(refused({"chat_template", "<|im_end|>", "the tokenizer has no special token"}));
  std::filesystem::remove(base / "tokenizer.json");
  EXPECT_TRUE(refused({(base / "tokenizer.json").string(), "No such file"}));
}

TEST_F(ChatCommandTest, ContextThatCannotBeReadIsNamed) {
  WriteFile(dir_ / "broken.md", "ab\xff");
  WriteFile(dir_ / "empty.md", "\n");
  const auto with = [&](const char* flag, const std::filesystem::path& file) {
    return RunToklineOn("Hello\n", Chat({flag, file.string()}));
  };
  for (const char* flag : {"--chunk", "--system"}) {
    EXPECT_TRUE(FailsWith(with(flag, dir_ / "gone.md"), 1, {"gone.md", "No such file"}));
    EXPECT_TRUE(FailsWith(with(flag, dir_ / "broken.md"), 1,
                          {"broken.md is not valid UTF-8", "byte 0xff at offset 2"}));
  }
  EXPECT_TRUE(FailsWith(with("--chunk", dir_ / "empty.md"), 2, {"empty.md is empty"}));
}

TEST_F(ChatCommandTest, ChunksBeyondTheContextOrThePoolAreRefusedWithBothNumbers) {
  WriteFile(dir_ / "long.md", std::string(1000, '~'));
  const auto with = [&](const Args& more) {
    return RunToklineOn("Hello\n", With(Chat({"--chunk", dir_ / "long.md"}), more));
  };
  EXPECT_TRUE(FailsWith(with({"--context", "500"}), 2,
                        {"the system text and the chunks have 10", "the context has 500"}));
  EXPECT_TRUE(FailsWith(with({"--kv-pages", "100"}), 2,
                        {"the system text and the chunks take 64 pages of 16",
                         "the KV cache has 100", "at least 129"}));
  EXPECT_TRUE(
      FailsWith(with({"--context", "50001"}), 2, {"--context is 50001", "50000 positions"}));
}

TEST_F(ChatCommandTest, TurnBeyondTheContextEndsAPipeAfterWhatWentWell) {
  const Args args = WithChunks({"--context", "200"});
  const ProgramResult result = RunToklineOn("Hello\n" + std::string(300, '~') + "\nHello\n", args);
  EXPECT_EQ(result.out, RunToklineOn("Hello\n", args).out);
  EXPECT_TRUE(LastLineFails(
      result, 1, {"turn 2: the context is full", "the context has 200", "/reset drops all turns"}));
}

TEST_F(ChatCommandTest, TurnThatIsNotUtf8EndsAPipeAfterWhatWentWell) {
  const ProgramResult result = RunToklineOn("Hello\na\xff\nHello\n", WithChunks({}));
  EXPECT_EQ(result.out, RunToklineOn("Hello\n", WithChunks({})).out);
  EXPECT_TRUE(LastLineFails(result, 1, {"turn 2 is not valid UTF-8: byte 0xff at offset 1"}));
}

TEST_F(ChatCommandTest, FailureInAPipeKeepsTheJsonOfWhatWentWell) {
  const Args args = WithChunks({"--context", "200", "--json", dir_ / "out.json"});
  for (const std::string& bad : {std::string("/bogus"), std::string(300, '~')}) {
    EXPECT_EQ(RunToklineOn("Hello\nAnd now?\n" + bad + "\nHello\n", args).exit_code, 1);
    const auto turns = nlohmann::json::parse(std::ifstream(dir_ / "out.json")).at("turns");
    ASSERT_EQ(turns.size(), 2u);
    EXPECT_EQ(turns.at(1).at("user"), "And now?");
    EXPECT_EQ(RunToklineOn(bad, args).exit_code, 1);  // without a turn, the file stays as it is
    EXPECT_EQ(nlohmann::json::parse(std::ifstream(dir_ / "out.json")).at("turns"), turns);
    std::filesystem::remove(dir_ / "out.json");
  }
}

TEST_F(ChatCommandTest, InterruptedPipeEndsWithWholeText) {
  WriteFile(dir_ / "in", "Hello\nnever answered\n");
  Program chat(Chat({"--temperature", "1", "--max-new-tokens", "40000"}),
               ProgramStreams{.in = (dir_ / "in").string()});
  ASSERT_TRUE(chat.WaitForOutput(" "));
  chat.Signal(SIGINT);
  const ProgramResult result = chat.Wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_TRUE(result.out.ends_with('\n'));
  EXPECT_FALSE(FindUtf8Fault(result.out));
  EXPECT_TRUE(Contains(result.err, "; interrupted]")) << result.err;
  EXPECT_EQ(Lines(result.err).size(), 1u);
}

TEST_F(ChatCommandTest, FullOutputIsAFailure) {
  WriteFile(dir_ / "in", "Hello\n");
  const ProgramResult result =
      Program(WithChunks({}), ProgramStreams{.out = "/dev/full", .in = (dir_ / "in").string()})
          .Wait();
  EXPECT_TRUE(LastLineFails(result, 1, {"standard output", "No space left"}));
}

TEST_F(ChatCommandTest, ControlCOnATerminalEndsTheAnswerAndAtThePromptTheProgram) {
  Terminal terminal;
  Program chat(
      Chat({"--temperature", "1", "--max-new-tokens", "40000"}),
      ProgramStreams{.out = terminal.Path(), .err = terminal.Path(), .in = terminal.Path()});
  EXPECT_EQ(terminal.ReadTo("> "), "> ");
  terminal.Type("Hello\n");
  terminal.ReadTo(" ");
  chat.Signal(SIGINT);
  const std::string answer = terminal.ReadTo("> ");
  EXPECT_TRUE(Contains(answer, "\n\x1b[2m[reused 0 of ")) << answer;
  EXPECT_TRUE(answer.ends_with("; interrupted]\x1b[0m\n> ")) << answer;
  terminal.Type("a\xff\n");  // a typing error does not end the program
  EXPECT_TRUE(Contains(terminal.ReadTo("> "), "turn 2 is not valid UTF-8"));
  terminal.Type("Go on\n");
  terminal.ReadTo(" ");
  chat.Signal(SIGINT);
  const std::string second = terminal.ReadTo("\n> ");
  EXPECT_TRUE(Contains(second, "history ")) << second;  // the first answer is part of it
  chat.Signal(SIGINT);
  EXPECT_EQ(chat.Wait().exit_code, 130);
}

TEST_F(ChatCommandTest, EndOfInputOnATerminalEndsTheProgram) {
  Terminal terminal;
  ::setenv("NO_COLOR", "1", 1);
  Program chat(
      Chat({"--max-new-tokens", "4"}),
      ProgramStreams{.out = terminal.Path(), .err = terminal.Path(), .in = terminal.Path()});
  ::unsetenv("NO_COLOR");
  terminal.ReadTo("> ");
  terminal.Type("Hello\n");
  EXPECT_FALSE(Contains(terminal.ReadTo("]\n> "), "\x1b"));
  terminal.Type("\x04");
  EXPECT_EQ(chat.Wait().exit_code, 0);
}

}  // namespace
}  // namespace tokline
