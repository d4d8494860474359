// The tensors of a safetensors checkpoint, memory-mapped and strictly validated.
//
// A folder holds either model.safetensors, or model.safetensors.index.json and its shards.
// Everything that a file claims is checked against the file and against fixed limits before it is
// used: header size, JSON size and depth, duplicate keys, dtypes, shapes (products cannot
// overflow), offsets, overlaps, gaps, shard names, the targets of symbolic links, and the index's
// map. Once a checkpoint is open, its tensors can be read without further checks.
//
// The files must not shrink while they are mapped. Their size is checked again after mapping and by
// Prefetch, so a loader that prefetches each tensor before reading it gets a RuntimeFailure. A file
// that is truncated between that check and the read still raises SIGBUS, as with any mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/platform/mapped_file.h"

namespace tokline {

struct CheckpointTensor {
  std::string dtype;                // as written in the file: "F32", "BF16", "F16", "I64", ...
  std::vector<int64_t> shape;       // empty for a scalar
  const std::byte* data = nullptr;  // row-major, inside the mapping; may be unaligned
  int64_t bytes = 0;
  int32_t file = 0;  // index into Checkpoint::Files()
};

class Checkpoint {
 public:
  // Opens, maps and validates all files, of which it reads only the headers. Throws RuntimeFailure
  // naming the file, the values and what is allowed.
  explicit Checkpoint(const std::filesystem::path& dir);
  // Names the folder and opens no file: a checkpoint without tensors.
  static Checkpoint WithoutTensors(const std::filesystem::path& dir);

  // Returns null if there is no such tensor. The result lives as long as the checkpoint.
  const CheckpointTensor* Find(std::string_view name) const;
  const std::map<std::string, CheckpointTensor, std::less<>>& Tensors() const { return tensors_; }
  const std::vector<MappedFile>& Files() const { return files_; }
  const std::filesystem::path& Dir() const { return dir_; }
  int64_t FileBytes() const;  // total size of all files, including headers

  // Prefetch asks the kernel to read these bytes ahead. Release drops their pages from this
  // process; they stay valid and are read again when touched. A loader that releases each tensor
  // after uploading it keeps its resident memory small. The bytes must lie in one file of this
  // checkpoint, otherwise InvalidArgument is thrown. Prefetch throws RuntimeFailure if the file was
  // truncated after it was opened.
  void Prefetch(const void* data, int64_t bytes) const;
  void Release(const void* data, int64_t bytes) const;

 private:
  Checkpoint() = default;
  void AddFile(const std::filesystem::path& path);
  void AddShards(const std::filesystem::path& index_path);
  const MappedFile& FileOf(const void* data, int64_t bytes) const;

  std::filesystem::path dir_;
  std::vector<MappedFile> files_;
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
};

}  // namespace tokline
