// The table of supported model families. Fields that a row does not set have the defaults of
// family.h.
#include "harness/models/family.h"

#include <algorithm>
#include <iterator>

#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr std::string_view kModelPrefix[] = {"model."};
constexpr std::string_view kTransformerPrefix[] = {"transformer.", ""};
constexpr std::string_view kSilu[] = {"silu"};
constexpr std::string_view kGeluTanh[] = {"gelu_new", "gelu_pytorch_tanh"};
constexpr FixedFlag kGpt2Flags[] = {{"scale_attn_weights", true},
                                    {"scale_attn_by_inverse_layer_idx", false},
                                    {"reorder_and_upcast_attn", false},
                                    {"add_cross_attention", false}};

constexpr WeightNames kLlamaWeights = {.prefixes = kModelPrefix,
                                       .embedding = "embed_tokens.weight",
                                       .final_norm = "norm.weight",
                                       .lm_head = "lm_head.weight",
                                       .layer_prefix = "layers.",
                                       .input_norm = "input_layernorm.weight",
                                       .q = "self_attn.q_proj.weight",
                                       .k = "self_attn.k_proj.weight",
                                       .v = "self_attn.v_proj.weight",
                                       .o = "self_attn.o_proj.weight",
                                       .q_norm = "self_attn.q_norm.weight",
                                       .k_norm = "self_attn.k_norm.weight",
                                       .post_norm = "post_attention_layernorm.weight",
                                       .gate = "mlp.gate_proj.weight",
                                       .up = "mlp.up_proj.weight",
                                       .down = "mlp.down_proj.weight"};

constexpr Family kFamilies[] = {
    {.name = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .qk_norm = true,
     .qkv_bias = {.key = "attention_bias"},
     .output_bias = {.key = "attention_bias"},
     .activations = kSilu,
     .weights = kLlamaWeights},
    {.name = "llama",
     .architecture = "LlamaForCausalLM",
     .keys = {.kv_heads_optional = true},
     .default_rope_theta = 10000,
     .qkv_bias = {.key = "attention_bias"},
     .output_bias = {.key = "attention_bias"},
     .activations = kSilu,
     .mlp_bias = {.key = "mlp_bias"},
     .weights = kLlamaWeights},
    {.name = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .qkv_bias = {.always = true},
     .activations = kSilu,
     .weights = kLlamaWeights},
    {.name = "ernie4_5",
     .architecture = "Ernie4_5ForCausalLM",
     .rope_pairing = RopePairing::kInterleaved,
     .default_rope_theta = 500000,
     .qkv_bias = {.key = "use_bias"},
     .output_bias = {.key = "use_bias"},
     .activations = kSilu,
     .mlp_bias = {.key = "use_bias"},
     .tied_by_default = true,
     .weights = kLlamaWeights},
    {.name = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .keys = {.hidden_size = "n_embd",
              .intermediate_size = "n_inner",
              .intermediate_ratio = 4,
              .num_layers = "n_layer",
              .max_positions = "n_positions",
              .num_q_heads = "n_head",
              .num_kv_heads = nullptr,
              .norm_eps = "layer_norm_epsilon",
              .activation = "activation_function"},
     .norm = NormKind::kLayer,
     .position = PositionKind::kLearned,
     .qkv_bias = {.always = true},
     .output_bias = {.always = true},
     .mlp = ActivationKind::kGeluTanh,
     .activations = kGeluTanh,
     .mlp_bias = {.always = true},
     .tied_by_default = true,
     .default_dtype = DType::kF32,
     .fixed_flags = kGpt2Flags,
     .weights = {.prefixes = kTransformerPrefix,
                 .embedding = "wte.weight",
                 .positions = "wpe.weight",
                 .final_norm = "ln_f.weight",
                 .lm_head = "lm_head.weight",
                 .layer_prefix = "h.",
                 .input_norm = "ln_1.weight",
                 .qkv = "attn.c_attn.weight",
                 .o = "attn.c_proj.weight",
                 .post_norm = "ln_2.weight",
                 .up = "mlp.c_fc.weight",
                 .down = "mlp.c_proj.weight",
                 .inputs_first = true}},
};

}  // namespace

std::span<const Family> Families() { return kFamilies; }

const Family& FamilyNamed(std::string_view name) {
  const auto* const found = std::ranges::find(kFamilies, name, &Family::name);
  Require(found != std::end(kFamilies), "the model family is ", Quoted(name),
          "; supported: ", Joined(kFamilies, &Family::name));
  return *found;
}

}  // namespace tokline
