// Swaps of a fused or custom op for its plain counterpart, to see what the op is worth end to end.
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
};

struct AblationEntry {
  Ablation ablation;
  std::string_view name;     // as users write it
  std::string_view instead;  // what runs in its place
  StepOpSet ops;  // of a decode step that differ, with it or without; none: nothing stands alone
};

// All that exist, in a fixed order.
std::span<const AblationEntry> AllAblations();

class AblationSet {
 public:
  bool Has(Ablation ablation) const { return (bits_ >> static_cast<int>(ablation)) & 1u; }
  void Add(Ablation ablation) { bits_ |= 1u << static_cast<int>(ablation); }
  bool Empty() const { return bits_ == 0; }
  bool operator==(const AblationSet&) const = default;

 private:
  uint32_t bits_ = 0;
};

// Whether it swaps anything on the CPU, whose references know no graphs, dependent launches,
// prefetches or variants of a kernel.
bool SwapsOnCpu(Ablation ablation);

// Names separated by commas; empty text is the empty set. Throws InvalidArgument that lists what
// exists if a name is unknown.
AblationSet ParseAblations(std::string_view names);

}  // namespace tokline
