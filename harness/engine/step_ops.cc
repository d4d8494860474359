// Holds the table of ops: their names and their order in a step.
#include "harness/engine/step_ops.h"

#include <algorithm>
#include <array>
#include <string>

#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

struct NamedOp {
  StepOp op;
  std::string_view name;
};

// In the order of the enum.
constexpr NamedOp kNamedOps[] = {
    {StepOp::kDecodeStep, "decode_step"},
    {StepOp::kEmbedding, "embedding"},
    {StepOp::kInputNorm, "input_norm"},
    {StepOp::kQkv, "qkv"},
    {StepOp::kHeadNorms, "head_norms"},
    {StepOp::kKvAppend, "kv_append"},
    {StepOp::kChunkDecode, "chunk_decode"},
    {StepOp::kPagedPrefill, "paged_prefill"},
    {StepOp::kAttentionOutput, "attention_output"},
    {StepOp::kPostNorm, "post_norm"},
    {StepOp::kGateUp, "gate_up"},
    {StepOp::kUp, "up"},
    {StepOp::kActivation, "activation"},
    {StepOp::kDown, "down"},
    {StepOp::kAllReduce, "all_reduce"},
    {StepOp::kLastRows, "last_rows"},
    {StepOp::kFinalNorm, "final_norm"},
    {StepOp::kLmHead, "lm_head"},
    {StepOp::kGatherLogits, "gather_logits"},
    {StepOp::kSampling, "sampling"},
};
constexpr auto kOps = [] {
  std::array<StepOp, std::size(kNamedOps)> ops{};
  for (size_t i = 0; i < ops.size(); ++i) ops[i] = kNamedOps[i].op;
  return ops;
}();
static_assert(std::ranges::is_sorted(kOps) &&
              kOps.size() == size_t{1} + static_cast<size_t>(kOps.back()));

}  // namespace

std::span<const StepOp> AllStepOps() { return kOps; }

std::string_view Name(StepOp op) { return kNamedOps[static_cast<size_t>(op)].name; }

OpChoice OpChoice::Of(const OpObserver& observer) {
  OpChoice choice{.wanted = {}, .prefetched = {}, .needs_chain = observer.NeedsChain()};
  for (const StepOp op : kOps) {
    if (observer.Wants(op)) choice.wanted.Add(op);
    if (observer.Prefetches(op)) choice.prefetched.Add(op);
  }
  return choice;
}

StepOp ParseStepOp(std::string_view name) {
  const auto found = std::ranges::find(kOps, name, [](StepOp op) { return Name(op); });
  if (found != kOps.end()) return *found;
  throw InvalidArgument(
      StrCat("unknown op '", name, "'; known are ", Joined(kNamedOps, &NamedOp::name)));
}

}  // namespace tokline
