// Runs the tokline program on tiny models on the CPU.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "harness/engine/ablation.h"
#include "harness/record/record_file.h"
#include "harness/tests/busy_machine.h"
#include "harness/tests/cli/program_run.h"
#include "harness/text/tokenizer.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::Args;
using testing::FilesIn;
using testing::Program;
using testing::ProgramResult;
using testing::ReadFile;
using testing::RunTokline;
using testing::TempFolder;
using testing::With;
using testing::WriteFile;

using Ids = std::vector<int32_t>;

constexpr int64_t kVocab = 384;

std::string Joined(const Ids& ids) {
  std::string text;
  for (const int32_t id : ids) text += StrCat(text.empty() ? "" : ",", id);
  return text;
}

nlohmann::json GoldenCase(int index) {
  const std::filesystem::path path =
      std::filesystem::path(TOKLINE_SOURCE_DIR) / "harness/tests/golden/qwen3_tiny.json";
  return nlohmann::json::parse(ReadFile(path))["cases"][index];
}

Ids GoldenPrompt() { return GoldenCase(1)["prompt_ids"].get<Ids>(); }

Ids GoldenTokens(size_t count) {
  Ids tokens = GoldenCase(1)["tokens"].get<Ids>();
  tokens.resize(count);
  return tokens;
}

std::string GoldenModel() { return TOKLINE_SOURCE_DIR "/harness/tests/golden/qwen3_tiny"; }

// Generates on the CPU and returns what --json wrote.
nlohmann::json Generate(const Args& more, ProgramResult* output = nullptr,
                        const std::string& model = GoldenModel()) {
  TempFolder dir;
  const ProgramResult result = RunTokline(
      With({"generate", "--device", "cpu", "--model", model, "--json", dir / "out.json"}, more));
  if (output != nullptr) *output = result;
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(FilesIn(dir.Path()), Args{"out.json"});
  return nlohmann::json::parse(ReadFile(dir / "out.json"));
}

std::vector<float> ReadLogits(const std::filesystem::path& path) {
  const std::string bytes = ReadFile(path);
  std::vector<float> logits(bytes.size() / sizeof(float));
  std::memcpy(logits.data(), bytes.data(), bytes.size());
  return logits;
}

