// Benches decode_step on models ("step"): a whole step of one token each of a few sequences.
#include <algorithm>
#include <cmath>

#include "benches/bench_case.h"
#include "benches/paged_batch.h"
#include "kernels/decode_step/decode_step.h"
#include "reference/decode_step.h"

namespace tokline::bench {
namespace {

constexpr int32_t kPageSize = 256;
constexpr Range kContexts = {1, 131072};

// An error in one layer passes through all later ones. In simulations of 2 to 36 layers of the
// benches' random values, in which units in the last place of weights, K and V flip as roundings
// do, the root mean square of a row's errors was at most 2.1 eps of that of the row, times the
// square root of the number of layers, and a single error at most 6.7. About twice these values are
// allowed. In bf16, the outputs of a model without attention are off by more than 160 eps.
Tolerance StepTolerance(DType dtype, int32_t layers) {
  return {1, 16 * std::sqrt(static_cast<double>(layers)) * Epsilon(dtype), 0.25};
}

struct DecodeStepShape {
  DecodeStepModel model{};  // without tensors
  PagedKvLayout layout{};   // without pages
  bool qk_norm = false;
  int64_t context = 0;       // tokens of each sequence
  std::vector<int64_t> ids;  // of the tokens, one per sequence
};

// The parts of a layer lie one after another, with the same random scale 2^log2_scale: a norm's
// weights times those of a projection must keep the scale of their input.
int LayerLog2Scale(int64_t hidden) {
  constexpr double kRms = 4.0 / 3;  // of values times values, uniform in (-2, 2)
  return static_cast<int>(
      std::lround(-0.5 * std::log2(kRms * std::sqrt(static_cast<double>(hidden)))));
}

// The new tokens are not appended: their K and V would be written among the random inputs, which no
// launch may change. Contexts are read unchanged.
class StepCase final : public BenchCase {
 public:
  StepCase(const DecodeStepShape& shape, const CaseContext& context)
      : shape_(shape),
        batch_(ShuffledBatch(shape.layout, std::vector<int64_t>(shape.ids.size(), shape.context))) {
    shape_.model.dtype = context.dtype;
    const DecodeStepModel& model = shape_.model;
    const int32_t head_dim = batch_.layout.head_dim;
    const int64_t tokens = batch_.NumSeqs();
    Place();
    embedding_ = tensors_.Random(model.dtype, model.vocab_size, model.hidden_size,
                                 WeightLog2Scale(model.hidden_size));
    final_norm_ = tensors_.Random(model.dtype, 1, model.hidden_size);
    layers_ = tensors_.Random(model.dtype, model.num_layers, layer_elements_,
                              LayerLog2Scale(model.hidden_size));
    kv_ = tensors_.Random(model.dtype, model.num_layers * batch_.PoolRows(), head_dim);
    logits_ = tensors_.Output(DType::kF32, tokens, model.vocab_size,
                              StepTolerance(model.dtype, model.num_layers));
    ids_ = tensors_.Table(std::vector<int32_t>(shape.ids.begin(), shape.ids.end()));
    positions_ = tensors_.Table(
        std::vector<int32_t>(shape.ids.size(), static_cast<int32_t>(shape.context - 1)));
    slots_ = tensors_.Table(std::vector<int64_t>(shape.ids.size(), -1));
    rope_ = tensors_.Table(RopeTable(shape.context, head_dim));
    table_ = TableTensors(tensors_, batch_.Table());
    if (!context.device) return;
    parts_ = tensors_.Table(
        DecodeStepParts(std::vector<int32_t>(shape.ids.size(), DecodeStepTiles(shape.context)),
                        batch_.layout, *context.device));
    workspace_bytes_ = DecodeStepWorkspaceBytes(model, batch_.layout, *context.device);
    workspace_ = tensors_.Workspace(workspace_bytes_);
  }

