// Reads config.json into a ModelSpec. Every value is checked, and every feature that the decoder
// does not support is refused, so that no model is silently decoded wrongly.
#include "harness/models/model_spec.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "harness/models/family.h"
#include "harness/platform/json_file.h"
#include "harness/platform/json_node.h"
#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using Json = nlohmann::json;

// Limits far above any real model. The product of two extents fits into int64, and positions are
// exact in fp32, in which RoPE is computed.
constexpr int64_t kMaxExtent = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxVocab = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxGroup = 16;

constexpr std::pair<std::string_view, DType> kDTypes[] = {
    {"float32", DType::kF32}, {"bfloat16", DType::kBf16}, {"float16", DType::kF16}};

const Family& ReadFamily(const JsonNode& config) {
  const std::string supported = Joined(Families(), &Family::architecture);
  const std::optional<JsonNode> architectures = config.Find("architectures");
  if (!architectures) config.Fail("architectures is missing; supported: ", supported);
  if (architectures->Value().is_array()) {
    for (const Family& family : Families()) {
      if (std::ranges::find(architectures->Value(), Json(family.architecture)) !=
          architectures->Value().end()) {
        return family;
      }
    }
  }
  architectures->Refuse("supported: ", supported);
}

// transformers 5 writes "dtype", transformers 4 writes "torch_dtype".
DType ReadDType(const JsonNode& config, const Family& family) {
  const std::optional<JsonNode> dtype = config.Find("dtype");
  const std::optional<JsonNode> torch_dtype = config.Find("torch_dtype");
  if (dtype && torch_dtype && dtype->Value() != torch_dtype->Value()) {
    dtype->Refuse("torch_dtype is ", torch_dtype->ValueText(), "; they must agree");
  }
  const std::optional<JsonNode>& node = dtype ? dtype : torch_dtype;
  for (const auto& [name, type] : kDTypes) {
    if (node && node->Value() == name) return type;
  }
  const std::string supported = Joined(kDTypes, &std::pair<std::string_view, DType>::first);
  if (node) node->Refuse("supported: ", supported);
  if (family.default_dtype) return *family.default_dtype;
  config.Fail("dtype (or torch_dtype) is missing; supported: ", supported);
}

int64_t ReadSize(const JsonNode& node, const char* key, int64_t most) {
  const std::optional<int64_t> value = node.FindInteger(key, 1, most);
  if (!value) node.Fail(key, " is missing; it must be an integer from 1 to ", most);
  return *value;
}

// Reads the scaling from rope_parameters (transformers 5), rope_scaling (transformers 4) or
// config.json itself. A missing or "default" type means plain RoPE.
std::optional<Llama3Scaling> ReadScaling(const JsonNode& rope) {
  const std::optional<double> part = rope.FindPositive("partial_rotary_factor");
  if (part && *part != 1) rope.Member("partial_rotary_factor").Refuse("supported: 1");
  bool scaled = false;
  for (const char* key : {"rope_type", "type"}) {
    const std::optional<JsonNode> type = rope.Find(key);
    if (!type || type->Value() == "default") continue;
    if (type->Value() != "llama3") type->Refuse("supported: \"default\", \"llama3\"");
    scaled = true;
  }
  if (!scaled) return std::nullopt;
  const auto positive = [&](const char* key) {
    const std::optional<double> value = rope.FindPositive(key);
    if (!value) rope.Fail(key, " is missing; RoPE scaling of type llama3 needs it");
    return *value;
  };
  const Llama3Scaling scaling = {
      .factor = positive("factor"),
      .low_freq_factor = positive("low_freq_factor"),
      .high_freq_factor = positive("high_freq_factor"),
      .original_positions = ReadSize(rope, "original_max_position_embeddings", kMaxExtent)};
  if (scaling.factor < 1) rope.Member("factor").Refuse("it must be at least 1");
  if (scaling.low_freq_factor >= scaling.high_freq_factor) {
    rope.Member("low_freq_factor")
        .Refuse("it must be below high_freq_factor, ", scaling.high_freq_factor);
  }
  return scaling;
}

