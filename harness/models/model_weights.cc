#include "harness/models/model_weights.h"

#include <charconv>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "harness/models/family.h"
#include "harness/models/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr std::pair<std::string_view, DType> kWeightDTypes[] = {
    {"F32", DType::kF32}, {"BF16", DType::kBf16}, {"F16", DType::kF16}};

std::optional<DType> WeightDType(std::string_view name) {
  for (const auto& [known, dtype] : kWeightDTypes) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

std::string_view FileName(DType dtype) {
  for (const auto& [name, known] : kWeightDTypes) {
    if (known == dtype) return name;
  }
  return "?";
}

std::string BiasName(std::string_view matrix) {
  constexpr std::string_view kWeight = "weight";
  return StrCat(matrix.substr(0, matrix.size() - kWeight.size()), "bias");
}

class Binder {
 public:
  Binder(const Checkpoint& checkpoint, const ModelSpec& spec)
      : checkpoint_(checkpoint), spec_(spec) {}

  // Takes the tensor, which must be there with this shape.
  TensorView Take(const std::string& name, std::vector<int64_t> shape) {
    const CheckpointTensor* tensor = checkpoint_.Find(name);
    if (tensor == nullptr) {
      Fail(name, "is missing; config.json asks for it with the shape ", ListText(shape));
    }
    if (tensor->shape != shape) {
      Fail(name, "has the shape ", ListText(tensor->shape), "; config.json asks for ",
           ListText(shape));
    }
    const std::optional<DType> dtype = WeightDType(tensor->dtype);
    if (!dtype) Fail(name, "has the dtype ", tensor->dtype, "; supported: F32, BF16, F16");
    if (*dtype != spec_.dtype) {
      Fail(name, "has the dtype ", tensor->dtype, "; config.json says ", FileName(spec_.dtype),
           ", and all weights must have one dtype");
    }
    used_.insert(name);
    bytes_ += tensor->bytes;
    return {
        .dtype = *dtype, .shape = std::move(shape), .data = tensor->data, .bytes = tensor->bytes};
  }

  // Takes it if `there`, a statement of config.json; refuses a checkpoint that has it otherwise.
  TensorView TakeIf(bool there, std::string_view key, const std::string& name,
                    std::vector<int64_t> shape) {
    if (there) return Take(name, std::move(shape));
    if (checkpoint_.Find(name) != nullptr) {
      Fail(name, "is in the checkpoint, but ", key, " is false in config.json");
    }
    return {};
  }

  // What no role took. A bias, or a layer beyond the last, would be computed without in silence.
  std::vector<std::string> TakeExtra(const WeightNames& names) {
    std::vector<std::string> extra;
    for (const auto& [name, tensor] : checkpoint_.Tensors()) {
      if (used_.contains(name)) continue;
      if (name.ends_with(".bias")) {
        Fail(name, "is a bias that the ", spec_.family, " family does not have");
      }
      if (name.starts_with(names.layer_prefix)) {
        const char* digits = name.data() + names.layer_prefix.size();
        int64_t layer = 0;
        const auto [end, error] = std::from_chars(digits, name.data() + name.size(), layer);
        if (error != std::errc() || layer >= spec_.num_layers) {
          Fail(name, "is in no layer: num_hidden_layers is ", spec_.num_layers, " in config.json");
        }
      }
      extra.push_back(name);
    }
    return extra;
  }

  int64_t Bytes() const { return bytes_; }

 private:
  template <typename... Parts>
  [[noreturn]] void Fail(const std::string& name, const Parts&... parts) const {
    throw RuntimeFailure(
        StrCat(checkpoint_.Dir().string(), ": tensor ", Quoted(name), " ", parts...));
  }

  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  std::set<std::string, std::less<>> used_;
  int64_t bytes_ = 0;
};

LayerWeights BindLayer(Binder& binder, const ModelSpec& spec, const WeightNames& names,
                       int64_t layer) {
  const std::string prefix = StrCat(names.layer_prefix, layer, ".");
  const int64_t hidden = spec.hidden_size;
  const int64_t inner = spec.intermediate_size;
  const auto take = [&](std::string_view name, std::vector<int64_t> shape) {
    return binder.Take(StrCat(prefix, name), std::move(shape));
  };
  const auto take_bias = [&](bool there, std::string_view matrix, int64_t rows) {
    return binder.TakeIf(there, "attention_bias", StrCat(prefix, BiasName(matrix)), {rows});
  };
  const auto take_head_norm = [&](std::string_view name) {
    return spec.qk_norm ? take(name, {spec.head_dim}) : TensorView{};
  };
  return {.input_norm = take(names.input_norm, {hidden}),
          .q = take(names.q, {spec.QSize(), hidden}),
          .k = take(names.k, {spec.KvSize(), hidden}),
          .v = take(names.v, {spec.KvSize(), hidden}),
          .o = take(names.o, {hidden, spec.QSize()}),
          .q_bias = take_bias(spec.qkv_bias, names.q, spec.QSize()),
          .k_bias = take_bias(spec.qkv_bias, names.k, spec.KvSize()),
          .v_bias = take_bias(spec.qkv_bias, names.v, spec.KvSize()),
          .o_bias = take_bias(spec.output_bias, names.o, hidden),
          .q_norm = take_head_norm(names.q_norm),
          .k_norm = take_head_norm(names.k_norm),
          .post_norm = take(names.post_norm, {hidden}),
          .gate = take(names.gate, {inner, hidden}),
          .up = take(names.up, {inner, hidden}),
          .down = take(names.down, {hidden, inner})};
}

}  // namespace

ModelWeights BindWeights(const Checkpoint& checkpoint, const ModelSpec& spec) {
  const WeightNames& names = FamilyNamed(spec.family).weights;
  Binder binder(checkpoint, spec);
  ModelWeights weights;
  const std::vector<int64_t> table = {spec.vocab_size, spec.hidden_size};
  weights.embedding = binder.Take(std::string(names.embedding), table);
  weights.final_norm = binder.Take(std::string(names.final_norm), {spec.hidden_size});
  // A tied checkpoint may hold the LM head again: it counts among the extra tensors.
  weights.lm_head =
      spec.tied_embeddings ? weights.embedding : binder.Take(std::string(names.lm_head), table);
  weights.layers.reserve(static_cast<size_t>(spec.num_layers));
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    weights.layers.push_back(BindLayer(binder, spec, names, layer));
  }
  weights.bytes = binder.Bytes();
  weights.parameters = weights.bytes / SizeOf(spec.dtype);
  weights.extra_tensors = binder.TakeExtra(names);
  return weights;
}

}  // namespace tokline
