// The tensors of a safetensors checkpoint, memory-mapped and strictly checked.
//
// A folder holds model.safetensors, or model.safetensors.index.json and its shards. Everything a
// file says is checked against the file and against fixed caps before it is believed: header size,
// JSON size and depth, duplicate keys, dtypes, shapes (products cannot wrap), offsets, overlaps,
// holes, shard names, where a shard's link leads, and the index's map. Whatever passes can be read
// without further checks.
//
// The files must not shrink while they are mapped. The size is checked again after mapping and by
// Prefetch, so that a loader that prefetches each tensor before it reads it gets a RuntimeFailure;
// a file truncated between that check and the read still raises SIGBUS, as any mapped file does.
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
  std::string dtype;                // as the file writes it: "F32", "BF16", "F16", "I64", ...
  std::vector<int64_t> shape;       // empty: a scalar
  const std::byte* data = nullptr;  // row-major, in the mapping, of any alignment
  int64_t bytes = 0;
  int32_t file = 0;  // index into Checkpoint::Files()
};

class Checkpoint {
 public:
  // Opens, maps and checks all files; reads headers only. Throws RuntimeFailure naming the file,
  // the values and what is allowed.
  explicit Checkpoint(const std::filesystem::path& dir);

  // Null if there is no such tensor. Views live as long as the checkpoint.
  const CheckpointTensor* Find(std::string_view name) const;
  const std::map<std::string, CheckpointTensor, std::less<>>& Tensors() const { return tensors_; }
  const std::vector<MappedFile>& Files() const { return files_; }
  const std::filesystem::path& Dir() const { return dir_; }
  int64_t FileBytes() const;  // of all files, headers included

  // Asks the kernel to read these bytes ahead, or to drop their pages from this process (they stay
  // valid and are read again when touched). A loader that releases each tensor after its upload
  // keeps its resident memory small. The bytes lie in one tensor of this checkpoint, else
  // InvalidArgument. Prefetch throws RuntimeFailure if the file was truncated since it was opened.
  void Prefetch(const void* data, int64_t bytes) const;
  void Release(const void* data, int64_t bytes) const;

 private:
  void AddFile(const std::filesystem::path& path);
  void AddShards(const std::filesystem::path& index_path);
  const MappedFile& FileOf(const void* data, int64_t bytes) const;

  std::filesystem::path dir_;
  std::vector<MappedFile> files_;
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
};

}  // namespace tokline
