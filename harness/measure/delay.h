// Delays that do no work. They test whether the tools detect what was made slower.
#pragma once

#include <cstdint>

#include "kernels/common/launch_options.h"

namespace tokline {

struct DelayParams {
  double us = 0;  // finite, at least 0
};

// Throws InvalidArgument with the value unless the delay is between 0 and kMaxDelayUs.
inline constexpr int64_t kMaxDelayUs = 1'000'000;
void Validate(const DelayParams& params);

// Busy-waits on the calling thread.
void DelayHost(const DelayParams& params);

// Launches one block that spins from the end of the preceding kernel on. As with any kernel of the
// suite, the next kernel may start meanwhile and waits for this one to end. CUDA builds only.
void Launch(const DelayParams& params, const LaunchOptions& options);

}  // namespace tokline
