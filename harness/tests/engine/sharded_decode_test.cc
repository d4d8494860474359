// The ranks of a model, run one after another with the references and summed here, give the logits
// of the whole model.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <random>

#include "harness/engine/device_weights.h"
#include "harness/engine/rope_table.h"
#include "harness/models/sharding.h"
#include "harness/tests/engine/golden.h"
#include "kernels/common/chunk_table.h"

namespace tokline {
namespace {

using testing::Golden;
using testing::GoldenCase;
using testing::LoadedModel;
using testing::ReadGolden;
using testing::RelativeError;

using Floats = std::vector<float>;

constexpr int32_t kMostTokens = 64;
// The sums of the ranks and of the whole model differ in the order of fp32 additions. The K-norm
// weights of the committed checkpoints, up to 96.5, amplify that; the largest error seen is 3.9e-7.
constexpr double kMostError = 2e-6;

// Decodes one sequence with all ranks of a model.
class ShardedModel {
 public:
  ShardedModel(const ModelSpec& spec, const ModelWeights& weights, int32_t world_size)
      : spec_(spec), ops_(backend_->ops()) {
    if (spec.position == PositionKind::kRope) {
      rope_ = MakeRopeTable(kMostTokens, spec.head_dim, spec.rope_theta, spec.rope_scaling);
    }
    for (int32_t rank = 0; rank < world_size; ++rank) {
      const ShardPlan plan = PlanShard(spec, world_size, rank);
      ranks_.push_back(
          std::make_unique<Rank>(plan, ShardWeights(weights, plan), *backend_, kMostTokens));
    }
  }

  // Returns the logits after this token.
  Floats Step(int32_t token) {
    const int32_t position = length_++;
    Floats x = Sum([&](const Rank& rank, float* out) { Embed(rank, token, position, out); });
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
      Add(x, Sum([&](Rank& rank, float* out) { Attend(rank, layer, x, position, out); }));
      Add(x, Sum([&](Rank& rank, float* out) { Mlp(rank, layer, x, out); }));
    }
    Floats logits;
    for (const auto& rank : ranks_) {
      const DeviceWeights& weights = rank->weights;
      const Floats normed = Norm(x, weights.final_norm(), weights.final_norm_bias());
      const Floats part = Linear(normed, weights.lm_head(), nullptr, rank->plan.local.vocab_size);
      logits.insert(logits.end(), part.begin(), part.end());
    }
    return logits;
  }

 private:
  struct Rank {
    Rank(const ShardPlan& of, const ModelWeights& shard, Backend& backend, int32_t tokens)
        : plan(of),
          weights(plan.local, shard, DType::kF32, backend),
          layout{.num_pages = tokens / 16,
                 .num_kv_heads = plan.local.num_kv_heads,
                 .page_size = 16,
                 .head_dim = plan.local.head_dim},
          kv(static_cast<size_t>(plan.local.num_layers),
             Floats(static_cast<size_t>(layout.NumElements()))) {}

    ShardPlan plan;
    DeviceWeights weights;
    PagedKvLayout layout;
    std::vector<Floats> kv;
  };

  // The sum of what the ranks write, [hidden_size], in the order of the ranks.
  Floats Sum(const std::function<void(Rank&, float*)>& work) {
    Floats sum(static_cast<size_t>(spec_.hidden_size));
    for (const auto& rank : ranks_) {
      Floats partial(sum.size());
      work(*rank, partial.data());
      Add(sum, partial);
    }
    return sum;
  }

  static void Add(Floats& to, const Floats& values) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += values[i];
  }

  void Embed(const Rank& rank, int32_t token, int32_t position, float* out) const {
    const auto id = static_cast<int32_t>(token - rank.plan.vocabulary.begin);
    const DeviceWeights& weights = rank.weights;
    ops_.embedding({.dtype = DType::kF32,
                    .num_tokens = 1,
                    .vocab_size = rank.plan.local.vocab_size,
                    .hidden_size = spec_.hidden_size,
                    .token_ids = &id,
                    .table = weights.embedding(),
                    .num_positions = weights.positions() ? spec_.max_positions : 0,
                    .positions = &position,
                    .position_table = weights.positions(),
                    .out = out},
                   {});
  }

