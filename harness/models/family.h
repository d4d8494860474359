// The model families that can be decoded, as data: a further family is a further row.
// docs/adding_a_family.md shows one being added.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "harness/models/model_spec.h"
#include "kernels/common/dtype.h"

namespace tokline {

// How config.json calls what every family has.
struct ConfigKeys {
  const char* hidden_size = "hidden_size";
  const char* intermediate_size = "intermediate_size";
  int intermediate_ratio = 0;  // to the hidden size where the key is missing; 0: it must be there
  const char* num_layers = "num_hidden_layers";
  const char* max_positions = "max_position_embeddings";
  const char* num_q_heads = "num_attention_heads";
  const char* num_kv_heads = "num_key_value_heads";  // null: as many as query heads
  bool kv_heads_optional = false;                    // where missing: as many as query heads
  const char* norm_eps = "rms_norm_eps";
  const char* activation = "hidden_act";
};

// Whether some projections have biases: always, as a flag of config.json says, or never.
struct BiasRule {
  bool always = false;
  const char* key = nullptr;
};

// A flag of config.json with the only value that is supported, which is also its default.
struct FixedFlag {
  const char* key = nullptr;
  bool value = false;
};

// Names of the weights in a checkpoint. All but lm_head follow a prefix; those of a layer follow
// the prefix, layer_prefix, the layer's number and a dot. A bias is its matrix's or norm's name
// with ".bias" in place of ".weight". An empty name: the family has no such weight.
struct WeightNames {
  std::span<const std::string_view> prefixes;  // tried in this order
  std::string_view embedding;
  std::string_view positions;  // learned positions
  std::string_view final_norm;
  std::string_view lm_head;
  std::string_view layer_prefix;
  std::string_view input_norm;
  std::string_view qkv;  // Q, K and V in one matrix; else q, k and v
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
  bool inputs_first = false;  // matrices of a layer are [inputs, outputs]
};

struct Family {
  std::string_view name;
  std::string_view architecture;  // config.json's "architectures"
  ConfigKeys keys;
  NormKind norm = NormKind::kRms;
  PositionKind position = PositionKind::kRope;
  RopePairing rope_pairing = RopePairing::kHalf;
  std::optional<double> default_rope_theta;
  bool qk_norm = false;
  BiasRule qkv_bias;
  BiasRule output_bias;
  MlpKind mlp = MlpKind::kGatedSilu;
  std::span<const std::string_view> activations;  // as config.json may call the MLP's
  BiasRule mlp_bias;
  bool tied_by_default = false;
  std::optional<DType> default_dtype;  // where config.json says nothing
  std::span<const FixedFlag> fixed_flags;
  WeightNames weights;
};

std::span<const Family> Families();

// Throws InvalidArgument, with the list of the known, for another name.
const Family& FamilyNamed(std::string_view name);

}  // namespace tokline
