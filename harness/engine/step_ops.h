// The ops of a step by name, and the observer that is told when the forward pass enqueues one.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string_view>

#include "kernels/common/launch_options.h"

namespace tokline {

// An op is named after its place in the model, so that it keeps its name when another kernel
// computes it. Only attention is named after its kernel.
enum class StepOp : uint8_t {
  kDecodeStep,  // all ops except sampling, in steps that run as one kernel
  kEmbedding,
  kInputNorm,  // if it is not part of qkv
  kQkv,
  kHeadNorms,  // if they are not part of kv_append
  kKvAppend,   // if it is not part of qkv
  kChunkDecode,
  kPagedPrefill,
  kAttentionOutput,
  kPostNorm,  // if it is not part of gate_up
  kGateUp,
  kUp,          // instead of gate_up if the MLP has no gate
  kActivation,  // if it is not part of gate_up
  kDown,
  kAllReduce,  // after embedding, attention_output and down, if there are several ranks
  kLastRows,   // collects the rows of prompts from which logits are computed
  kFinalNorm,  // if it is not part of lm_head
  kLmHead,
  kGatherLogits,  // if there are several ranks
  kSampling,
};

// All ops, in the order of a step.
std::span<const StepOp> AllStepOps();
std::string_view Name(StepOp op);
// Throws InvalidArgument, which lists all names, if the name is unknown.
StepOp ParseStepOp(std::string_view name);

// A set of up to 32 values of an enum that counts from 0.
template <typename Enum>
class EnumSet {
 public:
  constexpr EnumSet() = default;
  constexpr EnumSet(std::initializer_list<Enum> values) {
    for (const Enum value : values) Add(value);
  }
  constexpr explicit EnumSet(std::span<const Enum> values) {
    for (const Enum value : values) Add(value);
  }
  constexpr bool Has(Enum value) const { return (bits_ >> static_cast<int>(value)) & 1u; }
  constexpr void Add(Enum value) { bits_ |= 1u << static_cast<int>(value); }
  constexpr bool Empty() const { return bits_ == 0; }
  bool operator==(const EnumSet&) const = default;

 private:
  uint32_t bits_ = 0;
};
using StepOpSet = EnumSet<StepOp>;

class OpObserver {
 public:
  virtual ~OpObserver() = default;
  // Returns whether the op is to be enqueued at all.
  virtual bool Wants(StepOp) const { return true; }
  // Returns whether the kernels before an op may prefetch its weights.
  virtual bool Prefetches(StepOp op) const { return Wants(op); }
  // Whether the observer inspects the results of the ops of a layer, so that steps must run as
  // chains of ops.
  virtual bool NeedsChain() const { return false; }
  // Returns the device memory in which a step that runs as one kernel stores the times of its
  // phases, as DecodeStepParams::stamps says; null: it stores none.
  virtual int64_t* PhaseStamps() const { return nullptr; }
  // Called before the op is enqueued. `kernel` names the kernel that computes it.
  virtual void Begin(StepOp op, std::string_view kernel) = 0;
  // Called after the op has been enqueued.
  virtual void End() = 0;
};

// Replaces the observer of a forward pass or of a decoder while it lives; null means no observer.
template <typename Observed>
class ObservedScope {
 public:
  ObservedScope(Observed& observed, OpObserver* observer)
      : observed_(observed), before_(observed.Observer()) {
    observed_.SetObserver(observer);
  }
  ~ObservedScope() { observed_.SetObserver(before_); }
  ObservedScope(const ObservedScope&) = delete;
  ObservedScope& operator=(const ObservedScope&) = delete;

 private:
  Observed& observed_;
  OpObserver* before_;
};

// The ops that an observer wants, if that depends on the op alone.
struct OpChoice {
  StepOpSet wanted;
  StepOpSet prefetched;
  bool needs_chain = false;

  static OpChoice Of(const OpObserver& observer);
};

// Skips the ops that another observer does not want, and observes nothing.
class FollowingObserver : public OpObserver {
 public:
  explicit FollowingObserver(const OpChoice& choice) : choice_(choice) {}
  bool Wants(StepOp op) const override { return choice_.wanted.Has(op); }
  bool Prefetches(StepOp op) const override { return choice_.prefetched.Has(op); }
  bool NeedsChain() const override { return choice_.needs_chain; }
  void Begin(StepOp, std::string_view) override {}
  void End() override {}

 private:
  OpChoice choice_;
};

// An op that is slowed down on purpose, to test the tools that must find it.
struct DelayedOp {
  StepOp op = StepOp::kEmbedding;
  std::function<void(const LaunchOptions&)> delay;  // called after each launch of the op
};

}  // namespace tokline
