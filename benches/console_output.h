// Standard output for Google Benchmark, which itself ignores write errors.
#pragma once

#include <iostream>
#include <streambuf>
#include <string_view>

namespace tokline::bench {

// During its lifetime, everything written to std::cout goes through Print, which throws
// RuntimeFailure to the writer if writing fails.
class ConsoleOutput : public std::streambuf {
 public:
  ConsoleOutput();
  ~ConsoleOutput() override;
  ConsoleOutput(const ConsoleOutput&) = delete;
  ConsoleOutput& operator=(const ConsoleOutput&) = delete;

 protected:
  std::streamsize xsputn(const char* text, std::streamsize length) override;
  int_type overflow(int_type character) override;

 private:
  std::streambuf* const before_;
};

// During its lifetime, std::cerr drops Google Benchmark's warning that the library was built as
// DEBUG, as Debian's is: it does not time what is measured here.
class NoDebugWarning : public std::streambuf {
 public:
  NoDebugWarning();
  ~NoDebugWarning() override;
  NoDebugWarning(const NoDebugWarning&) = delete;
  NoDebugWarning& operator=(const NoDebugWarning&) = delete;

 protected:
  std::streamsize xsputn(const char* text, std::streamsize length) override;
  int_type overflow(int_type character) override;

 private:
  std::streambuf* const before_;
};

}  // namespace tokline::bench
