// Tests tokline generate with text prompts: input, output, and what is refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "harness/tests/chat/chat_model.h"
#include "harness/tests/cli/program_run.h"
#include "harness/tests/cli/terminal.h"
#include "harness/text/tokenizer.h"
#include "harness/text/utf8.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::Args;
using testing::FailsWith;
using testing::FilesIn;
using testing::Program;
using testing::ProgramResult;
using testing::ReadFile;
using testing::RunTokline;
using testing::RunToklineOn;
using testing::TempFolder;
using testing::Terminal;
using testing::With;
using testing::WriteChatModel;
using testing::WriteFile;

using Ids = std::vector<int32_t>;

// Writes the model once. Its output makes no sense.
const std::filesystem::path& Model() {
  static const TempFolder folder;
  static const bool written = (WriteChatModel(folder.Path(), {.positions = 50'000}), true);
  static_cast<void>(written);
  return folder.Path();
}

Args Generate(const Args& more) {
  return With({"generate", "--device", "cpu", "--model", Model().string()}, more);
}

Args Random(const Args& more) {
  return With(Generate({"--temperature", "1", "--ignore-eos", "--max-new-tokens", "60"}), more);
}

struct Generated {
  ProgramResult result;
  nlohmann::json json;
};

Generated RunWithJson(Args args, const std::string& input = "") {
  TempFolder dir;
  args.insert(args.end(), {"--json", dir / "out.json"});
  Generated generated{.result = RunToklineOn(input, args), .json = {}};
  EXPECT_EQ(generated.result.exit_code, 0) << generated.result.err;
  EXPECT_EQ(FilesIn(dir.Path()), Args{"out.json"});
  generated.json = nlohmann::json::parse(ReadFile(dir / "out.json"));
  return generated;
}

TEST(GenerateTextTest, TextGoesInByEachWayAndComesOut) {
  const Tokenizer tokenizer = Tokenizer::Load(Model());
  const std::string prompt = "What is\n “this”?";
  TempFolder dir;
  WriteFile(dir / "prompt", prompt + "\n");
  const Generated from_flag = RunWithJson(Random({"--prompt", prompt}));
  const nlohmann::json& json = from_flag.json;
  EXPECT_EQ(json["prompt_text"], prompt);
  EXPECT_EQ(json["prompt"].get<Ids>(), tokenizer.Encode(prompt));
  const Ids tokens = json["tokens"].get<Ids>();
  EXPECT_EQ(tokens.size(), 60u);
  const std::string text = tokenizer.Decode(tokens, {.skip_special = true});
  EXPECT_EQ(json["text"], text);
  EXPECT_EQ(json["stop"], nullptr);
  EXPECT_EQ(from_flag.result.out, text + "\n");
  for (const char* part : {" prompt tokens, first token ", " ms, 60 tokens, ",
                           " tok/s, cut short by --max-new-tokens]\n"}) {
    EXPECT_NE(from_flag.result.err.find(part), std::string::npos) << from_flag.result.err;
  }
  EXPECT_EQ(RunWithJson(Random({"--prompt-file", dir / "prompt"})).json["tokens"], json["tokens"]);
  EXPECT_EQ(RunWithJson(Random({"--prompt", "-"}), prompt).json["tokens"], json["tokens"]);
  std::string ids;
  for (const int32_t id : json["prompt"].get<Ids>()) ids += StrCat(ids.empty() ? "" : ",", id);
  const Generated from_ids = RunWithJson(Random({"--prompt-ids", ids}));
  EXPECT_EQ(from_ids.json["tokens"], json["tokens"]);
  EXPECT_FALSE(from_ids.json.contains("text"));
  EXPECT_EQ(from_ids.result.err, "");
}

TEST(GenerateTextTest, EmbeddedModelAnswersItsExampleWhereNoPromptIsGiven) {
  const Generated example = RunWithJson({"generate", "--device", "cpu"});
  EXPECT_EQ(example.json["model"], "qwen3-lookup");
  EXPECT_NE(example.json["prompt_text"].get<std::string>().find("The code of river is 0377."),
            std::string::npos);
  EXPECT_EQ(example.result.out, " The code of river is 0377.\n");
  EXPECT_EQ(example.json["stopped"], true);
}

TEST(GenerateTextTest, StopStringsEndTheTextWhereverTokensEnd) {
  const Tokenizer tokenizer = Tokenizer::Load(Model());
  const Generated free = RunWithJson(Random({"--prompt", "Hello"}));
  const std::string text = free.json["text"];
  // The stop string begins inside one token and ends inside a later one.
  const Ids tokens = free.json["tokens"].get<Ids>();
  const std::string before = tokenizer.Decode(Ids(tokens.begin(), tokens.begin() + 20));
  const size_t at = text.find(tokenizer.Decode(Ids(tokens.begin() + 20, tokens.begin() + 24)));
  ASSERT_NE(at, text.npos);
  size_t begin = at - 1, end = at + 6;
  while ((text[begin] & 0xC0) == 0x80) --begin;
  while ((text[end] & 0xC0) == 0x80) ++end;
  const std::string stop = text.substr(begin, end - begin);
  const Generated stopped =
      RunWithJson(Random({"--prompt", "Hello", "--stop", "never to be seen", "--stop", stop}));
  EXPECT_EQ(stopped.json["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped.result.out, text.substr(0, text.find(stop)) + "\n");
  EXPECT_EQ(stopped.json["stop"], stop);
  EXPECT_EQ(stopped.json["stopped"], true);
  EXPECT_LT(stopped.json["tokens"].size(), tokens.size());
}

TEST(GenerateTextTest, EndOfSequenceEndsTheTextAndIsNotPrinted) {
  const Generated free = RunWithJson(Random({"--prompt", "Hello"}));
  const Ids tokens = free.json["tokens"].get<Ids>();
  TempFolder dir;
  for (const char* name : {"model.safetensors", "tokenizer.json"}) {
    std::filesystem::create_symlink(Model() / name, dir / name);
  }
  nlohmann::json config = nlohmann::json::parse(ReadFile(Model() / "config.json"));
  config["eos_token_id"] = tokens[7];  // an ordinary token
  WriteFile(dir / "config.json", config.dump());
  const Generated ended =
      RunWithJson({"generate", "--device", "cpu", "--model", dir.Path().string(), "--temperature",
                   "1", "--prompt", "Hello"});
  const Tokenizer tokenizer = Tokenizer::Load(Model());
  const auto first = std::ranges::find(tokens, tokens[7]) - tokens.begin();
  EXPECT_EQ(ended.json["tokens"].get<Ids>(), Ids(tokens.begin(), tokens.begin() + first + 1));
  EXPECT_EQ(ended.json["text"],
            tokenizer.Decode(Ids(tokens.begin(), tokens.begin() + first), {.skip_special = true}));
}

TEST(GenerateTextTest, SpecialTokensInThePromptAreTextUnlessAllowed) {
  const Args common = {"--prompt", "a<|im_end|>b", "--max-new-tokens", "1"};
  const auto has_special = [](const Generated& generated) {
    const Ids ids = generated.json["prompt"].get<Ids>();
    return std::ranges::count(ids, testing::kImEnd) > 0;
  };
  EXPECT_FALSE(has_special(RunWithJson(Generate(common))));
  Args allowed = common;
  allowed.push_back("--allow-special");
  EXPECT_TRUE(has_special(RunWithJson(Generate(allowed))));
}

TEST(GenerateTextTest, TensorsThatAreNotUsedAreReportedInOneLine) {
  TempFolder dir;
  WriteChatModel(dir.Path(), {.more_tensors = {{"extra.one", {2}}, {"extra.two", {3}}}});
  const std::string line =
      "[2 tensors of the checkpoint are not used: \"extra.one\", \"extra.two\"]\n";
  const ProgramResult generate =
      RunTokline({"generate", "--device", "cpu", "--model", dir.Path().string(), "--prompt-ids",
                  "1", "--max-new-tokens", "1"});
  EXPECT_EQ(generate.exit_code, 0);
  EXPECT_EQ(generate.err, line);
  const ProgramResult bench =
      RunTokline({"bench", "--device", "cpu", "--model", dir.Path().string(), "--batch", "1",
                  "--prompt-tokens", "4", "--new-tokens", "2", "--repeats", "1"});
  EXPECT_EQ(bench.exit_code, 0);
  EXPECT_EQ(bench.err, line);
}

TEST(GenerateTextTest, InterruptedStreamIsWholeTextAndExits130) {
  TempFolder dir;
  Program generate(Generate({"--prompt", "Hello", "--temperature", "1", "--ignore-eos",
                             "--max-new-tokens", "40000", "--json", dir / "out.json"}));
  ASSERT_TRUE(generate.WaitForOutput(" "));
  generate.Signal(SIGINT);
  const ProgramResult result = generate.Wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_FALSE(FindUtf8Fault(result.out));
  const nlohmann::json json = nlohmann::json::parse(ReadFile(dir / "out.json"));
  EXPECT_EQ(json["interrupted"], true);
  EXPECT_EQ(result.out, json["text"].get<std::string>() + "\n");
  EXPECT_NE(result.err.find(", interrupted]"), std::string::npos);
}

TEST(GenerateTextTest, AnInterruptedPrefillHasNoTimeOfAFirstToken) {
  TempFolder dir;
  std::string prompt;
  for (int i = 0; i < 10'000; ++i) prompt += "one ";
  WriteFile(dir / "prompt.txt", prompt);
  Terminal terminal;
  Program generate(Generate({"--prompt-file", dir / "prompt.txt"}),
                   testing::ProgramStreams{.err = terminal.Path()});
  ASSERT_NE(terminal.ReadTo(" prompt tokens, about "), "");
  generate.Signal(SIGINT);
  EXPECT_EQ(generate.Wait().exit_code, 130);
  const std::string said = terminal.ReadTo("first token");
  EXPECT_TRUE(said.ends_with(" prompt tokens, interrupted before the first token")) << said;
}

TEST(GenerateTextTest, ClosedOutputIsAFailureThatLeavesNothingBehind) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  TempFolder dir;
  Program generate(Random({"--prompt", "Hello", "--json", dir / "out.json"}),
                   testing::ProgramStreams{.out_file = ends[1]});
  EXPECT_TRUE(FailsWith(generate.Wait(), 1, {"standard output", "Broken pipe"}));
  EXPECT_TRUE(FilesIn(dir.Path()).empty());
  ::close(ends[1]);
}

TEST(GenerateTextTest, FullDeviceIsAFailure) {
  const Args args = Generate({"--prompt", "Hello", "--max-new-tokens", "2"});
  Args with_json = args;
  with_json.insert(with_json.end(), {"--json", "/dev/full"});
  const ProgramResult result = RunTokline(with_json);
  EXPECT_TRUE(FailsWith(result, 1, {"cannot write /dev/full", "No space left"}));
  EXPECT_NE(result.out, "");  // the text is printed all the same
  EXPECT_TRUE(FailsWith(RunTokline(args, "/dev/full"), 1, {"standard output", "No space left"}));
}

TEST(GenerateTextTest, BadPromptsExitTwoAndSayWhatIsAllowed) {
  const auto refused = [](const Args& more, const Args& says) {
    const ProgramResult result = RunTokline(Generate(more));
    EXPECT_EQ(result.out, "");
    return FailsWith(result, 2, says);
  };
  EXPECT_TRUE(refused({}, {"no prompt", "--prompt, --prompt-file and --prompt-ids"}));
  EXPECT_TRUE(refused({"--prompt", ""}, {"--prompt is empty"}));
  EXPECT_TRUE(refused({"--prompt", "a", "--prompt-ids", "1"}, {"only one of"}));
  EXPECT_TRUE(refused({"--prompt", "a\xff"}, {"--prompt is not valid UTF-8", "0xff at offset 1"}));
  EXPECT_TRUE(refused({"--prompt", "a", "--stop", ""}, {"--stop is empty"}));
  EXPECT_TRUE(refused({"--prompt", "a", "--stop", "\xc3"}, {"stop string", "byte 0xc3"}));
  EXPECT_TRUE(refused({"--prompt-ids", "1", "--stop", "a"}, {"--stop needs a prompt of text"}));
  EXPECT_TRUE(refused({"--prompt-ids", "1", "--allow-special"}, {"--allow-special needs"}));
  EXPECT_TRUE(refused({"--prompt", "Hello", "--max-new-tokens", "50000"},
                      {"a prompt of ", " tokens and 50000 new tokens", "50000 positions"}));
}

TEST(GenerateTextTest, PromptBeyondTheContextIsRefusedWithBothNumbers) {
  TempFolder dir;
  WriteChatModel(dir.Path(), {.positions = 64});
  const ProgramResult result = RunTokline({"generate", "--device", "cpu", "--model",
                                           dir.Path().string(), "--prompt", std::string(64, '~')});
  EXPECT_TRUE(FailsWith(result, 2, {"a prompt of 64 tokens", "the model's 64 positions"}));
  // A shorter prompt gets the positions that are left.
  EXPECT_EQ(RunTokline({"generate", "--device", "cpu", "--model", dir.Path().string(), "--prompt",
                        std::string(60, '~'), "--ignore-eos"})
                .exit_code,
            0);
}

TEST(GenerateTextTest, InputThatCannotBeReadExitsOneAndIsNamed) {
  TempFolder dir;
  WriteFile(dir / "broken", "ab\xe2\x82");
  WriteFile(dir / "empty", "");
  const auto from = [](const std::string& file) {
    return RunTokline(Generate({"--prompt-file", file}));
  };
  EXPECT_TRUE(FailsWith(from(dir / "gone"), 1, {"cannot read", "gone", "No such file"}));
  EXPECT_TRUE(FailsWith(from(dir.Path()), 1, {dir.Path().string(), "Is a directory"}));
  EXPECT_TRUE(FailsWith(from(dir / "broken"), 1,
                        {"broken is not valid UTF-8", "byte 0xe2 at offset 2", "end of data"}));
  EXPECT_TRUE(FailsWith(from(dir / "empty"), 2, {"empty is empty"}));
  EXPECT_TRUE(FailsWith(RunToklineOn("a\x80", Generate({"--prompt", "-"})), 1,
                        {"standard input is not valid UTF-8", "byte 0x80 at offset 1"}));
  EXPECT_TRUE(
      FailsWith(RunToklineOn("\n", Generate({"--prompt", "-"})), 2, {"standard input is empty"}));
}

TEST(GenerateTextTest, MissingOrBrokenTokenizerExitsOneAndIsNamed) {
  TempFolder dir;
  WriteChatModel(dir.Path());
  const auto run = [&] {
    return RunTokline(
        {"generate", "--device", "cpu", "--model", dir.Path().string(), "--prompt", "Hello"});
  };
  const std::string file = (dir / "tokenizer.json").string();
  std::filesystem::remove(file);
  EXPECT_TRUE(FailsWith(run(), 1, {file, "No such file"}));
  WriteFile(file, "{\"model\": {\n");
  EXPECT_TRUE(FailsWith(run(), 1, {file, "not valid JSON"}));
  nlohmann::json json = nlohmann::json::parse(ReadFile(Model() / "tokenizer.json"));
  json["model"]["type"] = "Unigram";
  WriteFile(file, json.dump());
  EXPECT_TRUE(FailsWith(run(), 1, {file, "Unigram"}));
  // The tokenizer of another model, with ids that this model does not have.
  std::filesystem::copy_file(testing::GoldenTextFile("ernie45/tokenizer.json"), file,
                             std::filesystem::copy_options::overwrite_existing);
  const Tokenizer other = Tokenizer::Load(dir.Path());
  std::string prompt;
  for (int32_t id = testing::kChatVocab; prompt.empty(); ++id) {
    const std::string text = other.Decode(Ids{id});
    if (other.Encode(text) == Ids{id}) prompt = text;
  }
  EXPECT_TRUE(FailsWith(RunTokline({"generate", "--device", "cpu", "--model", dir.Path().string(),
                                    "--prompt", prompt}),
                        2, {"the prompt has ", "ids 0 to 1107"}));
}

}  // namespace
}  // namespace tokline
