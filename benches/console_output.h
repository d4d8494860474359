// Standard output for Google Benchmark, which itself overlooks that nothing could be written.
#pragma once

#include <iostream>
#include <streambuf>
#include <string_view>

namespace tokline::bench {

// While it lives, what is written to std::cout goes through Print, and a failure of it is thrown at
// the writer as RuntimeFailure.
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

}  // namespace tokline::bench
