// Runs bench programs like a user and checks flags, exit codes, messages, records, Ctrl-C and the
// printed table.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "benches/options.h"
#include "harness/platform/device.h"
#include "harness/record/record_file.h"
#include "harness/tests/cli/terminal.h"
#include "harness/tests/temp_folder.h"

namespace tokline::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class BenchProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    program_ = fs::path(TOKLINE_PROGRAM).parent_path() / "bench_activation";
    if (!fs::exists(program_)) GTEST_SKIP() << program_ << " is not built";
  }

  // `out` is a descriptor for standard output, kWithError to merge it with standard error, or
  // kClosed.
  static constexpr int kWithError = -1, kClosed = -2;
  pid_t Start(std::vector<std::string> args, int out = kWithError) {
    const std::string output = directory_ / "output";
    const pid_t child = fork();
    if (child != 0) return child;
    const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(out >= 0 ? out : file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    if (out == kClosed) close(STDOUT_FILENO);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  // Returns the exit code, or minus the signal. Stores the output in output_.
  int Wait(pid_t child) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    std::ifstream file(directory_ / "output");
    output_.assign(std::istreambuf_iterator<char>(file), {});
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int Run(std::vector<std::string> args, int out = kWithError) {
    args.insert(args.begin(), program_);
    return Wait(Start(std::move(args), out));
  }
  fs::path Record() const { return directory_ / "records.jsonl"; }
  fs::path Shapes(const std::string& json) const {
    const fs::path path = directory_ / "shapes.json";
    std::ofstream(path) << json;
    return path;
  }

  fs::path program_;
  testing::TempFolder directory_;
  std::string output_;
};

TEST_F(BenchProgramTest, EveryRowOnTheCpuIsVerifiedAndRecorded) {
  ASSERT_EQ(Run({"--device", "cpu", "--record", Record(), "--dtype=fp16"}), 0) << output_;
  const std::vector<Json> records = ReadRecords(Record());
  ASSERT_GE(records.size(), 3u);
  EXPECT_EQ(records.front()["kind"], "run");
  EXPECT_TRUE(records.front()["fingerprint"]["gpu"].is_null());
  for (size_t i = 1; i + 1 < records.size(); ++i) {
    EXPECT_EQ(records[i]["status"], "ok");
    EXPECT_EQ(records[i]["implementation"], "reference");
    EXPECT_EQ(records[i]["cache"], "cpu");
    EXPECT_EQ(records[i]["dtype"], "f16");
    EXPECT_GE(records[i]["samples_us"].size(), 15u);
  }
  EXPECT_EQ(records.back()["kind"], "end");
  EXPECT_EQ(records.back()["interrupted"], false);
  EXPECT_EQ(records.back()["rows"], records.size() - 2);
}

TEST_F(BenchProgramTest, EveryRowIsAuditedAndSaysWhySamplingStopped) {
  ASSERT_EQ(Run({"--device=cpu", "--record", Record(), "--benchmark_filter=tokens:1/"}), 0);
  const Json row = ReadRecords(Record())[1];
  EXPECT_EQ(row["verified"]["audits"], 3);
  EXPECT_TRUE(row["stopped"] == "precise" || row["stopped"] == "time") << row["stopped"];
  EXPECT_TRUE(row["fresh_us"].is_null()) << "the reference's times are no claim";
  EXPECT_GT(row["memory_bytes"], 0);
  EXPECT_TRUE(ReadRecords(Record())[0]["injected"].is_null());
}

TEST_F(BenchProgramTest, AStatedNumberOfSamplesIsTaken) {
  ASSERT_EQ(Run({"--device=cpu", "--record", Record(), "--samples=20"}), 0) << output_;
  const Json row = ReadRecords(Record())[1];
  EXPECT_EQ(row["samples_us"].size(), 20u);
  EXPECT_TRUE(row["stopped"].is_null());
}

TEST_F(BenchProgramTest, AnInjectedSlowdownIsSaidInTheHeader) {
  ASSERT_EQ(Run({"--device=cpu", "--record", Record(), "--inject-slowdown=5", "--samples=15"}), 0);
  EXPECT_EQ(ReadRecords(Record())[0]["injected"].dump(), R"({"slowdown_percent":5.0})");
}

TEST_F(BenchProgramTest, PeaksCannotBeTakenOverOnTheCpu) {
  EXPECT_EQ(Run({"--device=cpu", "--peaks", Record(), "--record", Record()}), 2);
  EXPECT_THAT(output_, HasSubstr("--peaks: the CPU has no peaks"));
}

TEST_F(BenchProgramTest, WithoutADeviceSaysThatCudaRowsAreNotRun) {
  if (CudaDeviceCount() > 0) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_EQ(Run({"--verify-only"}), 0) << output_;
  EXPECT_THAT(output_, HasSubstr("no CUDA device: CUDA rows not run"));
  EXPECT_THAT(output_, HasSubstr("error / bound"));
  EXPECT_THAT(output_, Not(HasSubstr("WARNING")));
}

TEST_F(BenchProgramTest, DeviceCudaWithoutADeviceFails) {
  if (CudaDeviceCount() > 0) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_EQ(Run({"--device", "cuda", "--record", Record()}), 1);
  EXPECT_THAT(output_, HasSubstr("CUDA"));
  EXPECT_FALSE(fs::exists(Record()));
  EXPECT_EQ(Run({"--device=1"}), 1);
  EXPECT_THAT(output_, HasSubstr("CUDA"));
}

TEST_F(BenchProgramTest, AFilterThatMatchesNothingFails) {
  EXPECT_EQ(Run({"--device=cpu", "--benchmark_filter=no_such_row", "--record", Record()}), 1);
  EXPECT_THAT(output_, HasSubstr("the filter matches none of"));
  EXPECT_FALSE(fs::exists(Record()));
}

TEST_F(BenchProgramTest, AFilterThatMatchesSelectsRows) {
  EXPECT_EQ(Run({"--device=cpu", "--benchmark_filter=silu.*tokens:64/", "--record", Record()}), 0);
  EXPECT_EQ(ReadRecords(Record()).size(), 3u);
}

TEST_F(BenchProgramTest, MisuseIsNamedAndExitsWithTwo) {
  const auto expect_usage = [this](const std::vector<std::string>& args, const char* message) {
    EXPECT_EQ(Run(args), 2) << output_;
    EXPECT_THAT(output_, HasSubstr(message));
  };
  expect_usage({"--no-such-flag"},
               "unknown flag \"--no-such-flag\"; a bench program takes --device,");
  expect_usage({"--benchmark_min_time=1"},
               "--benchmark_min_time does nothing here, since the program itself measures");
  expect_usage({"--benchmark_list_tests=maybe"}, "it must be one of true, false");
  expect_usage({"--benchmark_repetitions=0"}, "it must be an integer from 1 to 1000000");
  expect_usage({"--format=xml"},
               "--format is \"xml\"; it must be one of table, markdown, csv, json");
  expect_usage({"extra"}, "unexpected argument \"extra\"");
  expect_usage({"--device", "tpu"}, "--device is \"tpu\"; it must be auto, cpu, cuda or a number");
  expect_usage({"--device=-1"}, "--device is \"-1\"; it must be auto, cpu, cuda or a number");
  expect_usage({"--device=99999999999999999999"}, "it must be an integer from 0 to 63");
  expect_usage({"--axis=tokens=1", "--shapes=x"}, "--axis and --shapes both say which shapes run");
  expect_usage({"--dtype=int8"}, "--dtype is \"int8\"; it must be one of bf16, fp16");
  expect_usage({"--samples", "3"}, "--samples is \"3\"; it must be an integer from 15 to 10000");
  expect_usage({"--precision", "0"}, "--precision is \"0\"; it must be a number in [0.01, 100]");
  expect_usage({"--max-seconds=-1"}, "--max-seconds is \"-1\"");
  expect_usage({"--inject-slowdown=nan"}, "--inject-slowdown is \"nan\"");
  expect_usage({"--peaks="}, "--peaks is empty");
  expect_usage({"--sweep=0"}, "--sweep is \"0\"; it must be an integer from 1 to 10000");
  expect_usage({"--sweep=1", "--shapes=f"},
               "--sweep draws shapes; neither --shapes nor --axis may be given with it");
  expect_usage({"--seed=1"}, "--seed is given without --sweep");
  expect_usage({"--record"}, "--record needs a value");
  expect_usage({"--benchmark_filter=["},
               "--benchmark_filter is \"[\", which is not a regular expression");
  expect_usage({"--benchmark_filter=-("}, "--benchmark_filter is \"-(\"");
  expect_usage({"--verify-only=yes"}, "--verify-only takes no value");
  expect_usage({"--device=cpu", "--shapes",
                Shapes(R"({"activation": [{"name": "a", "kind": "gelu_tanh", "x": 1}]})")},
               "activation: a: 'intermediate' is missing");
  expect_usage(
      {"--device=cpu", "--shapes",
       Shapes(
           R"({"activation": [{"name": "a", "kind": "gelu_tanh", "tokens": [1], "intermediate": 8, "x": 1}]})")},
      "activation: a: unknown key \"x\"");
  expect_usage({"--device=cpu", "--shapes", Shapes(R"({"decode": []})")},
               "no shapes of family 'activation'");
}

TEST_F(BenchProgramTest, NoColorIsRespectedOnATerminal) {
  const auto colours = [this] {
    tokline::testing::Terminal terminal;
    const int out = open(terminal.Path().c_str(), O_WRONLY | O_NOCTTY);
    EXPECT_EQ(Run({"--device=cpu", "--samples=15", "--benchmark_filter=tokens:1/"}, out), 0);
    close(out);
    return terminal.ReadTo("verdict").find("\033[") != std::string::npos;
  };
  setenv("TERM", "xterm", 1);
  unsetenv("NO_COLOR");
  EXPECT_TRUE(colours());
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(colours());
  unsetenv("NO_COLOR");
}

TEST_F(BenchProgramTest, HelpListsOwnFlagsAndGoogleBenchmarks) {
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(output_, AllOf(HasSubstr("--shapes FILE"), HasSubstr("--verify-only"),
                             HasSubstr("--record FILE"), HasSubstr("--benchmark_filter")));
}

TEST_F(BenchProgramTest, ShapesOfAFileAreRun) {
  const fs::path shapes = Shapes(
      R"({"activation": [{"name": "mine", "kind": "gated_silu", "tokens": [2, 3], "intermediate": 64}]})");
  EXPECT_EQ(Run({"--device=cpu", "--shapes", shapes, "--record", Record()}), 0) << output_;
  const std::vector<Json> records = ReadRecords(Record());
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[2]["shape"].dump(),
            R"({"name":"mine","kind":"gated_silu","tokens":3,"intermediate":64})");
}

