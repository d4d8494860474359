// Kills writers of one file at random moments. No acknowledged row may be lost, and the file must
// stay readable. TOKLINE_STORE_KILLS sets the number of kills.
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "harness/record/record_file.h"
#include "harness/tests/temp_folder.h"

namespace tokline {
namespace {

namespace fs = std::filesystem;

constexpr int kWriters = 8;
constexpr int kDefaultKills = 320;

int Kills() {
  const char* text = std::getenv("TOKLINE_STORE_KILLS");
  return text == nullptr ? kDefaultKills : std::atoi(text);
}

// Returns the `number`-th line of a writer. Some are short, some have several pages.
Json Line(int writer, int64_t number) {
  Json line = ToJson(RunEnd{.run_id = "writer " + std::to_string(writer),
                            .interrupted = false,
                            .rows = number,
                            .refused = 0,
                            .gpu_after = {}});
  const auto length = static_cast<size_t>((writer * 7919 + number * 104729) % 20000);
  line["padding"] = std::string(length, static_cast<char>('a' + writer % 26));
  return line;
}

struct Writer {
  int number = 0;
  pid_t process = 0;
  int acknowledged = -1;  // a pipe with one byte per acknowledged line
};

// Starts a process that appends lines until it is killed, and acknowledges each line.
Writer StartWriter(const fs::path& path, int number) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t process = fork();
  if (process == 0) {
    try {
      RecordWriter writer(path);
      for (int64_t i = 0;; ++i) {
        writer.Append(Line(number, i));
        if (write(ends[1], "+", 1) != 1) _exit(1);
      }
    } catch (const std::exception& error) {
      (void)!write(STDERR_FILENO, error.what(), std::char_traits<char>::length(error.what()));
    }
    _exit(1);
  }
  close(ends[1]);
  return {.number = number, .process = process, .acknowledged = ends[0]};
}

// Leaves what a writer leaves that is killed in the middle of a write, which a random kill seldom
// hits.
void LeaveAnUnfinishedLine(const fs::path& path, int number, double share) {
  const pid_t process = fork();
  if (process == 0) {
    std::FILE* file = std::fopen(path.c_str(), "ab");
    if (file == nullptr || flock(fileno(file), LOCK_EX) != 0) _exit(1);
    const std::string line = Line(number, 0).dump();
    const auto length = static_cast<size_t>(share * static_cast<double>(line.size()));
    (void)!write(fileno(file), line.data(), length);
    raise(SIGKILL);
  }
  waitpid(process, nullptr, 0);
}

// Kills the writer and returns the number of lines that it has acknowledged.
int64_t Kill(const Writer& writer) {
  kill(writer.process, SIGKILL);
  int status = 0;
  waitpid(writer.process, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "writer " << writer.number << " ended by itself";
  int64_t total = 0;
  char signs[4096];
  for (ssize_t count; (count = read(writer.acknowledged, signs, sizeof(signs))) > 0;) {
    total += count;
  }
  close(writer.acknowledged);
  return total;
}

class StoreKillTest : public ::testing::Test {
 protected:
  // Expects every acknowledged line of every writer, unchanged and in order, and at most one more
  // line per writer, which it did not live to acknowledge.
  void CheckFile(const fs::path& path, const std::map<int, int64_t>& acknowledged) {
    std::map<std::string, int64_t> found;
    std::string unfinished;
    try {
      for (const Json& record : ReadRecords(path, &unfinished)) {
        const std::string writer = record["run_id"];
        const int number = std::stoi(writer.substr(writer.find(' ')));
        ASSERT_EQ(record, Line(number, found[writer]++)) << "a line is mangled";
      }
    } catch (const std::exception& error) {
      ++unreadable_;
      ADD_FAILURE() << error.what();
      return;
    }
    unfinished_ += unfinished.empty() ? 0 : 1;
    for (const auto& [number, count] : acknowledged) {
      const int64_t kept = found["writer " + std::to_string(number)];
      lost_ += std::max<int64_t>(0, count - kept);
      EXPECT_GE(kept, count) << "writer " << number << " lost acknowledged lines";
      EXPECT_LE(kept, count + 1) << "writer " << number;
    }
  }

  testing::TempFolder directory_;
  int64_t lost_ = 0;
  int64_t unreadable_ = 0;
  int64_t unfinished_ = 0;
};

TEST_F(StoreKillTest, KilledWritersLoseNoAcknowledgedLine) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const int kills = Kills();
  ASSERT_GT(kills, 0) << "TOKLINE_STORE_KILLS must be a number of at least 1";
  constexpr uint64_t kSeed = 4;
  std::mt19937_64 random(kSeed);
  const auto pause = [&random](int most_us) {
    const auto us = std::uniform_int_distribution<int>(0, most_us)(random);
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  };
  constexpr uintmax_t kFullFile = 4 << 20;  // limits the time to read the file after every batch
  fs::path path = directory_ / "0.jsonl";
  std::map<int, int64_t> acknowledged;  // lines in the current file, by writer
  int64_t rows = 0;
  int writers = 0;
  int killed = 0;
  int torn = 0;
  while (killed < kills) {
    std::vector<Writer> batch;
    for (int i = 0; i < kWriters; ++i) batch.push_back(StartWriter(path, writers++));
    std::shuffle(batch.begin(), batch.end(), random);
    pause(10000);
    const size_t torn_at = random() % batch.size();
    for (size_t i = 0; i < batch.size(); ++i) {
      pause(600);
      const int64_t count = Kill(batch[i]);
      acknowledged[batch[i].number] = count;
      rows += count;
      ++killed;
      if (i != torn_at) continue;  // one line is torn while other writers are still alive
      LeaveAnUnfinishedLine(path, writers++, std::uniform_real_distribution(0.01, 1.0)(random));
      ++torn;
    }
    CheckFile(path, acknowledged);
    if (HasFatalFailure() || unreadable_ > 0) break;
    if (fs::file_size(path) > kFullFile) {
      fs::remove(path);
      path = directory_ / (std::to_string(writers) + ".jsonl");
      acknowledged.clear();
    }
  }
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  RecordProperty("kills", killed);
  std::printf(
      "%d kills of %d writers at once, %lld lines acknowledged, %lld lost, %lld unreadable "
      "files, %d lines torn on purpose, %lld files read with an unfinished last line, %.1f s\n",
      killed, kWriters, static_cast<long long>(rows), static_cast<long long>(lost_),
      static_cast<long long>(unreadable_), torn, static_cast<long long>(unfinished_),
      seconds.count());
  EXPECT_GT(rows, killed / 4) << "the writers were killed before they wrote anything";
}

}  // namespace
}  // namespace tokline
