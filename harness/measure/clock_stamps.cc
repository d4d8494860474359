#include "harness/measure/clock_stamps.h"

#include <algorithm>
#include <chrono>

#include "harness/platform/clock.h"
#if TOKLINE_HAS_CUDA
#include "kernels/device/rehearsal.h"
#endif

namespace tokline {

ClockStamps::ClockStamps(Backend& backend, int64_t room) : backend_(backend), room_(room) {
#if TOKLINE_HAS_CUDA
  if (backend.device() == Device::kCuda) {
    stamps_ = backend.Allocate((1 + room) * int64_t{sizeof(int64_t)});
    const Rehearsal rehearsal;  // loads the kernel while no rank waits for another
    Stamp(false);
  }
#endif
}

void ClockStamps::Stamp([[maybe_unused]] bool dependent) {
#if TOKLINE_HAS_CUDA
  if (backend_.device() == Device::kCuda) {
    auto* const count = reinterpret_cast<int64_t*>(stamps_.data());
    return LaunchStamp(count, count + 1, room_,
                       {.stream = backend_.stream(), .dependent = dependent});
  }
#endif
  host_.push_back(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
          .count());
}

void ClockStamps::Restart() {
  host_.clear();
  if (stamps_.bytes() > 0) backend_.Zero(stamps_.data(), sizeof(int64_t));
}

std::vector<int64_t> ClockStamps::Read() {
  if (stamps_.bytes() == 0) return host_;
  std::vector<int64_t> all(static_cast<size_t>(1 + room_));
  backend_.Download(all.data(), stamps_.data(), stamps_.bytes());
  const int64_t taken = std::min(all.front(), room_);
  return {all.begin() + 1, all.begin() + 1 + taken};
}

}  // namespace tokline
