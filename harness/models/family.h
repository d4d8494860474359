// The model families that can be decoded, as data: a further family is a further row.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tokline {

// Names of the weights in a checkpoint. Those of a layer follow layer_prefix, the layer's number
// and a dot; a bias is its matrix's name with ".bias" in place of ".weight".
struct WeightNames {
  std::string_view embedding;
  std::string_view final_norm;
  std::string_view lm_head;
  std::string_view layer_prefix;
  std::string_view input_norm;
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
};

struct Family {
  std::string_view name;
  std::string_view architecture;  // config.json's "architectures"
  bool qk_norm = false;
  WeightNames weights;
};

std::span<const Family> Families();

// Throws InvalidArgument, with the list of the known, for another name.
const Family& FamilyNamed(std::string_view name);

}  // namespace tokline
