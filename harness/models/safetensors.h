// The safetensors format: an 8-byte header length (little-endian), a JSON header, the data region.
// Parsing works on bytes in memory, so that it can be tested and fuzzed without files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokline {

inline constexpr int64_t kSafetensorsPrefixBytes = 8;
// The limit of the format's own library.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr int64_t kMaxSafetensorsTensors = 200'000;
inline constexpr int64_t kMaxSafetensorsRank = 8;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the start of the data region
  int64_t end = 0;
};

// Returns the length of the header, read from the file's first 8 bytes. Throws RuntimeFailure, with
// `file` in the message, if it is 0, above the limit or beyond the end of the file.
int64_t SafetensorsHeaderBytes(std::string_view prefix, int64_t file_bytes,
                               const std::string& file);

// Returns the header's tensors in the order in which they lie in the data region. They must fill it
// exactly, without overlaps or gaps. Throws RuntimeFailure, with `file`, the tensor and the values
// in the message, if the header violates the format.
std::vector<SafetensorsEntry> ParseSafetensorsHeader(std::string_view header, int64_t data_bytes,
                                                     const std::string& file);

}  // namespace tokline
