#include "harness/measure/delay.h"

#include <chrono>

#include "kernels/common/error.h"

namespace tokline {

void Validate(const DelayParams& params) {
  Require(params.us >= 0 && params.us <= kMaxDelayUs, "the delay is ", params.us,
          " us; it must be from 0 to ", kMaxDelayUs);
}

void DelayHost(const DelayParams& params) {
  Validate(params);
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double, std::micro>(params.us);
  while (Clock::now() < end) {
  }
}

}  // namespace tokline
