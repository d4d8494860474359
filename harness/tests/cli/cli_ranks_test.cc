// Runs tokline with --tp as a user does: every command gives what it gives with one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "harness/record/record_file.h"
#include "harness/tests/cli/program_run.h"

namespace tokline {
namespace {

using testing::Args;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::ProgramStreams;
using testing::RunTokline;
using testing::TempFolder;
using testing::With;
using testing::WriteFile;

// Standard output on the CPU.
std::string OutputOf(const Args& args, const std::string& in = "/dev/null") {
  testing::Program program(With(args, {"--device", "cpu"}), ProgramStreams{.in = in});
  const ProgramResult result = program.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST(CliRanksTest, GenerateChatAndDivergenceSayTheSame) {
  TempFolder dir;
  WriteFile(dir / "a.md", "The code of river is 0377.\n");
  WriteFile(dir / "b.md", "The code of moon is 1234.\n");
  WriteFile(dir / "turns", "What is the code of river?\n");
  const Args chunks = {"--chunk", dir / "a.md", "--chunk", dir / "b.md"};
  const auto generate = [](const char* ranks) {
    return OutputOf({"generate", "--tp", ranks, "--prompt-ids", "5,6,7", "--max-new-tokens", "12",
                     "--temperature", "0.9", "--top-k", "30", "--seed", "4"});
  };
  const auto chat = [&](const char* ranks) {
    return OutputOf(With({"chat", "--tp", ranks}, chunks), dir / "turns");
  };
  EXPECT_EQ(generate("2"), generate("1"));
  EXPECT_EQ(generate("4"), generate("1"));
  EXPECT_EQ(chat("2"), chat("1"));
  EXPECT_THAT(chat("2"), HasSubstr("The code of river is 0377."));
  const std::string divergence =
      OutputOf(With({"divergence", "--tp", "2", "--prompt", "What is the code of moon?"}, chunks));
  EXPECT_THAT(divergence, HasSubstr("The code of moon is 1234."));
}

TEST(CliRanksTest, BenchComparesNumbersOfRanksAndRecordsThem) {
  TempFolder dir;
  const std::string out =
      OutputOf({"bench", "--tp", "1,2", "--batch", "1", "--prompt-tokens", "8", "--new-tokens", "4",
                "--repeats", "1", "--record", dir / "record.jsonl"});
  EXPECT_THAT(out, HasSubstr("ranks  decode  efficiency  prefill  efficiency"));
  const std::vector<Json> records = ReadRecords(dir / "record.jsonl");
  ASSERT_EQ(records.size(), 4u);
  const Json &whole = records[1], &divided = records[2];
  EXPECT_EQ(whole["implementation"], "reference");
  EXPECT_FALSE(whole.contains("ranks"));
  EXPECT_EQ(divided["implementation"], "reference with 2 ranks");
  EXPECT_EQ(divided["ranks"], 2);
  // Five sums of 128 elements, and the logits of rank 1: 774 of 1,542.
  EXPECT_EQ(divided["link_bytes"], 5 * 128 * 4 + 774 * 4);
  EXPECT_LT(divided["cost"]["read_bytes"], 0.6 * whole["cost"]["read_bytes"].get<double>());
  EXPECT_EQ(divided["status"], "ok") << divided["reason"];
  std::vector<std::string> ops;
  for (const Json& op : divided["profile"]["ops"]) ops.push_back(op["op"]);
  EXPECT_THAT(ops, ::testing::IsSupersetOf({"all_reduce", "gather_logits"}));
}

TEST(CliRanksTest, AWorkloadIsVerified) {
  TempFolder dir;
  OutputOf({"bench", "--tp", "2", "--workload", "synthetic:requests=6,prompt=5-20,new=3-9,ids=300",
            "--page-size", "16", "--max-batch", "4", "--record", dir / "record.jsonl"});
  const Json row = ReadRecords(dir / "record.jsonl").at(1);
  EXPECT_EQ(row["implementation"], "reference with 2 ranks");
  EXPECT_EQ(row["status"], "ok") << row["reason"];
}

TEST(CliRanksTest, WhatCannotBeDividedIsRefusedInOneLine) {
  const auto refusal = [](const Args& args) {
    const ProgramResult result = RunTokline(With(args, {"--device", "cpu"}));
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(refusal({"generate", "--tp", "3"}), HasSubstr("among 3 ranks; allowed: 1, 2, 4"));
  EXPECT_THAT(refusal({"bench", "--tp", "1,3"}), HasSubstr("among 3 ranks; allowed: 1, 2, 4"));
  EXPECT_THAT(refusal({"chat", "--tp", "9"}), HasSubstr("it must be an integer from 1 to 8"));
  EXPECT_THAT(refusal({"bench", "--tp", "1,2", "--workload", "nano-vllm"}),
              HasSubstr("with --workload it takes one"));
  EXPECT_THAT(refusal({"bench", "--tp", "2", "--in-place", "on"}), HasSubstr("it needs --tp 1"));
  EXPECT_THAT(refusal({"ablate", "--tp", "2"}), HasSubstr("ablate takes 1 rank, not 2"));
}

}  // namespace
}  // namespace tokline