  void Attend(Rank& rank, int64_t index, const Floats& x, int32_t position, float* out) const {
    const ModelSpec& local = rank.plan.local;
    const DeviceLayerWeights& layer = rank.weights.layers()[static_cast<size_t>(index)];
    float* kv = rank.kv[static_cast<size_t>(index)].data();
    const Floats normed = Norm(x, layer.input_norm, layer.input_norm_bias);
    Floats qkv = Linear(normed, layer.qkv, layer.qkv_bias, local.QSize() + 2 * local.KvSize());
    const int64_t slot = position;
    ops_.kv_append({.dtype = DType::kF32,
                    .num_tokens = 1,
                    .num_q_heads = local.num_q_heads,
                    .layout = rank.layout,
                    .q_in = qkv.data(),
                    .q_out = qkv.data(),
                    .k = qkv.data() + local.QSize(),
                    .v = qkv.data() + local.QSize() + local.KvSize(),
                    .kv = kv,
                    .slots = &slot,
                    .q_norm_weight = layer.q_norm,
                    .k_norm_weight = layer.k_norm,
                    .norm_eps = spec_.norm_eps,
                    .positions = &position,
                    .rope_cos_sin = rope_.empty() ? nullptr : rope_.data(),
                    .rope_rows = rope_.empty() ? 0 : kMostTokens},
                   {});
    ChunkTable table;
    const std::vector<int32_t> pages{0, 1, 2, 3};
    table.AddSequence(std::vector{table.AddChunk(pages, position + 1)});
    Floats attention(static_cast<size_t>(local.QSize()));
    ops_.chunk_decode({.dtype = DType::kF32,
                       .num_q_heads = local.num_q_heads,
                       .scale = spec_.ScoreScale(),
                       .layout = rank.layout,
                       .table = table.View(),
                       .q = qkv.data(),
                       .q_stride = std::ssize(qkv),
                       .kv = kv,
                       .out = attention.data(),
                       .out_stride = local.QSize()},
                      {});
    Copy(Linear(attention, layer.o, layer.o_bias, spec_.hidden_size), out);
  }

  void Mlp(const Rank& rank, int64_t index, const Floats& x, float* out) const {
    const ModelSpec& local = rank.plan.local;
    const DeviceLayerWeights& layer = rank.weights.layers()[static_cast<size_t>(index)];
    const Floats normed = Norm(x, layer.post_norm, layer.post_norm_bias);
    const Floats up = Linear(normed, layer.up, layer.up_bias, local.UpRows());
    Floats inner(static_cast<size_t>(local.intermediate_size));
    ops_.activation({.kind = spec_.mlp,
                     .dtype = DType::kF32,
                     .num_tokens = 1,
                     .intermediate_size = local.intermediate_size,
                     .x = up.data(),
                     .x_stride = local.UpRows(),
                     .out = inner.data(),
                     .out_stride = local.intermediate_size},
                    {});
    Copy(Linear(inner, layer.down, layer.down_bias, spec_.hidden_size), out);
  }

  static void Copy(const Floats& from, float* to) { std::copy(from.begin(), from.end(), to); }

  Floats Norm(const Floats& x, const std::byte* weight, const std::byte* bias) const {
    Floats out(x.size());
    ops_.norm({.kind = spec_.norm,
               .dtype = DType::kF32,
               .num_tokens = 1,
               .hidden_size = std::ssize(x),
               .eps = spec_.norm_eps,
               .x = x.data(),
               .weight = weight,
               .bias = bias,
               .out = out.data()},
              {});
    return out;
  }

