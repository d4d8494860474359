// The limits that the parts of tokenizer.json share.
#pragma once

#include <string_view>
#include <vector>

#include "harness/platform/json_node.h"

namespace tokline {

inline constexpr int kMaxPipelineSteps = 64;

// The steps of a "Sequence" component, whose other key is `key`. `depth` says how many sequences it
// lies in; deep nesting is refused.
inline std::vector<JsonNode> SequenceSteps(const JsonNode& node, std::string_view key, int depth) {
  constexpr int kMaxDepth = 4;
  node.AllowKeys({"type", key});
  if (depth == kMaxDepth) node.Fail("sequences nest deeper than ", kMaxDepth);
  return node.Member(key).Items(kMaxPipelineSteps);
}

}  // namespace tokline
