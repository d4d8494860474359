// Reads config.json into a ModelSpec. Every value is checked, and every feature that the decoder
// does not support is refused, so that no model is silently decoded wrongly.
#include "harness/models/model_spec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "harness/models/family.h"
#include "harness/platform/json_file.h"
#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using Json = nlohmann::json;

// Limits far above any real model. The product of two extents fits into int64, and positions are
// exact in the fp32 that RoPE computes in.
constexpr int64_t kMaxExtent = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxVocab = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxGroup = 16;

constexpr std::pair<std::string_view, DType> kDTypes[] = {
    {"float32", DType::kF32}, {"bfloat16", DType::kBf16}, {"float16", DType::kF16}};

std::string Text(const Json& value) {
  return value.is_string() ? Quoted(value.get_ref<const std::string&>())
                           : value.dump(-1, ' ', true).substr(0, 120);
}

// A JSON object of config.json, with the path and key prefix for its error messages.
class Section {
 public:
  Section(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  // Returns null if the key is missing or its value is null; transformers treats both alike.
  const Json* Find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  template <typename... Parts>
  [[noreturn]] void Refuse(const char* key, const Json& value, const Parts&... allowed) const {
    throw RuntimeFailure(StrCat(where_, key, " is ", Text(value), "; ", allowed...));
  }

  std::optional<int64_t> FindInteger(const char* key, int64_t least, int64_t most) const {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    // The comparison as unsigned comes first so that 2^63 and above do not become negative.
    if (!value->is_number_integer() ||
        (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(most)) ||
        value->get<int64_t>() < least || value->get<int64_t>() > most) {
      Refuse(key, *value, "it must be an integer from ", least, " to ", most);
    }
    return value->get<int64_t>();
  }

  int64_t Integer(const char* key, int64_t most) const {
    const std::optional<int64_t> value = FindInteger(key, 1, most);
    if (!value) Missing(key, StrCat("it must be an integer from 1 to ", most));
    return *value;
  }

  std::optional<double> FindPositive(const char* key) const {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() <= 0) {
      Refuse(key, *value, "it must be a finite number above 0");
    }
    return value->get<double>();
  }

  bool FlagOr(const char* key, bool missing) const {
    const Json* value = Find(key);
    if (value != nullptr && !value->is_boolean()) Refuse(key, *value, "it must be true or false");
    return value != nullptr ? value->get<bool>() : missing;
  }

  [[noreturn]] void Missing(const char* key, const std::string& why) const {
    throw RuntimeFailure(StrCat(where_, key, " is missing; ", why));
  }

  const std::string& Where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
};

const Family& ReadFamily(const Section& config) {
  std::string supported;
  for (const Family& family : Families()) {
    supported += StrCat(supported.empty() ? "" : ", ", family.architecture);
  }
  const Json* architectures = config.Find("architectures");
  if (architectures == nullptr) config.Missing("architectures", "supported: " + supported);
  if (architectures->is_array()) {
    for (const Family& family : Families()) {
      if (std::ranges::find(*architectures, Json(family.architecture)) != architectures->end()) {
        return family;
      }
    }
  }
  config.Refuse("architectures", *architectures, "supported: ", supported);
}

// transformers 5 writes "dtype", transformers 4 writes "torch_dtype".
DType ReadDType(const Section& config, const Family& family) {
  const Json* dtype = config.Find("dtype");
  const Json* torch_dtype = config.Find("torch_dtype");
  if (dtype != nullptr && torch_dtype != nullptr && *dtype != *torch_dtype) {
    config.Refuse("dtype", *dtype, "torch_dtype is ", Text(*torch_dtype), "; they must agree");
  }
  const char* key = dtype != nullptr ? "dtype" : "torch_dtype";
  const Json* value = dtype != nullptr ? dtype : torch_dtype;
  std::string supported;
  for (const auto& [name, type] : kDTypes) {
    if (value != nullptr && *value == name) return type;
    supported += StrCat(supported.empty() ? "" : ", ", name);
  }
  if (value == nullptr && family.default_dtype) return *family.default_dtype;
  if (value == nullptr) config.Missing("dtype (or torch_dtype)", "supported: " + supported);
  config.Refuse(key, *value, "supported: ", supported);
}

