// Writes output files atomically: a temporary file in the same folder is synced and then renamed.
#include "harness/cli/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "harness/record/record_file.h"
#include "harness/record/schema.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

void RequireDistinct(const NamedFile& a, const NamedFile& b) {
  namespace fs = std::filesystem;
  if (a.path.empty() || b.path.empty()) return;
  std::error_code error;
  const fs::path file = fs::weakly_canonical(fs::absolute(a.path), error);
  const bool one = !error && file == fs::weakly_canonical(fs::absolute(b.path), error) && !error;
  const bool regular = !fs::exists(file, error) || fs::is_regular_file(file, error);
  Require(!one || !regular, a.flag, " and ", b.flag, " both name ", a.path.string(),
          "; each takes a file of its own");
}

mode_t ModeOfNewFiles() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path) : path_(path) {
  if (!IsGiven()) return;
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  const fs::file_type type = status.type();
  const std::string absolute = fs::absolute(path).lexically_normal().string();
  const bool of_system = absolute.starts_with("/dev/") || absolute.starts_with("/proc/");
  if (of_system || (type != fs::file_type::not_found && type != fs::file_type::regular)) {
    file_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file_ < 0) Fail();
    return;
  }
  if (type == fs::file_type::regular) {
    // Renaming would replace a read-only file if its folder is writable, so check the file itself.
    if (::access(path.c_str(), W_OK) != 0) Fail();
    path_ = fs::canonical(path);  // replaces the target of a link, not the link
    if (HoldsRecords(path_)) {
      throw RuntimeFailure(StrCat("cannot write ", path.string(),
                                  ": it holds records, which nothing else replaces"));
    }
    mode_ = static_cast<mode_t>(status.permissions());
  } else {
    mode_ = ModeOfNewFiles();
  }
  std::string name = path_.string() + ".XXXXXX";
  file_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (file_ < 0) Fail();
  temporary_ = name;
}

OutputFile::~OutputFile() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::Fail() const {
  throw RuntimeFailure(StrCat("cannot write ", path_.string(), ": ", std::strerror(errno)));
}

void OutputFile::Write(const void* data, int64_t bytes) {
  if (!IsGiven()) return;
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(file_, next, static_cast<size_t>(bytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) Fail();
    next += written;
    bytes -= written;
  }
}

void OutputFile::CommitJson(const nlohmann::ordered_json& value) {
  Write(JsonLine(value));
  Commit();
}

void OutputFile::Commit() {
  if (!IsGiven()) return;
  if (!temporary_.empty()) {
    if (::fchmod(file_, mode_) != 0 || ::fsync(file_) != 0 ||
        ::rename(temporary_.c_str(), path_.c_str()) != 0) {
      Fail();
    }
    temporary_.clear();
  }
  const int closed = ::close(file_);
  file_ = -1;
  if (closed != 0) Fail();
}

void RequireDistinct(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t j = i + 1; j < outputs.size(); ++j) RequireDistinct(outputs[i], outputs[j]);
    for (const NamedFile& input : inputs) RequireDistinct(outputs[i], input);
  }
}

}  // namespace tokline
