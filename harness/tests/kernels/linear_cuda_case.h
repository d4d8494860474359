// A problem of linear in device memory, and which variants a CUDA test can run.
#pragma once

#include "harness/platform/device.h"
#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/kernels/linear_case.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_plan.h"
#include "reference/linear.h"

namespace tokline::testing {

// Whether the GPU and the program have the code of a variant.
inline bool HasCodeFor(LinearVariant variant) {
  return !NeedsHopperCode(variant) || QueryDeviceFacts().HasHopperCode();
}

// 0 for a variant that the program has no code for.
inline int64_t MaxTokens(LinearVariant variant) {
  if (!HasCodeFor(variant)) return 0;
  if (variant == LinearVariant::kWgmma) return kMaxWgmmaTokens;
  if (variant == LinearVariant::kTile) return kMaxTileTokens;
  if (variant == LinearVariant::kHead) return kMaxHeadTokens;
  return variant == LinearVariant::kMatmul ? INT32_MAX : kMaxSkinnyTokens;
}

// The tensors of a case in device memory.
class LinearDeviceCase {
 public:
  LinearDeviceCase(const LinearCase& c, LinearVariant variant)
      : case_(c),
        x_(ToDevice(c.x)),
        norm_weight_(ToDevice(c.norm_weight)),
        weight_(ToDevice(c.weight)),
        bias_(ToDevice(c.bias)),
        residual_(ToDevice(c.residual)),
        out_(ToDevice(c.NewOut())) {
    params = c.Params(out_.data());
    params.variant = variant;
    params.x = x_.data();
    params.weight = weight_.data();
    if (params.norm_weight) params.norm_weight = norm_weight_.data();
    if (params.bias) params.bias = bias_.data();
    if (params.residual) params.residual = residual_.data();
    workspace_ = DeviceBuffer(LinearWorkspaceBytes(params));
    params.matmul = &matmul_;
    params.workspace = workspace_.data();
    params.workspace_bytes = workspace_.bytes();
  }

  HostTensor Run() {
    Launch(params, {});
    return Result();
  }
  HostTensor Result() const {
    return ToHost(params.out == residual_.data() ? residual_ : out_, case_.OutType());
  }
  void Poison() {
    out_ = ToDevice(case_.NewOut());
    params.out = out_.data();
  }

  LinearParams params;

 private:
  const LinearCase& case_;
  Matmul matmul_;
  DeviceBuffer x_, norm_weight_, weight_, bias_, residual_, out_, workspace_;
};

inline HostTensor RunOnDevice(const LinearCase& c, LinearVariant variant) {
  return LinearDeviceCase(c, variant).Run();
}

inline HostTensor Reference(const LinearCase& c) {
  HostTensor out = c.NewOut();
  LinearReference(c.Params(out.data()));
  return out;
}

// Tests of kWgmma and kTile alone.
class LinearHopperCudaTest : public testing::HopperCudaTest {};

}  // namespace tokline::testing
