// Binds a checkpoint's tensors to the roles of a model, and refuses checkpoints that do not match
// config.json.
#include "harness/models/model_weights.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "harness/models/family.h"
#include "harness/models/known_buffers.h"
#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr int64_t kMissingListed = 5;

constexpr std::string_view kSpareHeadRule =
    "allowed: the same tensor, none, or tie_word_embeddings false in config.json";

constexpr std::pair<std::string_view, DType> kWeightDTypes[] = {
    {"F32", DType::kF32}, {"BF16", DType::kBf16}, {"F16", DType::kF16}};

std::optional<DType> WeightDType(std::string_view name) {
  for (const auto& [known, dtype] : kWeightDTypes) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

// The number of elements whose exponent is all ones.
template <typename Bits>
int64_t NumWithExponent(Bits exponent, const std::byte* data, int64_t count) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * int64_t{sizeof(bits)}, sizeof(bits));
    found += (bits & exponent) == exponent;
  }
  return found;
}

int64_t NumNotFinite(DType dtype, const std::byte* data, int64_t count) {
  if (dtype == DType::kF32) return NumWithExponent<uint32_t>(0x7f800000, data, count);
  return NumWithExponent<uint16_t>(dtype == DType::kBf16 ? 0x7f80 : 0x7c00, data, count);
}

std::string BiasName(std::string_view matrix) {
  constexpr std::string_view kWeight = "weight";
  return StrCat(matrix.substr(0, matrix.size() - kWeight.size()), "bias");
}

class Binder {
 public:
  Binder(const Checkpoint& checkpoint, const ModelSpec& spec)
      : checkpoint_(checkpoint), spec_(spec) {}

  // Takes a tensor, which must have this shape. If it is missing, returns an empty view and
  // remembers the name for RefuseMissing.
  TensorView Take(const std::string& name, std::vector<int64_t> shape) {
    const CheckpointTensor* tensor = checkpoint_.Find(name);
    if (tensor == nullptr) {
      missing_.emplace_back(name, std::move(shape));
      return {};
    }
    if (tensor->shape != shape) {
      Fail(name, "has the shape ", ListText(tensor->shape), "; config.json asks for ",
           ListText(shape));
    }
    const std::optional<DType> dtype = WeightDType(tensor->dtype);
    if (!dtype) Fail(name, "has the dtype ", tensor->dtype, "; supported: F32, BF16, F16");
    used_.insert(name);
    bytes_ += tensor->bytes;
    parameters_ += tensor->bytes / SizeOf(*dtype);
    return {.dtype = *dtype,
            .shape = shape,
            .data = tensor->data,
            .bytes = tensor->bytes,
            .row_stride = shape.size() == 2 ? shape[1] : 1,
            .column_stride = 1};
  }

  // Takes a matrix and views it as [outputs, inputs], although it may be stored transposed.
  TensorView TakeMatrix(const std::string& name, int64_t outputs, int64_t inputs,
                        bool inputs_first) {
    if (!inputs_first) return Take(name, {outputs, inputs});
    TensorView view = Take(name, {inputs, outputs});
    if (view.data == nullptr) return view;
    view.shape = {outputs, inputs};
    std::swap(view.row_stride, view.column_stride);
    return view;
  }

  // Takes a bias if the model has it (`there`). Otherwise refuses a checkpoint that contains it
  // although the rule's flag in config.json is false.
  TensorView TakeBias(bool there, const BiasRule& rule, const std::string& name, int64_t rows) {
    if (there) return Take(name, {rows});
    if (rule.key != nullptr && checkpoint_.Find(name) != nullptr) {
      Fail(name, "is in the checkpoint, but ", rule.key, " is false in config.json");
    }
    return {};
  }

  // Takes the norm of a head if the model has it (`there`). Otherwise refuses a checkpoint that
  // contains it, because it belongs to another family.
  TensorView TakeHeadNorm(bool there, const std::string& name) {
    if (there) return Take(name, {spec_.head_dim});
    if (checkpoint_.Find(name) != nullptr) {
      Fail(name, "is a norm that the ", spec_.family, " family does not have");
    }
    return {};
  }