// Below 1 the frequencies grow with the pair instead of falling; tiny values make them infinite.
std::optional<double> FindTheta(const JsonNode& node) {
  const std::optional<double> theta = node.FindPositive("rope_theta");
  if (theta && *theta < 1) node.Member("rope_theta").Refuse("it must be at least 1");
  return theta;
}

void ReadRope(const JsonNode& config, const Family& family, ModelSpec& spec) {
  std::optional<double> theta = FindTheta(config);
  spec.rope_scaling = ReadScaling(config);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const std::optional<JsonNode> rope = config.Find(key);
    if (!rope) continue;
    const std::optional<Llama3Scaling> scaling = ReadScaling(*rope);
    if (scaling && spec.rope_scaling && *scaling != *spec.rope_scaling) {
      rope->Refuse("it scales RoPE differently than the other keys");
    }
    if (scaling) spec.rope_scaling = scaling;
    const std::optional<double> inner = FindTheta(*rope);
    if (inner && theta && *inner != *theta) {
      rope->Member("rope_theta").Refuse("the other rope_theta is ", *theta, "; they must agree");
    }
    if (inner) theta = inner;
  }
  if (!theta) theta = family.default_rope_theta;
  if (!theta) {
    config.Fail("rope_theta is missing, there and in rope_parameters; it must be a finite number, ",
                "at least 1");
  }
  spec.rope_theta = *theta;
}

void RefuseUnsupportedFeatures(const JsonNode& config, const Family& family) {
  if (config.FlagOf("use_sliding_window", false)) {
    config.Member("use_sliding_window").Refuse("supported: false");
  }
  const std::optional<JsonNode> window = config.Find("sliding_window");
  if (window && !config.Find("use_sliding_window")) {
    window->Refuse("sliding windows are not supported: null, or use_sliding_window false");
  }
  for (const char* key :
       {"num_experts", "num_local_experts", "moe_num_experts", "n_routed_experts"}) {
    const std::optional<JsonNode> experts = config.Find(key);
    if (experts && experts->Value() != 0) {
      experts->Refuse("mixtures of experts are not supported: 0");
    }
  }
  if (const std::optional<JsonNode> types = config.Find("layer_types")) {
    const bool full =
        types->Value().is_array() &&
        std::ranges::all_of(types->Value(), [](const Json& t) { return t == "full_attention"; });
    if (!full) types->Refuse("supported: \"full_attention\" in every layer");
  }
  if (const std::optional<JsonNode> quantization = config.Find("quantization_config")) {
    quantization->Refuse(
        "quantized checkpoints are not supported: float32, bfloat16 and float16 are");
  }
  for (const FixedFlag& flag : family.fixed_flags) {
    if (config.FlagOf(flag.key, flag.value) != flag.value) {
      config.Member(flag.key).Refuse("supported: ", flag.value ? "true" : "false");
    }
  }
  if (const std::optional<JsonNode> act = config.Find(family.keys.activation)) {
    const auto is_named = [&](std::string_view name) { return act->Value() == name; };
    if (std::ranges::any_of(family.activations, is_named)) return;
    act->Refuse("supported: ",
                Joined(family.activations, [](std::string_view name) { return Quoted(name); }));
  }
}

void ReadHeads(const JsonNode& config, const ConfigKeys& keys, ModelSpec& spec) {
  const int64_t q_heads = ReadSize(config, keys.num_q_heads, kMaxExtent);
  int64_t kv_heads = q_heads;
  if (keys.num_kv_heads != nullptr && (!keys.kv_heads_optional || config.Find(keys.num_kv_heads))) {
    kv_heads = ReadSize(config, keys.num_kv_heads, kMaxExtent);
  }
  if (q_heads % kv_heads != 0 || q_heads / kv_heads > kMaxGroup) {
    config.Fail(keys.num_kv_heads, " is ", kv_heads, "; ", keys.num_q_heads, ", ", q_heads,
                ", must be a multiple of it, at most ", kMaxGroup, " times as much");
  }
  std::optional<int64_t> head_dim = config.FindInteger("head_dim", 1, kMaxExtent);
  const bool derived = !head_dim;
  if (derived) {
    if (spec.hidden_size % q_heads != 0) {
      config.Fail("head_dim is missing and ", keys.hidden_size, ", ", spec.hidden_size,
                  ", is not a multiple of ", keys.num_q_heads, ", ", q_heads);
    }
    head_dim = spec.hidden_size / q_heads;
  }
  if (*head_dim != 64 && *head_dim != 128) {
    config.Fail(
        "head_dim is ", *head_dim,
        derived ? StrCat(" (", keys.hidden_size, " / ", keys.num_q_heads, ")") : std::string(),
        "; supported: 64, 128");
  }
  spec.num_q_heads = static_cast<int32_t>(q_heads);
  spec.num_kv_heads = static_cast<int32_t>(kv_heads);
  spec.head_dim = static_cast<int32_t>(*head_dim);
}

