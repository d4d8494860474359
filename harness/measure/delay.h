// Time that passes and does nothing: to test whether the tools find what was made slower.
#pragma once

#include <cstdint>

#include "kernels/common/launch_options.h"

namespace tokline {

struct DelayParams {
  double us = 0;  // finite, at least 0
};

// Throws InvalidArgument, stating the value, unless the delay is from 0 to kMaxDelayUs.
inline constexpr int64_t kMaxDelayUs = 1'000'000;
void Validate(const DelayParams& params);

// Keeps the calling thread busy.
void DelayHost(const DelayParams& params);

// One block on the stream that spins from the end of its predecessor on. Its successor may start
// meanwhile, as beside any kernel of the suite, and waits for its end. CUDA builds only.
void Launch(const DelayParams& params, const LaunchOptions& options);

}  // namespace tokline