  // Returns the name of the LM head if the checkpoint has one although it is tied to the embedding;
  // otherwise an empty name. The head must have the embedding's dtype and shape.
  std::string FindSpareHead(const std::string& name, const std::string& embedding_name) const {
    const CheckpointTensor* head = checkpoint_.Find(name);
    const CheckpointTensor* embedding = checkpoint_.Find(embedding_name);
    if (head == nullptr || embedding == nullptr) return "";
    if (head->dtype != embedding->dtype || head->shape != embedding->shape) {
      Fail(name, "has the dtype ", head->dtype, " and the shape ", ListText(head->shape), ", but ",
           Quoted(embedding_name), ", to which config.json ties it, has ", embedding->dtype,
           " and ", ListText(embedding->shape), "; ", kSpareHeadRule);
    }
    return name;
  }

  // The family's first prefix under which the checkpoint has the embedding, or simply its first
  // prefix.
  std::string Prefix(const WeightNames& names) const {
    for (const std::string_view prefix : names.prefixes) {
      if (checkpoint_.Find(StrCat(prefix, names.embedding)) != nullptr) return std::string(prefix);
    }
    return std::string(names.prefixes.front());
  }

  void RefuseMissing() const {
    if (missing_.empty()) return;
    const auto& [first, shape] = missing_.front();
    if (missing_.size() == 1) {
      Fail(first, "is missing; config.json asks for it with the shape ", ListText(shape));
    }
    std::string listed;
    for (size_t i = 0; i < missing_.size() && i < kMissingListed; ++i) {
      listed +=
          StrCat(i == 0 ? "" : ", ", Quoted(missing_[i].first), " ", ListText(missing_[i].second));
    }
    if (missing_.size() > kMissingListed) {
      listed += StrCat(" and ", missing_.size() - kMissingListed, " more");
    }
    const auto& there = checkpoint_.Tensors();
    throw RuntimeFailure(StrCat(
        checkpoint_.Dir().string(), ": ", missing_.size(), " of the tensors that config.json asks ",
        "for are missing: ", listed, "; the checkpoint has ", there.size(), " tensors",
        there.empty() ? "" : StrCat(", the first is ", Quoted(there.begin()->first))));
  }

  // Classifies the tensors without a role. Refuses biases and layers beyond the last one: ignoring
  // them would silently give wrong results.
  void SortExtra(const std::string& layer_prefix, ModelWeights& weights) const {
    for (const auto& [name, tensor] : checkpoint_.Tensors()) {
      if (used_.contains(name)) continue;
      const bool buffer = !KnownBuffer(name, tensor).empty();
      if (!buffer && name.ends_with(".bias")) {
        Fail(name, "is a bias that the ", spec_.family, " family does not have");
      }
      if (name.starts_with(layer_prefix)) {
        const char* digits = name.data() + layer_prefix.size();
        int64_t layer = 0;
        const auto [end, error] = std::from_chars(digits, name.data() + name.size(), layer);
        if (error != std::errc() || layer >= spec_.num_layers) {
          Fail(name, "is in no layer: num_hidden_layers is ", spec_.num_layers, " in config.json");
        }
      }
      (buffer ? weights.known_buffers : weights.extra_tensors).push_back(name);
    }
  }

  int64_t Bytes() const { return bytes_; }
  int64_t Parameters() const { return parameters_; }

 private:
  template <typename... Parts>
  [[noreturn]] void Fail(const std::string& name, const Parts&... parts) const {
    throw RuntimeFailure(
        StrCat(checkpoint_.Dir().string(), ": tensor ", Quoted(name), " ", parts...));
  }

  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::pair<std::string, std::vector<int64_t>>> missing_;
  int64_t bytes_ = 0;
  int64_t parameters_ = 0;
};

// Returns rows [first, first + count) of a view.
TensorView Slice(TensorView view, int64_t first, int64_t count) {
  if (view.data == nullptr) return view;
  view.data =
      static_cast<const std::byte*>(view.data) + first * view.row_stride * SizeOf(view.dtype);
  view.shape[0] = count;
  view.bytes = count * view.Columns() * SizeOf(view.dtype);
  return view;
}

class LayerBinder {
 public:
  LayerBinder(Binder& binder, const ModelSpec& spec, const Family& family, std::string prefix)
      : binder_(binder),
        spec_(spec),
        family_(family),
        names_(family.weights),
        prefix_(std::move(prefix)) {}

