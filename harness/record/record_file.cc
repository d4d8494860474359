// Appends validated records to a file under a lock and reads them back.
#include "harness/record/record_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "harness/platform/json_file.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

[[noreturn]] void FailWithErrno(std::string_view what, const std::string& path) {
  const int code = errno;
  throw RuntimeFailure(StrCat("cannot ", what, " ", path, ": ", std::strerror(code)));
}

// Exclusive access among processes that also lock. Locking may fail on something other than a
// regular file, where a single write is atomic without a lock.
class FileLock {
 public:
  FileLock(int file, bool regular, const std::string& path) : file_(file) {
    int code = 0;
    while ((code = flock(file, LOCK_EX)) != 0 && errno == EINTR) {
    }
    if (code != 0 && regular) FailWithErrno("lock", path);
  }
  ~FileLock() { flock(file_, LOCK_UN); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int file_;
};

struct stat StatusOf(int file, const std::string& path) {
  struct stat status {};
  if (fstat(file, &status) != 0) FailWithErrno("write records to", path);
  return status;
}

// The length of the file up to and including its last newline.
off_t WholeLinesEnd(int file, off_t size) {
  constexpr off_t kBlock = 4096;
  char block[kBlock];
  for (off_t end = size; end > 0;) {
    const off_t begin = std::max<off_t>(0, end - kBlock);
    const ssize_t read = pread(file, block, static_cast<size_t>(end - begin), begin);
    if (read != end - begin) return size;  // unreadable: leave the file alone
    for (off_t i = read; i > 0; --i) {
      if (block[i - 1] == '\n') return begin + i;
    }
    end = begin;
  }
  return 0;
}

// Whether the file begins as record files do: it is empty or its first line is an object with
// schema and kind. If that line is unfinished (its writer was killed or is still writing) or is
// longer than any header, only its beginning is compared with what Append writes.
bool BeginsAsRecords(int file) {
  std::string text(64 * 1024, '\0');
  const ssize_t read = pread(file, text.data(), text.size(), 0);
  if (read < 0) return false;
  text.resize(static_cast<size_t>(read));
  const size_t end = text.find('\n');
  if (end == text.npos) {
    constexpr std::string_view kBeginning = R"({"schema":)";
    const size_t length = std::min(text.size(), kBeginning.size());
    return text.compare(0, length, kBeginning, 0, length) == 0;
  }
  const Json line = Json::parse(text.substr(0, end), nullptr, /*allow_exceptions=*/false);
  return line.is_object() && line.contains("schema") && line.contains("kind");
}

// Values are checked and printed by recursive functions, so their depth is limited.
Json ParseLine(const std::string& line, const std::string& where) {
  using Event = Json::parse_event_t;
  const auto check = [&](int depth, Event event, const Json&) {
    const bool opens = event == Event::object_start || event == Event::array_start;
    Require(!opens || depth < kMaxJsonDepth, where, ": JSON nests deeper than ", kMaxJsonDepth,
            ", the most that is allowed");
    return true;
  };
  Json value = Json::parse(line, check, /*allow_exceptions=*/false);
  Require(!value.is_discarded(), where, ": not JSON: ", line.substr(0, 60));
  return value;
}

// Returns 0, or the errno that kept the line from being written whole.
int WriteWhole(int file, std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = write(file, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    line.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

// Makes the file's name as durable as its lines. On file systems that cannot sync directories, it
// is only as durable as they make it.
void SyncFolderOf(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const int folder =
      open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  fsync(folder);
  close(folder);
}

}  // namespace

RecordWriter::RecordWriter(const std::string& path) : path_(path) {
  Open();
  try {
    RequireRecords();
  } catch (...) {
    close(file_);
    throw;
  }
}

RecordWriter::~RecordWriter() {
  if (made_ && !appended_) RemoveIfEmpty();
  close(file_);
}

void RecordWriter::Open() {
  constexpr mode_t kMode = 0644;
  constexpr int kAttempts = 100;  // another writer may remove its empty file meanwhile
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    file_ = open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
    made_ = file_ >= 0;
    if (made_) return;
    if (errno != EEXIST) break;
    file_ = open(path_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
    if (file_ >= 0) return;
    if (errno != ENOENT) break;
  }
  FailWithErrno("write records to", path_);
}

void RecordWriter::RequireRecords() const {
  if (S_ISREG(StatusOf(file_, path_).st_mode) && !BeginsAsRecords(file_)) {
    throw RuntimeFailure(
        StrCat("cannot write records to ", path_,
               ": it is not a record file, because its first line is something else"));
  }
}

// Runs under the lock: another writer may have appended meanwhile, and one that waits for the lock
// notices that the file is gone.
void RecordWriter::RemoveIfEmpty() const {
  while (flock(file_, LOCK_EX) != 0) {
    if (errno != EINTR) return;
  }
  struct stat ours {};
  struct stat named {};
  if (fstat(file_, &ours) == 0 && stat(path_.c_str(), &named) == 0 && ours.st_size == 0 &&
      ours.st_ino == named.st_ino && ours.st_dev == named.st_dev) {
    unlink(path_.c_str());
  }
}

void RecordWriter::Append(const Json& record) {
  ValidateRecord(record);
  const std::string line = JsonLine(record);
  while (!AppendLine(line)) {
    close(file_);
    Open();
  }
}

bool RecordWriter::AppendLine(std::string_view line) {
  const bool regular = S_ISREG(StatusOf(file_, path_).st_mode);
  const FileLock lock(file_, regular, path_);
  const struct stat status = StatusOf(file_, path_);
  if (regular && status.st_nlink == 0) {
    if (!appended_) return false;
    throw RuntimeFailure(StrCat("cannot write records to ", path_,
                                ": it was removed while this program was writing it"));
  }
  RequireRecords();
  const off_t end = regular ? WholeLinesEnd(file_, status.st_size) : 0;
  if (regular && end != status.st_size && ftruncate(file_, end) != 0) {
    FailWithErrno("cut off an unfinished line of", path_);
  }
  int code = WriteWhole(file_, line);
  if (code == 0 && regular && fsync(file_) != 0) code = errno;
  if (code != 0) {
    const bool restored = !regular || ftruncate(file_, end) == 0;
    throw RuntimeFailure(StrCat("cannot write records to ", path_, ": ", std::strerror(code),
                                restored ? "" : ", and its last line stays unfinished"));
  }
  if (!appended_ && regular) SyncFolderOf(path_);
  appended_ = true;
  return true;
}

bool HoldsRecords(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return false;
  struct stat status {};
  const bool holds = fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 &&
                     BeginsAsRecords(file);
  close(file);
  return holds;
}

std::vector<Json> ReadRecords(const std::string& path, std::string* unfinished) {
  if (unfinished != nullptr) unfinished->clear();
  std::ifstream file(path, std::ios::binary);
  if (!file) FailWithErrno("read", path);
  std::vector<Json> records;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (file.eof()) {  // no newline: the writer was killed and had not acknowledged the line
      if (unfinished != nullptr) {
        *unfinished = StrCat(path, ":", number, ": the last line is unfinished (", line.size(),
                             " bytes) and left out");
      }
      break;
    }
    const std::string where = StrCat(path, ":", number);
    Json record = ParseLine(line, where);
    try {
      ValidateRecord(record);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(StrCat(where, ": ", error.what()));
    }
    records.push_back(std::move(record));
  }
  if (file.bad()) FailWithErrno("read", path);
  return records;
}

}  // namespace tokline