  // The bytes that the new tokens' K and V would add to the writes are read instead.
  Cost GetCost() const override {
    Cost cost = CostOf(Bind(SymbolicSet(tensors_)));
    const double new_kv = static_cast<double>(SizeOf(shape_.model.dtype)) * 2 *
                          static_cast<double>(shape_.model.num_layers * batch_.NumSeqs()) *
                          shape_.layout.num_kv_heads * shape_.layout.head_dim;
    cost.read_bytes += new_kv;
    cost.write_bytes -= new_kv;
    return cost;
  }
  void RunReference(const TensorSet& host) const override { DecodeStepReference(Bind(host)); }
  void LaunchCuda([[maybe_unused]] const TensorSet& device,
                  [[maybe_unused]] const LaunchOptions& options) const override {
#if TOKLINE_HAS_CUDA
    Launch(Bind(device), options);
#endif
  }

  // Samples all tokens and layers, and some rows of the LM head, including the tokens' own rows.
  SampledCase Sample(uint64_t seed) const override {
    constexpr int64_t kLogits = 96;
    std::vector<int64_t> rows = PickIndices(shape_.model.vocab_size, kLogits, seed);
    rows.insert(rows.end(), shape_.ids.begin(), shape_.ids.end());
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    DecodeStepShape reduced = shape_;
    reduced.model.vocab_size = static_cast<int64_t>(rows.size());
    for (int64_t& id : reduced.ids) {
      id = std::lower_bound(rows.begin(), rows.end(), id) - rows.begin();
    }
    SampledCase sampled(
        std::make_unique<StepCase>(reduced, CaseContext{.dtype = shape_.model.dtype}));
    sampled.maps[embedding_].rows = rows;
    sampled.maps[logits_].cols = std::move(rows);
    return sampled;
  }

 private:
  // Computes the offsets, in elements, at which the tensors of a layer begin.
  void Place() {
    const DecodeStepModel& model = shape_.model;
    const int64_t head_dim = batch_.layout.head_dim, hidden = model.hidden_size;
    const int64_t q = model.num_q_heads * head_dim;
    const int64_t k = batch_.layout.num_kv_heads * head_dim;
    const auto take = [this](int64_t elements) {
      const int64_t at = layer_elements_;
      layer_elements_ += elements;
      return at;
    };
    input_norm_ = take(hidden);
    qkv_ = take((q + 2 * k) * hidden);
    q_norm_ = take(head_dim);
    k_norm_ = take(head_dim);
    o_ = take(hidden * q);
    post_norm_ = take(hidden);
    gate_up_ = take(2 * model.intermediate_size * hidden);
    down_ = take(hidden * model.intermediate_size);
  }

  DecodeStepParams Bind(const TensorSet& set) const {
    const int64_t element = SizeOf(shape_.model.dtype);
    const auto of_layer = [&](int64_t at) -> const void* {
      return set.At<std::byte>(layers_) + at * element;
    };
    // Head norms scale queries by their weights.
    const double query = shape_.qk_norm ? std::exp2(LayerLog2Scale(shape_.model.hidden_size)) : 1;
    DecodeStepModel model = shape_.model;
    model.norm_eps = 1e-6f;
    model.scale = static_cast<float>(1 / (query * std::sqrt(double{1} * batch_.layout.head_dim)));
    model.embedding = set.At(embedding_);
    model.final_norm = set.At(final_norm_);
    model.lm_head = set.At(embedding_);
    model.layer_stride_bytes = layer_elements_ * element;
    model.input_norm = of_layer(input_norm_);
    model.qkv = of_layer(qkv_);
    model.q_norm = shape_.qk_norm ? of_layer(q_norm_) : nullptr;
    model.k_norm = shape_.qk_norm ? of_layer(k_norm_) : nullptr;
    model.o = of_layer(o_);
    model.post_norm = of_layer(post_norm_);
    model.gate_up = of_layer(gate_up_);
    model.down = of_layer(down_);
    return {.model = model,
            .num_tokens = batch_.NumSeqs(),
            .token_ids = set.At<int32_t>(ids_),
            .positions = set.At<int32_t>(positions_),
            .slots = set.At<int64_t>(slots_),
            .table = table_.Bind(set),
            .layout = batch_.layout,
            .kv = set.At(kv_),
            .rope_cos_sin = set.At<float>(rope_),
            .rope_rows = shape_.context,
            .logits = set.At<float>(logits_),
            .parts = set.At<int32_t>(parts_),
            .workspace = set.At(workspace_),
            .workspace_bytes = workspace_bytes_};
  }