  LayerWeights Bind() {
    const int64_t hidden = spec_.hidden_size, inner = spec_.intermediate_size;
    const bool gated = spec_.mlp == ActivationKind::kGatedSilu;
    LayerWeights layer;
    layer.input_norm = Vector(names_.input_norm, hidden);
    layer.input_norm_bias = NormBias(names_.input_norm);
    BindQkv(layer);
    layer.o = Matrix(names_.o, hidden, spec_.QSize());
    layer.o_bias = Bias(spec_.output_bias, family_.output_bias, names_.o, hidden);
    layer.q_norm = binder_.TakeHeadNorm(spec_.qk_norm, StrCat(prefix_, names_.q_norm));
    layer.k_norm = binder_.TakeHeadNorm(spec_.qk_norm, StrCat(prefix_, names_.k_norm));
    layer.post_norm = Vector(names_.post_norm, hidden);
    layer.post_norm_bias = NormBias(names_.post_norm);
    if (gated) {
      layer.gate = Matrix(names_.gate, inner, hidden);
      layer.gate_bias = Bias(spec_.mlp_bias, family_.mlp_bias, names_.gate, inner);
    }
    layer.up = Matrix(names_.up, inner, hidden);
    layer.up_bias = Bias(spec_.mlp_bias, family_.mlp_bias, names_.up, inner);
    layer.down = Matrix(names_.down, hidden, inner);
    layer.down_bias = Bias(spec_.mlp_bias, family_.mlp_bias, names_.down, hidden);
    return layer;
  }

 private:
  void BindQkv(LayerWeights& layer) {
    const int64_t hidden = spec_.hidden_size, q = spec_.QSize(), kv = spec_.KvSize();
    const auto bias = [&](std::string_view matrix, int64_t rows) {
      return Bias(spec_.qkv_bias, family_.qkv_bias, matrix, rows);
    };
    if (names_.qkv.empty()) {
      layer.q = Matrix(names_.q, q, hidden);
      layer.k = Matrix(names_.k, kv, hidden);
      layer.v = Matrix(names_.v, kv, hidden);
      layer.q_bias = bias(names_.q, q);
      layer.k_bias = bias(names_.k, kv);
      layer.v_bias = bias(names_.v, kv);
      return;
    }
    const TensorView all = Matrix(names_.qkv, q + 2 * kv, hidden);
    layer.q = Slice(all, 0, q);
    layer.k = Slice(all, q, kv);
    layer.v = Slice(all, q + kv, kv);
    const TensorView all_biases = bias(names_.qkv, q + 2 * kv);
    layer.q_bias = Slice(all_biases, 0, q);
    layer.k_bias = Slice(all_biases, q, kv);
    layer.v_bias = Slice(all_biases, q + kv, kv);
  }

  TensorView Vector(std::string_view name, int64_t size) {
    return binder_.Take(StrCat(prefix_, name), {size});
  }
  TensorView Matrix(std::string_view name, int64_t outputs, int64_t inputs) {
    return binder_.TakeMatrix(StrCat(prefix_, name), outputs, inputs, names_.inputs_first);
  }
  TensorView Bias(bool there, const BiasRule& rule, std::string_view matrix, int64_t rows) {
    return binder_.TakeBias(there, rule, StrCat(prefix_, BiasName(matrix)), rows);
  }
  TensorView NormBias(std::string_view norm) {
    return Bias(spec_.norm == NormKind::kLayer, {}, norm, spec_.hidden_size);
  }

  Binder& binder_;
  const ModelSpec& spec_;
  const Family& family_;
  const WeightNames& names_;
  std::string prefix_;
};

}  // namespace

ModelWeights BindWeights(const Checkpoint& checkpoint, const ModelSpec& spec) {
  const Family& family = FamilyNamed(spec.family);
  const WeightNames& names = family.weights;
  Binder binder(checkpoint, spec);
  const std::string prefix = binder.Prefix(names);
  const std::string layer_prefix = StrCat(prefix, names.layer_prefix);
  ModelWeights weights;
  const std::vector<int64_t> table = {spec.vocab_size, spec.hidden_size};
  const std::string embedding = StrCat(prefix, names.embedding);
  const std::string lm_head(names.lm_head);
  weights.embedding = binder.Take(embedding, table);
  if (spec.position == PositionKind::kLearned) {
    weights.positions =
        binder.Take(StrCat(prefix, names.positions), {spec.max_positions, spec.hidden_size});
  }
  weights.final_norm = binder.Take(StrCat(prefix, names.final_norm), {spec.hidden_size});
  weights.final_norm_bias =
      binder.TakeBias(spec.norm == NormKind::kLayer, {}, StrCat(prefix, BiasName(names.final_norm)),
                      spec.hidden_size);
  // A tied checkpoint may also store the LM head, which then counts as an extra tensor.
  weights.lm_head = spec.tied_embeddings ? weights.embedding : binder.Take(lm_head, table);
  if (spec.tied_embeddings) weights.spare_lm_head = binder.FindSpareHead(lm_head, embedding);
  weights.layers.reserve(static_cast<size_t>(spec.num_layers));
  for (int64_t i = 0; i < spec.num_layers; ++i) {
    weights.layers.push_back(
        LayerBinder(binder, spec, family, StrCat(layer_prefix, i, ".")).Bind());
  }
  binder.RefuseMissing();
  weights.bytes = binder.Bytes();
  weights.parameters = binder.Parameters();
  binder.SortExtra(layer_prefix, weights);
  return weights;
}

