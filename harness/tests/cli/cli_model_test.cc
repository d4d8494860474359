// Every command accepts the name of a model in the Hugging Face cache.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "harness/tests/cli/program_run.h"
#include "harness/tests/models/hub_cache.h"

namespace tokline {
namespace {

using testing::Args;
using testing::FailsWith;
using testing::HubCacheFolder;
using testing::ProgramResult;
using testing::ReadFile;
using testing::RunTokline;
using testing::TempFolder;
using testing::With;

// Arguments that run a command on the CPU as fast as possible, followed by `more`.
Args Quick(const std::string& command, const Args& more) {
  Args args = {command, "--device", "cpu"};
  if (command == "generate") {
    args.insert(args.end(), {"--prompt-ids", "1,2,3", "--max-new-tokens", "4"});
  } else if (command != "inspect") {
    args.insert(args.end(), {"--batch", "1", "--prompt-tokens", "4", "--new-tokens", "2"});
  }
  if (command == "ablate") args.insert(args.end(), {"--only", "fused_mlp", "--rounds", "3"});
  return With(std::move(args), more);
}

// Puts the embedded model under a new name into a cache of its own.
class CliModelTest : public ::testing::TestWithParam<const char*> {
 protected:
  CliModelTest() {
    const std::filesystem::path source =
        std::filesystem::path(TOKLINE_SOURCE_DIR) / "models" / "qwen3-lookup";
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(source)) {
      if (entry.is_regular_file()) {
        files[entry.path().filename().string()] = ReadFile(entry.path());
      }
    }
    hub_.Add("models--Tokline--Tiny", "c1899de", files);
    ::setenv("HF_HUB_CACHE", hub_.Path().c_str(), 1);
  }
  ~CliModelTest() override { ::unsetenv("HF_HUB_CACHE"); }

  HubCacheFolder hub_;
};

TEST_P(CliModelTest, NameInTheCacheIsTheModel) {
  for (const char* name : {"Tokline/Tiny", "Tiny", "Tiny@main", "Tokline/Tiny@c1899de"}) {
    TempFolder dir;
    const ProgramResult result =
        RunTokline(Quick(GetParam(), {"--model", name, "--json", dir / "out.json"}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(nlohmann::json::parse(ReadFile(dir / "out.json"))["model"], "Tiny") << name;
    if (std::string_view(GetParam()) == "bench" || std::string_view(GetParam()) == "ablate") break;
  }
}

TEST_F(CliModelTest, ChatTakesTheModelOfThisName) {
  EXPECT_EQ(RunTokline({"chat", "--device", "cpu", "--model", "Tokline/Tiny"}).exit_code, 0);
  EXPECT_TRUE(FailsWith(RunTokline({"chat", "--model", "Tokline/Huge"}), 1,
                        {"no model \"Tokline/Huge\"", hub_.Path().string()}));
}

TEST_P(CliModelTest, UnknownNameExitsOneAndSaysWhereWasLooked) {
  EXPECT_TRUE(FailsWith(RunTokline(Quick(GetParam(), {"--model", "Tokline/Huge"})), 1,
                        {"no model \"Tokline/Huge\"", "is not a folder", hub_.Path().string(),
                         "from HF_HUB_CACHE", "which has Tokline/Tiny"}));
  hub_.Add("models--Other--Tiny", "0123abc", {{"config.json", "{}"}});
  EXPECT_TRUE(FailsWith(RunTokline(Quick(GetParam(), {"--model", "Tiny"})), 1,
                        {"Other/Tiny, Tokline/Tiny", "give the whole name"}));
  EXPECT_TRUE(FailsWith(RunTokline(Quick(GetParam(), {"--model", "Tokline/Tiny@v9"})), 1,
                        {"no revision \"v9\"", "it has main, c1899de"}));
}

INSTANTIATE_TEST_SUITE_P(Commands, CliModelTest,
                         ::testing::Values("generate", "bench", "inspect", "ablate"),
                         [](const auto& info) { return info.param; });

TEST(RandomWeightsTest, NeedAConfigurationAlone) {
  TempFolder dir;
  const std::filesystem::path config =
      std::filesystem::path(TOKLINE_SOURCE_DIR) / "harness/tests/golden/qwen3_tiny/config.json";
  std::filesystem::copy_file(config, dir / "config.json");
  const Args model = {"--device", "cpu", "--model", dir.Path().string(), "--weights", "random:5"};
  const Args commands[] = {
      {"bench", "--batch", "2", "--prompt-tokens", "4", "--new-tokens", "4", "--repeats", "1"},
      {"bench", "--workload", "synthetic:requests=2,prompt=4,new=3,ids=300"},
      {"ablate", "--only", "fused_mlp", "--rounds", "1", "--prompt-tokens", "4", "--new-tokens",
       "4"}};
  for (const Args& command : commands) {
    const ProgramResult result = RunTokline(With(command, model));
    EXPECT_EQ(result.exit_code, 0) << command[0] << "\n" << result.err;
    EXPECT_NE(result.out.find(" of random weights, "), std::string::npos) << result.out;
  }
  EXPECT_TRUE(FailsWith(RunTokline(With({"bench", "--weights", "rnd"}, {})), 2,
                        {"--weights is \"rnd\"; it must be random or random:SEED"}));
  EXPECT_TRUE(
      FailsWith(RunTokline({"bench", "--weights", "random:-1"}), 2, {"--weights is \"-1\""}));
  EXPECT_TRUE(FailsWith(RunTokline({"generate", "--weights", "random"}), 2, {"unknown flag"}));
}

}  // namespace
}  // namespace tokline