TEST(CliTest, HelpAndVersionSayWhatThereIs) {
  const ProgramResult help = RunTokline({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"generate", "chat", "bench", "ablate", "inspect"}) {
    EXPECT_NE(help.out.find(command), std::string::npos);
    const ProgramResult own = RunTokline({command, "--help"});
    EXPECT_EQ(own.exit_code, 0);
    EXPECT_NE(own.out.find("--model DIR"), std::string::npos);
    for (const AblationEntry& entry : AllAblations()) {
      EXPECT_NE(own.out.find("\n  " + std::string(entry.name) + " "), std::string::npos);
    }
  }
  const ProgramResult version = RunTokline({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_TRUE(version.out.starts_with("tokline ")) << version.out;
  EXPECT_EQ(version.err, "");
}

TEST(CliTest, InspectShowsWhatAModelIsMadeOf) {
  const std::string golden = std::string(TOKLINE_SOURCE_DIR) + "/harness/tests/golden/";
  TempFolder dir;
  const std::string file = (dir / "inspect.json").string();
  const auto inspect = [&](const std::string& name, const std::vector<std::string>& lines) {
    const ProgramResult result =
        RunTokline({"inspect", "--device", "cpu", "--model", golden + name, "--json", file});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (const std::string& line : lines) {
      EXPECT_NE(result.out.find("\n" + line + "\n"), std::string::npos) << name << ": " << line;
    }
    return nlohmann::json::parse(ReadFile(file)).at("spec");
  };
  const auto label = [](std::string key, const std::string& value) {
    key.resize(24, ' ');
    return key + value;
  };
  const nlohmann::json llama = inspect(
      "llama3_scaled",
      {label("norm", "rmsnorm"), label("rope_pairing", "half"), label("mlp", "gated_silu")});
  EXPECT_EQ(llama["rope_scaling"]["type"], "llama3");
  EXPECT_EQ(llama["rope_scaling"]["factor"], 8.0);
  EXPECT_EQ(llama["rope_scaling"]["original_positions"], 32);
  const nlohmann::json ernie =
      inspect("ernie4_5_group7", {label("rope_pairing", "interleaved"), label("mlp_bias", "true")});
  EXPECT_TRUE(ernie["rope_scaling"].is_null());
  const nlohmann::json gpt2 =
      inspect("gpt2_bare", {label("norm", "layernorm"), label("position", "learned"),
                            label("mlp", "gelu_tanh"), label("dtype", "f32")});
  EXPECT_FALSE(gpt2.contains("rope_theta"));
}

TEST(CliTest, GenerateGivesTheGoldenTokens) {
  ProgramResult output;
  const nlohmann::json report =
      Generate({"--prompt-ids", Joined(GoldenPrompt()), "--max-new-tokens", "24"}, &output);
  const Ids golden = GoldenTokens(24);
  EXPECT_EQ(report["tokens"].get<Ids>(), golden);
  EXPECT_EQ(report["prompt"].get<Ids>(), GoldenPrompt());
  EXPECT_EQ(report["model"], "qwen3_tiny");
  EXPECT_EQ(report["device"], "cpu");
  EXPECT_EQ(report["dtype"], "f32");
  EXPECT_EQ(report["seed"], 0);
  EXPECT_EQ(report["interrupted"], false);
  std::string printed = Joined(golden) + "\n";
  std::ranges::replace(printed, ',', ' ');
  EXPECT_EQ(output.out, printed);
}

TEST(CliTest, GenerateAsksTheEmbeddedModelWhereNoneIsNamed) {
  const Tokenizer tokenizer = Tokenizer::Load(TOKLINE_SOURCE_DIR "/models/qwen3-lookup");
  TempFolder dir;
  const ProgramResult result = RunTokline(
      {"generate", "--device", "cpu", "--max-new-tokens", "20", "--json", dir / "out.json",
       "--prompt-ids",
       Joined(tokenizer.Encode("The code of amber is 4821. The code of river is 0377. What is "
                               "the code of amber?"))});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = nlohmann::json::parse(ReadFile(dir / "out.json"));
  EXPECT_EQ(report["model"], "qwen3-lookup");
  EXPECT_EQ(report["stopped"], true);
  EXPECT_EQ(tokenizer.Decode(report["tokens"].get<Ids>()), " The code of amber is 4821.<|im_end|>");
}

TEST(CliTest, AblationsDoNotChangeTheTokens) {
  const nlohmann::json report =
      Generate({"--prompt-ids", Joined(GoldenPrompt()), "--max-new-tokens", "8", "--ablate",
                "chunk_decode", "--ablate=fused_mlp,kv_append", "--ablate", "graphs"});
  EXPECT_EQ(report["tokens"].get<Ids>(), GoldenTokens(8));
  EXPECT_EQ(report["ablated"], "chunk_decode,fused_mlp,kv_append,graphs");
}

TEST(CliTest, LogitsAreThoseThatChoseTheTokens) {
  TempFolder dir;
  const nlohmann::json report = Generate({"--prompt-ids", Joined(GoldenPrompt()),
                                          "--max-new-tokens", "5", "--logits", dir / "logits"});
  const Ids tokens = report["tokens"].get<Ids>();
  const std::vector<float> logits = ReadLogits(dir / "logits");
  ASSERT_EQ(static_cast<int64_t>(logits.size()), 5 * kVocab);
  for (int64_t row = 0; row < 5; ++row) {
    const auto begin = logits.begin() + row * kVocab;
    EXPECT_EQ(std::max_element(begin, begin + kVocab) - begin, tokens[row]) << row;
  }
}

TEST(CliTest, HiddenStatesAreThoseOfEveryTokenRead) {
  TempFolder dir;
  const auto run = [&](const std::string& tokens) {
    Generate({"--prompt-ids", Joined(GoldenPrompt()), "--max-new-tokens", tokens, "--hidden",
              dir / "hidden"});
    return ReadLogits(dir / "hidden");
  };
  const nlohmann::json config = nlohmann::json::parse(ReadFile(GoldenModel() + "/config.json"));
  const int64_t of_token =
      (2 * config["num_hidden_layers"].get<int64_t>() + 1) * config["hidden_size"].get<int64_t>();
  const std::vector<float> fewer = run("2"), more = run("5");
  ASSERT_EQ(std::ssize(fewer), (std::ssize(GoldenPrompt()) + 1) * of_token);
  ASSERT_EQ(std::ssize(more), (std::ssize(GoldenPrompt()) + 4) * of_token);
  EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), more.begin()));
}

