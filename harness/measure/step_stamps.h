// Stamps of the device's clock at both ends of each decode step, which show how long the device is
// idle between two steps as they run without a trace.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "harness/engine/backend.h"
#include "harness/engine/step_ops.h"

namespace tokline {

// Part of the name of the kernel that takes a stamp.
inline constexpr std::string_view kStampKernel = "StampKernel";

// Enqueues a stamp before the first and after the last op of a decode step, also into graphs that
// are captured while it observes. Such graphs may not run after its life. CUDA builds only.
class StepStamps : public OpObserver {
 public:
  // Has room for the stamps of this many steps.
  StepStamps(Backend& backend, int64_t steps);

  void Begin(StepOp op, std::string_view kernel) override;
  void End() override;
  // Forgets the stamps of the work enqueued so far.
  void Restart();
  // Waits for the device and returns the stamps since the last Restart(), in nanoseconds: at most
  // as many as there is room for and one more, which shows that there were too many.
  std::vector<int64_t> Read();

 private:
  void Stamp();

  Backend& backend_;
  int64_t room_;
  Memory stamps_;  // their number, then the stamps
  StepOp op_ = StepOp::kEmbedding;
};

}  // namespace tokline
