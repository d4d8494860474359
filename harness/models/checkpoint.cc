// Opens and maps the files of a checkpoint and merges the tensors of all shards into one map.
#include "harness/models/checkpoint.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "harness/models/safetensors.h"
#include "harness/models/shard_index.h"
#include "harness/platform/json_file.h"
#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kPickled[] = {".bin", ".pt", ".pth", ".ckpt"};
constexpr std::string_view kOtherFormats[] = {".gguf", ".h5", ".msgpack", ".npz", ".onnx"};
constexpr std::string_view kSafetensors[] = {".safetensors"};

// Returns the alphabetically first file in the folder with one of these extensions, or an empty
// string.
std::string FirstWith(std::span<const std::string_view> extensions,
                      const std::filesystem::path& dir) {
  std::error_code error;
  std::string first;
  for (std::filesystem::directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool has =
        std::ranges::find(extensions, entry->path().extension().string()) != extensions.end();
    if (has && (first.empty() || name < first)) first = name;
  }
  return first;
}

// Says what a folder contains instead of a checkpoint.
std::string WhatIsThere(const std::filesystem::path& dir) {
  if (const std::string name = FirstWith(kSafetensors, dir); !name.empty()) {
    return StrCat("; it has ", Quoted(name), ", which needs ", kIndexName);
  }
  if (const std::string name = FirstWith(kPickled, dir); !name.empty()) {
    return StrCat("; it has ", Quoted(name), ", a pickled checkpoint, which is never read, as ",
                  "loading one can run code: convert it to safetensors");
  }
  if (const std::string name = FirstWith(kOtherFormats, dir); !name.empty()) {
    return StrCat(
        "; it has ", Quoted(name), ", of a format that is not supported",
        name.ends_with(".gguf") ? "; scripts/model --gguf FILE makes a folder of it" : "");
  }
  return "; other checkpoint formats are not supported";
}

// The index, which is untrusted, names the shards: a link must not lead out of the folder, except
// from a snapshot in the Hugging Face cache to the blobs of the same model.
void RefuseEscape(const std::filesystem::path& dir, const std::string& shard) {
  std::error_code error;
  const std::filesystem::path real_dir = std::filesystem::canonical(dir, error);
  const std::filesystem::path target = std::filesystem::canonical(dir / shard, error);
  if (error) return;  // opening the file will report the problem
  const std::filesystem::path folder = target.parent_path();
  const bool is_snapshot = real_dir.parent_path().filename() == "snapshots";
  if (folder == real_dir ||
      (is_snapshot && folder == real_dir.parent_path().parent_path() / "blobs")) {
    return;
  }
  throw RuntimeFailure(StrCat((dir / shard).string(), ": it is a link to ", target.string(),
                              "; a shard must lie in the model's own folder"));
}

}  // namespace

Checkpoint Checkpoint::WithoutTensors(const std::filesystem::path& dir) {
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  return checkpoint;
}

Checkpoint::Checkpoint(const std::filesystem::path& dir) : dir_(dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error)) {
    throw RuntimeFailure(StrCat(dir.string(), ": not a folder (a model is a folder with ",
                                "config.json and ", kSingleName, ")"));
  }
  // A dangling link counts as present, so that opening it reports the problem.
  const auto there = [&](std::string_view name) {
    return std::filesystem::symlink_status(dir / name, error).type() !=
           std::filesystem::file_type::not_found;
  };
  if (there(kSingleName)) {
    AddFile(dir / kSingleName);
  } else if (there(kIndexName)) {
    AddShards(dir / kIndexName);
  } else {
    throw RuntimeFailure(StrCat(dir.string(), ": neither ", kSingleName, " nor ", kIndexName,
                                " is there", WhatIsThere(dir)));
  }
}

void Checkpoint::AddFile(const std::filesystem::path& path) {
  MappedFile file(path);
  const std::string prefix = file.Read(0, std::min<int64_t>(file.Size(), kSafetensorsPrefixBytes));
  const int64_t header_bytes = SafetensorsHeaderBytes(prefix, file.Size(), path.string());
  const int64_t data_begin = kSafetensorsPrefixBytes + header_bytes;
  const std::vector<SafetensorsEntry> entries = ParseSafetensorsHeader(
      file.Read(kSafetensorsPrefixBytes, header_bytes), file.Size() - data_begin, path.string());
  for (const SafetensorsEntry& entry : entries) {
    const auto [place, added] = tensors_.try_emplace(
        entry.name, CheckpointTensor{.dtype = entry.dtype,
                                     .shape = entry.shape,
                                     .data = file.Bytes().data() + data_begin + entry.begin,
                                     .bytes = entry.end - entry.begin,
                                     .file = static_cast<int32_t>(files_.size())});
    if (!added) {
      throw RuntimeFailure(StrCat(path.string(), ": tensor ", Quoted(entry.name), " is also in ",
                                  files_[place->second.file].Path().string()));
    }
  }
  files_.push_back(std::move(file));
}

void Checkpoint::AddShards(const std::filesystem::path& index_path) {
  const std::string index_name = index_path.string();
  const ShardIndex index = ParseShardIndex(ReadJsonText(index_path), index_name);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index) shards.insert(shard);
  const std::filesystem::path dir = index_path.parent_path();
  for (const std::string& shard : shards) RefuseEscape(dir, shard);
  for (const std::string& shard : shards) AddFile(dir / shard);

  for (const auto& [tensor, shard] : index) {
    if (!tensors_.contains(tensor)) {
      throw RuntimeFailure(StrCat(index_name, ": tensor ", Quoted(tensor), " is not in ",
                                  Quoted(shard), " nor in another shard"));
    }
  }
  for (const auto& [name, tensor] : tensors_) {
    const std::string shard = files_[tensor.file].Path().filename().string();
    const auto listed = index.find(name);
    if (listed == index.end() || listed->second != shard) {
      throw RuntimeFailure(StrCat(
          index_name, ": tensor ", Quoted(name), " is in ", Quoted(shard), "; weight_map says ",
          listed == index.end() ? "nothing of it" : Quoted(listed->second)));
    }
  }
}

const CheckpointTensor* Checkpoint::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

int64_t Checkpoint::FileBytes() const {
  int64_t bytes = 0;
  for (const MappedFile& file : files_) bytes += file.Size();
  return bytes;
}

const MappedFile& Checkpoint::FileOf(const void* data, int64_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  for (const MappedFile& file : files_) {
    const std::byte* first = file.Bytes().data();
    // std::less also orders pointers into different objects.
    if (!std::less<>()(begin, first) && !std::less<>()(first + file.Size(), begin) && bytes >= 0 &&
        bytes <= first + file.Size() - begin) {
      return file;
    }
  }
  throw InvalidArgument(
      StrCat(bytes, " bytes at ", data, " do not lie in a file of the checkpoint ", dir_.string()));
}

void Checkpoint::Prefetch(const void* data, int64_t bytes) const {
  const MappedFile& file = FileOf(data, bytes);
  file.Prefetch(static_cast<const std::byte*>(data) - file.Bytes().data(), bytes);
}

void Checkpoint::Release(const void* data, int64_t bytes) const {
  const MappedFile& file = FileOf(data, bytes);
  file.Release(static_cast<const std::byte*>(data) - file.Bytes().data(), bytes);
}

}  // namespace tokline
