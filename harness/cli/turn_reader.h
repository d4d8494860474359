// Reads lines from standard input and notices Ctrl-C between them.
#pragma once

#include <atomic>
#include <optional>
#include <string>

namespace tokline {

class TurnReader {
 public:
  // Returns the next line without its newline, or nothing at the end of the input or once
  // `interrupted` is true. Throws RuntimeFailure if standard input cannot be read.
  std::optional<std::string> Next(const std::atomic<bool>* interrupted);

 private:
  std::string pending_;
  size_t searched_ = 0;  // number of leading bytes in pending_ known to contain no newline
  bool at_end_ = false;
};

}  // namespace tokline
