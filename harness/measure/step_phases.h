// The stamps that decode_step writes of its phases, and their evaluation.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "harness/engine/decoder.h"

namespace tokline {

// Makes steps that run as one kernel write stamps; it observes no op. Graphs made with it must not
// run after its lifetime.
class PhaseObserver : public OpObserver {
 public:
  explicit PhaseObserver(Decoder& decoder);

  int64_t* PhaseStamps() const override { return reinterpret_cast<int64_t*>(stamps_.data()); }
  void Begin(StepOp, std::string_view) override {}
  void End() override {}

  // Waits for the device and appends the stamps of the last step, or zeros if none wrote any.
  void AppendTo(std::vector<int64_t>& read) const;

 private:
  Backend& backend_;
  Memory stamps_;
};

// The share of the kernel's time that each of its phases takes, by the op that does the same in a
// chain: kQkv, kChunkDecode, kAttentionOutput, kGateUp, kDown and kLmHead. They add up to 1.
using PhaseShares = std::map<StepOp, double>;

// Reads stamps that blocks wrote as DecodeStepParams::stamps says, of one launch or of several, one
// after another. A phase lasts from the previous stamp to its own, including waits for words of
// other blocks, summed over all layers. Its share is its mean over the blocks, divided by the mean
// time from the first stamp to the last. Throws InvalidArgument unless there are whole blocks of
// `num_layers` layers, and RuntimeFailure if a stamp is missing (0) or is not later than the
// previous one.
PhaseShares SharesOfPhases(std::span<const int64_t> stamps, int64_t num_layers);

}  // namespace tokline
