#include "harness/cli/turn_reader.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/common/error.h"

namespace tokline {
namespace {

// More than fills the longest context.
constexpr size_t kMaxTurnBytes = size_t{4} << 20;

}  // namespace

std::optional<std::string> TurnReader::Next(const std::atomic<bool>* interrupted) {
  // A signal may arrive between checking the flag and waiting, so each wait is short.
  constexpr int kWaitMs = 100;
  while (!interrupted->load()) {
    if (const size_t end = pending_.find('\n', searched_); end != pending_.npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      searched_ = 0;
      return line;
    }
    searched_ = pending_.size();
    if (pending_.size() > kMaxTurnBytes) {
      throw RuntimeFailure(
          StrCat("a turn is longer than the ", kMaxTurnBytes, " bytes that are allowed"));
    }
    if (at_end_) {
      if (pending_.empty()) return std::nullopt;
      searched_ = 0;
      return std::exchange(pending_, {});
    }
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(&input, 1, kWaitMs) <= 0) continue;
    std::array<char, 1 << 16> bytes;
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR && errno != EAGAIN) {
      throw RuntimeFailure(StrCat("cannot read standard input: ", std::strerror(errno)));
    }
    if (count > 0) pending_.append(bytes.data(), static_cast<size_t>(count));
    at_end_ = count == 0;
  }
  return std::nullopt;
}

}  // namespace tokline
