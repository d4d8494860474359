// Writes a model folder that can chat: random weights, a golden tokenizer, and the embedded model's
// template.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "harness/tests/models/model_files.h"

namespace tokline::testing {

inline std::filesystem::path GoldenTextFile(const std::string& name) {
  return std::filesystem::path(TOKLINE_SOURCE_DIR) / "harness/tests/text/golden" / name;
}

inline std::filesystem::path EmbeddedModel() {
  return std::filesystem::path(TOKLINE_SOURCE_DIR) / "models/qwen3-lookup";
}

// Vocabulary size: the highest id of the golden tokenizer "qwen" plus one.
inline constexpr int64_t kChatVocab = 1108;
inline constexpr int32_t kImEnd = 1102;  // "<|im_end|>"
inline constexpr int32_t kThink = 1105;  // "<think>"

struct ChatModelOptions {
  int64_t positions = 4096;
  int32_t scaled_id = kImEnd;  // the LM head's row of this id is multiplied by `scale`
  double scale = 1;
  bool chat_template = true;
  std::vector<TestTensor> more_tensors = {};
};

// A Qwen3 with 2 small layers. Its output makes no sense, but is always the same.
inline void WriteChatModel(const std::filesystem::path& dir, const ChatModelOptions& options = {}) {
  nlohmann::json config = SmallConfig();
  config["vocab_size"] = kChatVocab;
  config["max_position_embeddings"] = options.positions;
  config["eos_token_id"] = {1100, kImEnd};
  std::vector<TestTensor> tensors = SmallTensors();
  config["intermediate_size"] = 16;
  for (TestTensor& tensor : tensors) {
    for (int64_t& extent : tensor.shape) {
      if (extent == 10) extent = kChatVocab;
      if (extent == 12) extent = 16;
    }
  }
  tensors.insert(tensors.end(), options.more_tensors.begin(), options.more_tensors.end());
  std::string file = SafetensorsFile(tensors);
  int64_t bytes = 0;
  for (const TestTensor& tensor : tensors) bytes += tensor.Bytes();
  char* data = file.data() + (static_cast<int64_t>(file.size()) - bytes);
  std::mt19937_64 rng(5);
  for (const TestTensor& tensor : tensors) {
    const bool is_norm = tensor.name.ends_with("norm.weight");
    const int64_t columns = tensor.shape.back();
    for (int64_t i = 0; i < tensor.Bytes() / 2; ++i) {
      // This expression has the same value on every platform.
      double value = 2 * std::generate_canonical<double, 53>(rng) - 1;
      if (is_norm) value = 1 + value / 4;
      if (tensor.name == "lm_head.weight" && i / columns == options.scaled_id) {
        value *= options.scale;
      }
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
      const auto bf16 = static_cast<uint16_t>(bits >> 16);
      std::memcpy(data, &bf16, sizeof(bf16));
      data += sizeof(bf16);
    }
  }
  WriteFile(dir / "config.json", config.dump());
  WriteFile(dir / "model.safetensors", file);
  std::filesystem::copy_file(GoldenTextFile("qwen/tokenizer.json"), dir / "tokenizer.json");
  if (options.chat_template) {
    std::filesystem::copy_file(EmbeddedModel() / "tokenizer_config.json",
                               dir / "tokenizer_config.json");
  }
}

}  // namespace tokline::testing