void CheckElements(const Checkpoint& checkpoint, const ModelWeights& weights) {
  struct Piece {
    const std::string* name;
    DType dtype;
    const std::byte* data;
    int64_t count;
    const std::byte* twin;  // the tensor that must have the same bytes, or null

    bool Finite() const { return NumNotFinite(dtype, data, count) == 0; }
    bool EqualsTwin() const {
      return twin == nullptr ||
             std::memcmp(data, twin, static_cast<size_t>(count * SizeOf(dtype))) == 0;
    }
  };
  constexpr int64_t kPieceElements = int64_t{1} << 22;
  const CheckpointTensor* const spare =
      weights.spare_lm_head.empty() ? nullptr : checkpoint.Find(weights.spare_lm_head);
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : checkpoint.Tensors()) {
    if (std::ranges::binary_search(weights.extra_tensors, name) ||
        std::ranges::binary_search(weights.known_buffers, name)) {
      continue;
    }
    checkpoint.Prefetch(tensor.data, tensor.bytes);
    const bool has_twin = spare != nullptr && tensor.data == weights.embedding.data;
    if (has_twin) checkpoint.Prefetch(spare->data, spare->bytes);
    const DType dtype = WeightDType(tensor.dtype).value();
    const int64_t count = tensor.bytes / SizeOf(dtype);
    for (int64_t at = 0; at < count; at += kPieceElements) {
      pieces.push_back({.name = &name,
                        .dtype = dtype,
                        .data = tensor.data + at * SizeOf(dtype),
                        .count = std::min(kPieceElements, count - at),
                        .twin = has_twin ? spare->data + at * SizeOf(dtype) : nullptr});
    }
  }
  std::atomic<size_t> next = 0;
  std::atomic<const Piece*> bad = nullptr;
  const auto look = [&] {
    for (size_t i = next++; i < pieces.size() && bad == nullptr; i = next++) {
      if (!pieces[i].Finite() || !pieces[i].EqualsTwin()) bad = &pieces[i];
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) threads.emplace_back(look);
  look();
  threads.clear();
  if (spare != nullptr) checkpoint.Release(spare->data, spare->bytes);
  const Piece* const piece = bad;
  if (piece == nullptr) return;
  const std::string where = StrCat(checkpoint.Dir().string(), ": tensor ");
  if (!piece->Finite()) {
    throw RuntimeFailure(StrCat(where, Quoted(*piece->name),
                                " has elements that are NaN or infinite: the model would write ",
                                "nonsense"));
  }
  throw RuntimeFailure(StrCat(where, Quoted(weights.spare_lm_head), " differs from ",
                              Quoted(*piece->name), ", to which config.json ties it; ",
                              kSpareHeadRule));
}

ModelWeights RandomWeights(const ModelSpec& spec, uint64_t seed) {
  ModelWeights weights;
  weights.random_seed = seed;
  weights.parameters = ParametersOf(spec);
  weights.bytes = weights.parameters * SizeOf(spec.dtype);
  return weights;
}

int64_t ParametersOf(const ModelSpec& spec) {
  const int64_t hidden = spec.hidden_size, qkv = spec.QSize() + 2 * spec.KvSize();
  const int64_t norm = spec.norm == NormKind::kLayer ? 2 * hidden : hidden;  // with its bias
  const auto if_there = [](bool there, int64_t count) { return there ? count : 0; };
  const int64_t layer = 2 * norm + qkv * hidden + if_there(spec.qkv_bias, qkv) +
                        if_there(spec.qk_norm, 2 * int64_t{spec.head_dim}) + spec.QSize() * hidden +
                        if_there(spec.output_bias, hidden) +
                        (spec.UpRows() + spec.intermediate_size) * hidden +
                        if_there(spec.mlp_bias, spec.UpRows() + hidden);
  return (spec.tied_embeddings ? 1 : 2) * spec.vocab_size * hidden + norm +
         if_there(spec.position == PositionKind::kLearned, spec.max_positions * hidden) +
         spec.num_layers * layer;
}

}  // namespace tokline
