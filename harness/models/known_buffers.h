// Tensors that older checkpoints store although they follow from the configuration.
#pragma once

#include <string_view>

#include "harness/models/checkpoint.h"

namespace tokline {

// What the tensor is, in words, if a model of ours computes without reading it: RoPE frequencies
// ("*.rotary_emb.inv_freq") and the causal masks of GPT-2 ("*.attn.bias" as [1, 1, n, n] and
// "*.attn.masked_bias" of one element). Else empty. The shape decides too: a mask's name alone
// could be that of a bias which must not be ignored.
std::string_view KnownBuffer(std::string_view name, const CheckpointTensor& tensor);

}  // namespace tokline
