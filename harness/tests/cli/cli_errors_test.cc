// Bad input gives the right exit code and one clear line, and leaves nothing half-written.
#include <gtest/gtest.h>

#include "harness/platform/device.h"
#include "harness/tests/cli/program_run.h"

namespace tokline {
namespace {

using testing::Args;
using testing::FailsWith;
using testing::FilesIn;
using testing::ReadFile;
using testing::RunTokline;
using testing::SmallConfig;
using testing::SmallTensors;
using testing::TempFolder;
using testing::With;
using testing::WriteFile;
using testing::WriteModel;

struct BadUsage {
  std::string name;
  Args args;
  std::vector<std::string> says;
};

void PrintTo(const BadUsage& bad, std::ostream* out) { *out << bad.name; }

Args Generate(const Args& more) {
  return With({"generate", "--prompt-ids", "1,2,3", "--device", "cpu"}, more);
}

Args Bench(const Args& more) { return With({"bench", "--device", "cpu"}, more); }

std::vector<BadUsage> BadUsages() {
  return {
      {"NoCommand", {}, {"no command", "generate, chat, bench, ablate, inspect"}},
      {"UnknownCommand",
       {"serve"},
       {"unknown command \"serve\"", "generate, chat, bench, ablate, inspect"}},
      {"CommandWithNewline", {"a\nb"}, {"a\\x0ab"}},
      {"UnknownFlag", Generate({"--beam", "4"}), {"unknown flag \"--beam\"", "--prompt-ids"}},
      {"MistypedFlag", Generate({"--tempertaure", "1"}), {"did you mean --temperature?"}},
      {"MistypedCommand", {"benhc"}, {"unknown command \"benhc\"; did you mean bench?"}},
      {"NegativeDepth", Bench({"--depth", "0,-1"}), {"--depth has \"-1\"", "from 0"}},
      {"NoPromptTokens",
       Bench({"--prompt-tokens", "8,0"}),
       {"--prompt-tokens has \"0\"", "from 1"}},
      {"DeeperThanTheModel",
       Bench({"--depth", "4000", "--batch", "1"}),
       {"batch 1 with a depth of 4000, 128 prompt tokens and 128 new tokens needs 4257 positions",
        "the model has 4096"}},
      {"MoreTokensThanCanBeTimed",
       Bench({"--new-tokens", "100000", "--batch", "4096"}),
       {"5 repeats of batch 4096 with 100000 new tokens have 2048000000 tokens to time",
        "at most 67108864"}},
      {"UnknownFlagOfBench", Bench({"--prompt-ids", "1"}), {"unknown flag", "tokline bench takes"}},
      {"StrayArgument", Generate({"4"}), {"unexpected argument \"4\""}},
      {"FlagTwice", Generate({"--seed", "1", "--seed", "2"}), {"--seed is given twice"}},
      {"ValueMissing", Generate({"--seed"}), {"--seed needs a value: --seed N"}},
      {"SwitchWithValue", Generate({"--ignore-eos=1"}), {"--ignore-eos takes no value"}},
      {"PromptMissing",
       {"generate", "--model", std::string(TOKLINE_SOURCE_DIR) + "/harness/tests/golden/gpt2_tiny"},
       {"no prompt", "--prompt, --prompt-file and --prompt-ids"}},
      {"PromptEmpty", {"generate", "--prompt-ids", ""}, {"--prompt-ids is empty"}},
      {"PromptNotNumbers", {"generate", "--prompt-ids", "1,x"}, {"\"x\" in \"1,x\""}},
      {"PromptTrailingComma", {"generate", "--prompt-ids", "1,"}, {"--prompt-ids has \"\""}},
      {"PromptNegative", {"generate", "--prompt-ids", "-1"}, {"\"-1\"", "from 0"}},
      {"PromptAboveInt32", {"generate", "--prompt-ids", "4294967297"}, {"to 2147483647"}},
      {"PromptAboveInt64", {"generate", "--prompt-ids", "99999999999999999999"}, {"integers"}},
      {"IdOutsideVocabulary",
       {"generate", "--prompt-ids", "1,1542"},
       {"--prompt-ids has 1542", "ids 0 to 1541"}},
      {"ForcedIdOutsideVocabulary", Generate({"--force-ids", "2000"}), {"--force-ids has 2000"}},
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
      {"TwoSizesOfTheCache",
       Generate({"--kv-pages", "4", "--kv-bytes", "1G"}),
       {"--kv-pages, --kv-bytes and --kv-fraction", "more than one"}},
      {"KvBytesNoNumber", Generate({"--kv-bytes", "4Q"}), {"--kv-bytes is \"4Q\"", "K, M or G"}},
      {"KvBytesNegative", Generate({"--kv-bytes", "-4K"}), {"--kv-bytes is \"-4K\""}},
      {"KvBytesBeyondInt64",
       Generate({"--kv-bytes", "9223372036854775807K"}),
       {"--kv-bytes is \"9223372036854775807K\""}},
      {"KvBytesBelowAPage",
       Generate({"--kv-bytes", "10K"}),
       {"--kv-bytes is 10240", "256 tokens, takes"}},
      {"KvBytesTooFew",
       Generate({"--page-size", "16", "--kv-bytes", "60K", "--max-new-tokens", "20"}),
       {"--kv-bytes is 61440, 1 pages", "need 2 pages of 16"}},
      {"KvFractionZero", Generate({"--kv-fraction", "0"}), {"--kv-fraction is 0", "at most 1"}},
      {"KvFractionAboveOne", Generate({"--kv-fraction", "1.5"}), {"--kv-fraction is 1.5"}},
      {"KvFractionBelowAPage",
       Bench({"--batch", "1", "--kv-fraction", "1e-9"}),
       {"--kv-fraction is 1e-09 of", "free bytes", "takes"}},
      {"KvFractionOfNoRun",
       {"inspect", "--device", "cpu", "--kv-fraction", "0.5"},
       {"--kv-fraction", "inspect runs nothing", "--kv-bytes"}},
      {"PlanOfARunThatCannotRun",
       {"inspect", "--device", "cpu", "--batch", "100", "--kv-bytes", "1M"},
       {"--kv-bytes is 1048576", "100 sequences of 4096 tokens", "need 1600 pages"}},
      {"PlanOfTooFewPages",
       {"inspect", "--device", "cpu", "--context", "300", "--kv-pages", "1"},
       {"--kv-pages is 1", "need 2 pages"}},
      {"PlanBeyondPositions",
       {"inspect", "--device", "cpu", "--context", "5000", "--kv-pages", "1"},
       {"--context is 5000", "4096 positions"}},
      {"TwoOutputsOfOneName",
       Generate({"--json", "x", "--logits",
                 "../" + std::filesystem::current_path().filename().string() + "/x"}),
       {"--json and --logits both name x"}},
      {"HiddenAndLogitsOfOneName",
       Generate({"--hidden", "./x", "--logits", "x"}),
       {"--logits and --hidden both name"}},
      {"RecordAndJsonOfOneName",
       Bench({"--record", "./x", "--json", "x"}),
       {"--json and --record both name x"}},
      {"RecordAndJsonOfOneNameForAblate",
       {"ablate", "--record", "x", "--json", "x"},
       {"--json and --record both name x"}},
      {"JsonOverThePrompt",
       {"generate", "--prompt-file", "x", "--json", "x"},
       {"--json and --prompt-file both name x"}},
      {"JsonOverAChunkOfAChat",
       {"chat", "--chunk", "y", "--chunk", "./x", "--json", "x"},
       {"--json and --chunk both name x"}},
      {"JsonOverAChunkOfADivergence",
       {"divergence", "--chunk", "x", "--chunk", "y", "--prompt", "z", "--json", "x"},
       {"--json and --chunk both name x"}},
      {"JsonOverTheWorkload",
       Bench({"--workload", "./x", "--json", "x"}),
       {"--json and --workload both name x"}},
      {"WorkloadTemperature",
       Bench({"--workload", "synthetic:temperature=1e300"}),
       {"temperature is 1e300", "to 1000000"}},
      {"HostDelayOfAWorkload",
       Bench({"--workload", "nano-vllm", "--inject-host-delay", "5"}),
       {"--inject-host-delay", "--workload"}},
      {"WorkloadPartUnknown",
       Bench({"--workload", "synthetic:speed=3"}),
       {"unknown part \"speed\"", "temperature"}},
      {"WorkloadIdsOutsideVocabulary",
       Bench({"--workload", "synthetic:requests=2,prompt=20,new=2,ids=9000"}),
       {"request 1 of synthetic:requests=2", "the vocabulary has ids 0 to 1541", "ids=1542"}},
      {"WorkloadBeyondPositions",
       Bench({"--workload", "synthetic:requests=2,prompt=5000,new=2,ids=300"}),
       {"request 1 of synthetic", "takes 5002 tokens", "4096"}},
      {"WorkloadBeyondPool",
       Bench({"--workload", "synthetic:requests=3,prompt=40,new=2,ids=300", "--page-size", "16",
              "--kv-pages", "2"}),
       {"request 1 of synthetic:requests=3", "needs 3 pages", "2 of 2"}},
      {"PageSize",
       Generate({"--page-size", "24"}),
       {"--page-size is \"24\"", "power of two from 16"}},
      {"PageSizeSmall", Generate({"--page-size", "8"}), {"--page-size is \"8\""}},
      {"UnknownDevice", {"inspect", "--device", "tpu"}, {"--device is \"tpu\"", "auto, cpu, cuda"}},
      {"UnknownDType", Generate({"--dtype", "f8"}), {"--dtype is \"f8\"", "f32, bf16, f16"}},
      {"UnknownAblation", Generate({"--ablate", "magic"}), {"'magic'", "chunk_decode"}},
      {"TemperatureNegative",
       Generate({"--temperature", "-1"}),
       {"--temperature is \"-1\"", "to 1000000"}},
      {"TemperatureBeyondFloat",
       Generate({"--temperature", "1e300"}),
       {"--temperature is \"1e300\""}},
      {"TemperatureNan", Generate({"--temperature", "nan"}), {"--temperature is \"nan\""}},
      {"TopP", Generate({"--top-p", "1.5"}), {"--top-p is \"1.5\"", "at most 1"}},
      {"TopPBelowFloat", Generate({"--top-p", "1e-300"}), {"--top-p is \"1e-300\"", "more than 0"}},
      {"TopK", Generate({"--top-k", "-2"}), {"--top-k is \"-2\""}},
      {"SeedNegative", Generate({"--seed", "-1"}), {"--seed is \"-1\""}},
      {"ModelEmpty", Generate({"--model", ""}), {"--model is empty"}},
      {"JsonEmpty", Generate({"--json="}), {"--json is empty"}},
      {"BatchZero", Bench({"--batch", "8,0"}), {"--batch has \"0\"", "from 1 to 4096"}},
      {"UnknownAblationOnly",
       {"ablate", "--device", "cpu", "--only", "magic"},
       {"'magic'", "fused_mlp"}},
      {"OnlyWhatBothLack",
       {"ablate", "--device", "cpu", "--only", "pdl", "--ablate", "pdl"},
       {"--only has pdl", "--ablate"}},
      {"NoRounds", {"ablate", "--rounds", "0"}, {"--rounds is \"0\"", "from 1"}},
      {"AblateBeyondPositions",
       {"ablate", "--device", "cpu", "--prompt-tokens", "4090"},
       {"4090 prompt tokens", "the model has 4096"}},
      {"AblationThatSwapsNothing",
       {"ablate", "--device", "cpu", "--only", "fused_mlp", "--model",
        std::string(TOKLINE_SOURCE_DIR) + "/harness/tests/golden/gpt2_tiny"},
       {"--only has fused_mlp", "swaps nothing in a model of the gpt2 family"}},
      {"AblationsThatSwapNothingOnTheCpu",
       {"ablate", "--device", "cpu", "--only", "fused_mlp,pdl"},
       {"--only has pdl", "swaps nothing on the CPU"}},
      {"AblationsAllTaken",
       {"ablate", "--device", "cpu", "--ablate",
        "rmsnorm_qkv,kv_append,chunk_decode,paged_prefill,fused_mlp"},
       {"nothing is left to run"}},
      {"OnlyEmpty", {"ablate", "--device", "cpu", "--only", ""}, {"--only is empty"}},
      {"AblateEmpty", Generate({"--ablate", ""}), {"--ablate is empty"}},
      {"ProfileNeither", Bench({"--profile", "yes"}), {"--profile is \"yes\"", "off, on"}},
      {"InPlaceWithoutAProfile",
       Bench({"--in-place", "on", "--profile", "off"}),
       {"--in-place on needs the profile"}},
      {"UnknownOpToDelay",
       Bench({"--inject-op-delay", "gate:5"}),
       {"unknown op 'gate'", "gate_up", "lm_head"}},
      {"OpDelayWithoutTime", Bench({"--inject-op-delay", "down"}), {"\"down\"", "down:20"}},
      {"OpDelayNegative", Bench({"--inject-op-delay", "down:-1"}), {"\"-1\"", "more than 0"}},
      {"DelayOfAnAbsentOp",
       Bench({"--inject-op-delay", "activation:5"}),
       {"the op to delay is activation", "gate_up, down"}},
      {"HostDelayZero", Bench({"--inject-host-delay", "0"}), {"\"0\"", "more than 0"}},
      {"HostDelayTooLong",
       Bench({"--inject-host-delay", "2e6"}),
       {"\"2e6\"", "at most 1000000 micro"}},
      {"PeaksOfTheCpu", Bench({"--peaks", "runs.jsonl"}), {"--peaks", "the CPU has no peaks"}},
      {"PeaksOfTheCpuForAblate",
       {"ablate", "--device", "cpu", "--peaks", "runs.jsonl"},
       {"--peaks", "the CPU has no peaks"}},
      {"KvFractionForAblate",
       {"ablate", "--device", "cpu", "--kv-fraction", "0.5"},
       {"--kv-fraction is 0.5", "several decoders"}},
      {"OneNewToken", Bench({"--new-tokens", "1"}), {"--new-tokens has \"1\"", "from 2"}},
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
        Args{"bench", "--model", dir / "gone"}, Args{"ablate", "--model", dir / "gone"},
        Args{"inspect", "--model", dir / "gone"}}) {
    EXPECT_TRUE(FailsWith(RunTokline(args), 1, {(dir / "gone").string(), "not a folder"}));
  }
}

// Inspects a small model after `spoil` has corrupted its files.
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
  EXPECT_TRUE(FailsWith(with_config("architectures", {"MixtralForCausalLM"}), 1,
                        {"MixtralForCausalLM", "supported: Qwen3ForCausalLM"}));
  EXPECT_TRUE(FailsWith(with_config("torch_dtype", "int8"), 1,
                        {"\"int8\"", "supported: float32, bfloat16, float16"}));
  EXPECT_TRUE(FailsWith(with_config("num_hidden_layers", 3), 1, {"model.layers.2.", "missing"}));
  EXPECT_TRUE(FailsWith(with_config("intermediate_size", 16), 1,
                        {"gate_proj.weight", "[12, 8]", "[16, 8]"}));
}

