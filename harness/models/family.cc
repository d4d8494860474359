#include "harness/models/family.h"

#include "harness/models/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr Family kFamilies[] = {
    {.name = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .qk_norm = true,
     .weights = {.embedding = "model.embed_tokens.weight",
                 .final_norm = "model.norm.weight",
                 .lm_head = "lm_head.weight",
                 .layer_prefix = "model.layers.",
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
                 .down = "mlp.down_proj.weight"}},
};

}  // namespace

std::span<const Family> Families() { return kFamilies; }

const Family& FamilyNamed(std::string_view name) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.name == name) return family;
    known += StrCat(known.empty() ? "" : ", ", family.name);
  }
  throw InvalidArgument(StrCat("the model family is ", Quoted(name), "; supported: ", known));
}

}  // namespace tokline
