// What an action that must fail says.
#pragma once

#include <string>

#include "kernels/common/error.h"

namespace tokline::testing {

// The message of the error that the action throws, "nothing was thrown" where it throws none.
// Errors of other types pass.
template <typename Error = InvalidArgument, typename Action>
std::string MessageOf(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace tokline::testing
