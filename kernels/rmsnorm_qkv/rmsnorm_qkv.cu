// RMSNorm + QKV is Linear with a norm weight, followed by kv_append if requested. If Linear's
// kernel can append, it does so itself.
#include "kernels/rmsnorm_qkv/rmsnorm_qkv.h"

#include "kernels/device/current_device.h"

namespace tokline {

void Launch(const RmsNormQkvParams& params, const LaunchOptions& options) {
  if (!params.append) return Launch(params.projection, options);
  const KvAppendParams append = AppendOf(params.projection, *params.append);
  LinearParams projection = params.projection;
  projection.append = &append;
  if (LinearAppends(projection, CurrentDeviceFacts())) {
    Validate(append);
    return Launch(projection, options);
  }
  ValidateAppend(params.projection, *params.append);
  projection.append = nullptr;
  Launch(projection, options);
  Launch(append, options);
}

}  // namespace tokline
