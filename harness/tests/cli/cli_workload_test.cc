// Runs tokline bench --workload as a user does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/record/record_file.h"
#include "harness/tests/cli/program_run.h"

namespace tokline {
namespace {

using testing::Args;
using testing::FailsWith;
using ::testing::HasSubstr;
using testing::Program;
using testing::ProgramResult;
using testing::ReadFile;
using testing::RunTokline;
using testing::TempFolder;
using testing::With;

constexpr char kSmall[] = "synthetic:requests=12,prompt=5-20,new=3-9,ids=300,seed=5";

struct Recorded {
  ProgramResult result;
  std::vector<Json> records;
  Json row() const { return records.at(1); }
};

Recorded RunWorkload(const std::string& workload, const Args& more) {
  TempFolder dir;
  Recorded recorded{
      .result = RunTokline(With({"bench", "--device", "cpu", "--workload", workload, "--page-size",
                                 "16", "--max-batch", "4", "--record", dir / "record.jsonl"},
                                more)),
      .records = {}};
  if (std::filesystem::exists(dir / "record.jsonl")) {
    recorded.records = ReadRecords(dir / "record.jsonl");
  }
  return recorded;
}

TEST(CliWorkloadTest, RecordsARowThatStands) {
  TempFolder dir;
  const Recorded recorded = RunWorkload(kSmall, {"--repeats", "3", "--json", dir / "out.json"});
  ASSERT_EQ(recorded.result.exit_code, 0) << recorded.result.err;
  ASSERT_EQ(recorded.records.size(), 3u);
  EXPECT_EQ(recorded.records[0]["program"], "tokline bench");
  EXPECT_EQ(recorded.records[2]["rows"], 1);
  const Json row = recorded.row();
  EXPECT_EQ(row["status"], "ok");
  EXPECT_EQ(row["kernel"], "workload");
  EXPECT_EQ(row["shape"]["name"], kSmall);
  EXPECT_EQ(row["shape"]["requests"], 12);
  EXPECT_EQ(row["shape"]["max_batch"], 4);
  EXPECT_TRUE(row["shape"]["kv_limit"].is_null());
  EXPECT_EQ(row["samples_s"].size(), 3u);
  EXPECT_EQ(row["samples_new_tokens"][0], row["shape"]["new_tokens"]);
  EXPECT_EQ(row["preemptions"], 0);
  EXPECT_GT(row["warm_up_s"].get<double>(), 0);
  // Four of the requests, sampled with a temperature; the plain decoder draws the same tokens.
  EXPECT_GE(row["verified"]["tokens"].get<int>(), 4 * 3);
  EXPECT_LE(row["verified"]["mean_regret"].get<double>(), 1e-6);
  // At the start, after the warm-up, and after every second of the 12 requests in three repeats.
  ASSERT_EQ(row["memory_points"].size(), 2u + 3 * 6);
  EXPECT_EQ(row["memory_points"].back()["requests"], 12);
  EXPECT_EQ(row["memory_points"].back()["sequences"], 0);
  for (const char* words : {"output tok/s", "first token", "warm-up", "verified", "growth"}) {
    EXPECT_THAT(recorded.result.out, HasSubstr(words));
  }
  const Json report = Json::parse(ReadFile(dir / "out.json"));
  EXPECT_EQ(report["samples_s"], row["samples_s"]);
  const Json& memory = report["memory_report"];
  int64_t planned = 0;
  for (const auto& [use, bytes] : memory["planned"].items()) planned += bytes.get<int64_t>();
  EXPECT_EQ(memory["planned_total"], planned);
  EXPECT_EQ(memory["unexplained"].get<int64_t>(), memory["measured"].get<int64_t>() - planned);
  EXPECT_GT(memory["host_peak"].get<int64_t>(), 1000000);
  // It is no record, so that the next run may replace it.
  const Args again{
      "bench",  "--device",      "cpu", "--workload", "synthetic:requests=1,ids=9,prompt=2",
      "--json", dir / "out.json"};
  EXPECT_EQ(RunTokline(again).exit_code, 0);
}

TEST(CliWorkloadTest, EveryRepeatBeginsWithNothingToReuse) {
  TempFolder dir;
  std::ofstream file(dir / "same.jsonl");
  std::string ids = "7";
  for (int i = 0; i < 40; ++i) ids += ", 7";
  for (int i = 0; i < 6; ++i) file << "{\"prompt_ids\": [" << ids << "], \"new_tokens\": 4}\n";
  file.close();
  const auto reused = [&](const char* repeats) {
    const Recorded recorded = RunWorkload(dir / "same.jsonl", {"--reuse", "--repeats", repeats});
    EXPECT_EQ(recorded.result.exit_code, 0) << recorded.result.err;
    EXPECT_EQ(recorded.row()["shape"]["reuse"], true);
    return recorded.row()["reused_tokens"].get<int64_t>();
  };
  const int64_t once = reused("1");
  EXPECT_EQ(once, 5 * 32);  // two whole pages each; the first request finds nothing to reuse
  EXPECT_EQ(reused("3"), once);
}

TEST(CliWorkloadTest, SharingIsAsTheUserSaysAndPartOfTheShape) {
  TempFolder dir;
  const std::vector<int> prompt(150, 7);
  std::ofstream file(dir / "same.jsonl");
  for (int i = 0; i < 4; ++i) file << Json{{"prompt_ids", prompt}, {"new_tokens", 6}} << "\n";
  file.close();
  const auto row = [&](const Args& more) {
    const Recorded recorded = RunWorkload(dir / "same.jsonl", With({"--reuse"}, more));
    EXPECT_EQ(recorded.result.exit_code, 0) << recorded.result.err;
    return recorded.row();
  };
  const Json never = row({"--sharing", "never"}), always = row({"--sharing", "always"});
  EXPECT_EQ(never["shape"]["sharing"], "never");
  EXPECT_EQ(always["shape"]["sharing"], "always");
  EXPECT_EQ(never["decode_read_bytes"], never["decode_unshared_bytes"]);
  EXPECT_LT(always["decode_read_bytes"].get<int64_t>(),
            always["decode_unshared_bytes"].get<int64_t>() / 2);
  EXPECT_EQ(never["decode_unshared_bytes"], always["decode_unshared_bytes"]);
  const Json plain = row({}), automatic = row({"--sharing", "auto"});
  EXPECT_FALSE(plain["shape"].contains("sharing"));
  EXPECT_EQ(plain["shape"], automatic["shape"]);
  EXPECT_TRUE(FailsWith(RunWorkload(dir / "same.jsonl", {"--sharing", "never"}).result, 2,
                        {"--sharing needs --reuse"}));
  EXPECT_TRUE(FailsWith(RunWorkload(dir / "same.jsonl", {"--reuse", "--sharing", "on"}).result, 2,
                        {"--sharing is \"on\"", "never, auto"}));
}

TEST(CliWorkloadTest, CacheIsAsLargeAsTheUserSays) {
  // Four of these requests together finally take 12 pages.
  const auto row = [](const Args& more) {
    const Recorded recorded = RunWorkload("synthetic:requests=6,prompt=5,new=40,ids=300", more);
    EXPECT_EQ(recorded.result.exit_code, 0) << recorded.result.err;
    return recorded.row();
  };
  const Json pages = row({"--kv-pages", "5"});
  EXPECT_EQ(pages["kv_pages"], 5);
  EXPECT_EQ(pages["shape"]["kv_limit"], Json({{"pages", 5}}));
  EXPECT_GT(pages["preemptions"].get<int>(), 0);
  EXPECT_GT(pages["recomputed_tokens"].get<int>(), 0);
  const int64_t page_bytes = pages["memory"]["kv_cache"].get<int64_t>() / 5;
  const Json bytes = row({"--kv-bytes", std::to_string(7 * page_bytes + 1)});
  EXPECT_EQ(bytes["kv_pages"], 7);
  // A size in bytes is that of the whole cache; a size in pages counts only pages of sequences.
  const Json scratch =
      row({"--kv-bytes", std::to_string(7 * page_bytes + 1), "--ablate", "chunk_decode"});
  EXPECT_EQ(scratch["kv_pages"], 6);
  EXPECT_EQ(scratch["memory"]["kv_cache"], 7 * page_bytes);
  const Json beside = row({"--kv-pages", "5", "--ablate", "chunk_decode"});
  EXPECT_EQ(beside["kv_pages"], 5);
  EXPECT_EQ(beside["memory"]["kv_cache"], 6 * page_bytes);
  EXPECT_TRUE(FailsWith(
      RunWorkload(kSmall, {"--kv-bytes", std::to_string(page_bytes), "--ablate", "chunk_decode"})
          .result,
      2, {"takes " + std::to_string(page_bytes) + " bytes", "this ablation needs one more page"}));
  const Json fraction = row({"--kv-fraction", "0.05"});
  EXPECT_GT(fraction["kv_pages"].get<int64_t>(), 1000);
  EXPECT_LT(fraction["memory"]["kv_cache"].get<int64_t>(), AvailableHostBytes() / 10);
  EXPECT_EQ(fraction["shape"]["kv_limit"], Json({{"fraction", 0.05}}));
}

// 10 shared tokens, 18 of its own and 4 new ones fill two pages, or three if the shared ones end
// within a page.
TEST(CliWorkloadTest, CacheHasRoomForThePagesThatCutsLeavePartlyEmpty) {
  const auto row = [](const std::string& requests, const Args& more) {
    const Recorded recorded =
        RunWorkload("synthetic:shared=10,prompt=18,new=4,ids=300,requests=" + requests, more);
    EXPECT_EQ(recorded.result.exit_code, 0) << recorded.result.err;
    return recorded.records.empty() ? Json() : recorded.row();
  };
  EXPECT_EQ(row("8", {})["kv_pages"], 4 * 2);
  EXPECT_EQ(row("1", {"--reuse"})["kv_pages"], 3);
  const Json sized = row("8", {"--reuse"}), ample = row("8", {"--reuse", "--kv-pages", "100"});
  EXPECT_EQ(sized["kv_pages"], 4 * 3);
  EXPECT_EQ(sized["steps"], ample["steps"]);
  EXPECT_EQ(sized["memory"]["kv_cache"].get<int64_t>(),
            12 * (ample["memory"]["kv_cache"].get<int64_t>() / 100));
}

TEST(CliWorkloadTest, DelayOfAnOpIsRecordedAndSlowsTheRow) {
  const Recorded plain = RunWorkload(kSmall, {});
  const Recorded delayed = RunWorkload(kSmall, {"--inject-op-delay", "lm_head:20000"});
  ASSERT_EQ(delayed.result.exit_code, 0) << delayed.result.err;
  EXPECT_EQ(delayed.records[0]["injected"]["op"], "lm_head");
  EXPECT_GT(delayed.row()["total_s"].get<double>(), 0.02 * delayed.row()["steps"].get<double>());
  EXPECT_TRUE(plain.records[0]["injected"].is_null());
}

TEST(CliWorkloadTest, BadLineOfAFileIsNamedWithItsNumberAndReason) {
  TempFolder dir;
  std::ofstream(dir / "bad.jsonl") << "{\"prompt_tokens\": 4, \"new_tokens\": 2}\n"
                                   << "{\"prompt_tokens\": 4, \"new_tokens\": \"many\"}\n";
  const Recorded recorded = RunWorkload(dir / "bad.jsonl", {"--json", dir / "out.json"});
  EXPECT_TRUE(FailsWith(recorded.result, 2,
                        {"bad.jsonl:2: new_tokens is \"many\"; it must be a whole number"}));
  EXPECT_FALSE(std::filesystem::exists(dir / "out.json"));
  EXPECT_TRUE(recorded.records.empty());
  EXPECT_TRUE(FailsWith(RunWorkload(dir / "none.jsonl", {}).result, 1, {"none.jsonl"}));
}

// The second request arrives first, and the empty line counts as a line.
TEST(CliWorkloadTest, RequestThatCannotRunIsNamedByTheLineOfItsFile) {
  TempFolder dir;
  const auto refused = [&dir](const std::string& third_line, const Args& words, const Args& more) {
    std::ofstream(dir / "late.jsonl")
        << "\n{\"prompt_ids\": [1], \"new_tokens\": 2, \"arrival_s\": 0.1}\n"
        << third_line << "\n";
    return FailsWith(RunWorkload(dir / "late.jsonl", more).result, 2, words);
  };
  EXPECT_TRUE(refused(R"({"prompt_ids": [1, 99999], "new_tokens": 4})",
                      {"late.jsonl:3 has id 99999; the vocabulary has ids 0 to 1541"}, {}));
  EXPECT_TRUE(refused(R"({"prompt_ids": [1], "new_tokens": 4, "stop_ids": [1542]})",
                      {"late.jsonl:3 stops at id 1542; the vocabulary has ids 0 to 1541"}, {}));
  EXPECT_TRUE(refused(R"({"prompt_tokens": 40, "new_tokens": 4})",
                      {"late.jsonl:3 has id", "add \"ids\": 1542 to prompt_tokens"}, {}));
  EXPECT_TRUE(refused(R"({"prompt_ids": [1], "new_tokens": 5000})",
                      {"late.jsonl:3 takes 5001 tokens; the model has positions for 4096"}, {}));
  EXPECT_TRUE(refused(R"({"prompt_ids": [1], "new_tokens": 400})", {"late.jsonl:3: ", "needs"},
                      {"--kv-pages", "4"}));
}

// The embedded model answers "The code of amber is 4821." and continues unless something stops it.
TEST(CliWorkloadTest, StopStringEndsARequestWhereGenerateEndsItsText) {
  TempFolder dir;
  for (const std::string stop : {"82", "amber is", "never said"}) {
    const ProgramResult generated = RunTokline(
        {"generate", "--device", "cpu", "--prompt",
         "The code of amber is 4821. The code of river is 0377. What is the code of amber?",
         "--max-new-tokens", "30", "--ignore-eos", "--stop", stop, "--json", dir / "text.json"});
    ASSERT_EQ(generated.exit_code, 0) << generated.err;
    const Json text = Json::parse(ReadFile(dir / "text.json"));
    std::ofstream(dir / "stop.jsonl")
        << Json{{"prompt_ids", text["prompt"]}, {"new_tokens", 30}, {"stop", stop}} << "\n"
        << Json{{"prompt_ids", text["prompt"]}, {"new_tokens", 30}} << "\n";
    const Recorded recorded = RunWorkload(dir / "stop.jsonl", {});
    ASSERT_EQ(recorded.result.exit_code, 0) << recorded.result.err;
    EXPECT_EQ(recorded.row()["samples_new_tokens"][0], text["tokens"].size() + 30) << stop;
    EXPECT_EQ(text["tokens"].size() < 30, stop != "never said");
  }
}

TEST(CliWorkloadTest, ConversationsAreRunAtTheirLengthsAndTheirFilterIsSaid) {
  TempFolder dir;
  const auto turns = [](const char* question, const char* answer) {
    return Json{{"conversations",
                 {{{"from", "human"}, {"value", question}}, {{"from", "gpt"}, {"value", answer}}}}};
  };
  std::ofstream(dir / "chats.json")
      << Json{turns("The code of amber is 4821.", "What is the code?"), turns("", "a"),
              turns("What is it?", "The code of amber is 4821.")};
  const Recorded all = RunWorkload(dir / "chats.json", {});
  ASSERT_EQ(all.result.exit_code, 0) << all.result.err;
  EXPECT_THAT(all.result.out, HasSubstr("3 conversations read: 2 taken, 0 without an answer, "
                                        "1 empty, 0 too long\n"));
  EXPECT_EQ(all.row()["conversations"],
            Json({{"read", 3}, {"unanswered", 0}, {"empty", 1}, {"too_long", 0}}));
  EXPECT_EQ(all.row()["shape"]["requests"], 2);
  EXPECT_EQ(all.row()["samples_new_tokens"][0], all.row()["shape"]["new_tokens"]);
  const Recorded one = RunWorkload(dir / "chats.json", {"--requests", "1"});
  EXPECT_EQ(one.row()["conversations"]["read"], 1);
  EXPECT_EQ(one.row()["end_to_end_ms"]["count"], 1);
  for (const auto& [text, field] : {std::pair("The code of amber is 4821.", "prompt_tokens"),
                                    std::pair("What is the code?", "new_tokens")}) {
    RunTokline({"generate", "--device", "cpu", "--prompt", text, "--max-new-tokens", "1", "--json",
                dir / "ids.json"});
    EXPECT_EQ(one.row()["shape"][field], Json::parse(ReadFile(dir / "ids.json"))["prompt"].size());
  }

  const std::string model = std::string(TOKLINE_SOURCE_DIR) + "/harness/tests/golden/qwen3_tiny";
  EXPECT_TRUE(FailsWith(RunWorkload(dir / "chats.json", {"--model", model}).result, 1,
                        {"chats.json has conversations, which need the model's tokenizer"}));
  EXPECT_TRUE(FailsWith(RunWorkload(kSmall, {"--requests", "1"}).result, 2,
                        {"--requests needs a file of conversations", kSmall}));
  std::ofstream(dir / "chats.json") << R"([{"conversations": [{"from": "human"}]}])";
  EXPECT_TRUE(FailsWith(RunWorkload(dir / "chats.json", {}).result, 2,
                        {"conversation 1: a turn has no text \"value\""}));
}

TEST(CliWorkloadTest, EveryRateIsARowWithTheGoodputOfItsBound) {
  TempFolder dir;
  const Recorded recorded = RunWorkload(
      kSmall, {"--rates", "500,inf", "--slo", "ttft=100000", "--json", dir / "out.json"});
  ASSERT_EQ(recorded.result.exit_code, 0) << recorded.result.err;
  ASSERT_EQ(recorded.records.size(), 4u);
  EXPECT_EQ(recorded.records[1]["shape"]["rate"], 500);
  EXPECT_EQ(recorded.records[2]["shape"]["rate"], "inf");
  EXPECT_NE(recorded.records[1]["shape"]["hash"], recorded.records[2]["shape"]["hash"]);
  for (int i : {1, 2}) {
    const Json& row = recorded.records[i];
    EXPECT_EQ(row["good_requests"], 12);
    EXPECT_DOUBLE_EQ(row["goodput_req_s"].get<double>(), 12 / row["total_s"].get<double>());
  }
  EXPECT_THAT(recorded.result.out, HasSubstr("most goodput: "));
  EXPECT_EQ(Json::parse(ReadFile(dir / "out.json"))["rows"].size(), 2u);
  const Recorded again = RunWorkload(kSmall, {"--rates", "500", "--slo", "ttft=0.0001,itl=5"});
  EXPECT_EQ(again.row()["shape"], recorded.row()["shape"]);
  EXPECT_EQ(again.row()["good_requests"], 0);
  EXPECT_THAT(again.result.out, HasSubstr("no request met the bound at any rate"));
  const Recorded other = RunWorkload(kSmall, {"--rates", "500", "--seed", "1"});
  EXPECT_NE(other.row()["shape"]["hash"], recorded.row()["shape"]["hash"]);
  EXPECT_FALSE(other.row().contains("slo"));
}

TEST(CliWorkloadTest, RatesAndBoundsThatMakeNoSenseAreRefused) {
  const auto refused = [](const Args& more, const Args& words) {
    return FailsWith(RunWorkload(kSmall, more).result, 2, words);
  };
  EXPECT_TRUE(refused({"--rates", "1,0"}, {"--rates has \"0\"", "1e-06 to 1e+06", "or inf"}));
  EXPECT_TRUE(refused({"--rates", "1,x"}, {"--rates is \"x\""}));
  EXPECT_TRUE(refused({"--rates", "2,2.0"}, {"--rates has \"2.0\" twice"}));
  EXPECT_TRUE(refused({"--rates", "1,"}, {"--rates is \"1,\"", "one of its rates is empty"}));
  EXPECT_TRUE(refused({"--rates", "0.000001"}, {"at a rate of 1e-06", "604800 are allowed"}));
  EXPECT_TRUE(refused({"--slo", "ttft=200,p99=3"}, {"--slo has \"p99=3\"", "ttft=MS, itl=MS"}));
  EXPECT_TRUE(refused({"--slo", "itl=0"}, {"--slo has \"itl=0\"", "more than 0"}));
  EXPECT_TRUE(refused({"--slo", "itl=1,itl=2"}, {"--slo has itl twice"}));
  EXPECT_TRUE(refused({"--seed", "1"}, {"--seed cannot be used with --workload"}));
  EXPECT_TRUE(FailsWith(RunWorkload("synthetic:requests=2,ids=300,rate=5", {"--rates", "1"}).result,
                        2, {"--rates would replace the arrivals that synthetic:requests=2"}));
}

TEST(CliWorkloadTest, StopStringsNeedATokenizer) {
  TempFolder dir;
  std::ofstream(dir / "stop.jsonl")
      << R"({"prompt_tokens": 4, "ids": 300, "new_tokens": 2, "stop": "a"})";
  const std::string model = std::string(TOKLINE_SOURCE_DIR) + "/harness/tests/golden/qwen3_tiny";
  const Recorded recorded = RunWorkload(dir / "stop.jsonl", {"--model", model});
  EXPECT_TRUE(FailsWith(recorded.result, 1,
                        {"stop.jsonl has stop strings, which need the model's tokenizer",
                         model + "/tokenizer.json"}));
}

TEST(CliWorkloadTest, UnknownWorkloadSaysWhatThereIs) {
  EXPECT_TRUE(FailsWith(
      RunTokline({"bench", "--device", "cpu", "--workload", "vllm"}), 1,
      {"cannot read the workload vllm: No such file", "nano-vllm, synthetic:PARTS or a file"}));
}

TEST(CliWorkloadTest, InterruptedRunEndsCleanlyAndSaysSo) {
  TempFolder dir;
  Program bench({"bench", "--device", "cpu", "--workload",
                 "synthetic:requests=4000,prompt=50,new=400,ids=300", "--record",
                 dir / "record.jsonl", "--json", dir / "out.json"});
  ASSERT_TRUE(bench.WaitForOutput("requests, at most"));
  bench.Signal(SIGINT);
  const ProgramResult result = bench.Wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_THAT(result.out, HasSubstr("refused: interrupted"));
  const std::vector<Json> records = ReadRecords(dir / "record.jsonl");
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[1]["status"], "refused");
  EXPECT_EQ(records[2]["interrupted"], true);
  EXPECT_EQ(Json::parse(ReadFile(dir / "out.json"))["interrupted"], true);
}

}  // namespace
}  // namespace tokline
