// The supported model families, as data: adding a family means adding a row.
// docs/adding_a_family.md walks through an example.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "harness/models/model_spec.h"
#include "kernels/common/dtype.h"

namespace tokline {

// The keys under which a family's config.json stores the values that every family has.
struct ConfigKeys {
  const char* hidden_size = "hidden_size";
  const char* intermediate_size = "intermediate_size";
  int intermediate_ratio = 0;  // intermediate size / hidden size if the key is missing; 0: the key
                               // is required
  const char* num_layers = "num_hidden_layers";
  const char* max_positions = "max_position_embeddings";
  const char* num_q_heads = "num_attention_heads";
  const char* num_kv_heads = "num_key_value_heads";  // null: equals the number of query heads
  bool kv_heads_optional = false;                    // if missing, equals the number of query heads
  const char* norm_eps = "rms_norm_eps";
  const char* activation = "hidden_act";
};

// Whether a group of projections has biases: always, as the flag `key` of config.json says, or
// never.
struct BiasRule {
  bool always = false;
  const char* key = nullptr;
};

// A flag of config.json and its only supported value, which is also its default.
struct FixedFlag {
  const char* key = nullptr;
  bool value = false;
};

// Names of the weights in a checkpoint. Every name except lm_head follows a prefix; the names in a
// layer follow the prefix, layer_prefix, the layer's number and a dot. A bias is named after its
// matrix or norm, with ".bias" in place of ".weight". An empty name means that the family has no
// such weight.
struct WeightNames {
  std::span<const std::string_view> prefixes;  // tried in this order
  std::string_view embedding;
  std::string_view positions;  // learned position embeddings
  std::string_view final_norm;
  std::string_view lm_head;
  std::string_view layer_prefix;
  std::string_view input_norm;
  std::string_view qkv;  // Q, K and V in one matrix; if empty, q, k and v are used
  std::string_view q;
  std::string_view k;
  std::string_view v;
  std::string_view o;
  std::string_view q_norm;
  std::string_view k_norm;
  std::string_view post_norm;
  std::string_view gate;
  std::string_view up;
  std::string_view down;
  bool inputs_first = false;  // whether a layer's matrices are stored as [inputs, outputs]
};

struct Family {
  std::string_view name;
  std::string_view architecture;  // as listed in "architectures" of config.json
  ConfigKeys keys;
  NormKind norm = NormKind::kRms;
  PositionKind position = PositionKind::kRope;
  RopePairing rope_pairing = RopePairing::kHalf;
  std::optional<double> default_rope_theta;
  bool qk_norm = false;
  BiasRule qkv_bias;
  BiasRule output_bias;
  ActivationKind mlp = ActivationKind::kGatedSilu;
  std::span<const std::string_view> activations;  // names of the supported activation
  BiasRule mlp_bias;
  bool tied_by_default = false;
  std::optional<DType> default_dtype;  // used if config.json names no dtype
  std::span<const FixedFlag> fixed_flags;
  WeightNames weights;
};

std::span<const Family> Families();

// Throws InvalidArgument, which lists the known families, if there is no family of this name.
const Family& FamilyNamed(std::string_view name);

}  // namespace tokline
