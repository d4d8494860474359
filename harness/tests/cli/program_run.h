// Runs the built tokline program as a user does.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "harness/tests/models/model_files.h"

namespace tokline::testing {

using Args = std::vector<std::string>;

inline Args With(Args args, const Args& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

struct ProgramResult {
  int exit_code = -1;  // minus the signal's number if a signal ended it
  std::string out;
  std::string err;
};

// The standard streams of a process.
struct ProgramStreams {
  std::string out = {};  // if empty, a file of its own
  std::string err = {};  // likewise
  std::string in = "/dev/null";
  int out_file = -1;             // a descriptor that replaces `out`
  std::vector<int> closed = {};  // those of 0 to 2 that are closed at the start
};

// A running process whose output goes to files.
class Program {
 public:
  explicit Program(const std::vector<std::string>& args, const std::string& out_path = {})
      : Program(args, ProgramStreams{.out = out_path}) {}
  Program(const std::vector<std::string>& args, const ProgramStreams& streams,
          const char* program = TOKLINE_PROGRAM)  // is searched for in PATH
      : out_path_(streams.out.empty() ? (scratch_ / "out").string() : streams.out) {
    std::vector<char*> argv = {const_cast<char*>(program)};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    const std::string err_path = streams.err.empty() ? (scratch_ / "err").string() : streams.err;
    pid_ = ::fork();
    if (pid_ == 0) {
      const int in = ::open(streams.in.c_str(), O_RDONLY | O_NOCTTY);
      const int out = streams.out_file >= 0
                          ? streams.out_file
                          : ::open(out_path_.c_str(), O_WRONLY | O_CREAT | O_NOCTTY, 0600);
      const int err = ::open(err_path.c_str(), O_WRONLY | O_CREAT | O_NOCTTY, 0600);
      ::dup2(in, 0);
      ::dup2(out, 1);
      ::dup2(err, 2);
      for (const int file : streams.closed) ::close(file);
      // Tests send these; whoever runs the tests may ignore them, as nohup does.
      for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_DFL);
      ::execvp(argv[0], argv.data());
      ::_exit(126);
    }
  }
  ~Program() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Waits for the program to write `text`; returns false if it does not before the timeout.
  bool WaitForOutput(const std::string& text) const {
    for (int i = 0; i < 3000; ++i) {
      std::error_code error;
      if (std::filesystem::exists(out_path_, error) &&
          ReadFile(out_path_).find(text) != std::string::npos) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  void Signal(int number) const { ::kill(pid_, number); }
  pid_t Pid() const { return pid_; }
  ProgramResult Wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    ProgramResult result;
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (std::filesystem::is_regular_file(out_path_)) result.out = ReadFile(out_path_);
    if (std::filesystem::exists(scratch_ / "err")) result.err = ReadFile(scratch_ / "err");
    return result;
  }

 private:
  TempFolder scratch_;
  std::string out_path_;
  pid_t pid_ = -1;
};

inline ProgramResult RunTokline(const std::vector<std::string>& args,
                                const std::string& out_path = {}) {
  return Program(args, out_path).Wait();
}

// Runs the program with `input` on its standard input.
inline ProgramResult RunToklineOn(const std::string& input, const std::vector<std::string>& args) {
  TempFolder folder;
  WriteFile(folder / "in", input);
  return Program(args, ProgramStreams{.in = (folder / "in").string()}).Wait();
}

// Expects the exit code and exactly one line on standard error that begins with "tokline: " and
// contains every one of `says`.
inline ::testing::AssertionResult FailsWith(const ProgramResult& result, int exit_code,
                                            const std::vector<std::string>& says) {
  const auto failure = [&](const std::string& why) {
    return ::testing::AssertionFailure()
           << why << "\nexit " << result.exit_code << "\nstderr: " << result.err;
  };
  if (result.exit_code != exit_code) return failure("not exit " + std::to_string(exit_code));
  if (std::ranges::count(result.err, '\n') != 1 || !result.err.ends_with('\n')) {
    return failure("not one line");
  }
  if (!result.err.starts_with("tokline: ")) return failure("does not begin with tokline:");
  for (const std::string& part : says) {
    if (result.err.find(part) == std::string::npos) return failure("lacks \"" + part + "\"");
  }
  return ::testing::AssertionSuccess();
}

inline std::vector<std::string> FilesIn(const std::filesystem::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace tokline::testing