// Reads the scaling from rope_parameters (transformers 5), rope_scaling (transformers 4) or
// config.json itself. A missing or "default" type means plain RoPE.
std::optional<Llama3Scaling> ReadScaling(const Section& rope) {
  const std::optional<double> part = rope.FindPositive("partial_rotary_factor");
  if (part && *part != 1) {
    rope.Refuse("partial_rotary_factor", *rope.Find("partial_rotary_factor"), "supported: 1");
  }
  bool scaled = false;
  for (const char* key : {"rope_type", "type"}) {
    const Json* type = rope.Find(key);
    if (type == nullptr || *type == "default") continue;
    if (*type != "llama3") rope.Refuse(key, *type, "supported: \"default\", \"llama3\"");
    scaled = true;
  }
  if (!scaled) return std::nullopt;
  const auto positive = [&](const char* key) {
    const std::optional<double> value = rope.FindPositive(key);
    if (!value) rope.Missing(key, "RoPE scaling of type llama3 needs it");
    return *value;
  };
  const Llama3Scaling scaling = {
      .factor = positive("factor"),
      .low_freq_factor = positive("low_freq_factor"),
      .high_freq_factor = positive("high_freq_factor"),
      .original_positions = rope.Integer("original_max_position_embeddings", kMaxExtent)};
  if (scaling.factor < 1) rope.Refuse("factor", *rope.Find("factor"), "it must be at least 1");
  if (scaling.low_freq_factor >= scaling.high_freq_factor) {
    rope.Refuse("low_freq_factor", *rope.Find("low_freq_factor"),
                "it must be below high_freq_factor, ", scaling.high_freq_factor);
  }
  return scaling;
}

void ReadRope(const Section& config, const Family& family, ModelSpec& spec) {
  std::optional<double> theta = config.FindPositive("rope_theta");
  spec.rope_scaling = ReadScaling(config);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = config.Find(key);
    if (value == nullptr) continue;
    if (!value->is_object()) config.Refuse(key, *value, "it must be an object");
    const Section rope(*value, StrCat(config.Where(), key, "."));
    const std::optional<Llama3Scaling> scaling = ReadScaling(rope);
    if (scaling && spec.rope_scaling && *scaling != *spec.rope_scaling) {
      config.Refuse(key, *value, "it scales RoPE differently than the other keys");
    }
    if (scaling) spec.rope_scaling = scaling;
    const std::optional<double> inner = rope.FindPositive("rope_theta");
    if (inner && theta && *inner != *theta) {
      rope.Refuse("rope_theta", *rope.Find("rope_theta"), "the other rope_theta is ", *theta,
                  "; they must agree");
    }
    if (inner) theta = inner;
  }
  if (!theta) theta = family.default_rope_theta;
  if (!theta) {
    throw RuntimeFailure(StrCat(config.Where(), "rope_theta is missing, there and in ",
                                "rope_parameters; it must be a finite number above 0"));
  }
  spec.rope_theta = *theta;
}

void RefuseUnsupportedFeatures(const Section& config, const Family& family) {
  if (config.FlagOr("use_sliding_window", false)) {
    config.Refuse("use_sliding_window", true, "supported: false");
  }
  const Json* window = config.Find("sliding_window");
  if (window != nullptr && config.Find("use_sliding_window") == nullptr) {
    config.Refuse("sliding_window", *window,
                  "sliding windows are not supported: null, or use_sliding_window false");
  }
  for (const char* key :
       {"num_experts", "num_local_experts", "moe_num_experts", "n_routed_experts"}) {
    const Json* experts = config.Find(key);
    if (experts != nullptr && *experts != 0) {
      config.Refuse(key, *experts, "mixtures of experts are not supported: 0");
    }
  }
  if (const Json* types = config.Find("layer_types")) {
    const bool full = types->is_array() && std::ranges::all_of(*types, [](const Json& type) {
                        return type == "full_attention";
                      });
    if (!full) config.Refuse("layer_types", *types, "supported: \"full_attention\" in every layer");
  }
  if (const Json* quantization = config.Find("quantization_config")) {
    config.Refuse("quantization_config", *quantization,
                  "quantized checkpoints are not supported: float32, bfloat16 and float16 are");
  }
  for (const FixedFlag& flag : family.fixed_flags) {
    if (config.FlagOr(flag.key, flag.value) != flag.value) {
      config.Refuse(flag.key, *config.Find(flag.key), "supported: ", flag.value ? "true" : "false");
    }
  }
  if (const Json* act = config.Find(family.keys.activation)) {
    std::string supported;
    for (const std::string_view name : family.activations) {
      if (*act == name) return;
      supported += StrCat(supported.empty() ? "" : ", ", Quoted(name));
    }
    config.Refuse(family.keys.activation, *act, "supported: ", supported);
  }
}

