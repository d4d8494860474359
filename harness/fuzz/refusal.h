// The property that every target checks: a reader accepts its input, or throws RuntimeFailure with
// a one-line message.
#pragma once

#include <cstdlib>
#include <string_view>

#include "kernels/common/error.h"

namespace tokline::fuzz {

// libFuzzer reports an abort as a finding.
inline void Check(bool ok) {
  if (!ok) std::abort();
}

// An exception of any other type is also a finding.
template <typename Read>
void AcceptOrRefuse(const Read& read) {
  try {
    read();
  } catch (const RuntimeFailure& failure) {
    const std::string_view message = failure.what();
    Check(!message.empty() && message.find('\n') == message.npos);
  }
}

}  // namespace tokline::fuzz
