// CPU reference of RMSNorm.
#pragma once

#include <Eigen/Core>

#include "kernels/rmsnorm/rmsnorm.h"

namespace tokline {

// Host pointers; f32, bf16 and f16. Throws InvalidArgument.
void RmsNormReference(const RmsNormParams& params);

// round(round(s / rms(s)) * weight) of one row of `hidden_size` elements in `dtype`.
Eigen::RowVectorXd NormaliseRow(DType dtype, const Eigen::RowVectorXd& s, const void* weight,
                                double eps);

}  // namespace tokline
