#include "harness/measure/op_delay.h"

#include "harness/measure/delay.h"

namespace tokline {

std::optional<DelayedOp> DelayedBy(const std::optional<OpDelay>& delay,
                                   [[maybe_unused]] Device device) {
  if (!delay) return std::nullopt;
  const DelayParams params{.us = delay->us};
  Validate(params);
#if TOKLINE_HAS_CUDA
  if (device == Device::kCuda) {
    return DelayedOp{.op = delay->op,
                     .delay = [params](const LaunchOptions& options) { Launch(params, options); }};
  }
#endif
  return DelayedOp{.op = delay->op, .delay = [params](const LaunchOptions&) { DelayHost(params); }};
}

}  // namespace tokline
