#include "reference/rmsnorm_qkv.h"

#include "reference/kv_append.h"
#include "reference/linear.h"

namespace tokline {

void RmsNormQkvReference(const RmsNormQkvParams& params) {
  if (params.append) ValidateAppend(params.projection, *params.append);
  LinearReference(params.projection);
  if (params.append) KvAppendReference(AppendOf(params.projection, *params.append));
}

}  // namespace tokline
