// Uses an installed Tokline: validates, prices and computes one RMSNorm on the CPU. With CUDA it
// also links a launcher, which must refuse invalid parameters before it needs a device.
#include <array>
#include <cstdio>

#include "kernels/common/error.h"
#include "kernels/norm/norm.h"
#include "reference/reference_ops.h"

namespace {

bool LauncherRefuses([[maybe_unused]] const tokline::NormParams& params) {
#ifdef EXPECT_CUDA
  try {
    tokline::Launch(params, {});
  } catch (const tokline::InvalidArgument&) {
    return true;
  }
  return false;
#else
  return true;
#endif
}

}  // namespace

int main() {
  const std::array<float, 2> x = {1, -1};
  const std::array<float, 2> weight = {2, 3};
  std::array<float, 2> out = {};
  tokline::NormParams params = {.dtype = tokline::DType::kF32,
                                .num_tokens = 1,
                                .hidden_size = 2,
                                .eps = 0,
                                .x = x.data(),
                                .x_stride = 2,
                                .weight = weight.data(),
                                .out = out.data(),
                                .out_stride = 2};
  tokline::Validate(params);
  tokline::MakeReferenceOps().norm(params, {});
  const bool computes = out[0] == 2 && out[1] == -3;
  const bool prices = tokline::CostOf(params).Bytes() == 3 * 2 * sizeof(float);
  params.out = nullptr;
  const bool refuses = LauncherRefuses(params);
  std::printf("computes %d, prices %d, refuses %d\n", computes, prices, refuses);
  return computes && prices && refuses ? 0 : 1;
}
