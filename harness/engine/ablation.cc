// Holds the table of ablations: their names, what each swaps, and on which devices it works.
#include "harness/engine/ablation.h"

#include <algorithm>
#include <array>
#include <string>

#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using enum StepOp;

constexpr std::array kAblations = {
    AblationEntry{Ablation::kGraphs, "graphs", "plain launches of every kernel", {}},
    AblationEntry{Ablation::kPdl, "pdl", "launches that wait for their predecessor to end", {}},
    AblationEntry{Ablation::kSkinny,
                  "skinny",
                  "RMSNorm, cuBLASLt and small kernels at any batch",
                  {kQkv, kAttentionOutput, kGateUp, kUp, kDown, kLmHead}},
    AblationEntry{Ablation::kRmsNormQkv,
                  "rmsnorm_qkv",
                  "norm, then linear, then kv_append",
                  {kInputNorm, kQkv, kKvAppend}},
    AblationEntry{Ablation::kKvAppend,
                  "kv_append",
                  "QK-norm by norm, one launch per head, then kv_append for RoPE and the store",
                  {kQkv, kHeadNorms, kKvAppend}},
    AblationEntry{Ablation::kChunkDecode,
                  "chunk_decode",
                  "paged_prefill with one new token a sequence",
                  {StepOp::kChunkDecode, StepOp::kPagedPrefill}},
    AblationEntry{Ablation::kPagedPrefill,
                  "paged_prefill",
                  "chunk_decode with every new token as a sequence of its own",
                  {}},
    AblationEntry{Ablation::kHopper,
                  "hopper",
                  "paged_prefill by the kernel that runs on GPUs before Hopper",
                  {}},
    AblationEntry{Ablation::kFusedMlp,
                  "fused_mlp",
                  "norm, linear, then activation",
                  {kPostNorm, kGateUp, kActivation}},
    AblationEntry{Ablation::kPrefetch,
                  "prefetch",
                  "kernels that do not ask the L2 for the next one's weights",
                  {}},
    AblationEntry{Ablation::kPersistent,
                  "persistent",
                  "a chain of kernels per layer in steps of few tokens",
                  {}},
    AblationEntry{Ablation::kSend,
                  "send",
                  "sums of several ranks that send the partials, not the projections before",
                  {}},
};

}  // namespace

std::span<const AblationEntry> AllAblations() { return kAblations; }

bool SwapsOnOneRank(Ablation ablation) { return ablation != Ablation::kSend; }

bool SwapsOnCpu(Ablation ablation) {
  constexpr AblationSet kOnCudaAlone{Ablation::kGraphs, Ablation::kPdl,      Ablation::kSkinny,
                                     Ablation::kHopper, Ablation::kPrefetch, Ablation::kPersistent,
                                     Ablation::kSend};
  return !kOnCudaAlone.Has(ablation);
}

bool NeedsChain(Ablation ablation) {
  return ablation != Ablation::kGraphs && ablation != Ablation::kPdl;
}

AblationSet ParseAblations(std::string_view names) {
  AblationSet set;
  while (!names.empty()) {
    const size_t comma = names.find(',');
    const std::string_view name = names.substr(0, comma);
    names = comma == std::string_view::npos ? std::string_view() : names.substr(comma + 1);
    const auto entry =
        std::ranges::find_if(kAblations, [&](const AblationEntry& e) { return e.name == name; });
    if (entry == kAblations.end()) {
      throw InvalidArgument(StrCat("unknown ablation '", name, "'; known are ",
                                   Joined(kAblations, &AblationEntry::name)));
    }
    set.Add(entry->ablation);
  }
  return set;
}

}  // namespace tokline
