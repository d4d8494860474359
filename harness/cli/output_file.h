// A file that a command writes when it is done, and that must be writable before it starts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace tokline {

// Writes a temporary file in the same folder; Commit renames it. Without Commit nothing is left and
// what was there before stays. What is no regular file, and whatever /dev or /proc names
// (/dev/stdout may be a file that others write too), is appended to directly.
class OutputFile {
 public:
  // Throws RuntimeFailure with the path and the reason if it cannot be written.
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Throw RuntimeFailure with the path and the reason.
  void Write(const void* data, int64_t bytes);
  void Write(std::string_view text) { Write(text.data(), static_cast<int64_t>(text.size())); }
  void Commit();

 private:
  [[noreturn]] void Fail() const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty: written to directly
  int file_ = -1;
};

// One flag's file; the path is empty where the flag is not given.
struct NamedOutput {
  std::string_view flag;
  std::filesystem::path path;
};

// Throws InvalidArgument, naming both flags and the file, if two regular files are one.
void RequireDistinct(const NamedOutput& a, const NamedOutput& b);

}  // namespace tokline
