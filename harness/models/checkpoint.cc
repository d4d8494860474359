#include "harness/models/checkpoint.h"

#include <set>
#include <utility>

#include "harness/models/json_file.h"
#include "harness/models/printable.h"
#include "harness/models/safetensors.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kExtension = ".safetensors";

// A shard lies beside its index: whatever could lead elsewhere is refused.
bool IsPlainShardName(std::string_view name) {
  return name.size() > kExtension.size() && name.size() <= 255 && name.ends_with(kExtension) &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos &&
         name.find("..") == name.npos;
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& dir) : dir_(dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error)) {
    throw RuntimeFailure(StrCat(dir.string(), ": not a folder (a model is a folder with ",
                                "config.json and ", kSingleName, ")"));
  }
  // A dangling link counts as there, so that opening it names the problem.
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
                                " is there; other checkpoint formats are not supported"));
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
  const nlohmann::json index = ReadJsonFile(index_path);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty()) {
    throw RuntimeFailure(
        StrCat(index_name, ": weight_map must be an object with an entry for ", "each tensor"));
  }
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !IsPlainShardName(shard.get_ref<const std::string&>())) {
      throw RuntimeFailure(StrCat(
          index_name, ": tensor ", Quoted(tensor), " is in ", Quoted(shard.dump(-1, ' ', true)),
          "; a shard is a file name in the same folder that ends in ", kExtension));
    }
    shards.insert(shard.get<std::string>());
  }
  for (const std::string& shard : shards) AddFile(index_path.parent_path() / shard);

  for (const auto& [tensor, shard] : map->items()) {
    if (!tensors_.contains(tensor)) {
      throw RuntimeFailure(StrCat(index_name, ": tensor ", Quoted(tensor), " is not in ",
                                  Quoted(shard.get<std::string>()), " nor in another shard"));
    }
  }
  for (const auto& [name, tensor] : tensors_) {
    const std::string shard = files_[tensor.file].Path().filename().string();
    const auto listed = map->find(name);
    if (listed == map->end() || listed->get_ref<const std::string&>() != shard) {
      throw RuntimeFailure(StrCat(
          index_name, ": tensor ", Quoted(name), " is in ", Quoted(shard), "; weight_map says ",
          listed == map->end() ? "nothing of it" : Quoted(listed->get<std::string>())));
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
    // std::less orders pointers into different objects too.
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
