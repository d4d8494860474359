// Holds the table of how each tensor is divided, and cuts a rank's views out of whole weights.
#include "harness/models/sharding.h"

#include <algorithm>
#include <string>

#include "harness/platform/printable.h"
#include "kernels/common/error.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

// Kernels need rows of a multiple of 8 elements (16 bytes) as inputs of a projection.
constexpr int64_t kUnit = 8;

constexpr TensorSharding kWhole{ShardedBy::kNothing, ShardAxis::kRows};
constexpr TensorSharding kOnce{ShardedBy::kFirstRank, ShardAxis::kRows};
constexpr TensorSharding kQRows{ShardedBy::kQHeads, ShardAxis::kRows};
constexpr TensorSharding kKvRows{ShardedBy::kKvHeads, ShardAxis::kRows};
constexpr TensorSharding kQColumns{ShardedBy::kQHeads, ShardAxis::kColumns};
constexpr TensorSharding kInnerRows{ShardedBy::kIntermediate, ShardAxis::kRows};
constexpr TensorSharding kInnerColumns{ShardedBy::kIntermediate, ShardAxis::kColumns};
constexpr TensorSharding kVocabularyRows{ShardedBy::kVocabulary, ShardAxis::kRows};

constexpr LayerTensorSharding kLayerShardings[] = {
    {"input_norm", &LayerWeights::input_norm, kWhole},
    {"input_norm_bias", &LayerWeights::input_norm_bias, kWhole},
    {"q", &LayerWeights::q, kQRows},
    {"k", &LayerWeights::k, kKvRows},
    {"v", &LayerWeights::v, kKvRows},
    {"o", &LayerWeights::o, kQColumns},
    {"q_bias", &LayerWeights::q_bias, kQRows},
    {"k_bias", &LayerWeights::k_bias, kKvRows},
    {"v_bias", &LayerWeights::v_bias, kKvRows},
    {"o_bias", &LayerWeights::o_bias, kOnce},
    {"q_norm", &LayerWeights::q_norm, kWhole},
    {"k_norm", &LayerWeights::k_norm, kWhole},
    {"post_norm", &LayerWeights::post_norm, kWhole},
    {"post_norm_bias", &LayerWeights::post_norm_bias, kWhole},
    {"gate", &LayerWeights::gate, kInnerRows},
    {"up", &LayerWeights::up, kInnerRows},
    {"down", &LayerWeights::down, kInnerColumns},
    {"gate_bias", &LayerWeights::gate_bias, kInnerRows},
    {"up_bias", &LayerWeights::up_bias, kInnerRows},
    {"down_bias", &LayerWeights::down_bias, kOnce},
};

// A token's position row is added by one rank, where the token's embedding is looked up.
constexpr ModelTensorSharding kModelShardings[] = {
    {"embedding", &ModelWeights::embedding, kVocabularyRows},
    {"positions", &ModelWeights::positions, kWhole},
    {"final_norm", &ModelWeights::final_norm, kWhole},
    {"final_norm_bias", &ModelWeights::final_norm_bias, kWhole},
    {"lm_head", &ModelWeights::lm_head, kVocabularyRows},
};

bool HeadsDivide(const ModelSpec& spec, int32_t world_size) {
  return spec.num_q_heads % world_size == 0 &&
         (spec.num_kv_heads % world_size == 0 || world_size % spec.num_kv_heads == 0);
}

bool IsAllowed(const ModelSpec& spec, int32_t world_size) {
  return HeadsDivide(spec, world_size) && spec.intermediate_size >= kUnit * world_size &&
         spec.vocab_size >= kUnit * world_size;
}

// The rank's part of `size` elements. Parts differ by at most one unit.
ShardRange PartOf(int64_t size, int64_t unit, int32_t world_size, int32_t rank) {
  const int64_t units = DivideUp(size, unit);
  const auto begin = [&](int64_t of) { return std::min(size, units * of / world_size * unit); };
  return {begin(rank), begin(rank + 1) - begin(rank)};
}

ShardRange Times(ShardRange range, int64_t factor) {
  return {range.begin * factor, range.count * factor};
}

TensorView ShardView(const TensorView& whole, const TensorSharding& sharding,
                     const ModelShard& model) {
  if (whole.data == nullptr) return whole;
  const TensorShard shard = ShardOf(model, sharding, whole.Rows(), whole.Columns());
  if (shard.rows.count == 0) return {};
  TensorView part = whole;
  part.data = static_cast<const std::byte*>(whole.data) +
              (shard.rows.begin * whole.row_stride + shard.columns.begin * whole.column_stride) *
                  SizeOf(whole.dtype);
  part.shape[0] = shard.rows.count;
  if (part.shape.size() == 2) part.shape[1] = shard.columns.count;
  part.bytes = shard.rows.count * shard.columns.count * SizeOf(whole.dtype);
  return part;
}

}  // namespace

