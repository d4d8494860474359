// Writes model folders for tests: valid ones, and ones that are wrong in one chosen place.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "harness/tests/temp_folder.h"

namespace tokline::testing {

inline void WriteFile(const std::filesystem::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

// The first 8 bytes of a safetensors file.
inline std::string LengthPrefix(uint64_t header_bytes) {
  std::string prefix;
  for (int i = 0; i < 8; ++i) prefix += static_cast<char>(header_bytes >> (8 * i) & 0xff);
  return prefix;
}

// A safetensors file with the given header and `data_bytes` bytes of data: 0, 1, 2, ... modulo 251.
inline std::string SafetensorsFile(std::string_view header, int64_t data_bytes) {
  std::string file = LengthPrefix(header.size()) + std::string(header);
  for (int64_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i % 251);
  return file;
}

struct TestTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype = "BF16";

  int64_t Bytes() const {
    int64_t bytes = dtype == "F32" ? 4 : dtype == "I64" ? 8 : 2;
    for (const int64_t extent : shape) bytes *= extent;
    return bytes;
  }
};

inline std::string SafetensorsFile(const std::vector<TestTensor>& tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t end = 0;
  for (const TestTensor& tensor : tensors) {
    const int64_t begin = end;
    end += tensor.Bytes();
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  return SafetensorsFile(header.dump(), end);
}

// A Qwen3 with 2 layers, hidden size 8, 2 query heads, 1 KV head, head dimension 64, intermediate
// size 12 and 10 tokens.
inline nlohmann::json SmallConfig() {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"attention_bias", false},
          {"eos_token_id", 9},
          {"head_dim", 64},
          {"hidden_act", "silu"},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"max_position_embeddings", 32},
          {"model_type", "qwen3"},
          {"num_attention_heads", 2},
          {"num_hidden_layers", 2},
          {"num_key_value_heads", 1},
          {"rms_norm_eps", 1e-6},
          {"rope_scaling", nullptr},
          {"rope_theta", 1000000},
          {"sliding_window", nullptr},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"use_sliding_window", false},
          {"vocab_size", 10}};
}

inline std::vector<TestTensor> SmallTensors() {
  std::vector<TestTensor> tensors = {{"model.embed_tokens.weight", {10, 8}},
                                     {"model.norm.weight", {8}},
                                     {"lm_head.weight", {10, 8}}};
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string prefix = layer;
    tensors.push_back({prefix + "input_layernorm.weight", {8}});
    tensors.push_back({prefix + "self_attn.q_proj.weight", {128, 8}});
    tensors.push_back({prefix + "self_attn.k_proj.weight", {64, 8}});
    tensors.push_back({prefix + "self_attn.v_proj.weight", {64, 8}});
    tensors.push_back({prefix + "self_attn.o_proj.weight", {8, 128}});
    tensors.push_back({prefix + "self_attn.q_norm.weight", {64}});
    tensors.push_back({prefix + "self_attn.k_norm.weight", {64}});
    tensors.push_back({prefix + "post_attention_layernorm.weight", {8}});
    tensors.push_back({prefix + "mlp.gate_proj.weight", {12, 8}});
    tensors.push_back({prefix + "mlp.up_proj.weight", {12, 8}});
    tensors.push_back({prefix + "mlp.down_proj.weight", {8, 12}});
  }
  return tensors;
}

// A GPT-2 with 2 layers, hidden size 64, one head, intermediate size 256, 10 tokens and 16
// positions, and with the keys of the published repositories.
inline nlohmann::json SmallGpt2Config() {
  return {{"activation_function", "gelu_new"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"eos_token_id", 9},
          {"layer_norm_epsilon", 1e-5},
          {"model_type", "gpt2"},
          {"n_ctx", 16},
          {"n_embd", 64},
          {"n_head", 1},
          {"n_layer", 2},
          {"n_positions", 16},
          {"vocab_size", 10}};
}

inline std::vector<TestTensor> SmallGpt2Tensors(const std::string& prefix) {
  std::vector<TestTensor> tensors = {{"wte.weight", {10, 64}},
                                     {"wpe.weight", {16, 64}},
                                     {"ln_f.weight", {64}},
                                     {"ln_f.bias", {64}}};
  for (const std::string layer : {"h.0.", "h.1."}) {
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      tensors.push_back({layer + name + ".weight", shape});
      tensors.push_back({layer + name + ".bias", {shape.back()}});
    };
    add("ln_1", {64});
    add("attn.c_attn", {64, 192});
    add("attn.c_proj", {64, 64});
    add("ln_2", {64});
    add("mlp.c_fc", {64, 256});
    add("mlp.c_proj", {256, 64});
  }
  for (TestTensor& tensor : tensors) {
    tensor.name = prefix + tensor.name;
    tensor.dtype = "F32";
  }
  return tensors;
}

inline void WriteModel(const std::filesystem::path& dir, const nlohmann::json& config,
                       const std::vector<TestTensor>& tensors) {
  WriteFile(dir / "config.json", config.dump());
  WriteFile(dir / "model.safetensors", SafetensorsFile(tensors));
}

// Expects `work` to throw an Error with a one-line message that contains every one of `parts`.
template <typename Error>
::testing::AssertionResult Refuses(const std::function<void()>& work,
                                   const std::vector<std::string>& parts) {
  try {
    work();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.find('\n') != message.npos) {
      return ::testing::AssertionFailure() << "more than one line: " << message;
    }
    for (const std::string& part : parts) {
      if (message.find(part) == message.npos) {
        return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << message;
      }
    }
    return ::testing::AssertionSuccess();
  } catch (const std::exception& error) {
    return ::testing::AssertionFailure() << "another error: " << error.what();
  }
  return ::testing::AssertionFailure() << "accepted";
}

}  // namespace tokline::testing
