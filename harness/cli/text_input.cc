#include "harness/cli/text_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "harness/text/utf8.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;

// Closed by the destructor, unless it is standard input.
class InputFile {
 public:
  explicit InputFile(const std::string& file)
      : name_(file == "-" ? "standard input" : file),
        file_(file == "-" ? STDIN_FILENO : ::open(file.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (file_ < 0) Fail();
  }
  ~InputFile() {
    if (file_ != STDIN_FILENO) ::close(file_);
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::string ReadAll() const {
    std::string text;
    std::array<char, 1 << 16> bytes;
    for (;;) {
      const ssize_t count = ::read(file_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) Fail();
      if (count == 0) return text;
      text.append(bytes.data(), static_cast<size_t>(count));
      if (text.size() > kMaxBytes) {
        throw RuntimeFailure(StrCat(name_, " has more than the ", kMaxBytes, " bytes allowed"));
      }
    }
  }
  const std::string& Name() const { return name_; }

 private:
  [[noreturn]] void Fail() const {
    throw RuntimeFailure(StrCat("cannot read ", name_, ": ", std::strerror(errno)));
  }

  std::string name_;
  int file_;
};

}  // namespace

std::string ReadText(const std::string& file) {
  const InputFile input(file);
  std::string text = input.ReadAll();
  try {
    RequireUtf8(text, input.Name());
  } catch (const InvalidArgument& error) {
    throw RuntimeFailure(error.what());
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace tokline
