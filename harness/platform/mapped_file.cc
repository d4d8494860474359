// Maps a regular file. Its size is checked again after mapping and before reading ahead, because
// reading a mapped page past the end of a truncated file raises SIGBUS.
#include "harness/platform/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/common/error.h"

namespace tokline {
namespace {

[[noreturn]] void FailErrno(const std::filesystem::path& path, const char* action) {
  throw RuntimeFailure(StrCat(path.string(), ": cannot ", action, ": ", std::strerror(errno)));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK because opening a FIFO must not wait for a writer.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) FailErrno(path, "open the file");
  try {
    size_ = SizeNow();
    if (size_ == 0) throw RuntimeFailure(StrCat(path.string(), ": the file is empty"));
    void* mapping = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, fd_, 0);
    if (mapping == MAP_FAILED) FailErrno(path, "map the file");
    data_ = static_cast<const std::byte*>(mapping);
    if (const int64_t now = SizeNow(); now != size_) {
      throw RuntimeFailure(StrCat(path.string(), ": the file changed from ", size_, " to ", now,
                                  " bytes while it was opened"));
    }
  } catch (...) {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
    ::close(fd_);
    throw;
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
  if (fd_ >= 0) ::close(fd_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

int64_t MappedFile::SizeNow() const {
  struct stat info = {};
  if (::fstat(fd_, &info) != 0) FailErrno(path_, "read the file's size");
  if (!S_ISREG(info.st_mode)) {
    throw RuntimeFailure(StrCat(path_.string(), ": not a regular file"));
  }
  return info.st_size;
}

std::string MappedFile::Read(int64_t offset, int64_t bytes) const {
  std::string text(static_cast<size_t>(bytes), '\0');
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        ::pread(fd_, text.data() + done, static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) FailErrno(path_, "read the file");
    if (got == 0) {
      throw RuntimeFailure(StrCat(path_.string(), ": the file ends at byte ", offset + done,
                                  "; it had ", size_, " bytes when it was opened"));
    }
    done += got;
  }
  return text;
}

void MappedFile::Prefetch(int64_t offset, int64_t bytes) const {
  if (const int64_t now = SizeNow(); now < size_) {
    throw RuntimeFailure(StrCat(path_.string(), ": the file was truncated from ", size_, " to ",
                                now, " bytes while it was read"));
  }
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t begin = offset / page * page;
  // This is only advice: if the kernel refuses it, reading is slower but still correct.
  ::madvise(const_cast<std::byte*>(data_) + begin, static_cast<size_t>(offset + bytes - begin),
            MADV_WILLNEED);
}

void MappedFile::Release(int64_t offset, int64_t bytes) const {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t begin = (offset + page - 1) / page * page;
  const int64_t end = (offset + bytes) / page * page;
  if (begin >= end) return;
  ::madvise(const_cast<std::byte*>(data_) + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
}

}  // namespace tokline
