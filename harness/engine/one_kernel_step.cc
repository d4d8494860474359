// Decides which steps run as one kernel, and fills in the params of decode_step for them.
#include "harness/engine/one_kernel_step.h"

#include "kernels/common/error.h"

namespace tokline {

DecodeStepModel StepModelOf(const ModelSpec& spec, DType dtype, const DeviceWeights* weights) {
  DecodeStepModel model{.dtype = dtype,
                        .num_layers = static_cast<int32_t>(spec.num_layers),
                        .num_q_heads = spec.num_q_heads,
                        .vocab_size = spec.vocab_size,
                        .hidden_size = spec.hidden_size,
                        .intermediate_size = spec.intermediate_size,
                        .norm_eps = spec.norm_eps,
                        .scale = spec.ScoreScale()};
  if (weights == nullptr) return model;
  const DeviceLayerWeights& layer = weights->layers()[0];
  model.embedding = weights->embedding();
  model.final_norm = weights->final_norm();
  model.lm_head = weights->lm_head();
  model.layer_stride_bytes = weights->LayerStrideBytes();
  model.input_norm = layer.input_norm;
  model.qkv = layer.qkv;
  model.qkv_bias = layer.qkv_bias;
  model.q_norm = layer.q_norm;
  model.k_norm = layer.k_norm;
  model.o = layer.o;
  model.post_norm = layer.post_norm;
  model.gate_up = layer.up;
  model.down = layer.down;
  return model;
}

std::string OneKernelRefusal(const ModelSpec& spec, const DecoderConfig& config, int64_t tokens) {
  if (!config.OnDevice()) return "the CPU has no kernels";
  if (config.Divided()) return StrCat("a model divided among ", config.options.ranks, " ranks");
  for (const AblationEntry& entry : AllAblations()) {
    if (config.Ablates(entry.ablation) && NeedsChain(entry.ablation)) {
      return StrCat("ablation ", entry.name);
    }
  }
  if (config.options.delayed && config.options.delayed->op != StepOp::kDecodeStep &&
      config.options.delayed->op != StepOp::kSampling) {
    return StrCat("a delay of ", Name(config.options.delayed->op));
  }
  if (config.AlwaysSharesReads()) return "shared contexts are always read once";
  if (spec.norm != NormKind::kRms) return "LayerNorm; it takes RMSNorm";
  if (spec.mlp != ActivationKind::kGatedSilu) return "an MLP without a gate";
  if (spec.position != PositionKind::kRope) return "learned positions; it takes RoPE";
  if (spec.output_bias || spec.mlp_bias) return "biases of the output projection or the MLP";
  std::string refusal = DecodeStepRefusal(StepModelOf(spec, config.options.dtype, nullptr),
                                          config.layout, tokens, config.facts);
  if (!refusal.empty()) return refusal;
  // If attention is a large part of the work, a chain is faster from three tokens on
  // (docs/decode_step.md).
  constexpr int64_t kAnyKvTokens = 2, kMostKvFeatures = 512;
  const int64_t kv_features = int64_t{spec.num_kv_heads} * spec.head_dim;
  if (tokens > kAnyKvTokens && kv_features > kMostKvFeatures) {
    return StrCat("a chain is quicker for ", tokens, " tokens of ", kv_features,
                  " features of K; one kernel takes more than ", kAnyKvTokens, " up to ",
                  kMostKvFeatures);
  }
  return "";
}

std::string StepPathText(const ModelSpec& spec, const DecoderConfig& config) {
  if (!config.OnDevice()) return "references, one op at a time";
  if (config.facts.sm_count == 0) return "unknown without a CUDA device";
  std::string text = "a chain of kernels";
  if (config.one_kernel_rows > 0) {
    text = StrCat("one kernel up to batch ", config.one_kernel_rows);
    if (config.RunsAsOneKernel(config.options.max_batch)) return text;
    text += ", a chain of kernels beyond";
  }
  for (const int32_t bucket : config.buckets) {
    if (config.RunsAsOneKernel(bucket)) continue;
    return StrCat(text, " (", OneKernelRefusal(spec, config, bucket), ")");
  }
  return text;
}

}  // namespace tokline
