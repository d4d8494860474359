// The index of a sharded checkpoint, model.safetensors.index.json, which maps each tensor to a
// file. Parsing works on text in memory, so that it can be tested and fuzzed without files.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace tokline {

// Maps a tensor to its shard. A shard is a plain name of a file beside the index, without a folder
// or "..".
using ShardIndex = std::map<std::string, std::string, std::less<>>;

// Throws RuntimeFailure, with `file`, the tensor and the values in the message, if the index is
// invalid.
ShardIndex ParseShardIndex(std::string_view text, const std::string& file);

}  // namespace tokline
