// A pseudo-terminal at which a test types.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tokline::testing {

class Terminal {
 public:
  Terminal() : user_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    if (user_ < 0 || ::grantpt(user_) != 0 || ::unlockpt(user_) != 0) {
      throw std::runtime_error("there are no pseudo-terminals");
    }
    path_ = ::ptsname(user_);
    program_ = ::open(path_.c_str(), O_RDWR | O_NOCTTY);  // reading fails while it is not open
    termios modes{};
    ::tcgetattr(program_, &modes);
    modes.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    modes.c_oflag &= ~static_cast<tcflag_t>(OPOST);
    ::tcsetattr(program_, TCSANOW, &modes);
  }
  ~Terminal() {
    ::close(program_);
    ::close(user_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  const std::string& Path() const { return path_; }  // for the program to open
  void Type(std::string_view text) const {
    if (::write(user_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      throw std::runtime_error("cannot type");
    }
  }
  // Returns what the program has written since the last call, up to and including `text`, or
  // everything if `text` does not appear within a minute.
  std::string ReadTo(std::string_view text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    size_t found = pending_.find(text);
    while (found == pending_.npos && std::chrono::steady_clock::now() < end) {
      pollfd input{.fd = user_, .events = POLLIN, .revents = 0};
      if (::poll(&input, 1, 100) <= 0) continue;
      char bytes[4096];
      const ssize_t count = ::read(user_, bytes, sizeof(bytes));
      if (count > 0) pending_.append(bytes, static_cast<size_t>(count));
      found = pending_.find(text);
    }
    const std::string read =
        pending_.substr(0, found == pending_.npos ? found : found + text.size());
    pending_.erase(0, read.size());
    return read;
  }

 private:
  int user_;
  int program_ = -1;
  std::string path_;
  std::string pending_;
};

}  // namespace tokline::testing
