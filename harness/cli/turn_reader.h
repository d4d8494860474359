// The lines of standard input, read so that Ctrl-C is noticed between them.
#pragma once

#include <atomic>
#include <optional>
#include <string>

namespace tokline {

class TurnReader {
 public:
  // The next line without its end; nothing at the end of the input, or as soon as `interrupted`
  // becomes true. Throws RuntimeFailure if standard input cannot be read.
  std::optional<std::string> Next(const std::atomic<bool>* interrupted);

 private:
  std::string pending_;
  size_t searched_ = 0;  // bytes of pending_ without an end of line
  bool at_end_ = false;
};

}  // namespace tokline
