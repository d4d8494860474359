// The index of a sharded checkpoint, model.safetensors.index.json: which tensor lies in which file.
// Parsing works on text in memory, so that it can be tested and fuzzed without files.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace tokline {

// Tensor to shard. A shard is a plain file name beside the index: no folder, no "..".
using ShardIndex = std::map<std::string, std::string, std::less<>>;

// Throws RuntimeFailure, with `file`, the tensor and the values in the message.
ShardIndex ParseShardIndex(std::string_view text, const std::string& file);

}  // namespace tokline