void ReadSizes(const JsonNode& config, const ConfigKeys& keys, ModelSpec& spec) {
  spec.hidden_size = ReadSize(config, keys.hidden_size, kMaxExtent);
  const bool derived = keys.intermediate_ratio > 0 && !config.Find(keys.intermediate_size);
  spec.intermediate_size = derived ? keys.intermediate_ratio * spec.hidden_size
                                   : ReadSize(config, keys.intermediate_size, kMaxExtent);
  spec.num_layers = ReadSize(config, keys.num_layers, kMaxLayers);
  spec.vocab_size = ReadSize(config, "vocab_size", kMaxVocab);
  spec.max_positions = ReadSize(config, keys.max_positions, kMaxExtent);
  ReadHeads(config, keys, spec);
  const std::optional<double> eps = config.FindPositive(keys.norm_eps);
  if (!eps || *eps > 1) {
    config.Fail(keys.norm_eps, " is ", eps ? StrCat(*eps) : "missing",
                "; it must be above 0, at most 1");
  }
  spec.norm_eps = static_cast<float>(*eps);
}

bool ReadBias(const JsonNode& config, const BiasRule& rule) {
  return rule.always || (rule.key != nullptr && config.FlagOf(rule.key, false));
}

// eos_token_id may be one id, a list of ids, null or missing.
std::vector<int32_t> ReadEosIds(const JsonNode& config, int64_t vocab_size) {
  const std::optional<JsonNode> node = config.Find("eos_token_id");
  if (!node) return {};
  std::set<int32_t> ids;
  for (const Json& id : node->Value().is_array() ? node->Value() : Json::array({node->Value()})) {
    if (!id.is_number_integer() || id < 0 || id >= vocab_size) {
      node->Refuse("each id must be an integer from 0 to ", vocab_size - 1);
    }
    ids.insert(id.get<int32_t>());
  }
  return {ids.begin(), ids.end()};
}

}  // namespace

ModelSpec LoadModelSpec(const std::filesystem::path& dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error)) {
    throw RuntimeFailure(StrCat(dir.string(), ": not a folder (a model is a folder with ",
                                "config.json and model.safetensors)"));
  }
  const std::filesystem::path config_path = dir / "config.json";
  const Json config_json = ReadJsonFile(config_path);
  const JsonNode config(config_json, config_path.string());

  const Family& family = ReadFamily(config);
  RefuseUnsupportedFeatures(config, family);
  ModelSpec spec;
  spec.family = family.name;
  spec.dtype = ReadDType(config, family);
  ReadSizes(config, family.keys, spec);
  spec.norm = family.norm;
  spec.position = family.position;
  spec.rope_pairing = family.rope_pairing;
  if (spec.position == PositionKind::kRope) ReadRope(config, family, spec);
  spec.qk_norm = family.qk_norm;
  spec.qkv_bias = ReadBias(config, family.qkv_bias);
  spec.output_bias = ReadBias(config, family.output_bias);
  spec.mlp = family.mlp;
  spec.mlp_bias = ReadBias(config, family.mlp_bias);
  spec.tied_embeddings = config.FlagOf("tie_word_embeddings", family.tied_by_default);
  spec.eos_token_ids = ReadEosIds(config, spec.vocab_size);

  const std::filesystem::path generation_path = dir / "generation_config.json";
  if (std::filesystem::exists(generation_path, error)) {
    const Json generation_json = ReadJsonFile(generation_path);
    const JsonNode generation(generation_json, generation_path.string());
    if (generation.Find("eos_token_id")) {
      spec.eos_token_ids = ReadEosIds(generation, spec.vocab_size);
    }
  }
  return spec;
}

}  // namespace tokline
