// libFuzzer target: a model.safetensors.index.json. Accepted shard names stay in its folder.
// Sources: harness/models shard_index
// Sources: harness/platform json_file json_node mapped_file printable
#include <cstdint>
#include <string_view>

#include "harness/fuzz/refusal.h"
#include "harness/models/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokline;
  fuzz::AcceptOrRefuse([&] {
    const ShardIndex index = ParseShardIndex({reinterpret_cast<const char*>(data), size}, "input");
    fuzz::Check(!index.empty());
    for (const auto& [tensor, shard] : index) {
      fuzz::Check(shard.ends_with(".safetensors") && shard.size() <= 255);
      fuzz::Check(shard.find('/') == shard.npos && shard.find('\0') == shard.npos);
      fuzz::Check(shard.find("..") == shard.npos);
    }
  });
  return 0;
}