  Floats Linear(const Floats& x, const std::byte* weight, const std::byte* bias,
                int64_t outputs) const {
    Floats out(static_cast<size_t>(outputs));
    ops_.linear({.dtype = DType::kF32,
                 .num_tokens = 1,
                 .in_features = std::ssize(x),
                 .out_features = outputs,
                 .x = x.data(),
                 .x_stride = std::ssize(x),
                 .weight = weight,
                 .bias = bias,
                 .out = out.data(),
                 .out_stride = outputs},
                {});
    return out;
  }

  ModelSpec spec_;
  std::unique_ptr<Backend> backend_ = MakeHostBackend();
  const Ops& ops_;
  Floats rope_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  int32_t length_ = 0;
};

// The relative error of the ranks' logits against those of the decoder, along the same tokens.
double ErrorOf(const ModelSpec& spec, const ModelWeights& weights, int32_t world_size,
               const std::vector<int32_t>& prompt, const std::vector<int32_t>& tokens) {
  Decoder decoder(spec, weights, {.dtype = DType::kF32, .max_context = kMostTokens});
  GenerateOptions options;
  options.max_new_tokens = std::ssize(tokens);
  options.force_ids = tokens;
  options.want_logits = true;
  const GenerateResult whole = Generate(decoder, prompt, options);

  ShardedModel sharded(spec, weights, world_size);
  Floats logits;
  for (const int32_t token : prompt) logits = sharded.Step(token);
  RelativeError error;
  for (size_t i = 0; i < tokens.size(); ++i) {
    error.Add(logits, whole.logits.at(i));
    logits = sharded.Step(tokens[i]);
  }
  return error.Value();
}

class ShardedCheckpointTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ShardedCheckpointTest, EveryNumberOfRanksGivesTheLogitsOfTheWholeModel) {
  const Golden golden = ReadGolden(GetParam());
  const LoadedModel model(golden.checkpoint);
  const GoldenCase& one = golden.cases.at(1);
  const std::vector<int32_t> tokens(one.tokens.begin(), one.tokens.begin() + 6);
  for (const int32_t world_size : AllowedWorldSizes(model.spec)) {
    const double error = ErrorOf(model.spec, model.weights, world_size, one.prompt, tokens);
    EXPECT_LE(error, kMostError) << world_size << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, ShardedCheckpointTest,
                         ::testing::ValuesIn(testing::GoldenNames()),
                         [](const auto& info) { return info.param; });

// A model with 8 query heads and random weights in fp32.
class DrawnModel {
 public:
  explicit DrawnModel(const ModelSpec& model) : spec(model) {
    const int64_t hidden = spec.hidden_size, inner = spec.intermediate_size;
    const int64_t q = spec.QSize(), kv = spec.KvSize();
    const bool layer_norm = spec.norm == NormKind::kLayer;
    weights.embedding = Matrix(spec.vocab_size, hidden);
    if (spec.position == PositionKind::kLearned) {
      weights.positions = Matrix(spec.max_positions, hidden);
    }
    weights.final_norm = Vector(true, hidden);
    weights.final_norm_bias = Vector(layer_norm, hidden);
    weights.lm_head = spec.tied_embeddings ? weights.embedding : Matrix(spec.vocab_size, hidden);
    for (int64_t i = 0; i < spec.num_layers; ++i) {
      LayerWeights& layer = weights.layers.emplace_back();
      layer.input_norm = Vector(true, hidden);
      layer.input_norm_bias = Vector(layer_norm, hidden);
      layer.q = Matrix(q, hidden);
      layer.k = Matrix(kv, hidden);
      layer.v = Matrix(kv, hidden);
      layer.o = Matrix(hidden, q);
      layer.q_bias = Vector(spec.qkv_bias, q);
      layer.k_bias = Vector(spec.qkv_bias, kv);
      layer.v_bias = Vector(spec.qkv_bias, kv);
      layer.o_bias = Vector(spec.output_bias, hidden);
      layer.q_norm = Vector(spec.qk_norm, spec.head_dim);
      layer.k_norm = Vector(spec.qk_norm, spec.head_dim);
      layer.post_norm = Vector(true, hidden);
      layer.post_norm_bias = Vector(layer_norm, hidden);
      const bool gated = spec.mlp == ActivationKind::kGatedSilu;
      if (gated) layer.gate = Matrix(inner, hidden);
      layer.up = Matrix(inner, hidden);
      layer.down = Matrix(hidden, inner);
      layer.gate_bias = Vector(gated && spec.mlp_bias, inner);
      layer.up_bias = Vector(spec.mlp_bias, inner);
      layer.down_bias = Vector(spec.mlp_bias, hidden);
    }
  }

