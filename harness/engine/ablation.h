// Swaps a fused or custom op for its plain counterpart, to see what the op is worth end to end.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "harness/engine/step_ops.h"

namespace tokline {

enum class Ablation : uint8_t {
  kGraphs,
  kPdl,
  kSkinny,
  kRmsNormQkv,
  kKvAppend,
  kChunkDecode,
  kPagedPrefill,
  kHopper,
  kFusedMlp,
  kPrefetch,
  kPersistent,
  kSend,
};

struct AblationEntry {
  Ablation ablation;
  std::string_view name;     // as users write it
  std::string_view instead;  // what runs in its place
  StepOpSet ops;  // of a decode step that differ with and without it; empty: not single ops
};

// All ablations, in a fixed order.
std::span<const AblationEntry> AllAblations();

using AblationSet = EnumSet<Ablation>;

// Whether the ablation concerns the chain of kernels per layer. A decoder with such an ablation
// runs every step as a chain, and is compared with one that does so too.
bool NeedsChain(Ablation ablation);

// Whether the ablation swaps anything where one rank has the whole model.
bool SwapsOnOneRank(Ablation ablation);

// Whether the ablation swaps anything on the CPU, where there are no graphs, dependent launches,
// prefetches, persistent kernels, partials sent early or variants of a kernel.
bool SwapsOnCpu(Ablation ablation);

// Parses names separated by commas; empty text is the empty set. Throws InvalidArgument, which
// lists all names, if a name is unknown.
AblationSet ParseAblations(std::string_view names);

}  // namespace tokline
