// A file that a command writes when it is done, and whose writability is checked before it starts.
// Without a path it is none, and nothing is written.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

namespace tokline {

// Writes to a temporary file in the same folder, which Commit renames. Without Commit, the
// temporary file is removed and an existing file stays unchanged. A file that replaces another has
// its permissions. Anything that is not a regular file, and every path in /dev or /proc
// (/dev/stdout may be a file that others write to as well), is appended to directly.
class OutputFile {
 public:
  // Throws RuntimeFailure with the path and the reason if the file cannot be written, or if it
  // holds records, to which only --record may add.
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  bool IsGiven() const { return !path_.empty(); }

  // All throw RuntimeFailure with the path and the reason on failure.
  void Write(const void* data, int64_t bytes);
  void Write(std::string_view text) { Write(text.data(), static_cast<int64_t>(text.size())); }
  void Commit();
  // Writes one line, which is all, and commits it. Bytes of a name that are not UTF-8 are replaced.
  void CommitJson(const nlohmann::ordered_json& value);

 private:
  [[noreturn]] void Fail() const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty if the file is written directly
  mode_t mode_ = 0;                  // of the file that Commit renames
  int file_ = -1;
};

// The file of a flag. The path is empty if the flag is not given.
struct NamedFile {
  std::string_view flag;
  std::filesystem::path path;
};

// Throws InvalidArgument, naming both flags and the file, if an output is the same regular file as
// another output or as an input.
void RequireDistinct(const std::vector<NamedFile>& outputs,
                     const std::vector<NamedFile>& inputs = {});

}  // namespace tokline
