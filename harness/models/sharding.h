// How a model is divided among the ranks of a tensor-parallel group, as data. Nothing here depends
// on a device or a way to communicate.
//
// Each rank runs a smaller model of the same kind, ModelShard::local. Projections into heads and
// into the MLP are divided by their outputs (rows), projections back into the residual stream by
// their inputs (columns), so that a layer needs two sums over the ranks: one after the attention
// output and one after the MLP. The embedding and the LM head are divided by the vocabulary: a rank
// looks up zeros for tokens of other ranks, and the rows are summed; logits are concatenated.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "harness/models/model_spec.h"
#include "harness/models/model_weights.h"

namespace tokline {

// Indices [begin, begin + count).
struct ShardRange {
  int64_t begin = 0;
  int64_t count = 0;

  int64_t End() const { return begin + count; }
  bool operator==(const ShardRange&) const = default;
};

// The part of a model that one rank holds.
struct ModelShard {
  int32_t world_size = 1;
  int32_t rank = 0;
  ShardRange q_heads = {};
  // Whole heads. With more ranks than heads, world_size / num_kv_heads neighbouring ranks hold the
  // same one.
  ShardRange kv_heads = {};
  ShardRange intermediate = {};  // neurons of the MLP, in units of 8
  ShardRange vocabulary = {};    // token ids, in units of 8 except at the end
  ModelSpec whole = {};
  ModelSpec local = {};  // the model that this rank runs
};

// Throws InvalidArgument, which lists the numbers of ranks that are allowed, if the heads cannot be
// divided among `world_size` ranks or a rank would get no part of the MLP or of the vocabulary. It
// also throws if the rank is not in [0, world_size).
ModelShard ShardModel(const ModelSpec& spec, int32_t world_size, int32_t rank);

// All numbers of ranks among which the model can be divided, ascending; the first is 1.
std::vector<int32_t> AllowedWorldSizes(const ModelSpec& spec);

// The quantity by which the rows or columns of a tensor are divided.
enum class ShardedBy : uint8_t {
  kNothing,    // every rank holds the whole tensor
  kFirstRank,  // rank 0 holds the whole tensor and the others nothing: it is added to a sum once
  kQHeads,
  kKvHeads,
  kIntermediate,
  kVocabulary,
};

enum class ShardAxis : uint8_t { kRows, kColumns };

struct TensorSharding {
  ShardedBy by = ShardedBy::kNothing;
  ShardAxis axis = ShardAxis::kRows;
};

struct LayerTensorSharding {
  std::string_view name;
  TensorView LayerWeights::*tensor;
  TensorSharding sharding;
};

struct ModelTensorSharding {
  std::string_view name;
  TensorView ModelWeights::*tensor;
  TensorSharding sharding;
};

// Every tensor of a layer, and every tensor outside the layers.
std::span<const LayerTensorSharding> LayerShardings();
std::span<const ModelTensorSharding> ModelShardings();

// Returns how a tensor is divided.
TensorSharding ShardingOf(TensorView LayerWeights::*tensor);
TensorSharding ShardingOf(TensorView ModelWeights::*tensor);

struct TensorShard {
  ShardRange rows;
  ShardRange columns;
};

// The rows and columns of a whole tensor of `rows` x `columns` elements that the rank holds.
TensorShard ShardOf(const ModelShard& model, const TensorSharding& sharding, int64_t rows,
                    int64_t columns);

// The rank's weights as views into the same memory: nothing is copied. Reading them touches only
// the bytes of the rank. A tensor that the rank does not hold is null; DeviceWeights leaves zeros
// in its place. Throws InvalidArgument for random weights, which have no tensors.
ModelWeights ShardWeights(const ModelWeights& weights, const ModelShard& model);

}  // namespace tokline