TEST(CliTest, ForcedIdsAreReadInPlaceOfTheTokensDrawn) {
  TempFolder dir;
  const Ids golden = GoldenTokens(4);
  const Args common = {"--prompt-ids", Joined(GoldenPrompt())};
  const auto run = [&](const Ids& forced, const std::string& logits) {
    Args args = common;
    args.insert(args.end(), {"--force-ids", Joined(forced), "--logits", logits});
    return Generate(args);
  };
  Ids other = golden;
  other[1] = (golden[1] + 1) % kVocab;
  const nlohmann::json as_golden = run(golden, dir / "golden");
  const nlohmann::json as_other = run(other, dir / "other");
  EXPECT_EQ(as_golden["tokens"].get<Ids>(), golden);
  EXPECT_EQ(as_other["forced"].get<Ids>(), other);
  ASSERT_EQ(as_other["tokens"].size(), 4u);
  EXPECT_EQ(as_other["tokens"][1], golden[1]);  // drawn before the forced token was read
  const std::vector<float> a = ReadLogits(dir / "golden"), b = ReadLogits(dir / "other");
  ASSERT_EQ(a.size(), b.size());
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 2 * kVocab, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 2 * kVocab, a.begin() + 3 * kVocab, b.begin() + 2 * kVocab));
}

TEST(CliTest, SeedDecidesTheDraws) {
  const auto draw = [](const std::string& seed) {
    return Generate({"--prompt-ids", "5,6,7", "--max-new-tokens", "12", "--temperature", "1.5",
                     "--top-k", "50", "--top-p", "0.95", "--ignore-eos", "--seed", seed})["tokens"]
        .get<Ids>();
  };
  EXPECT_EQ(draw("7"), draw("7"));
  EXPECT_NE(draw("7"), draw("8"));
}

TEST(CliTest, EndOfSequenceEndsTheTextUnlessIgnored) {
  TempFolder dir;
  const std::filesystem::path source = GoldenModel();
  nlohmann::json config = nlohmann::json::parse(ReadFile(source / "config.json"));
  config["eos_token_id"] = {383, GoldenTokens(4)[3]};
  WriteFile(dir / "config.json", config.dump());
  std::filesystem::create_symlink(source / "model.safetensors", dir / "model.safetensors");
  const Args args = {"--prompt-ids", Joined(GoldenPrompt()), "--max-new-tokens", "8"};
  const nlohmann::json stopped = Generate(args, nullptr, dir.Path().string());
  EXPECT_EQ(stopped["tokens"].get<Ids>(), GoldenTokens(4));
  EXPECT_EQ(stopped["stopped"], true);
  Args ignoring = args;
  ignoring.push_back("--ignore-eos");
  EXPECT_EQ(Generate(ignoring, nullptr, dir.Path().string())["tokens"].get<Ids>(), GoldenTokens(8));
}

