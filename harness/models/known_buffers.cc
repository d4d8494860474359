#include "harness/models/known_buffers.h"

namespace tokline {
namespace {

bool IsModule(std::string_view name, std::string_view buffer) {
  if (!name.ends_with(buffer)) return false;
  const std::string_view module = name.substr(0, name.size() - buffer.size());
  return module.empty() || module.ends_with('.');
}

}  // namespace

std::string_view KnownBuffer(std::string_view name, const CheckpointTensor& tensor) {
  const std::vector<int64_t>& shape = tensor.shape;
  if (IsModule(name, "rotary_emb.inv_freq") && shape.size() == 1) return "RoPE frequencies";
  if (IsModule(name, "attn.bias") && shape.size() == 4 && shape[0] == 1 && shape[1] == 1 &&
      shape[2] == shape[3]) {
    return "a causal mask";
  }
  if (IsModule(name, "attn.masked_bias") && (shape.empty() || shape == std::vector<int64_t>{1})) {
    return "a causal mask";
  }
  return {};
}

}  // namespace tokline