  DecodeStepShape shape_;
  PagedBatch batch_;
  TableTensors table_;
  int64_t layer_elements_ = 0;
  int64_t input_norm_, qkv_, q_norm_, k_norm_, o_, post_norm_, gate_up_, down_;
  int embedding_, final_norm_, layers_, kv_, logits_, ids_, positions_, slots_, rope_;
  int parts_ = -1, workspace_ = -1;
  int64_t workspace_bytes_ = 0;
};

void AddCases(ShapeReader& shape, const CaseContext& context, std::vector<CaseSpec>& cases) {
  DecodeStepShape step;
  const ShapeReader::Heads heads = shape.QueryAndKvHeads();
  step.model = {.num_layers = static_cast<int32_t>(shape.Int("layers")),
                .num_q_heads = heads.hq,
                .vocab_size = shape.Int("vocab"),
                .hidden_size = shape.Int("hidden"),
                .intermediate_size = shape.Int("inner")};
  step.layout = {.num_kv_heads = heads.hk,
                 .page_size = kPageSize,
                 .head_dim = static_cast<int32_t>(shape.IntOr("head_dim", 128, kHeadDims))};
  step.qk_norm = shape.Flag("qk_norm");
  const DecodeStepModel& model = step.model;
  const std::vector<int64_t> contexts = shape.Ints("context", kContexts);
  for (const int64_t tokens : shape.Ints("tokens", {1, kMaxDecodeStepTokens})) {
    if (context.device) {
      if (!context.device->HasHopperCode()) return;  // the decoder runs a chain of kernels there
      const std::string refusal = DecodeStepRefusal(model, step.layout, tokens, *context.device);
      if (!refusal.empty()) shape.Fail(StrCat("decode_step does not take ", refusal));
    }
    step.ids = PickIndices(model.vocab_size, tokens, /*seed=*/1);
    if (static_cast<int64_t>(step.ids.size()) != tokens) {
      shape.Fail(StrCat("'vocab' is ", model.vocab_size, "; ", tokens, " tokens need as many"));
    }
    for (const int64_t length : contexts) {
      step.context = length;
      if (context.device &&
          DecodeStepParts(std::vector<int32_t>(step.ids.size(), DecodeStepTiles(length)),
                          step.layout, *context.device)
              .empty()) {
        shape.Fail(StrCat("'context' is ", length, ", which is too long for ", tokens,
                          " tokens of decode_step"));
      }
      CaseSpec& spec = cases.emplace_back();
      spec.shape = {{"name", shape.name()},
                    {"tokens", tokens},
                    {"context", length},
                    {"layers", model.num_layers},
                    {"hidden", model.hidden_size},
                    {"inner", model.intermediate_size},
                    {"hq", model.num_q_heads},
                    {"hk", step.layout.num_kv_heads},
                    {"head_dim", step.layout.head_dim},
                    {"vocab", model.vocab_size},
                    {"qk_norm", step.qk_norm},
                    {"append", false}};
      spec.variant = StrCat("tokens:", tokens, "/context:", length);
      spec.make = [step](const CaseContext& ctx) -> std::unique_ptr<BenchCase> {
        return std::make_unique<StepCase>(step, ctx);
      };
    }
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv,
      {.kernel = "decode_step", .families = {"step"}, .add_cases = tokline::bench::AddCases});
}
