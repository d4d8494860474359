#include "reference/rmsnorm_qkv.h"

#include "reference/kv_append.h"
#include "reference/linear.h"

namespace tokline {

void RmsNormQkvReference(const RmsNormQkvParams& params) {
  Validate(params);
  LinearReference(ProjectionOf(params));
  if (params.append) KvAppendReference(AppendOf(params));
}

}  // namespace tokline
