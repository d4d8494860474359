// The error types of the suite and the one way to raise them.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace tokline {

// The caller passed something that is not allowed. The message states the values passed and what is
// allowed.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// Something outside the program failed: a file, a device, a driver.
class RuntimeFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A CUDA, cuBLASLt or NVML call failed. The message holds the file, line, expression and reason.
class CudaError : public RuntimeFailure {
 public:
  using RuntimeFailure::RuntimeFailure;
};

template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws InvalidArgument with the concatenated message parts unless `ok` is true.
template <typename... Parts>
void Require(bool ok, const Parts&... message) {
  if (!ok) throw InvalidArgument(StrCat(message...));
}

}  // namespace tokline
