// Runs tokline under mpirun: the processes give what one gives, and none of them outlives another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "harness/record/record_file.h"
#include "harness/tests/cli/program_run.h"
#include "harness/tests/engine/golden.h"

namespace tokline {
namespace {

using testing::Args;
using testing::Golden;
using ::testing::HasSubstr;
using testing::Program;
using testing::ProgramResult;
using testing::ProgramStreams;
using testing::ReadGolden;
using testing::TempFolder;
using testing::With;
using testing::WriteFile;

// With -q, mpirun adds nothing to what tokline says.
constexpr char kMpirun[] = "mpirun";
const Args kQuietly = {"-q", "--oversubscribe"};

Args Ranks(int number, const Args& args) {
  return With({"-n", std::to_string(number), TOKLINE_PROGRAM}, args);
}

Program Start(const Args& args, const std::string& in = "/dev/null") {
  return Program(With(kQuietly, args), ProgramStreams{.in = in}, kMpirun);
}

// The processes of the ranks.
std::map<std::string, pid_t> RanksOf(const Program& mpirun) {
  std::map<std::string, pid_t> ranks;
  const std::string task = "/proc/" + std::to_string(mpirun.Pid());
  for (const auto& thread : std::filesystem::directory_iterator(task + "/task")) {
    std::ifstream children(thread.path() / "children");
    for (pid_t child = 0; children >> child;) {
      const std::string environment =
          testing::ReadFile("/proc/" + std::to_string(child) + "/environ");
      constexpr std::string_view kName = "OMPI_COMM_WORLD_RANK=";
      const size_t at = environment.find(kName);
      if (at != std::string::npos) ranks[environment.substr(at + kName.size(), 1)] = child;
    }
  }
  return ranks;
}

// Whether the process ends soon. It may still wait for someone to ask how.
bool Ends(pid_t process) {
  for (int i = 0; i < 500; ++i) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string line;
    if (!std::getline(file, line) || line.find(") Z") != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

class CliProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    // Shared memory alone: network devices that do not work are warned of.
    ::setenv("OMPI_MCA_pml", "ob1", 1);
    ::setenv("OMPI_MCA_btl", "self,vader", 1);
    // By epoll, mpirun's libevent may warn of the connection to a rank that has died.
    ::setenv("EVENT_NOEPOLL", "1", 1);
    ::setenv("ASAN_OPTIONS", "detect_leaks=0", 0);  // Open MPI's
    static const ProgramResult tried = Start(Ranks(2, {"--version"})).Wait();
    if (tried.exit_code == 126) GTEST_SKIP() << "there is no mpirun";
    if (tried.err.find("this build has no MPI") != std::string::npos) {
      // All processes would say it, but one line is enough.
      EXPECT_TRUE(FailsWith(tried, 1, {"mpirun has started 2 processes"}));
      GTEST_SKIP() << "there is no MPI";
    }
    ASSERT_EQ(tried.exit_code, 0) << tried.err;
  }

  std::string OutputOf(int ranks, const Args& args, const std::string& in = "/dev/null") {
    const Args on_cpu = With(args, {"--device", "cpu"});
    const ProgramResult result = ranks == 1 ? Program(on_cpu, ProgramStreams{.in = in}).Wait()
                                            : Start(Ranks(ranks, on_cpu), in).Wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }
};

TEST_F(CliProcessesTest, TokensAreThoseOfTransformers) {
  for (const char* name : {"qwen3_tiny", "llama_biased", "gpt2_tiny"}) {
    const Golden golden = ReadGolden(name);
    const testing::GoldenCase& one = golden.cases.at(1);
    std::string prompt, tokens;
    for (const int32_t id : one.prompt) prompt += (prompt.empty() ? "" : ",") + std::to_string(id);
    for (const int32_t id : one.tokens) tokens += (tokens.empty() ? "" : " ") + std::to_string(id);
    EXPECT_EQ(
        OutputOf(2, {"generate", "--model", golden.checkpoint.string(), "--prompt-ids", prompt,
                     "--ignore-eos", "--max-new-tokens", std::to_string(one.tokens.size())}),
        tokens + "\n")
        << name;
  }
}

TEST_F(CliProcessesTest, ChatReadsItsInputOnceAndReusesChunks) {
  TempFolder dir;
  WriteFile(dir / "a.md", "The code of river is 0377.\n");
  WriteFile(dir / "b.md", "The code of moon is 1234.\n");
  WriteFile(dir / "turns", "What is the code of river?\nAnd the code of moon?\n");
  const Args chunks = {"--chunk", dir / "a.md", "--chunk", dir / "b.md"};
  const std::string answers = OutputOf(2, With({"chat"}, chunks), dir / "turns");
  EXPECT_EQ(answers, "The code of river is 0377.\nThe code of moon is 1234.\n");
  // Shifted chunks are copied on every rank.
  const Args divergence = With({"divergence", "--prompt", "What is the code of moon?"}, chunks);
  EXPECT_THAT(OutputOf(2, divergence), HasSubstr("shifted  \" The code of moon is 1234.\""));
}

TEST_F(CliProcessesTest, BenchRecordsAVerifiedRowWithItsProfile) {
  TempFolder dir;
  OutputOf(4, {"bench", "--batch", "2", "--prompt-tokens", "8", "--new-tokens", "4", "--repeats",
               "1", "--record", dir / "record.jsonl"});
  const Json row = ReadRecords(dir / "record.jsonl").at(1);
  EXPECT_EQ(row["implementation"], "reference with 4 processes");
  EXPECT_EQ(row["ranks"], 4);
  EXPECT_EQ(row["status"], "ok") << row["reason"];
  std::vector<std::string> ops;
  for (const Json& op : row["profile"]["ops"]) ops.push_back(op["op"]);
  EXPECT_THAT(ops, ::testing::IsSupersetOf({"all_reduce", "gather_logits"}));
  OutputOf(2, {"bench", "--workload", "synthetic:requests=6,prompt=5-20,new=3-9,ids=300",
               "--page-size", "16", "--max-batch", "4", "--record", dir / "record.jsonl"});
  const Json work = ReadRecords(dir / "record.jsonl").at(4);
  EXPECT_EQ(work["implementation"], "reference with 2 processes");
  EXPECT_EQ(work["status"], "ok") << work["reason"];
}

TEST_F(CliProcessesTest, ARankThatDiesOrHangsEndsAllInOneLine) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    for (const std::string lost : {"0", "1"}) {
      TempFolder dir;
      Program mpirun = Start(
          Ranks(2, {"generate", "--device", "cpu", "--prompt-ids", "5,6,7", "--max-new-tokens",
                    "2000", "--ignore-eos", "--rank-limit", "2", "--json", dir / "out.json"}));
      ASSERT_TRUE(mpirun.WaitForOutput(" "));
      const std::map<std::string, pid_t> ranks = RanksOf(mpirun);
      ASSERT_EQ(ranks.size(), 2u);
      ::kill(ranks.at(lost), signal);
      const ProgramResult result = mpirun.Wait();
      const bool died = signal == SIGKILL;
      EXPECT_TRUE(FailsWith(
          result, died ? 128 + SIGKILL : 1,
          {"rank " + lost + " of 2", died ? "has died" : "hangs: the others have waited for 2 s"}));
      for (const auto& [rank, process] : ranks) EXPECT_TRUE(Ends(process)) << rank;
      if (lost == "1") {
        EXPECT_EQ(testing::FilesIn(dir.Path()), std::vector<std::string>());
      }
    }
  }
}

