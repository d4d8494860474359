// Runs the tokline program with standard streams that are closed, full or broken.
#include <gtest/gtest.h>

#include "harness/record/record_file.h"
#include "harness/tests/cli/program_run.h"
#include "harness/tests/cli/terminal.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::Args;
using testing::FailsWith;
using testing::FilesIn;
using testing::Program;
using testing::ProgramResult;
using testing::ProgramStreams;
using testing::ReadFile;
using testing::RunTokline;
using testing::TempFolder;
using testing::Terminal;
using testing::With;

Args Generate(const Args& more) {
  return With({"generate", "--prompt-ids", "1,2,3", "--device", "cpu", "--max-new-tokens", "2"},
              more);
}

Args Bench(const Args& more) {
  return With({"bench", "--device", "cpu", "--batch", "1", "--prompt-tokens", "4", "--new-tokens",
               "2", "--repeats", "1"},
              more);
}

ProgramResult Without(const std::vector<int>& closed, const Args& args) {
  return Program(args, ProgramStreams{.closed = closed}).Wait();
}

TEST(CliStreamsTest, AClosedOutputIsAFailureAndNoFileTakesItsPlace) {
  TempFolder dir;
  EXPECT_TRUE(FailsWith(Without({1}, Generate({"--json", dir / "out.json"})), 1,
                        {"cannot write to standard output"}));
  EXPECT_TRUE(FailsWith(Without({0, 1}, {"--help"}), 1, {"cannot write to standard output"}));
  EXPECT_TRUE(FilesIn(dir.Path()).empty());
}

TEST(CliStreamsTest, WithoutAnErrorStreamTheWorkIsDone) {
  TempFolder dir;
  const ProgramResult result = Without({0, 2}, Generate({"--json", dir / "out.json"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(ReadFile(dir / "out.json").starts_with("{\"model\""));
  EXPECT_EQ(Without({0, 1, 2}, Generate({"--json", dir / "more.json"})).exit_code, 1);
  EXPECT_EQ(FilesIn(dir.Path()), Args{"out.json"});
}

TEST(CliStreamsTest, AClosedInputIsEmpty) {
  const ProgramResult chat = Without({0}, {"chat", "--device", "cpu"});
  EXPECT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_EQ(chat.out, "");
  EXPECT_TRUE(FailsWith(Without({0}, {"generate", "--device", "cpu", "--prompt", "-"}), 2,
                        {"standard input", "is empty"}));
}

// Checks the kinds of the record's lines, and that its end says that it was interrupted.
void ExpectHeaderAndInterruptedEnd(const std::filesystem::path& path) {
  const std::vector<Json> records = ReadRecords(path);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0]["kind"], "run");
  EXPECT_EQ(records[1]["kind"], "end");
  EXPECT_EQ(records[1]["run_id"], records[0]["run_id"]);
  EXPECT_EQ(records[1]["interrupted"], true);
  EXPECT_EQ(records[1]["rows"], 0);
}

TEST(CliStreamsTest, ARunWhoseOutputFailsEndsItsRecordAsInterrupted) {
  const Args commands[] = {
      Bench({}),
      {"bench", "--device", "cpu", "--workload", "synthetic:requests=2,prompt=4,new=2,ids=300"},
      {"ablate", "--device", "cpu", "--only", "fused_mlp", "--rounds", "1"}};
  for (Args args : commands) {
    TempFolder dir;
    args.insert(args.end(), {"--record", dir / "record.jsonl"});
    EXPECT_TRUE(FailsWith(RunTokline(args, "/dev/full"), 1, {"standard output", "No space left"}));
    ExpectHeaderAndInterruptedEnd(dir / "record.jsonl");
  }
}

TEST(CliStreamsTest, ARunIntoABrokenPipeEndsItsRecordAsInterrupted) {
  TempFolder dir;
  int ends[2] = {};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  const ProgramResult result =
      Program(Bench({"--record", dir / "record.jsonl"}), ProgramStreams{.out_file = ends[1]})
          .Wait();
  ::close(ends[1]);
  EXPECT_TRUE(FailsWith(result, 1, {"standard output", "Broken pipe"}));
  ExpectHeaderAndInterruptedEnd(dir / "record.jsonl");
}

TEST(CliStreamsTest, ALongRunSaysOnATerminalHowFarItIs) {
  const Args shape = {"--batch", "1", "--prompt-tokens", "4", "--new-tokens", "500"};
  const std::pair<Args, std::string> runs[] = {
      {With({"bench", "--repeats", "999"}, shape), "503,000 tokens of row 1 of 1"},
      {With({"ablate", "--rounds", "99", "--only", "fused_mlp"}, shape),
       "201,200 tokens of trial 1 of 5"},
      {{"bench", "--workload", "synthetic:requests=10000,prompt=4,new=46,ids=300"},
       "500,000 tokens of repeat 1 of 1"}};
  for (const auto& [args, what] : runs) {
    Terminal terminal;
    Program program(With(args, {"--device", "cpu"}), ProgramStreams{.err = terminal.Path()});
    const std::string said = terminal.ReadTo(" left]");
    program.Signal(SIGINT);
    EXPECT_EQ(program.Wait().exit_code, 130);
    EXPECT_TRUE(said.starts_with(StrCat("\r\x1b[K[computed 0 of ", what, "]"))) << said;
    EXPECT_NE(said.find(StrCat(" of ", what, ", about ")), said.npos) << said;
  }
}

// A step takes two seconds, after which the first interrupt would end the run. An interrupt soon
// after the first is the same one, passed on by a script.
TEST(CliStreamsTest, ASecondInterruptEndsAtOnceWithALine) {
  Program bench({"bench", "--device", "cpu", "--batch", "1", "--prompt-tokens", "4", "--new-tokens",
                 "4", "--inject-op-delay", "down:1000000"});
  ASSERT_TRUE(bench.WaitForOutput("decode tok/s"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  bench.Signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  bench.Signal(SIGINT);
  const ProgramResult result = bench.Wait();
  EXPECT_EQ(result.exit_code, -SIGINT);
  EXPECT_EQ(result.err, "\n[ended at once by a second interrupt]\n");
}

}  // namespace
}  // namespace tokline
