// Recognizes tensors that older checkpoints store although they follow from the configuration.
#pragma once

#include <string_view>

#include "harness/models/checkpoint.h"

namespace tokline {

// Describes the tensor if our models compute the same without reading it: RoPE frequencies
// ("*.rotary_emb.inv_freq") and the causal masks of GPT-2 ("*.attn.bias" of shape [1, 1, n, n] and
// "*.attn.masked_bias" with one element). Returns an empty string for any other tensor. The shape
// is checked too, because a mask's name alone could also belong to a bias that must not be ignored.
std::string_view KnownBuffer(std::string_view name, const CheckpointTensor& tensor);

}  // namespace tokline