TEST(CliTest, OutputReplacesAFileAndKeepsALink) {
  TempFolder dir;
  WriteFile(dir / "real.json", "old");
  std::filesystem::create_symlink(dir / "real.json", dir / "link.json");
  EXPECT_EQ(RunTokline({"inspect", "--device", "cpu", "--json", dir / "link.json"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "link.json"));
  EXPECT_EQ(nlohmann::json::parse(ReadFile(dir / "real.json"))["model"], "qwen3-lookup");
  EXPECT_EQ(FilesIn(dir.Path()), (Args{"link.json", "real.json"}));
}

TEST(CliTest, OutputKeepsThePermissionsOfAFileAndANewOneHasTheUsual) {
  using std::filesystem::perms;
  TempFolder dir;
  const auto written = [&dir] {
    EXPECT_EQ(RunTokline({"inspect", "--device", "cpu", "--json", dir / "x"}).exit_code, 0);
    return std::filesystem::status(dir / "x").permissions();
  };
  const mode_t mask = ::umask(0027);
  EXPECT_EQ(written(), perms{0640});
  for (const perms mode : {perms{0600}, perms{0666}}) {
    std::filesystem::permissions(dir / "x", mode);
    EXPECT_EQ(written(), mode);
  }
  ::umask(mask);
}

TEST(CliTest, StandardOutputKeepsWhatElseIsWrittenThere) {
  const ProgramResult result = RunTokline({"generate", "--device", "cpu", "--prompt-ids", "1,2,3",
                                           "--max-new-tokens", "2", "--json", "/dev/stdout"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const size_t end = result.out.find('\n');
  ASSERT_NE(end, std::string::npos);
  const nlohmann::json report = nlohmann::json::parse(result.out.substr(end + 1));
  std::string printed = Joined(report["tokens"].get<Ids>());
  std::ranges::replace(printed, ',', ' ');
  EXPECT_EQ(result.out.substr(0, end), printed);
}

TEST(CliTest, InspectCountsTensorsAndMemory) {
  TempFolder dir;
  const ProgramResult result =
      RunTokline({"inspect", "--device", "cpu", "--dtype", "bf16", "--batch", "3", "--context",
                  "300", "--page-size", "64", "--json", dir / "out.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = nlohmann::json::parse(ReadFile(dir / "out.json"));
  EXPECT_EQ(report["tensors"].size(), 24u);  // embedding, final norm, and 11 in each of 2 layers
  int64_t bytes = 0;
  for (const auto& tensor : report["tensors"]) bytes += tensor["bytes"].get<int64_t>();
  EXPECT_EQ(report["weight_bytes"], bytes);
  EXPECT_EQ(report["parameters"], bytes / 2);
  EXPECT_EQ(report["kv_bytes_per_token"], 2 * 2 * 2 * 64 * 2);
  // 300 tokens take 5 pages of 64.
  const auto& memory = report["run"]["memory_bytes"];
  EXPECT_EQ(memory["kv_cache"], 3 * 5 * 64 * 2 * 2 * 2 * 64 * 2);
  EXPECT_GE(memory["weights"].get<int64_t>(), bytes);
  EXPECT_EQ(memory["total"].get<int64_t>(),
            memory["weights"].get<int64_t>() + memory["kv_cache"].get<int64_t>() +
                memory["activations"].get<int64_t>() + memory["workspaces"].get<int64_t>() +
                memory["tables"].get<int64_t>());
  EXPECT_NE(result.out.find("model.layers.1.mlp.down_proj.weight"), std::string::npos);
}

TEST(CliTest, InspectSaysWhatItCannotKnowWithoutADevice) {
  TempFolder dir;
  const ProgramResult result =
      RunTokline({"inspect", "--device", "cuda", "--json", dir / "out.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const bool present =
      nlohmann::json::parse(ReadFile(dir / "out.json"))["run"]["device_present"].get<bool>();
  EXPECT_EQ(result.out.find("no CUDA device: the workspace of chunk_decode") == std::string::npos,
            present);
}

TEST(CliTest, BenchMeasuresEveryBatchAndRecordsIt) {
  TempFolder dir;
  const ProgramResult result = RunTokline(
      {"bench", "--device", "cpu", "--batch", "1,3", "--prompt-tokens", "8", "--new-tokens", "4",
       "--repeats", "2", "--json", dir / "out.json", "--record", dir / "record.jsonl"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = nlohmann::json::parse(ReadFile(dir / "out.json"));
  EXPECT_EQ(report["interrupted"], false);
  ASSERT_EQ(report["rows"].size(), 2u);
  const std::vector<Json> records = ReadRecords(dir / "record.jsonl");
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records.front()["program"], "tokline bench");
  EXPECT_EQ(records.back()["rows"], 2);
  EXPECT_EQ(records.back()["interrupted"], false);
  for (int i = 0; i < 2; ++i) {
    const nlohmann::json& row = report["rows"][i];
    EXPECT_EQ(row["batch"], i == 0 ? 1 : 3);
    EXPECT_EQ(row["samples"].size(), 2u);
    EXPECT_GT(row["prefill_tok_s"].get<double>(), 0);
    EXPECT_GT(row["decode_tok_s"].get<double>(), 0);
    EXPECT_EQ(row["graphs"], false);
    EXPECT_EQ(records[1 + i]["kernel"], "decoder");
    EXPECT_EQ(records[1 + i]["batch"], row["batch"]);
    const Json& record = records[1 + i];
    EXPECT_EQ(record["status"], "ok") << record;
    EXPECT_DOUBLE_EQ(record["decode_tok_s"], row["decode_tok_s"]);
    EXPECT_DOUBLE_EQ(record["ms_per_token"], row["ms_per_token"]);
    ASSERT_EQ(record["samples_ms"].size(), 2u);
    EXPECT_DOUBLE_EQ(record["samples_ms"][0],
                     1e3 * row["samples"][0]["decode_s"].get<double>() / 3);
    EXPECT_EQ(record["cache"], "cpu");
    EXPECT_TRUE(record["limit"].is_null());
    EXPECT_GT(record["cost"]["read_bytes"].get<double>(), 0);
    // Four tokens from each of the first and the last sequence, verified by a decoder of plain ops.
    EXPECT_EQ(record["verified"]["tokens"], i == 0 ? 4 : 8);
    EXPECT_LE(record["verified"]["mean_regret"].get<double>(), 1e-3);
  }
}

TEST(CliTest, BenchSweepsEveryCombinationAndSaysOfHowManyAPercentileIs) {
  TempFolder dir;
  const ProgramResult result = RunTokline(
      {"bench", "--device", "cpu", "--batch", "1,3", "--prompt-tokens", "8,5", "--new-tokens", "4",
       "--depth", "0,9", "--repeats", "4", "--record", dir / "record.jsonl"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<Json> records = ReadRecords(dir / "record.jsonl");
  ASSERT_EQ(records.size(), 2u + 8);
  std::vector<std::vector<int>> shapes;
  for (int i = 1; i <= 8; ++i) {
    const Json& row = records[i];
    shapes.push_back({row["prompt_tokens"], row["depth"], row["batch"]});
    const int sequences = 4 * row["batch"].get<int>();
    EXPECT_EQ(row["first_token_ms"]["count"], sequences);
    EXPECT_EQ(row["between_tokens_ms"]["count"], 3 * sequences);
    EXPECT_EQ(row["end_to_end_ms"]["p90"].is_null(), sequences < 10) << row;
    EXPECT_TRUE(row["end_to_end_ms"]["p99"].is_null());
  }
  EXPECT_EQ(
      shapes,
      (std::vector<std::vector<int>>{
          {8, 0, 1}, {8, 0, 3}, {8, 9, 1}, {8, 9, 3}, {5, 0, 1}, {5, 0, 3}, {5, 9, 1}, {5, 9, 3}}));
  EXPECT_NE(result.out.find("p90 is stated of 10 and more"), std::string::npos) << result.out;
}

// Runs a small bench on the CPU and returns its records.
std::vector<Json> BenchRecords(const Args& more, ProgramResult* output = nullptr) {
  TempFolder dir;
  const ProgramResult result =
      RunTokline(With({"bench", "--device", "cpu", "--batch", "2", "--prompt-tokens", "8",
                       "--new-tokens", "6", "--repeats", "2", "--record", dir / "record.jsonl"},
                      more));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  if (output != nullptr) *output = result;
  return ReadRecords(dir / "record.jsonl");
}

TEST(CliTest, RecordedBenchSaysWhereAStepsTimeGoes) {
  ProgramResult output;
  const std::vector<Json> records = BenchRecords({}, &output);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_TRUE(records[0]["injected"].is_null());
  EXPECT_TRUE(records[1]["disturbed"].is_null());
  EXPECT_GT(records[1]["memory_bytes"].get<int64_t>(), 1000000);
  const Json& profile = records[1]["profile"];
  EXPECT_EQ(profile["method"], "clock");
  EXPECT_EQ(profile["steps"], 5);
  double sum = profile["device_gap_us"].get<double>() + profile["host_gap_us"].get<double>() +
               profile["unexplained_us"].get<double>();
  for (const Json& op : profile["ops"]) sum += op["us"].get<double>();
  EXPECT_NEAR(sum, profile["step_us"].get<double>(), 1e-6);
  EXPECT_EQ(profile["ops"].size(), 8u);
  EXPECT_EQ(output.out.find("host gap"), std::string::npos);  // printed only on request
}

TEST(CliTest, OpsAreTimedInPlaceWhereAskedFor) {
  ProgramResult output;
  const Json profile = BenchRecords({"--in-place", "on"}, &output)[1]["profile"];
  EXPECT_NE(output.out.find(" us in place, "), std::string::npos) << output.out;
  int timed = 0;
  for (const Json& op : profile["ops"]) {
    timed += op.contains("in_place_us");
    if (op["op"] == "lm_head") {
      EXPECT_GT(op["in_place_us"].get<double>(), 0);
    }
  }
  EXPECT_EQ(timed, 7);  // all but the op that begins the step
}

TEST(CliTest, ProfileIsPrintedWhereAskedForAndLeftOutWhereNot) {
  ProgramResult output;
  EXPECT_TRUE(BenchRecords({"--profile", "off"})[1]["profile"].is_null());
  EXPECT_FALSE(BenchRecords({"--profile", "on"}, &output)[1]["profile"].is_null());
  for (const char* part : {"batch 2, 8+6 tokens: a decode step of", "lm_head", "host gap"}) {
    EXPECT_NE(output.out.find(part), std::string::npos) << part;
  }
}

TEST(CliTest, InjectedDelaysAreRecordedAndFoundWhereTheyWereInjected) {
  EXPECT_TRUE(testing::InOneOfTenRuns([] {
    ProgramResult output;
    const std::vector<Json> records =
        BenchRecords({"--inject-op-delay", "gate_up:3000", "--inject-host-delay=20000"}, &output);
    EXPECT_EQ(records[0]["injected"],
              Json::parse(R"({"op":"gate_up","op_delay_us":3000.0,"host_delay_us":20000.0})"));
    EXPECT_NE(output.out.find("injected: "), std::string::npos);
    const Json& row = records[1];
    EXPECT_EQ(row["status"], "ok") << row;             // a delay changes no output
    EXPECT_GE(row["ms_per_token"].get<double>(), 26);  // two layers
    EXPECT_GE(row["profile"]["host_gap_us"].get<double>(), 20000);
    double longest_other = 0;
    for (const Json& op : row["profile"]["ops"]) {
      const double us = op["us"].get<double>();
      if (op["op"] == "gate_up") {
        EXPECT_GE(us, 6000);
      } else {
        longest_other = std::max(longest_other, us);
      }
    }
    return longest_other < 3000;
  })) << "the delay is found in other ops too";
}

TEST(CliTest, InterruptedBenchEndsCleanlyAndSaysSo) {
  TempFolder dir;
  Program bench({"bench", "--device", "cpu", "--batch", "4,8", "--prompt-tokens", "8",
                 "--new-tokens", "4000", "--repeats", "100", "--json", dir / "out.json", "--record",
                 dir / "record.jsonl"});
  ASSERT_TRUE(bench.WaitForOutput("batch"));
  bench.Signal(SIGINT);
  bench.Signal(SIGTERM);  // the script that runs it, which had the same Ctrl-C, passes it on
  const ProgramResult result = bench.Wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_NE(result.out.find("interrupted"), std::string::npos);
  const nlohmann::json report = nlohmann::json::parse(ReadFile(dir / "out.json"));
  EXPECT_EQ(report["interrupted"], true);
  EXPECT_EQ(report["rows"].size(), 1u);
  const std::vector<Json> records = ReadRecords(dir / "record.jsonl");
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[1]["interrupted"], true);
  EXPECT_EQ(records[1]["status"], "refused");
  EXPECT_EQ(records[2]["interrupted"], true);
}

TEST(CliTest, AblateMeasuresEveryOpAloneAndInTheDecoder) {
  TempFolder dir;
  const ProgramResult result = RunTokline(
      {"ablate", "--device", "cpu", "--batch", "2", "--prompt-tokens", "8", "--new-tokens", "4",
       "--rounds", "3", "--json", dir / "out.json", "--record", dir / "record.jsonl"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<Json> records = ReadRecords(dir / "record.jsonl");
  const nlohmann::json report = nlohmann::json::parse(ReadFile(dir / "out.json"));
  std::vector<AblationEntry> entries(AllAblations().begin(), AllAblations().end());
  std::erase_if(entries, [](const AblationEntry& entry) { return !SwapsOnCpu(entry.ablation); });
  constexpr size_t kControls = 4;
  const size_t count = kControls + entries.size();
  ASSERT_EQ(records.size(), count + 2);
  ASSERT_EQ(report["ablations"].size(), count);
  EXPECT_EQ(records.front()["program"], "tokline ablate");
  EXPECT_EQ(records.back()["rows"], count);
  EXPECT_EQ(records.back()["refused"], 0);
  for (size_t i = 0; i < kControls; ++i) {
    EXPECT_EQ(records[1 + i]["name"], "control");
    EXPECT_EQ(records[1 + i]["isolated"]["with_us"].size(), 3u);
    EXPECT_EQ(report["ablations"][i]["verdict"], "the same ops: what decoders differ by");
  }
  for (size_t i = kControls; i < count; ++i) {
    const AblationEntry& entry = entries[i - kControls];
    const Json& row = records[1 + i];
    EXPECT_EQ(row["kind"], "ablation");
    EXPECT_EQ(row["name"], entry.name);
    EXPECT_EQ(row["instead"], entry.instead);
    EXPECT_EQ(row["batch"], 2);
    EXPECT_EQ(row["status"], "ok") << row;
    EXPECT_EQ(row["end_to_end"]["with_ms"].size(), 3u);
    EXPECT_EQ(row["end_to_end"]["without_ms"].size(), 3u);
    EXPECT_EQ(row["isolated"].is_null(), entry.ops.Empty()) << entry.name;
    EXPECT_TRUE(entry.ops.Empty() || row["isolated"]["with_us"].size() == 3u) << row;
    EXPECT_NE(result.out.find("\n " + std::string(entry.name) + " "), std::string::npos);
    EXPECT_EQ(report["ablations"][i]["verdict"], "too few rounds to say");
    EXPECT_TRUE(report["ablations"][i]["speed_up"]["decode"]["ci95"].is_null());
    EXPECT_EQ(report["ablations"][i]["prefill"]["with_ms"].size(), 3u);
  }
}

TEST(CliTest, AblateRunsOnlyWhatIsAskedFor) {
  TempFolder dir;
  const ProgramResult result = RunTokline(
      {"ablate", "--device", "cpu", "--batch", "1", "--prompt-tokens", "4", "--new-tokens", "2",
       "--rounds", "1", "--only", "fused_mlp,chunk_decode", "--record", dir / "record.jsonl"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<Json> records = ReadRecords(dir / "record.jsonl");
  ASSERT_EQ(records.size(), 8u);
  EXPECT_EQ(records[4]["name"], "control");
  EXPECT_EQ(records[5]["name"], "chunk_decode");
  EXPECT_EQ(records[6]["name"], "fused_mlp");
}

TEST(CliTest, InterruptedAblateEndsCleanlyAndSaysSo) {
  TempFolder dir;
  Program ablate({"ablate", "--device", "cpu", "--new-tokens", "3000", "--rounds", "500",
                  "--record", dir / "record.jsonl"});
  ASSERT_TRUE(ablate.WaitForOutput("alone"));
  ablate.Signal(SIGINT);
  const ProgramResult result = ablate.Wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  const std::vector<Json> records = ReadRecords(dir / "record.jsonl");
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[1]["status"], "refused");
  EXPECT_EQ(records[1]["interrupted"], true);
  EXPECT_EQ(records[2]["interrupted"], true);
}

TEST(CliTest, InterruptedGenerateKeepsTheTokensItHas) {
  TempFolder dir;
  Program generate({"generate", "--device", "cpu", "--prompt-ids", "1,2,3", "--ignore-eos",
                    "--max-new-tokens", "4090", "--json", dir / "out.json"});
  ASSERT_TRUE(generate.WaitForOutput(" "));
  generate.Signal(SIGTERM);
  const ProgramResult result = generate.Wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  const nlohmann::json report = nlohmann::json::parse(ReadFile(dir / "out.json"));
  EXPECT_EQ(report["interrupted"], true);
  std::string printed = Joined(report["tokens"].get<Ids>()) + "\n";
  std::ranges::replace(printed, ',', ' ');
  EXPECT_EQ(result.out, printed);
}

}  // namespace
}  // namespace tokline