TEST_F(CliProcessesTest, RanksThatDisagreeEndInOneLine) {
  TempFolder dir;
  const std::filesystem::path tiny = ReadGolden("qwen3_tiny").checkpoint;
  for (const char* host : {"a", "b"}) {
    std::filesystem::create_directory(dir / host);
    std::filesystem::copy(tiny, dir / host / "model");
  }
  std::string config = testing::ReadFile(tiny / "config.json");
  const size_t eps = config.find("1e-06");
  ASSERT_NE(eps, std::string::npos);
  WriteFile(dir / "b" / "model" / "config.json", config.replace(eps, 5, "1e-05"));
  const auto on = [&](const char* host, const Args& args) {
    return With({"-n", "1", "--wdir", dir / host, TOKLINE_PROGRAM, "generate", "--device", "cpu",
                 "--model", "model", "--prompt-ids", "5"},
                args);
  };
  const auto both = [&](const Args& other) { return With(With(on("a", {}), {":"}), other); };
  EXPECT_TRUE(FailsWith(Start(both(on("b", {}))).Wait(), 1,
                        {"rank 1 of 2: the model in model is not that of rank 0"}));
  EXPECT_TRUE(FailsWith(Start(both(on("a", {"--seed", "1"}))).Wait(), 2,
                        {"rank 1 of 2 was started with other arguments"}));
  std::filesystem::remove_all(dir / "b" / "model");
  EXPECT_TRUE(FailsWith(Start(both(on("b", {}))).Wait(), 1, {"rank 1 of 2: model: not a folder"}));
}

TEST_F(CliProcessesTest, MistakesAreReportedOnce) {
  const auto refusal = [](int ranks, const Args& args) {
    return Start(Ranks(ranks, With(args, {"--device", "cpu"}))).Wait();
  };
  EXPECT_TRUE(FailsWith(refusal(3, {"generate"}), 2, {"among 3 ranks; allowed: 1, 2, 4"}));
  EXPECT_TRUE(FailsWith(refusal(2, {"bench", "--tp", "1,2"}), 2,
                        {"--tp has 1; mpirun has started 2 processes"}));
  EXPECT_TRUE(FailsWith(refusal(2, {"ablate"}), 2, {"ablate takes 1 rank, not 2"}));
  EXPECT_TRUE(FailsWith(refusal(9, {"generate"}), 2, {"has started 9 processes; at most 8"}));
}

}  // namespace
}  // namespace tokline
