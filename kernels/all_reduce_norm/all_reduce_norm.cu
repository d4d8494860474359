// Dispatches all_reduce_norm by dtype, ranks and variant.
#include "kernels/all_reduce_norm/all_reduce_norm.h"

#include "kernels/all_reduce_norm/all_reduce_norm_device.cuh"
#include "kernels/all_reduce_norm/all_reduce_norm_plan.h"
#include "kernels/all_reduce_norm/slabs_device.cuh"
#include "kernels/device/current_device.h"
#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/nccl_library.h"
#include "kernels/norm/norm.h"

namespace tokline {
namespace {

template <int kRanksInGrid>
void LaunchRanks(std::span<const AllReduceNormParams> ranks, const LaunchOptions& options) {
  const AllReduceNormParams& first = ranks.front();
  AllReduceNormArguments<kRanksInGrid> args{.ranks = {}, .vectors = true, .slabs = {}};
  AllReduceNormPlan plan;
  for (size_t i = 0; i < ranks.size(); ++i) {
    args.ranks[i] = ranks[i];
    plan = PlanAllReduceNorm(ranks[i], CurrentDeviceFacts(), static_cast<int32_t>(ranks.size()));
    args.vectors = args.vectors && plan.vectors;
  }
  args.slabs = plan.slabs;
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(ranks.size())),
      .block = dim3(static_cast<unsigned>(plan.threads)),
      .cooperative = kRanksInGrid > 1};
  const int32_t world = first.peers.world_size;
  const int unrolled = world <= 2 ? 2 : world <= 4 ? 4 : kMaxRanks;
  DispatchDType(first.dtype, [&]<DType kDType>() {
    if (first.num_tokens == 0) return;
    using T = typename DeviceType<kDType>::Type;
    if (plan.variant == AllReduceNormVariant::kSlabs) {
      return LaunchKernel(AllReduceSlabsKernel<SlabsPolicy<T, kRanksInGrid>>, shape, options, args);
    }
    Dispatch<2, 4, kMaxRanks>("unrolled ranks", unrolled, [&]<int kMaxWorld>() {
      Dispatch<AllReduceNormVariant::kOneShot, AllReduceNormVariant::kTwoShot>(
          "variant", plan.variant, [&]<AllReduceNormVariant kVariant>() {
            LaunchKernel(
                AllReduceNormKernel<AllReduceNormPolicy<T, kMaxWorld, kVariant, kRanksInGrid>>,
                shape, options, args);
          });
    });
  });
}

}  // namespace

void Launch(const AllReduceNormParams& params, const LaunchOptions& options) {
  Validate(params);
  ValidateBuffers(params);
  LaunchRanks<1>({&params, 1}, options);
}

void LaunchVirtualRanks(std::span<const AllReduceNormParams> ranks, const LaunchOptions& options) {
  Require(!ranks.empty(), "there are no ranks");
  const AllReduceNormParams& first = ranks.front();
  for (size_t i = 0; i < ranks.size(); ++i) {
    const AllReduceNormParams& rank = ranks[i];
    Validate(rank);
    ValidateBuffers(rank);
    Require(
        rank.peers.world_size == std::ssize(ranks) && rank.peers.rank == static_cast<int32_t>(i),
        "ranks[", i, "] is rank ", rank.peers.rank, " of ", rank.peers.world_size,
        "; it must be rank ", i, " of ", ranks.size());
    Require(rank.dtype == first.dtype && rank.variant == first.variant && rank.sent == first.sent &&
                rank.num_tokens == first.num_tokens && rank.hidden_size == first.hidden_size &&
                rank.peers.bytes == first.peers.bytes &&
                rank.peers.slab_bytes == first.peers.slab_bytes,
            "ranks[", i,
            "] and ranks[0] differ in dtype, variant, sent, shape or size of the buffers");
  }
  LaunchRanks<kMaxRanks>(ranks, options);
}

void RequireAllReduced(const PeerBuffers& peers, CUstream_st* stream) {
  AllReduceHeader header{};
  TOKLINE_CUDA(cudaMemcpyAsync(&header, peers.buffers[peers.rank], sizeof(header),
                               cudaMemcpyDeviceToHost, stream));
  TOKLINE_CUDA(cudaStreamSynchronize(stream));
  RequireAllReduced(peers, header);
}

void LaunchOverNccl(const AllReduceNormParams& params, ncclComm* communicator,
                    const LaunchOptions& options) {
  Validate(params);
  if (params.num_tokens == 0) return;
  const int64_t hidden = params.hidden_size;
  Require(params.residual == nullptr || params.weight != nullptr,
          "over NCCL, a residual is added with the norm, but weight is null");
  Require(params.num_tokens == 1 ||
              (params.partial_stride == hidden && params.residual_out_stride == hidden),
          "over NCCL, partial_stride and residual_out_stride must be hidden_size, ", hidden,
          "; they are ", params.partial_stride, " and ", params.residual_out_stride);
  const void* const partial = params.partials[params.peers.rank];
  void* const sum =
      params.residual_out == params.residual ? const_cast<void*>(partial) : params.residual_out;
  NcclSum(params.dtype, partial, sum, params.num_tokens * hidden, communicator, options.stream);
  if (params.weight == nullptr) return;
  Launch(NormParams{.dtype = params.dtype,
                    .num_tokens = params.num_tokens,
                    .hidden_size = hidden,
                    .eps = params.eps,
                    .x = sum,
                    .x_stride = hidden,
                    .add = params.residual,
                    .add_stride = params.residual_stride,
                    .weight = params.weight,
                    .residual_out = params.residual ? params.residual_out : nullptr,
                    .residual_out_stride = params.residual_out_stride,
                    .out = params.out,
                    .out_stride = params.out_stride},
         {.stream = options.stream, .dependent = options.dependent});
}

}  // namespace tokline
