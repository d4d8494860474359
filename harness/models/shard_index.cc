#include "harness/models/shard_index.h"

#include <nlohmann/json.hpp>

#include "harness/platform/json_file.h"
#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr std::string_view kExtension = ".safetensors";

// A shard lies beside its index, so any name that could lead elsewhere is refused.
bool IsPlainShardName(std::string_view name) {
  return name.size() > kExtension.size() && name.size() <= 255 && name.ends_with(kExtension) &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos &&
         name.find("..") == name.npos;
}

}  // namespace

ShardIndex ParseShardIndex(std::string_view text, const std::string& file) {
  const nlohmann::json index = ParseJson(text, file);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty()) {
    throw RuntimeFailure(
        StrCat(file, ": weight_map must be an object with an entry for each tensor"));
  }
  ShardIndex shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !IsPlainShardName(shard.get_ref<const std::string&>())) {
      throw RuntimeFailure(
          StrCat(file, ": tensor ", Quoted(tensor), " is in ", Quoted(shard.dump(-1, ' ', true)),
                 "; a shard is a file name in the same folder that ends in ", kExtension));
    }
    shards.emplace(tensor, shard.get<std::string>());
  }
  return shards;
}

}  // namespace tokline
