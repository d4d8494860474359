// Bad input: the exit code, one clear line, and nothing half-written.
#include <gtest/gtest.h>

#include "harness/tests/cli/program_run.h"
#include "kernels/common/error.h"
#if TOKLINE_HAS_CUDA
#include "harness/core/device.h"
#endif

namespace tokline {
namespace {

using testing::FailsWith;
using testing::FilesIn;
using testing::ReadFile;
using testing::RunTokline;
using testing::SmallConfig;
using testing::SmallTensors;
using testing::TempFolder;
using testing::TestTensor;
using testing::WriteFile;
using testing::WriteModel;

using Args = std::vector<std::string>;

struct BadUsage {
  std::string name;
  Args args;
  std::vector<std::string> says;
};

void PrintTo(const BadUsage& bad, std::ostream* out) { *out << bad.name; }

Args Generate(const Args& more) {
  Args args = {"generate", "--prompt-ids", "1,2,3", "--device", "cpu"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Args Bench(const Args& more) {
  Args args = {"bench", "--device", "cpu"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

std::vector<BadUsage> BadUsages() {
  return {
      {"NoCommand", {}, {"no command", "generate, bench, inspect"}},
      {"UnknownCommand", {"serve"}, {"unknown command \"serve\"", "generate, bench, inspect"}},
      {"CommandWithNewline", {"a\nb"}, {"a\\x0ab"}},
      {"UnknownFlag", Generate({"--beam", "4"}), {"unknown flag \"--beam\"", "--prompt-ids"}},
      {"UnknownFlagOfBench", Bench({"--prompt-ids", "1"}), {"unknown flag", "tokline bench takes"}},
      {"StrayArgument", Generate({"4"}), {"unexpected argument \"4\""}},
      {"FlagTwice", Generate({"--seed", "1", "--seed", "2"}), {"--seed is given twice"}},
      {"ValueMissing", Generate({"--seed"}), {"--seed needs a value: --seed N"}},
      {"SwitchWithValue", Generate({"--no-graphs=1"}), {"--no-graphs takes no value"}},
      {"PromptMissing", {"generate"}, {"--prompt-ids is missing"}},
      {"PromptEmpty", {"generate", "--prompt-ids", ""}, {"--prompt-ids has \"\""}},
      {"PromptNotNumbers", {"generate", "--prompt-ids", "1,x"}, {"\"x\" in \"1,x\""}},
      {"PromptTrailingComma", {"generate", "--prompt-ids", "1,"}, {"--prompt-ids has \"\""}},
      {"PromptNegative", {"generate", "--prompt-ids", "-1"}, {"\"-1\"", "from 0"}},
      {"PromptAboveInt32", {"generate", "--prompt-ids", "4294967297"}, {"to 2147483647"}},
      {"PromptAboveInt64", {"generate", "--prompt-ids", "99999999999999999999"}, {"integers"}},
      {"IdOutsideVocabulary",
       {"generate", "--prompt-ids", "1,384"},
       {"--prompt-ids has 384", "ids 0 to 383"}},
      {"ForcedIdOutsideVocabulary", Generate({"--force-ids", "400"}), {"--force-ids has 400"}},
      {"MoreForcedThanNew",
       Generate({"--max-new-tokens", "2", "--force-ids", "1,2,3"}),
       {"--force-ids has 3 ids", "--max-new-tokens allows 2"}},
      {"NoNewTokens", Generate({"--max-new-tokens", "0"}), {"--max-new-tokens is \"0\"", "from 1"}},
      {"BeyondPositions",
       Generate({"--max-new-tokens", "4094"}),
       {"prompt of 3 tokens and 4094 new tokens", "4096 positions"}},
      {"BeyondPool",
       Generate({"--page-size", "16", "--kv-pages", "1", "--max-new-tokens", "14"}),
       {"--kv-pages is 1", "17 tokens", "need 2 pages of 16"}},
      {"PageSize", Generate({"--page-size", "24"}), {"page_size is 24", "power of two from 16"}},
      {"PageSizeSmall", Generate({"--page-size", "8"}), {"--page-size is \"8\""}},
      {"UnknownDevice", {"inspect", "--device", "tpu"}, {"--device is \"tpu\"", "auto, cpu, cuda"}},
      {"UnknownDType", Generate({"--dtype", "f8"}), {"--dtype is \"f8\"", "f32, bf16, f16"}},
      {"UnknownAblation", Generate({"--ablate", "magic"}), {"'magic'", "chunk_decode"}},
      {"TemperatureNegative", Generate({"--temperature", "-1"}), {"temperature is -1", ">= 0"}},
      {"TemperatureNan", Generate({"--temperature", "nan"}), {"--temperature is \"nan\""}},
      {"TopP", Generate({"--top-p", "1.5"}), {"top_p is 1.5", "at most 1"}},
      {"TopK", Generate({"--top-k", "-2"}), {"--top-k is \"-2\""}},
      {"SeedNegative", Generate({"--seed", "-1"}), {"--seed is \"-1\""}},
      {"ModelEmpty", Generate({"--model", ""}), {"--model is empty"}},
      {"JsonEmpty", Generate({"--json="}), {"--json is empty"}},
      {"BatchZero", Bench({"--batch", "8,0"}), {"--batch has \"0\"", "from 1 to 4096"}},
      {"OneNewToken", Bench({"--new-tokens", "1"}), {"--new-tokens is \"1\"", "from 2"}},
      {"BenchBeyondPositions",
       Bench({"--prompt-tokens", "4000", "--new-tokens", "97"}),
       {"4000 prompt tokens", "the model has 4096"}},
      {"BenchBeyondPool",
       Bench({"--batch", "1,2", "--kv-pages", "1"}),
       {"--kv-pages is 1", "need 2 pages"}},
  };
}

class BadUsageTest : public ::testing::TestWithParam<BadUsage> {};

TEST_P(BadUsageTest, ExitsTwoWithOneLine) {
  EXPECT_TRUE(FailsWith(RunTokline(GetParam().args), 2, GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(Cli, BadUsageTest, ::testing::ValuesIn(BadUsages()),
                         [](const auto& info) { return info.param.name; });

TEST(CliErrorsTest, BadModelExitsOneForEveryCommand) {
  TempFolder dir;
  for (const Args& args :
       {Args{"generate", "--prompt-ids", "1", "--model", dir / "gone"},
        Args{"bench", "--model", dir / "gone"}, Args{"inspect", "--model", dir / "gone"}}) {
    EXPECT_TRUE(FailsWith(RunTokline(args), 1, {(dir / "gone").string(), "not a folder"}));
  }
}

// Inspects a small model whose files `spoil` changes.
testing::ProgramResult InspectSpoiled(const std::function<void(const TempFolder&)>& spoil) {
  TempFolder dir;
  WriteModel(dir.Path(), SmallConfig(), SmallTensors());
  spoil(dir);
  return RunTokline({"inspect", "--device", "cpu", "--model", dir.Path().string()});
}

TEST(CliErrorsTest, SmallModelIsInspected) {
  EXPECT_EQ(InspectSpoiled([](const TempFolder&) {}).exit_code, 0);
}

TEST(CliErrorsTest, BrokenCheckpointExitsOneAndNamesTheProblem) {
  const std::string whole = testing::SafetensorsFile(SmallTensors());
  const auto with_file = [&](std::string file) {
    return InspectSpoiled(
        [&](const TempFolder& dir) { WriteFile(dir / "model.safetensors", file); });
  };
  EXPECT_TRUE(FailsWith(with_file(whole.substr(0, whole.size() - 5)), 1,
                        {"model.safetensors", "truncated"}));
  EXPECT_TRUE(FailsWith(with_file(whole.substr(0, 100)), 1, {"the header says", "truncated"}));
  EXPECT_TRUE(FailsWith(with_file(testing::LengthPrefix(1u << 30) + whole.substr(8)), 1,
                        {"it has 1073741824 bytes"}));
  EXPECT_TRUE(FailsWith(with_file(testing::SafetensorsFile(
                            R"({"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]},)"
                            R"("b\n":{"dtype":"BF16","shape":[4],"data_offsets":[4,12]}})",
                            12)),
                        1, {"\"b\\x0a\"", "overlaps"}));
  EXPECT_TRUE(FailsWith(InspectSpoiled([](const TempFolder& dir) {
                          std::filesystem::remove(dir / "model.safetensors");
                        }),
                        1, {"neither model.safetensors"}));
}

TEST(CliErrorsTest, CheckpointThatIsNotTheConfigsExitsOne) {
  const auto with_config = [](const std::string& key, nlohmann::json value) {
    return InspectSpoiled([&](const TempFolder& dir) {
      nlohmann::json config = SmallConfig();
      config[key] = std::move(value);
      WriteFile(dir / "config.json", config.dump());
    });
  };
  EXPECT_TRUE(FailsWith(with_config("architectures", {"LlamaForCausalLM"}), 1,
                        {"LlamaForCausalLM", "supported: Qwen3ForCausalLM"}));
  EXPECT_TRUE(FailsWith(with_config("torch_dtype", "int8"), 1,
                        {"\"int8\"", "supported: float32, bfloat16, float16"}));
  EXPECT_TRUE(FailsWith(with_config("num_hidden_layers", 3), 1, {"model.layers.2.", "is missing"}));
  EXPECT_TRUE(FailsWith(with_config("intermediate_size", 16), 1,
                        {"gate_proj.weight", "[12, 8]", "[16, 8]"}));
}

TEST(CliErrorsTest, CudaWithoutADeviceExitsOne) {
#if TOKLINE_HAS_CUDA
  if (CudaDeviceCount() > 0) GTEST_SKIP() << "there is a CUDA device";
#endif
  EXPECT_TRUE(
      FailsWith(RunTokline({"generate", "--prompt-ids", "1", "--device", "cuda"}), 1, {"CUDA"}));
  TempFolder dir;
  EXPECT_TRUE(FailsWith(RunTokline({"bench", "--device", "cuda", "--record", dir / "record"}), 1,
                        {"CUDA"}));
  EXPECT_TRUE(FilesIn(dir.Path()).empty());
}

TEST(CliErrorsTest, UnwritableOutputIsFoundBeforeTheWork) {
  TempFolder dir;
  const std::string missing = (dir / "gone" / "out").string();
  for (const char* flag : {"--json", "--logits"}) {
    const auto result = RunTokline(Generate({flag, missing}));
    EXPECT_TRUE(FailsWith(result, 1, {"cannot write " + missing, "No such file"}));
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(FailsWith(RunTokline(Generate({flag, dir.Path().string()})), 1,
                          {"cannot write " + dir.Path().string(), "directory"}));
  }
  for (const char* flag : {"--json", "--record"}) {
    const auto result = RunTokline(Bench({flag, missing}));
    EXPECT_TRUE(FailsWith(result, 1, {missing, "No such file"}));
    EXPECT_EQ(result.out, "");
  }
  EXPECT_TRUE(FailsWith(RunTokline({"inspect", "--json", missing}), 1, {missing}));
  EXPECT_TRUE(FilesIn(dir.Path()).empty());
}

TEST(CliErrorsTest, FullDeviceIsAFailure) {
  EXPECT_TRUE(FailsWith(RunTokline({"inspect", "--device", "cpu", "--json", "/dev/full"}), 1,
                        {"cannot write /dev/full", "No space left"}));
  EXPECT_TRUE(FailsWith(RunTokline({"inspect", "--device", "cpu"}, "/dev/full"), 1,
                        {"standard output", "No space left"}));
  EXPECT_TRUE(
      FailsWith(RunTokline(Generate({}), "/dev/full"), 1, {"standard output", "No space left"}));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

TEST(CliErrorsTest, FailureLeavesOutputsAsTheyWere) {
  TempFolder dir;
  WriteFile(dir / "old.json", "old");
  WriteFile(dir / "old.jsonl", "");
  EXPECT_EQ(RunTokline({"generate", "--prompt-ids", "999", "--json", dir / "old.json", "--logits",
                        dir / "new.f32"})
                .exit_code,
            2);
  EXPECT_EQ(RunTokline(Bench({"--model", dir / "gone", "--json", dir / "old.json", "--record",
                              dir / "old.jsonl"}))
                .exit_code,
            1);
  EXPECT_EQ(RunTokline(Bench({"--model", dir / "gone", "--record", dir / "new.jsonl"})).exit_code,
            1);
  EXPECT_EQ(FilesIn(dir.Path()), (Args{"old.json", "old.jsonl"}));
  EXPECT_EQ(ReadFile(dir / "old.json"), "old");
  EXPECT_EQ(ReadFile(dir / "old.jsonl"), "");
}

}  // namespace
}  // namespace tokline
