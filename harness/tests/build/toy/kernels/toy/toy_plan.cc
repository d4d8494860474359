#include "kernels/common/error.h"
#include "kernels/toy/toy.h"

namespace tokline {

void Validate(const ToyParams& params) {
  Require(params.size >= 1 && params.size <= int64_t{1} << 30, "size is ", params.size,
          "; it must be 1 to 2^30");
  Require(params.x != nullptr && params.y != nullptr, "x or y is null");
}

Cost CostOf(const ToyParams& params) {
  const auto bytes = static_cast<double>(params.size * SizeOf(params.dtype));
  return {.read_bytes = bytes,
          .write_bytes = bytes,
          .flops = static_cast<double>(params.size)};  // one product per element
}

}  // namespace tokline