TEST(CliErrorsTest, CudaWithoutADeviceExitsOne) {
  if (CudaDeviceCount() > 0) GTEST_SKIP() << "there is a CUDA device";
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
  for (const char* flag : {"--json", "--logits", "--hidden", "--heads"}) {
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

TEST(CliErrorsTest, NothingReplacesRecords) {
  TempFolder dir;
  const std::string records = "{\"schema\":2,\"kind\":\"run\"}\n{\"schema\":2,\"kind\":\"end\"}\n";
  WriteFile(dir / "x", records);
  for (const char* flag : {"--json", "--logits"}) {
    EXPECT_TRUE(FailsWith(RunTokline(Generate({flag, dir / "x"})), 1, {"holds records"}));
  }
  EXPECT_TRUE(FailsWith(RunTokline({"inspect", "--json", dir / "x"}), 1, {"holds records"}));
  EXPECT_EQ(ReadFile(dir / "x"), records);
  WriteFile(dir / "x", "{\"model\":\"what an earlier run wrote\"}");
  EXPECT_EQ(RunTokline({"inspect", "--json", dir / "x"}).exit_code, 0);
}

TEST(CliErrorsTest, OneLinkToTwoOutputsIsFoundToo) {
  TempFolder dir;
  std::filesystem::create_symlink(dir / "x", dir / "link");
  WriteFile(dir / "x", "old");
  EXPECT_TRUE(FailsWith(RunTokline(Generate({"--json", dir / "x", "--logits", dir / "link"})), 2,
                        {"--json and --logits both name"}));
  EXPECT_EQ(ReadFile(dir / "x"), "old");
  EXPECT_EQ(RunTokline(Generate({"--json", "/dev/null", "--logits", "/dev/null"})).exit_code, 0);
}

TEST(CliErrorsTest, AWorkloadThatIsAFolderIsNamedWithTheReason) {
  TempFolder dir;
  EXPECT_TRUE(FailsWith(RunTokline(Bench({"--workload", dir.Path().string()})), 1,
                        {"cannot read the workload", "Is a directory"}));
}

TEST(CliErrorsTest, AWorkloadsFiguresAreWholeNumbers) {
  TempFolder dir;
  const auto run = [&](const std::string& line) {
    WriteFile(dir / "w.jsonl", line + "\n");
    return RunTokline(Bench({"--workload", dir / "w.jsonl"}));
  };
  EXPECT_TRUE(FailsWith(run(R"({"prompt_tokens": 99999999, "new_tokens": 2})"), 2,
                        {"w.jsonl:1: prompt_tokens is 99999999; it must be 1 to 16777216"}));
  EXPECT_TRUE(FailsWith(run(R"({"prompt_tokens": 4, "new_tokens": 2, "seed": -1})"), 2,
                        {"seed is -1; it must be 0 to 18446744073709551615"}));
  EXPECT_TRUE(FailsWith(run(R"({"prompt_tokens": 4, "new_tokens": 2, "temperature": 1e7})"), 2,
                        {"temperature is 10000000.0; it must be 0 to 1000000"}));
}

TEST(CliErrorsTest, AFlagThatBenchWouldIgnoreIsRefusedByName) {
  for (const Args& flag :
       {Args{"--batch", "1"}, Args{"--prompt-tokens", "8"}, Args{"--new-tokens", "8"},
        Args{"--depth", "5"}, Args{"--seed", "0"}, Args{"--inject-host-delay", "5"},
        Args{"--profile", "on"}, Args{"--in-place", "on"}}) {
    Args args = flag;
    args.insert(args.end(), {"--workload", "nano-vllm"});
    EXPECT_TRUE(
        FailsWith(RunTokline(Bench(args)), 2, {flag[0], " cannot be used with --workload"}));
  }
  for (const Args& flag : {Args{"--max-batch", "1"}, Args{"--token-budget", "8"}, Args{"--reuse"},
                           Args{"--sharing", "auto"}, Args{"--requests", "3"}, Args{"--rates", "1"},
                           Args{"--slo", "ttft=1"}}) {
    EXPECT_TRUE(FailsWith(RunTokline(Bench(flag)), 2, {flag[0] + " needs --workload"}));
  }
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
  EXPECT_EQ(RunTokline({"generate", "--prompt-ids", "9999", "--json", dir / "old.json", "--logits",
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
