// Holds the table of ops: their names and their order in a step.
#include "harness/engine/step_ops.h"

#include <algorithm>
#include <array>
#include <string>

#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr std::array kOps = {
    StepOp::kDecodeStep,      StepOp::kEmbedding, StepOp::kInputNorm,    StepOp::kQkv,
    StepOp::kHeadNorms,       StepOp::kKvAppend,  StepOp::kChunkDecode,  StepOp::kPagedPrefill,
    StepOp::kAttentionOutput, StepOp::kPostNorm,  StepOp::kGateUp,       StepOp::kUp,
    StepOp::kActivation,      StepOp::kDown,      StepOp::kAllReduce,    StepOp::kLastRows,
    StepOp::kFinalNorm,       StepOp::kLmHead,    StepOp::kGatherLogits, StepOp::kSampling};

}  // namespace

std::span<const StepOp> AllStepOps() { return kOps; }

std::string_view Name(StepOp op) {
  switch (op) {
    case StepOp::kDecodeStep:
      return "decode_step";
    case StepOp::kEmbedding:
      return "embedding";
    case StepOp::kInputNorm:
      return "input_norm";
    case StepOp::kQkv:
      return "qkv";
    case StepOp::kHeadNorms:
      return "head_norms";
    case StepOp::kKvAppend:
      return "kv_append";
    case StepOp::kChunkDecode:
      return "chunk_decode";
    case StepOp::kPagedPrefill:
      return "paged_prefill";
    case StepOp::kAttentionOutput:
      return "attention_output";
    case StepOp::kPostNorm:
      return "post_norm";
    case StepOp::kGateUp:
      return "gate_up";
    case StepOp::kUp:
      return "up";
    case StepOp::kActivation:
      return "activation";
    case StepOp::kDown:
      return "down";
    case StepOp::kAllReduce:
      return "all_reduce";
    case StepOp::kLastRows:
      return "last_rows";
    case StepOp::kFinalNorm:
      return "final_norm";
    case StepOp::kLmHead:
      return "lm_head";
    case StepOp::kGatherLogits:
      return "gather_logits";
    case StepOp::kSampling:
      return "sampling";
  }
  return "unknown";
}

OpChoice OpChoice::Of(const OpObserver& observer) {
  OpChoice choice{.wanted = {}, .prefetched = {}, .needs_chain = observer.NeedsChain()};
  for (const StepOp op : kOps) {
    if (observer.Wants(op)) choice.wanted.Add(op);
    if (observer.Prefetches(op)) choice.prefetched.Add(op);
  }
  return choice;
}

StepOp ParseStepOp(std::string_view name) {
  constexpr auto name_of = [](StepOp op) { return Name(op); };
  const auto found = std::ranges::find(kOps, name, name_of);
  if (found != kOps.end()) return *found;
  throw InvalidArgument(StrCat("unknown op '", name, "'; known are ", Joined(kOps, name_of)));
}

}  // namespace tokline
