// The variants with which a bench times a projection.
#pragma once

#include <vector>

#include "benches/bench_case.h"
#include "kernels/linear/linear.h"

namespace tokline::bench {

struct LinearVariantRow {
  LinearVariant variant = LinearVariant::kMatmul;
  bool chosen = true;  // by kAuto
};

// Returns the variants that the device can run on this projection. With `append`, the chosen one is
// that of rmsnorm_qkv, which appends in the projection's kernel if that can. Without a device, only
// the reference runs; it has no variants and stands for kMatmul.
inline std::vector<LinearVariantRow> LinearVariantsOf(LinearParams params,
                                                      const CaseContext& context) {
  if (!context.device) return {{}};
  if (!LinearAppends(params, *context.device)) params.append = nullptr;
  const LinearVariant chosen = ChooseLinearVariant(params, *context.device);
  params.append = nullptr;
  std::vector<LinearVariantRow> variants;
  for (const LinearVariant variant :
       {LinearVariant::kSkinny, LinearVariant::kNormThenSkinny, LinearVariant::kWgmma,
        LinearVariant::kTile, LinearVariant::kHead, LinearVariant::kMatmul}) {
    params.variant = variant;
    if (LinearRuns(params, *context.device)) variants.push_back({variant, variant == chosen});
  }
  return variants;
}

// An address that stands for a norm weight where only its presence matters.
inline constexpr char kSomeNorm = 0;

}  // namespace tokline::bench
