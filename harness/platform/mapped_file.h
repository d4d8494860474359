// A regular file mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace tokline {

class MappedFile {
 public:
  // Throws RuntimeFailure naming the file if it is missing, unreadable, empty or not a regular
  // file, or if its size changes while it is being opened.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;

  const std::filesystem::path& Path() const { return path_; }
  std::span<const std::byte> Bytes() const { return {data_, static_cast<size_t>(size_)}; }
  int64_t Size() const { return size_; }

  // Copies [offset, offset + bytes) with pread, so that a file that was truncated in the meantime
  // causes a RuntimeFailure instead of SIGBUS. The range must lie within the file's size when it
  // was opened.
  std::string Read(int64_t offset, int64_t bytes) const;

  // Asks the kernel to read [offset, offset + bytes) ahead. Throws RuntimeFailure if the file is
  // now shorter than when it was opened.
  void Prefetch(int64_t offset, int64_t bytes) const;
  // Drops the pages that lie entirely in [offset, offset + bytes) from this process's resident
  // memory.
  void Release(int64_t offset, int64_t bytes) const;

 private:
  int64_t SizeNow() const;

  std::filesystem::path path_;
  int fd_ = -1;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace tokline
