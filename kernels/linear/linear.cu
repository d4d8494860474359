// Dispatches Linear to one of its kernels, after RMSNorm if that is a separate kernel, or to
// RMSNorm, cuBLASLt and the activation in turn.
#include "kernels/activation/activation.h"
#include "kernels/device/current_device.h"
#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/linear/head.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/linear/skinny_device.cuh"
#include "kernels/linear/tile.h"
#include "kernels/linear/wgmma.h"
#include "kernels/norm/norm.h"

namespace tokline {
namespace {

// The norm as a separate kernel that writes to the workspace.
NormParams NormOf(const LinearParams& params) {
  return {.dtype = params.dtype,
          .num_tokens = params.num_tokens,
          .hidden_size = params.in_features,
          .eps = params.norm_eps,
          .x = params.x,
          .x_stride = params.x_stride,
          .weight = params.norm_weight,
          .out = static_cast<char*>(params.workspace) + LinearScratchOf(params).normalised_bytes_at,
          .out_stride = params.in_features};
}

// The parameters of what remains to be done after the norm.
LinearParams AfterNorm(LinearParams params) {
  const NormParams norm = NormOf(params);
  params.x = norm.out;
  params.x_stride = norm.out_stride;
  params.norm_weight = nullptr;
  params.x_squares = nullptr;
  return params;
}

void LaunchSkinny(const LinearParams& params, const SkinnyPlan& plan,
                  const LaunchOptions& options) {
  const SkinnyArgs args{.params = params,
                        .in_features = static_cast<int32_t>(params.in_features),
                        .num_tokens = static_cast<int32_t>(params.num_tokens),
                        .plan = plan};
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(plan.grid)),
                          .block = dim3(static_cast<unsigned>(plan.Threads())),
                          .shared_bytes = static_cast<size_t>(plan.shared_bytes)};
  DispatchDType(params.dtype, [&]<DType kDType>() {
    using T = typename DeviceType<kDType>::Type;
    LaunchKernel(params.num_tokens <= 8 ? &SkinnyLinearKernel<SkinnyPolicy<T, 8>>
                                        : &SkinnyLinearKernel<SkinnyPolicy<T, 16>>,
                 shape, options, args);
  });
}

void LaunchMatmul(const LinearParams& params, const LaunchOptions& options) {
  const LinearScratch scratch = LinearScratchOf(params);
  char* const workspace = static_cast<char*>(params.workspace);
  Matmul::Problem problem{.dtype = params.dtype,
                          .out_f32 = params.out_f32,
                          .accumulate = params.residual != nullptr,
                          .num_tokens = params.num_tokens,
                          .in_features = params.in_features,
                          .out_features = params.out_features,
                          .x = params.x,
                          .x_stride = params.x_stride,
                          .weight = params.weight,
                          .bias = params.bias,
                          .addend = params.residual,
                          .addend_stride = params.residual_stride,
                          .out = params.out,
                          .out_stride = params.out_stride,
                          .workspace = workspace};
  if (params.norm_weight) {
    const NormParams norm = NormOf(params);
    Launch(norm, options);
    problem.x = norm.out;
    problem.x_stride = norm.out_stride;
  }
  if (!params.gated_silu) {
    params.matmul->Run(problem, options);
    return;
  }
  void* const gate_up = workspace + scratch.gate_up_bytes_at;
  problem.out_features = 2 * params.out_features;
  problem.out = gate_up;
  problem.out_stride = 2 * params.out_features;
  params.matmul->Run(problem, options);
  Launch(ActivationParams{.dtype = params.dtype,
                          .num_tokens = params.num_tokens,
                          .intermediate_size = params.out_features,
                          .x = gate_up,
                          .x_stride = 2 * params.out_features,
                          .out = params.out,
                          .out_stride = params.out_stride},
         options);
}

}  // namespace

void Launch(const LinearParams& params, const LaunchOptions& options) {
  Validate(params);
  const DeviceFacts& device = CurrentDeviceFacts();
  if (params.num_tokens == 0) return ValidateLaunch(params, ChooseLinearVariant(params, device));
  const LinearChoice choice = PlanLinear(params, device);
  ValidateLaunch(params, choice.variant);
  if (choice.variant == LinearVariant::kMatmul) return LaunchMatmul(params, options);
  const bool norm_apart = NormRunsApart(params, choice.variant);
  const LinearParams rest = norm_apart ? AfterNorm(params) : params;
  if (norm_apart) Launch(NormOf(params), options);
  if (choice.variant == LinearVariant::kWgmma) return LaunchWgmma(rest, choice.wgmma, options);
  if (choice.variant == LinearVariant::kTile) return LaunchTile(rest, choice.tile, options);
  if (choice.variant == LinearVariant::kHead) return LaunchHead(rest, choice.head, options);
  LaunchSkinny(rest, choice.skinny, options);
}

}  // namespace tokline
