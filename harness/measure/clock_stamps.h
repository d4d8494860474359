// Stamps of the time at which work is complete, taken where the work runs: stamps of the device's
// clock, even within graphs, and stamps of the steady clock on the host.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "harness/engine/backend.h"
#include "kernels/common/launch_options.h"

namespace tokline {

// Part of the name of the kernel that takes a stamp on a CUDA device.
inline constexpr std::string_view kStampKernel = "StampKernel";

// Graphs that take stamps must not run after its lifetime.
class ClockStamps {
 public:
  ClockStamps(Backend& backend, int64_t room);

  // Enqueues a stamp of the time at which everything before it is complete. With `dependent`, the
  // next kernel starts one launch later than without the stamp, and loads its weights meanwhile,
  // but waits for the stamp before it does anything else.
  void Stamp(bool dependent);
  // Forgets the stamps of the work enqueued so far.
  void Restart();
  // Waits for the device and returns the stamps since the last Restart(), in nanoseconds, limited
  // to the room for them.
  std::vector<int64_t> Read();

 private:
  Backend& backend_;
  int64_t room_;
  Memory stamps_;              // on a device: their number, then the stamps
  std::vector<int64_t> host_;  // on the host
};

// Appends the device's clock to a list with room for this many. CUDA builds only.
void LaunchStamp(int64_t* count, int64_t* stamps, int64_t room, const LaunchOptions& options);

}  // namespace tokline
