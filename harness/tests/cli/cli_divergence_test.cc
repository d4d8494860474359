// Tests tokline divergence: its report, and what it refuses.
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "harness/tests/cli/program_run.h"
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
using testing::TempFolder;
using testing::With;
using testing::WriteFile;

Args Divergence(const std::string& model, const Args& more) {
  return With({"divergence", "--device", "cpu", "--model",
               StrCat(TOKLINE_SOURCE_DIR, "/harness/tests/golden/", model)},
              more);
}

const Args kChunks = {"--chunk-ids", "1,2,3,4,5,6,7,8", "--chunk-ids", "9,10,11,12,13"};

TEST(CliDivergenceTest, ReportsEveryPromptAndAllOfThem) {
  TempFolder dir;
  const ProgramResult result = RunTokline(
      Divergence("llama3_scaled",
                 With(kChunks, {"--prompt-ids", "20,21", "--prompt-ids", "5,6,7", "--prefix-ids",
                                "30,31", "--max-new-tokens", "8", "--json", dir / "out.json"})));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("prompt of 17 tokens: 5 shifted, 7 computed for it\n  exact "))
      << result.out;
  EXPECT_NE(result.out.find("prompt of 18 tokens: 5 shifted, 0 computed"), std::string::npos);
  EXPECT_NE(result.out.find("all: KL mean "), std::string::npos);
  EXPECT_EQ(FilesIn(dir.Path()), Args{"out.json"});
  const nlohmann::json json = nlohmann::json::parse(ReadFile(dir / "out.json"));
  ASSERT_EQ(json["prompts"].size(), 2u);
  for (const nlohmann::json& one : json["prompts"]) {
    EXPECT_EQ(one["exact"].size(), 8u);
    EXPECT_EQ(one["kl"].size(), 8u);
    EXPECT_EQ(one["same_answer"], one["exact"] == one["shifted"]);
    EXPECT_LE(one["same_top"], 8);
    for (const double kl : one["kl"]) EXPECT_GE(kl, -1e-12);
  }
  // Without shifted chunks, the exact answer equals that of `tokline generate`.
  const ProgramResult plain = RunTokline(
      {"generate", "--device", "cpu", "--model",
       std::string(TOKLINE_SOURCE_DIR) + "/harness/tests/golden/llama3_scaled", "--prompt-ids",
       "30,31,1,2,3,4,5,6,7,8,9,10,11,12,13,20,21", "--max-new-tokens", "8"});
  EXPECT_NE(result.out.find("  exact    " + plain.out), std::string::npos) << plain.out;
}

TEST(CliDivergenceTest, RefusesInOneLine) {
  TempFolder dir;
  const std::string model = "llama3_scaled";
  const Args prompt = {"--prompt-ids", "1"};
  EXPECT_TRUE(FailsWith(RunTokline(Divergence(model, With({"--chunk-ids", "1"}, prompt))), 2,
                        {"the number of chunks is 1", "at least two --chunk"}));
  EXPECT_TRUE(FailsWith(RunTokline(Divergence(model, kChunks)), 2, {"--prompt is missing"}));
  EXPECT_TRUE(FailsWith(RunTokline(Divergence(model, With(kChunks, {"--prompt-ids", "203"}))), 2,
                        {"--prompt-ids has \"203\"", "0 to 202"}));
  EXPECT_TRUE(FailsWith(
      RunTokline(Divergence(model, With(With(kChunks, prompt), {"--max-new-tokens", "243"}))), 2,
      {"a prompt of 14 tokens and 243 new tokens", "256 positions"}));
  EXPECT_TRUE(FailsWith(
      RunTokline(Divergence(
          model, With(With(kChunks, prompt), {"--prefix-ids", "1", "--prefix", dir / "x"}))),
      2, {"only one --prefix or --prefix-ids may be given"}));
  EXPECT_TRUE(FailsWith(RunTokline(Divergence("gpt2_tiny", With(kChunks, prompt))), 2,
                        {"family gpt2 has learned positions"}));
  EXPECT_TRUE(FailsWith(RunTokline(Divergence(model, With(kChunks, {"--prompt", "text"}))), 1,
                        {"tokenizer.json"}));
  WriteFile(dir / "old.json", "old");
  EXPECT_TRUE(FailsWith(
      RunTokline(Divergence(
          model, With(With(kChunks, prompt), {"--kv-pages", "1", "--json", dir / "old.json"}))),
      2, {"needs 2 pages of the KV cache", "a sequence may have 1 of 1"}));
  EXPECT_EQ(ReadFile(dir / "old.json"), "old");
  EXPECT_EQ(FilesIn(dir.Path()), Args{"old.json"});
}

TEST(CliDivergenceTest, CtrlCKeepsThePromptsBeforeIt) {
  TempFolder dir;
  Args args = With(kChunks, {"--json", dir / "out.json", "--max-new-tokens", "200"});
  for (int i = 0; i < 200; ++i) args = With(args, {"--prompt-ids", "3,4,5"});
  Program program(Divergence("llama3_scaled", args));
  ASSERT_TRUE(program.WaitForOutput("prompt of"));
  program.Signal(SIGINT);
  const ProgramResult result = program.Wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.err, "");
  const auto report = nlohmann::json::parse(ReadFile(dir / "out.json"));
  EXPECT_EQ(report["interrupted"], true);
  EXPECT_GE(report["prompts"].size(), 1u);
  EXPECT_LT(report["prompts"].size(), 200u);
}

}  // namespace
}  // namespace tokline
