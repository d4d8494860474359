// RMSNorm + QKV is Linear with a norm weight, followed by kv_append if requested.
#include "kernels/rmsnorm_qkv/rmsnorm_qkv.h"

namespace tokline {

void Launch(const RmsNormQkvParams& params, const LaunchOptions& options) {
  ValidateComposition(params);
  Launch(params.projection, options);
  if (params.append) Launch(AppendOf(params.projection, *params.append), options);
}

}  // namespace tokline
