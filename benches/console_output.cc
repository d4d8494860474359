#include "benches/console_output.h"

#include "harness/platform/standard_streams.h"

namespace tokline::bench {

ConsoleOutput::ConsoleOutput() : before_(std::cout.rdbuf(this)) {
  std::cout.exceptions(std::ios::badbit);
}

ConsoleOutput::~ConsoleOutput() {
  std::cout.exceptions(std::ios::goodbit);
  std::cout.rdbuf(before_);
}

std::streamsize ConsoleOutput::xsputn(const char* text, std::streamsize length) {
  Print({text, static_cast<size_t>(length)});
  return length;
}

ConsoleOutput::int_type ConsoleOutput::overflow(int_type character) {
  const char one = traits_type::to_char_type(character);
  Print({&one, 1});
  return character;
}

NoDebugWarning::NoDebugWarning() : before_(std::cerr.rdbuf(this)) {}

NoDebugWarning::~NoDebugWarning() { std::cerr.rdbuf(before_); }

std::streamsize NoDebugWarning::xsputn(const char* text, std::streamsize length) {
  const std::string_view written(text, static_cast<size_t>(length));
  if (written.find("Library was built as DEBUG") != written.npos) return length;
  return before_->sputn(text, length);
}

NoDebugWarning::int_type NoDebugWarning::overflow(int_type character) {
  return before_->sputc(traits_type::to_char_type(character));
}

}  // namespace tokline::bench
