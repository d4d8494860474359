#include "harness/record/record_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "kernels/common/error.h"

namespace tokline {
namespace {

[[noreturn]] void FailWithErrno(std::string_view what, const std::string& path) {
  const int code = errno;
  throw RuntimeFailure(StrCat("cannot ", what, " ", path, ": ", std::strerror(code)));
}

class FileLock {
 public:
  explicit FileLock(int file) : file_(file), held_(flock(file, LOCK_EX) == 0) {}
  ~FileLock() {
    if (held_) flock(file_, LOCK_UN);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int file_;
  bool held_;  // not every file can be locked; a single write is whole without it too
};

// Length of the file up to and with its last newline.
off_t WholeLinesEnd(int file, off_t size) {
  constexpr off_t kBlock = 4096;
  char block[kBlock];
  for (off_t end = size; end > 0;) {
    const off_t begin = std::max<off_t>(0, end - kBlock);
    const ssize_t read = pread(file, block, static_cast<size_t>(end - begin), begin);
    if (read != end - begin) return size;  // unreadable: leave it alone
    for (off_t i = read; i > 0; --i) {
      if (block[i - 1] == '\n') return begin + i;
    }
    end = begin;
  }
  return 0;
}

}  // namespace

RecordWriter::RecordWriter(const std::string& path) : path_(path) {
  constexpr mode_t kMode = 0644;
  file_ = open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  made_ = file_ >= 0;
  if (!made_ && errno == EEXIST) file_ = open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
  if (file_ < 0) FailWithErrno("write records to", path);
}

RecordWriter::~RecordWriter() {
  if (made_ && !appended_) unlink(path_.c_str());
  close(file_);
}

void RecordWriter::Append(const Json& record) {
  ValidateRecord(record);
  AppendLine(record.dump() + "\n");
}

void RecordWriter::AppendLine(std::string_view line) {
  const FileLock lock(file_);
  struct stat status {};
  if (fstat(file_, &status) != 0) FailWithErrno("write records to", path_);
  off_t end = status.st_size;
  const bool regular = S_ISREG(status.st_mode);
  if (regular) {
    const off_t whole = WholeLinesEnd(file_, end);
    if (whole != end) {
      if (ftruncate(file_, whole) != 0) FailWithErrno("cut off an unfinished line of", path_);
      end = whole;
    }
  }
  const ssize_t written = write(file_, line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size())) {
    if (written >= 0) errno = ENOSPC;  // a short write to a file means that it is full
    const int code = errno;
    if (regular && written > 0 && ftruncate(file_, end) != 0) {
      throw RuntimeFailure(StrCat("cannot write records to ", path_, ": ", std::strerror(code),
                                  ", and its last line stays unfinished"));
    }
    errno = code;
    FailWithErrno("write records to", path_);
  }
  if (regular && fsync(file_) != 0) FailWithErrno("sync", path_);
  appended_ = true;
}

std::vector<Json> ReadRecords(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) FailWithErrno("read", path);
  std::vector<Json> records;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    Require(!file.eof(), path, ":", number, ": the last line is unfinished");
    Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    Require(!record.is_discarded(), path, ":", number, ": not JSON: ", line.substr(0, 60));
    try {
      ValidateRecord(record);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(StrCat(path, ":", number, ": ", error.what()));
    }
    records.push_back(std::move(record));
  }
  if (file.bad()) FailWithErrno("read", path);
  return records;
}

}  // namespace tokline