  ModelSpec spec;
  ModelWeights weights;

 private:
  Floats& Draw(int64_t count, double scale) {
    Floats& values = storage_.emplace_back(static_cast<size_t>(count));
    std::normal_distribution<double> normal(0, scale);
    for (float& value : values) value = static_cast<float>(normal(random_));
    return values;
  }
  // GPT-2 stores matrices transposed.
  TensorView Matrix(int64_t rows, int64_t columns) {
    const bool transposed = spec.family == "gpt2";
    return {.dtype = DType::kF32,
            .shape = {rows, columns},
            .data = Draw(rows * columns, 1 / std::sqrt(static_cast<double>(columns))).data(),
            .bytes = rows * columns * int64_t{sizeof(float)},
            .row_stride = transposed ? 1 : columns,
            .column_stride = transposed ? rows : 1};
  }
  TensorView Vector(bool there, int64_t size) {
    if (!there) return {};
    return {.dtype = DType::kF32,
            .shape = {size},
            .data = Draw(size, 1).data(),
            .bytes = size * int64_t{sizeof(float)},
            .row_stride = 1,
            .column_stride = 1};
  }

  std::mt19937_64 random_{7};
  std::deque<Floats> storage_;
};

// Neither the 13 units of the MLP nor the 26 of the vocabulary divide evenly among 4 or 8 ranks.
ModelSpec SmallShape(const std::string& family, int32_t kv_heads) {
  return {.family = family,
          .hidden_size = 48,
          .intermediate_size = 104,
          .num_layers = 2,
          .vocab_size = 203,
          .max_positions = 64,
          .num_q_heads = 8,
          .num_kv_heads = kv_heads,
          .head_dim = 64,
          .norm_eps = 1e-5f,
          .rope_theta = 10000};
}

std::vector<ModelSpec> FamilyShapes() {
  ModelSpec qwen3 = SmallShape("qwen3", 8), llama = SmallShape("llama", 4),
            qwen2 = SmallShape("qwen2", 2), ernie = SmallShape("ernie4_5", 1),
            gpt2 = SmallShape("gpt2", 8);
  qwen3.qk_norm = qwen3.tied_embeddings = true;
  llama.qkv_bias = llama.output_bias = llama.mlp_bias = true;
  qwen2.qkv_bias = true;
  ernie.rope_pairing = RopePairing::kInterleaved;
  ernie.tied_embeddings = true;
  gpt2.norm = NormKind::kLayer;
  gpt2.position = PositionKind::kLearned;
  gpt2.rope_theta = 0;
  gpt2.mlp = ActivationKind::kGeluTanh;
  gpt2.qkv_bias = gpt2.output_bias = gpt2.mlp_bias = gpt2.tied_embeddings = true;
  return {qwen3, llama, qwen2, ernie, gpt2};
}

TEST(ShardedDecodeTest, OneToEightRanksOfEveryFamilyGiveTheLogitsOfTheWholeModel) {
  const std::vector<int32_t> prompt{202, 7, 0, 100, 151}, tokens{3, 198, 50};
  for (const ModelSpec& spec : FamilyShapes()) {
    const DrawnModel model(spec);
    for (const int32_t world_size : {1, 2, 4, 8}) {
      EXPECT_LE(ErrorOf(spec, model.weights, world_size, prompt, tokens), kMostError)
          << spec.family << ", " << world_size << " ranks";
    }
  }
}

}  // namespace
}  // namespace tokline