std::vector<int32_t> AllowedWorldSizes(const ModelSpec& spec) {
  std::vector<int32_t> allowed;
  for (int32_t size = 1; size <= spec.num_q_heads; ++size) {
    if (size == 1 || IsAllowed(spec, size)) allowed.push_back(size);
  }
  return allowed;
}

ModelShard ShardModel(const ModelSpec& spec, int32_t world_size, int32_t rank) {
  const std::vector<int32_t> allowed = AllowedWorldSizes(spec);
  Require(std::ranges::find(allowed, world_size) != allowed.end(), "a model of ", spec.num_q_heads,
          " query heads, ", spec.num_kv_heads, " KV heads, ", spec.intermediate_size,
          " neurons in an MLP and ", spec.vocab_size, " tokens cannot be divided among ",
          world_size,
          " ranks; allowed: ", Joined(allowed, [](int32_t size) { return std::to_string(size); }));
  Require(rank >= 0 && rank < world_size, "rank is ", rank, "; it must be 0 to ", world_size - 1);
  ModelShard model{.world_size = world_size, .rank = rank, .whole = spec, .local = spec};
  model.q_heads = PartOf(spec.num_q_heads, 1, world_size, rank);
  if (spec.num_kv_heads >= world_size) {
    model.kv_heads = PartOf(spec.num_kv_heads, 1, world_size, rank);
  } else {
    model.kv_heads = {rank / (world_size / spec.num_kv_heads), 1};
  }
  model.intermediate = PartOf(spec.intermediate_size, kUnit, world_size, rank);
  model.vocabulary = PartOf(spec.vocab_size, kUnit, world_size, rank);
  model.local.num_q_heads = static_cast<int32_t>(model.q_heads.count);
  model.local.num_kv_heads = static_cast<int32_t>(model.kv_heads.count);
  model.local.intermediate_size = model.intermediate.count;
  model.local.vocab_size = model.vocabulary.count;
  return model;
}

std::span<const LayerTensorSharding> LayerShardings() { return kLayerShardings; }
std::span<const ModelTensorSharding> ModelShardings() { return kModelShardings; }

TensorSharding ShardingOf(TensorView LayerWeights::*tensor) {
  return std::ranges::find(kLayerShardings, tensor, &LayerTensorSharding::tensor)->sharding;
}
TensorSharding ShardingOf(TensorView ModelWeights::*tensor) {
  return std::ranges::find(kModelShardings, tensor, &ModelTensorSharding::tensor)->sharding;
}

TensorShard ShardOf(const ModelShard& model, const TensorSharding& sharding, int64_t rows,
                    int64_t columns) {
  TensorShard shard{.rows = {0, rows}, .columns = {0, columns}};
  ShardRange& divided = sharding.axis == ShardAxis::kRows ? shard.rows : shard.columns;
  switch (sharding.by) {
    case ShardedBy::kNothing:
      break;
    case ShardedBy::kFirstRank:
      if (model.rank != 0) divided.count = 0;
      break;
    case ShardedBy::kQHeads:
      divided = Times(model.q_heads, model.local.head_dim);
      break;
    case ShardedBy::kKvHeads:
      divided = Times(model.kv_heads, model.local.head_dim);
      break;
    case ShardedBy::kIntermediate:
      divided = model.intermediate;
      break;
    case ShardedBy::kVocabulary:
      divided = model.vocabulary;
      break;
  }
  return shard;
}

ModelWeights ShardWeights(const ModelWeights& weights, const ModelShard& model) {
  Require(!weights.random_seed, "random weights have no tensors that could be divided");
  ModelWeights part = weights;
  part.bytes = part.parameters = 0;
  const auto count = [&](const TensorView& tensor) {
    part.bytes += tensor.bytes;
    part.parameters += tensor.bytes / SizeOf(tensor.dtype);
  };
  for (const ModelTensorSharding& of : kModelShardings) {
    TensorView& tensor = part.*of.tensor;
    tensor = ShardView(tensor, of.sharding, model);
    if (of.tensor != &ModelWeights::lm_head || !model.local.tied_embeddings) count(tensor);
  }
  for (LayerWeights& layer : part.layers) {
    for (const LayerTensorSharding& of : kLayerShardings) {
      TensorView& tensor = layer.*of.tensor;
      tensor = ShardView(tensor, of.sharding, model);
      count(tensor);
    }
  }
  return part;
}

}  // namespace tokline
