// Appends to a disk that is full, fills up within a line, or is not writable. Each must give a
// clear message and lose nothing that was written before.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "harness/record/record_file.h"
#include "harness/tests/message_of.h"
#include "harness/tests/temp_folder.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

Json LineOf(int64_t number) {
  Json line = ToJson(
      RunEnd{.run_id = "run", .interrupted = false, .rows = number, .refused = 0, .gpu_after = {}});
  line["padding"] = std::string(3000, 'x');
  return line;
}

// Returns the error of appending, or "".
std::string AppendError(RecordWriter& writer, int64_t number) {
  try {
    writer.Append(LineOf(number));
  } catch (const RuntimeFailure& error) {
    return error.what();
  }
  return "";
}

// Thrown if this machine or user cannot create the situation that a test needs.
struct NotPossible : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void Expect(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

// Runs `body` in a child process, so that changes of limits, user and mounts end with it.
void InChild(const std::function<void()>& body) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto end = [&ends](int code, const std::string& why) {
      (void)!write(ends[1], why.data(), why.size());
      _exit(code);
    };
    try {
      body();
    } catch (const NotPossible& error) {
      end(77, error.what());
    } catch (const std::exception& error) {
      end(1, error.what());
    }
    _exit(0);
  }
  close(ends[1]);
  std::string why;
  char text[1024];
  for (ssize_t count; (count = read(ends[0], text, sizeof(text))) > 0;) {
    why.append(text, static_cast<size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << why;
  EXPECT_EQ(WEXITSTATUS(status), 0) << why;
}

void MountSmallDisk(const fs::path& where) {
  const std::string user = StrCat("0 ", geteuid(), " 1");
  const std::string group = StrCat("0 ", getegid(), " 1");
  const auto say = [](const char* file, const std::string& text) {
    return static_cast<bool>(std::ofstream(file) << text << std::flush);
  };
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !say("/proc/self/setgroups", "deny") ||
      !say("/proc/self/uid_map", user) || !say("/proc/self/gid_map", group) ||
      mount("tmpfs", where.c_str(), "tmpfs", 0, "size=64k") != 0) {
    throw NotPossible("this user may not mount a small disk");
  }
}

class StoreDiskTest : public ::testing::Test {
 protected:
  void TearDown() override { fs::permissions(directory_.Path(), fs::perms::owner_all); }

  // Appends until it fails with a message that contains `reason`. Expects that the file contains
  // exactly what was appended before, and returns the number of these lines.
  int64_t AppendUntil(const std::string& reason) {
    RecordWriter writer(path_);
    int64_t appended = 0;
    std::string error;
    while (appended < 1000 && (error = AppendError(writer, appended)).empty()) ++appended;
    Expect(error.find(reason) != std::string::npos, "the message is '" + error + "'");
    Expect(error.find(path_) != std::string::npos, "no path in '" + error + "'");
    ExpectLines(appended);
    return appended;
  }
  void ExpectLines(int64_t count) {
    std::string unfinished;
    const std::vector<Json> records = ReadRecords(path_, &unfinished);
    Expect(unfinished.empty(), unfinished);
    Expect(static_cast<int64_t>(records.size()) == count,
           StrCat(records.size(), " records instead of ", count));
    for (int64_t i = 0; i < count; ++i) {
      Expect(records[static_cast<size_t>(i)] == LineOf(i), StrCat("line ", i, " is mangled"));
    }
  }

  testing::TempFolder directory_;
  fs::path path_ = directory_ / "records.jsonl";
};

TEST_F(StoreDiskTest, AFullDiskLosesNothing) {
  InChild([this] {
    MountSmallDisk(directory_.Path());
    const int64_t appended = AppendUntil("No space left on device");
    Expect(appended >= 10, StrCat("only ", appended, " lines fitted"));
  });
}

TEST_F(StoreDiskTest, ADiskWithSpaceAgainIsUsedAgain) {
  InChild([this] {
    MountSmallDisk(directory_.Path());
    std::ofstream(directory_ / "ballast") << std::string(40000, 'x') << std::flush;
    const int64_t appended = AppendUntil("No space left on device");
    Expect(appended >= 1, "no line fitted");
    fs::remove(directory_ / "ballast");
    RecordWriter writer(path_);
    Expect(AppendError(writer, appended).empty(), "a disk with space was refused");
    ExpectLines(appended + 1);
  });
}

// The first write of a line is short, and the next one fails.
TEST_F(StoreDiskTest, AFileThatMayGrowNoMoreLosesNothing) {
  InChild([this] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 10000, .rlim_max = 10000};
    Expect(setrlimit(RLIMIT_FSIZE, &limit) == 0, "no limit");
    Expect(AppendUntil("File too large") == 3, "three lines should fit");
  });
}

TEST_F(StoreDiskTest, ADeviceWithoutSpaceIsNamed) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  RecordWriter writer("/dev/full");
  EXPECT_THAT(AppendError(writer, 0), HasSubstr("/dev/full: No space left"));
}

TEST_F(StoreDiskTest, AReadOnlyDiskIsNamed) {
  InChild([this] {
    MountSmallDisk(directory_.Path());
    { std::ofstream file(path_); }
    if (mount("tmpfs", directory_.Path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) != 0) {
      throw NotPossible("this user may not make a disk read-only");
    }
    for (const fs::path& path : {path_, directory_ / "new.jsonl"}) {
      const std::string message =
          testing::MessageOf<RuntimeFailure>([&] { RecordWriter writer(path); });
      Expect(
          message == StrCat("cannot write records to ", path.string(), ": Read-only file system"),
          "the message is '" + message + "'");
    }
  });
}

TEST_F(StoreDiskTest, AFileOrFolderThatMayNotBeWrittenIsNamed) {
  InChild([this] {
    { RecordWriter(path_).Append(LineOf(0)); }
    fs::permissions(path_, fs::perms(0444));
    fs::permissions(directory_.Path(), fs::perms(0555));
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && setuid(kNobody) != 0) {
      throw NotPossible("nobody but the superuser, who may write anything");
    }
    for (const fs::path& path : {path_, directory_ / "new.jsonl"}) {
      const std::string message =
          testing::MessageOf<RuntimeFailure>([&] { RecordWriter writer(path); });
      Expect(message == StrCat("cannot write records to ", path.string(), ": Permission denied"),
             "the message is '" + message + "'");
    }
    ExpectLines(1);
  });
}

}  // namespace
}  // namespace tokline