TEST_F(BenchProgramTest, ASweepRunsTheSameShapesOfASeedAgain) {
  std::vector<std::string> shapes;
  for (int run = 0; run < 2; ++run) {
    fs::remove(Record());
    ASSERT_EQ(Run({"--device=cpu", "--sweep=5", "--seed=3", "--samples=15", "--record", Record()}),
              0)
        << output_;
    const std::vector<Json> records = ReadRecords(Record());
    ASSERT_EQ(records.size(), 7u);
    for (size_t i = 1; i < 6; ++i) {
      EXPECT_EQ(records[i]["shape"]["name"], "sweep:3:" + std::to_string(i - 1));
      EXPECT_EQ(records[i]["status"], "ok");
      shapes.push_back(records[i]["shape"].dump() + records[i]["dtype"].get<std::string>());
    }
  }
  EXPECT_TRUE(std::equal(shapes.begin(), shapes.begin() + 5, shapes.begin() + 5));
  EXPECT_THAT(shapes, ::testing::Contains(HasSubstr("}f16")));
}

TEST_F(BenchProgramTest, AShapeThatTheKernelCannotRunFailsByName) {
  const fs::path shapes = Shapes(
      R"({"activation": [{"name": "odd", "kind": "gated_silu", "tokens": [2], "intermediate": 7}]})");
  EXPECT_EQ(Run({"--device=cpu", "--shapes", shapes, "--record", Record()}), 1);
  EXPECT_THAT(output_, HasSubstr("intermediate_size is 7"));
  const std::vector<Json> records = ReadRecords(Record());
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[1]["status"], "refused");
  EXPECT_EQ(records[2]["refused"], 1);
}

