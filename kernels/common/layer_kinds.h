// The kinds of layers that models consist of and kernels compute.
#pragma once

#include <cstdint>
#include <string_view>

namespace tokline {

enum class NormKind : uint8_t {
  kRms,    // optionally after adding a residual
  kLayer,  // subtracts the mean and adds a bias
};
enum class ActivationKind : uint8_t {
  kGatedSilu,  // silu(gate) * up
  kGeluTanh,   // the tanh form of GELU
};

constexpr std::string_view Name(NormKind kind) {
  return kind == NormKind::kRms ? "rmsnorm" : "layernorm";
}
constexpr std::string_view Name(ActivationKind kind) {
  return kind == ActivationKind::kGatedSilu ? "gated_silu" : "gelu_tanh";
}

}  // namespace tokline