void ReadHeads(const Section& config, const ConfigKeys& keys, ModelSpec& spec) {
  const int64_t q_heads = config.Integer(keys.num_q_heads, kMaxExtent);
  int64_t kv_heads = q_heads;
  if (keys.num_kv_heads != nullptr &&
      (!keys.kv_heads_optional || config.Find(keys.num_kv_heads) != nullptr)) {
    kv_heads = config.Integer(keys.num_kv_heads, kMaxExtent);
  }
  if (q_heads % kv_heads != 0 || q_heads / kv_heads > kMaxGroup) {
    config.Refuse(keys.num_kv_heads, kv_heads, keys.num_q_heads, ", ", q_heads,
                  ", must be a multiple of it, at most ", kMaxGroup, " times as much");
  }
  std::optional<int64_t> head_dim = config.FindInteger("head_dim", 1, kMaxExtent);
  const bool derived = !head_dim;
  if (derived) {
    if (spec.hidden_size % q_heads != 0) {
      throw RuntimeFailure(StrCat(config.Where(), "head_dim is missing and ", keys.hidden_size,
                                  ", ", spec.hidden_size, ", is not a multiple of ",
                                  keys.num_q_heads, ", ", q_heads));
    }
    head_dim = spec.hidden_size / q_heads;
  }
  if (*head_dim != 64 && *head_dim != 128) {
    throw RuntimeFailure(StrCat(
        config.Where(), "head_dim is ", *head_dim,
        derived ? StrCat(" (", keys.hidden_size, " / ", keys.num_q_heads, ")") : std::string(),
        "; supported: 64, 128"));
  }
  spec.num_q_heads = static_cast<int32_t>(q_heads);
  spec.num_kv_heads = static_cast<int32_t>(kv_heads);
  spec.head_dim = static_cast<int32_t>(*head_dim);
}

void ReadSizes(const Section& config, const ConfigKeys& keys, ModelSpec& spec) {
  spec.hidden_size = config.Integer(keys.hidden_size, kMaxExtent);
  const bool derived =
      keys.intermediate_ratio > 0 && config.Find(keys.intermediate_size) == nullptr;
  spec.intermediate_size = derived ? keys.intermediate_ratio * spec.hidden_size
                                   : config.Integer(keys.intermediate_size, kMaxExtent);
  spec.num_layers = config.Integer(keys.num_layers, kMaxLayers);
  spec.vocab_size = config.Integer("vocab_size", kMaxVocab);
  spec.max_positions = config.Integer(keys.max_positions, kMaxExtent);
  ReadHeads(config, keys, spec);
  const std::optional<double> eps = config.FindPositive(keys.norm_eps);
  if (!eps || *eps > 1) {
    throw RuntimeFailure(StrCat(config.Where(), keys.norm_eps, " is ",
                                eps ? StrCat(*eps) : "missing", "; it must be above 0, at most 1"));
  }
  spec.norm_eps = static_cast<float>(*eps);
}

bool ReadBias(const Section& config, const BiasRule& rule) {
  return rule.always || (rule.key != nullptr && config.FlagOr(rule.key, false));
}

// eos_token_id may be one id, a list of ids, or missing.
std::vector<int32_t> ReadEosIds(const Section& config, int64_t vocab_size) {
  const Json* value = config.Find("eos_token_id");
  if (value == nullptr) return {};
  std::set<int32_t> ids;
  for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
    if (!id.is_number_integer() || id < 0 || id >= vocab_size) {
      config.Refuse("eos_token_id", *value, "each id must be an integer from 0 to ",
                    vocab_size - 1);
    }
    ids.insert(id.get<int32_t>());
  }
  return {ids.begin(), ids.end()};
}

Json ReadObject(const std::filesystem::path& path) {
  Json object = ReadJsonFile(path);
  if (!object.is_object()) {
    throw RuntimeFailure(StrCat(path.string(), ": it must be a JSON object"));
  }
  return object;
}

}  // namespace

ModelSpec LoadModelSpec(const std::filesystem::path& dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error)) {
    throw RuntimeFailure(StrCat(dir.string(), ": not a folder (a model is a folder with ",
                                "config.json and model.safetensors)"));
  }
  const std::filesystem::path config_path = dir / "config.json";
  const Json config_json = ReadObject(config_path);
  const Section config(config_json, StrCat(config_path.string(), ": "));

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
  spec.tied_embeddings = config.FlagOr("tie_word_embeddings", family.tied_by_default);
  spec.eos_token_ids = ReadEosIds(config, spec.vocab_size);

  const std::filesystem::path generation_path = dir / "generation_config.json";
  if (std::filesystem::exists(generation_path, error)) {
    const Json generation_json = ReadObject(generation_path);
    const Section generation(generation_json, StrCat(generation_path.string(), ": "));
    if (generation.Find("eos_token_id") != nullptr) {
      spec.eos_token_ids = ReadEosIds(generation, spec.vocab_size);
    }
  }
  return spec;
}

}  // namespace tokline