TEST_F(BenchProgramTest, AnUnwritableRecordFailsBeforeAnythingRuns) {
  EXPECT_EQ(Run({"--device=cpu", "--record", directory_ / "no" / "records.jsonl"}), 1);
  EXPECT_THAT(output_, HasSubstr("records.jsonl: No such file or directory"));
  EXPECT_THAT(output_, Not(HasSubstr("verdict")));
  EXPECT_EQ(Run({"--device=cpu", "--benchmark_out", directory_ / "no" / "out.json"}), 1);
  EXPECT_THAT(output_,
              AllOf(HasSubstr("--benchmark_out: cannot write"), Not(HasSubstr("verdict"))));
}

TEST_F(BenchProgramTest, BenchmarkOutReplacesNoRecordsAndTellsOfAFullDisk) {
  const std::vector<std::string> one_row = {"--device=cpu", "--samples=15",
                                            "--benchmark_filter=silu.*tokens:1/"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), one_row.begin(), one_row.end());
    return Run(more);
  };
  EXPECT_EQ(run({"--record", Record(), "--benchmark_out", Record()}), 2);
  EXPECT_THAT(output_, HasSubstr("--benchmark_out and --record both name"));
  ASSERT_EQ(run({"--record", Record()}), 0);
  const size_t records = ReadRecords(Record()).size();
  EXPECT_EQ(run({"--benchmark_out", Record()}), 1);
  EXPECT_THAT(output_, HasSubstr("it holds records"));
  EXPECT_EQ(ReadRecords(Record()).size(), records);
  EXPECT_EQ(run({"--benchmark_out", "/dev/full"}), 1);
  EXPECT_THAT(output_, HasSubstr("--benchmark_out: cannot write \"/dev/full\""));
}

