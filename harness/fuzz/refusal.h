// What every target asks of a reader: it accepts, or throws RuntimeFailure with one line.
#pragma once

#include <cstdlib>
#include <string_view>

#include "kernels/common/error.h"

namespace tokline::fuzz {

// An abort is what libFuzzer counts as a finding.
inline void Check(bool ok) {
  if (!ok) std::abort();
}

// An exception of another type is a finding, too.
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
