// The ways that a bench times a projection in.
#pragma once

#include <vector>

#include "benches/bench_case.h"
#include "kernels/linear/linear.h"

namespace tokline::bench {

// Returns the variants that this many tokens allow, with or without a preceding norm. Without a
// device, only the reference runs; it has no variants and stands for kMatmul.
inline std::vector<LinearVariant> LinearVariantsOf(int64_t tokens, bool norm,
                                                   const CaseContext& context) {
  std::vector<LinearVariant> variants;
  if (context.device && tokens <= kMaxSkinnyTokens) {
    variants.push_back(LinearVariant::kSkinny);
    if (norm) variants.push_back(LinearVariant::kNormThenSkinny);
  }
  if (context.device && tokens <= kMaxWgmmaTokens) variants.push_back(LinearVariant::kWgmma);
  variants.push_back(LinearVariant::kMatmul);
  return variants;
}

}  // namespace tokline::bench