TEST_F(BenchProgramTest, GoogleBenchmarkWritesTheMediansOfEachRepetition) {
  const fs::path out = directory_ / "out.json";
  ASSERT_EQ(Run({"--device=cpu", "--benchmark_repetitions=2", "--benchmark_filter=silu.*tokens:1/",
                 "--samples=15", "--record", Record(), "--benchmark_out", out}),
            0);
  const Json written = Json::parse(std::ifstream(out))["benchmarks"];
  for (const size_t i : {0, 1}) {
    EXPECT_NEAR(written[i]["real_time"], ReadRecords(Record())[1 + i]["median_us"], 0.01);
  }
}

TEST_F(BenchProgramTest, StandardOutputHoldsTheTableAlone) {
  const int out = open((directory_ / "out").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  EXPECT_EQ(Run({"--samples=15", "--device=cpu", "--format=json", "--record", Record()}, out), 0);
  close(out);
  const Json rows = Json::parse(std::ifstream(directory_ / "out"));
  const std::vector<Json> records = ReadRecords(Record());
  ASSERT_EQ(rows.size(), records.size() - 2);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["tokens"], records[i + 1]["shape"]["tokens"]);
    EXPECT_EQ(rows[i]["median_us"], records[i + 1]["median_us"]);
  }
}

