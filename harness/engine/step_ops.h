// The ops of a step by name, and whoever wants to be told when the forward pass enqueues one.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string_view>

#include "kernels/common/launch_options.h"

namespace tokline {

// An op is named by its place in the model, so that its name stays when another kernel does it;
// attention alone is named by its kernel.
enum class StepOp : uint8_t {
  kEmbedding,
  kInputNorm,  // where it is not part of qkv
  kQkv,
  kHeadNorms,  // where they are not part of kv_append
  kKvAppend,   // where it is not part of qkv
  kChunkDecode,
  kPagedPrefill,
  kAttentionOutput,
  kPostNorm,  // where it is not part of gate_up
  kGateUp,
  kUp,          // in place of gate_up where the MLP has no gate
  kActivation,  // where it is not part of gate_up
  kDown,
  kLastRows,   // of prompts: the rows that logits are computed from
  kFinalNorm,  // where it is not part of lm_head
  kLmHead,
  kSampling,
};

// All that exist, in the order of a step.
std::span<const StepOp> AllStepOps();
std::string_view Name(StepOp op);
// Throws InvalidArgument that lists what exists if the name is unknown.
StepOp ParseStepOp(std::string_view name);

class StepOpSet {
 public:
  constexpr StepOpSet() = default;
  constexpr StepOpSet(std::initializer_list<StepOp> ops) {
    for (const StepOp op : ops) Add(op);
  }
  constexpr explicit StepOpSet(std::span<const StepOp> ops) {
    for (const StepOp op : ops) Add(op);
  }
  constexpr bool Has(StepOp op) const { return (bits_ >> static_cast<int>(op)) & 1u; }
  constexpr void Add(StepOp op) { bits_ |= 1u << static_cast<int>(op); }
  constexpr bool Empty() const { return bits_ == 0; }
  bool operator==(const StepOpSet&) const = default;

 private:
  uint32_t bits_ = 0;
};

class OpObserver {
 public:
  virtual ~OpObserver() = default;
  // Whether the op is to be enqueued at all.
  virtual bool Wants(StepOp) const { return true; }
  // It is about to be, and `kernel` will do it.
  virtual void Begin(StepOp op, std::string_view kernel) = 0;
  // It is.
  virtual void End() = 0;
};

// An op that is made slower on purpose, to test the tools that must find it.
struct DelayedOp {
  StepOp op = StepOp::kEmbedding;
  std::function<void(const LaunchOptions&)> delay;  // called after each launch of the op
};

}  // namespace tokline
