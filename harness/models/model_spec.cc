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
#include "harness/models/json_file.h"
#include "harness/models/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using Json = nlohmann::json;

// Caps far above any model: products of two of them fit int64, and positions are exact in the fp32
// that RoPE computes with.
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

// An object of config.json with the names for its messages.
class Section {
 public:
  Section(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  // Null if the key is missing or null: transformers treats both alike.
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
    // Compared as unsigned first: 2^63 and above must not turn negative.
    if (!value->is_number_integer() ||
        (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(most)) ||
        value->get<int64_t>() < least || value->get<int64_t>() > most) {
      Refuse(key, *value, "it must be an integer from ", least, " to ", most);
    }
    return value->get<int64_t>();
  }

  int64_t Integer(const char* key, int64_t most) const {
    const std::optional<int64_t> value = FindInteger(key, 1, most);
    if (!value) {
      throw RuntimeFailure(
          StrCat(where_, key, " is missing; it must be an integer from 1 to ", most));
    }
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

  bool Flag(const char* key) const {
    const Json* value = Find(key);
    if (value != nullptr && !value->is_boolean()) Refuse(key, *value, "it must be true or false");
    return value != nullptr && value->get<bool>();
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
  if (architectures == nullptr) {
    throw RuntimeFailure(
        StrCat(config.Where(), "architectures is missing; supported: ", supported));
  }
  if (architectures->is_array()) {
    for (const Family& family : Families()) {
      if (std::ranges::find(*architectures, Json(family.architecture)) != architectures->end()) {
        return family;
      }
    }
  }
  config.Refuse("architectures", *architectures, "supported: ", supported);
}

// transformers 5 writes dtype, transformers 4 torch_dtype.
DType ReadDType(const Section& config) {
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
  if (value == nullptr) {
    throw RuntimeFailure(
        StrCat(config.Where(), "dtype (or torch_dtype) is missing; supported: ", supported));
  }
  config.Refuse(key, *value, "supported: ", supported);
}

// rope_parameters of transformers 5, or rope_scaling of transformers 4: only plain RoPE.
void CheckPlainRope(const Section& rope) {
  for (const char* key : {"rope_type", "type"}) {
    const Json* type = rope.Find(key);
    if (type != nullptr && *type != "default") rope.Refuse(key, *type, "supported: \"default\"");
  }
  const std::optional<double> part = rope.FindPositive("partial_rotary_factor");
  if (part && *part != 1) {
    rope.Refuse("partial_rotary_factor", *rope.Find("partial_rotary_factor"), "supported: 1");
  }
}

double ReadRopeTheta(const Section& config) {
  std::optional<double> theta = config.FindPositive("rope_theta");
  CheckPlainRope(config);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = config.Find(key);
    if (value == nullptr) continue;
    if (!value->is_object()) config.Refuse(key, *value, "it must be an object");
    const Section rope(*value, StrCat(config.Where(), key, "."));
    CheckPlainRope(rope);
    const std::optional<double> inner = rope.FindPositive("rope_theta");
    if (inner && theta && *inner != *theta) {
      rope.Refuse("rope_theta", *rope.Find("rope_theta"), "rope_theta beside it is ", *theta,
                  "; they must agree");
    }
    if (inner) theta = inner;
  }
  if (!theta) {
    throw RuntimeFailure(StrCat(config.Where(), "rope_theta is missing, there and in ",
                                "rope_parameters; it must be a finite number above 0"));
  }
  return *theta;
}

void RefuseUnsupportedFeatures(const Section& config) {
  if (config.Flag("use_sliding_window")) {
    config.Refuse("use_sliding_window", true, "supported: false");
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
  if (const Json* act = config.Find("hidden_act"); act != nullptr && *act != "silu") {
    config.Refuse("hidden_act", *act, "supported: \"silu\"");
  }
}

void ReadHeads(const Section& config, ModelSpec& spec) {
  const int64_t q_heads = config.Integer("num_attention_heads", kMaxExtent);
  const int64_t kv_heads = config.Integer("num_key_value_heads", kMaxExtent);
  if (q_heads % kv_heads != 0 || q_heads / kv_heads > kMaxGroup) {
    config.Refuse("num_key_value_heads", kv_heads, "num_attention_heads, ", q_heads,
                  ", must be a multiple of it, at most ", kMaxGroup, " times as much");
  }
  std::optional<int64_t> head_dim = config.FindInteger("head_dim", 1, kMaxExtent);
  if (!head_dim) {
    if (spec.hidden_size % q_heads != 0) {
      throw RuntimeFailure(StrCat(config.Where(), "head_dim is missing and hidden_size, ",
                                  spec.hidden_size, ", is no multiple of num_attention_heads, ",
                                  q_heads));
    }
    head_dim = spec.hidden_size / q_heads;
  }
  if (*head_dim != 64 && *head_dim != 128) {
    throw RuntimeFailure(
        StrCat(config.Where(), "head_dim is ", *head_dim,
               config.Find("head_dim") == nullptr ? " (hidden_size / num_attention_heads)" : "",
               "; supported: 64, 128"));
  }
  spec.num_q_heads = static_cast<int32_t>(q_heads);
  spec.num_kv_heads = static_cast<int32_t>(kv_heads);
  spec.head_dim = static_cast<int32_t>(*head_dim);
}

// An id, a list of ids, or nothing.
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
  RefuseUnsupportedFeatures(config);
  ModelSpec spec;
  spec.family = family.name;
  spec.qk_norm = family.qk_norm;
  spec.dtype = ReadDType(config);
  spec.hidden_size = config.Integer("hidden_size", kMaxExtent);
  spec.intermediate_size = config.Integer("intermediate_size", kMaxExtent);
  spec.num_layers = config.Integer("num_hidden_layers", kMaxLayers);
  spec.vocab_size = config.Integer("vocab_size", kMaxVocab);
  spec.max_positions = config.Integer("max_position_embeddings", kMaxExtent);
  ReadHeads(config, spec);
  const std::optional<double> eps = config.FindPositive("rms_norm_eps");
  if (!eps || *eps > 1) {
    throw RuntimeFailure(StrCat(config.Where(), "rms_norm_eps is ", eps ? StrCat(*eps) : "missing",
                                "; it must be above 0, at most 1"));
  }
  spec.norm_eps = static_cast<float>(*eps);
  spec.rope_theta = ReadRopeTheta(config);
  spec.qkv_bias = spec.output_bias = config.Flag("attention_bias");
  spec.tied_embeddings = config.Flag("tie_word_embeddings");
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