TEST_F(BenchProgramTest, CtrlCEndsTheRunAndMarksItsRecord) {
  // Some repetitions have figures by then, and the others have none.
  const pid_t child = Start({program_, "--device=cpu", "--benchmark_repetitions=10000",
                             "--benchmark_filter=tokens:1/", "--record", Record()});
  const auto rows = [&] {
    std::ifstream record(Record());
    return std::count(std::istreambuf_iterator<char>(record), {}, '\n');
  };
  for (int i = 0; i < 1000 && rows() < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(child, SIGINT);
  EXPECT_EQ(Wait(child), 130) << output_;
  EXPECT_THAT(output_, AllOf(HasSubstr("interrupted"), HasSubstr("verdict\ngated_silu_i3072, ")));
  const std::vector<Json> records = ReadRecords(Record());
  EXPECT_EQ(records.back()["kind"], "end");
  EXPECT_EQ(records.back()["interrupted"], true);
}

TEST_F(BenchProgramTest, OutputThatCannotBeWrittenIsAFailure) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  const std::vector<std::string> modes[] = {{"--device=cpu"},
                                            {"--help"},
                                            {"--device=cpu", "--benchmark_list_tests"},
                                            {"--benchmark_list_tests", "true", "--device=cpu"}};
  for (const std::vector<std::string>& args : modes) {
    EXPECT_EQ(Run(args, full), 1) << args.back();
    EXPECT_THAT(output_,
                HasSubstr("bench_activation: cannot write to standard output: No space left"));
    EXPECT_EQ(Run(args, kClosed), 1) << args.back();
    EXPECT_THAT(output_, HasSubstr("bench_activation: cannot write to standard output"));
  }
  close(full);
}

TEST_F(BenchProgramTest, ARunWhoseOutputFailsHasItsRecordComplete) {
  int pipe_ends[2] = {};
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  close(pipe_ends[0]);
  for (const int out : {pipe_ends[1], kClosed}) {
    EXPECT_EQ(Run({"--device=cpu", "--record", Record(), "--samples=15"}, out), 1) << output_;
    EXPECT_THAT(output_, HasSubstr("cannot write to standard output"));
    const std::vector<Json> records = ReadRecords(Record());
    ASSERT_EQ(records.size(), 6u);
    EXPECT_EQ(records[5]["kind"], "end");
    EXPECT_EQ(records[5]["interrupted"], false);
    EXPECT_EQ(records[5]["rows"], 4);
    fs::remove(Record());
  }
  close(pipe_ends[1]);
}

TEST_F(BenchProgramTest, TheTableShowsRowsAndWhatWasNotRun) {
  ASSERT_EQ(Run({"--device=cpu", "--record", Record()}), 0);
  const std::string records = std::string(TOKLINE_SOURCE_DIR) + "/scripts/records";
  ASSERT_EQ(Wait(Start({records, "table", Record()})), 0) << output_;
  EXPECT_THAT(output_, AllOf(HasSubstr("activation\n"), HasSubstr("gated_silu_i3072, "),
                             HasSubstr("not run: chunk_decode"), HasSubstr("CUDA rows not run")));
  ASSERT_EQ(Wait(Start({records, "table", "--markdown", Record()})), 0) << output_;
  EXPECT_THAT(output_, HasSubstr("| gated_silu_i3072, tokens 64 | reference | bf16 | cpu |"));
  std::ofstream(Record(), std::ios::app) << "not a record\n";
  EXPECT_EQ(Wait(Start({records, "table", Record()})), 1);
  EXPECT_THAT(output_, AllOf(HasSubstr("records.jsonl:"), HasSubstr("not JSON")));
  EXPECT_EQ(Wait(Start({records, "table"})), 2);
}

TEST(OptionsTest, FlagsTakeTheirValueEitherWay) {
  const Options options = ParseOptions({"--device", "cpu", "--samples=20", "--benchmark_filter=x"});
  EXPECT_EQ(options.device, "cpu");
  EXPECT_EQ(options.rule.samples, 20);
  EXPECT_THAT(options.of_google_benchmark, ::testing::ElementsAre("--benchmark_filter=x"));
}

TEST(OptionsTest, PercentsBecomeShares) {
  const Options options = ParseOptions(
      {"--precision", "0.2", "--max-seconds=2", "--inject-slowdown", "3", "--peaks=p.jsonl"});
  EXPECT_EQ(options.rule.samples, 0);
  EXPECT_DOUBLE_EQ(options.rule.precision, 0.002);
  EXPECT_EQ(options.rule.seconds, 2);
  EXPECT_EQ(options.slowdown_percent, 3);
  EXPECT_EQ(options.peaks, "p.jsonl");
}

}  // namespace
}  // namespace tokline::bench
