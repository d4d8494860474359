#include "harness/platform/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/common/error.h"

namespace tokline {

void PrepareStandardStreams() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // write() then says that the file is too large
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    // open() returns the lowest free descriptor, which is `stream` because those below it are open.
    if (::open("/dev/null", O_RDONLY) != stream) {
      throw RuntimeFailure(StrCat("cannot open /dev/null: ", std::strerror(errno)));
    }
  }
}

bool NoColor() {
  const char* value = std::getenv("NO_COLOR");
  return value != nullptr && *value != '\0';
}

void Print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw RuntimeFailure(StrCat("cannot write to standard output: ", std::strerror(errno)));
  }
}

}  // namespace tokline
