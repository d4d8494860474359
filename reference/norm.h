// CPU reference of RMSNorm and LayerNorm.
#pragma once

#include <Eigen/Core>

#include "kernels/norm/norm.h"

namespace tokline {

// Takes host pointers; f32, bf16 and f16. Throws InvalidArgument.
void NormReference(const NormParams& params);

// RMSNorm of one row of `hidden_size` elements in `dtype`: round(round(s / rms(s)) * weight).
Eigen::RowVectorXd NormaliseRow(DType dtype, const Eigen::RowVectorXd& s, const void* weight,
                                double eps);

}  // namespace tokline
