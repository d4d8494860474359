// Host side of all_reduce_norm: the variant, the grid, the sizes of buffers, validation and cost.
#include "kernels/all_reduce_norm/all_reduce_norm_policy.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "kernels/common/error.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

constexpr int64_t kVectorBytes = 8;

bool TakesVectors(const AllReduceNormParams& params) {
  const int64_t width = kVectorBytes / SizeOf(params.dtype);
  const auto aligned = [&](const void* pointer, int64_t stride) {
    return reinterpret_cast<uintptr_t>(pointer) % kVectorBytes == 0 &&
           (params.num_tokens <= 1 || stride % width == 0);
  };
  return params.hidden_size % width == 0 &&
         aligned(params.partials[params.peers.rank], params.partial_stride) &&
         aligned(params.residual, params.residual_stride) && aligned(params.weight, 0) &&
         aligned(params.residual_out, params.residual_out_stride) &&
         aligned(params.out, params.out_stride);
}

// With two ranks one_shot sends no more than two_shot. With more ranks two_shot pays once its
// second hop costs less than the bytes that it saves. The sizes are those at which vLLM's custom
// all-reduce changes over. Its bytes are all data, and half of ours are numbers, so two_shot should
// pay from smaller sizes on: with 380 GB/s and 1.4 us per hop from about 170 KB with 4 ranks, and
// from 50 KB with 8. That is an estimate; nothing was measured.
AllReduceNormVariant VariantOf(const AllReduceNormParams& params) {
  if (params.variant != AllReduceNormVariant::kAuto) return params.variant;
  const int32_t ranks = params.peers.world_size;
  const int64_t bytes = params.num_tokens * params.hidden_size * SizeOf(params.dtype);
  const int64_t limit = ranks <= 4 ? 512 << 10 : 256 << 10;
  const bool one_shot = ranks <= 2 || bytes <= limit || params.num_tokens < ranks;
  return one_shot ? AllReduceNormVariant::kOneShot : AllReduceNormVariant::kTwoShot;
}

void RequireStride(const AllReduceNormParams& params, int64_t stride, const char* name) {
  Require(params.num_tokens <= 1 || stride >= params.hidden_size, name, " is ", stride,
          "; it must be at least hidden_size, ", params.hidden_size);
}

}  // namespace

std::string_view Name(AllReduceNormVariant variant) {
  switch (variant) {
    case AllReduceNormVariant::kAuto:
      return "auto";
    case AllReduceNormVariant::kOneShot:
      return "one_shot";
    case AllReduceNormVariant::kTwoShot:
      return "two_shot";
  }
  return "?";
}

int64_t AllReducePacketsPerRow(int64_t hidden_size) {
  return DivideUp(hidden_size, kAllReducePacketElements);
}

int64_t AllReduceInboxPackets(AllReduceNormVariant variant, int32_t world_size, int64_t num_tokens,
                              int64_t hidden_size) {
  const int64_t row = AllReducePacketsPerRow(hidden_size);
  if (variant == AllReduceNormVariant::kOneShot) return world_size * num_tokens * row;
  // The partials of the rows that the rank owns, and the sums of all rows.
  return (world_size * DivideUp(num_tokens, world_size) + num_tokens) * row;
}

int64_t AllReduceInboxCapacity(int64_t buffer_bytes) {
  return std::max<int64_t>(0, buffer_bytes - kAllReduceHeaderBytes) / 2 / kAllReducePacketBytes;
}

AllReduceNormParams RowsOf(const AllReduceNormParams& params, int64_t begin, int64_t count) {
  AllReduceNormParams rows = params;
  rows.num_tokens = count;
  const auto from = [&](auto& tensor, int64_t stride) {
    using Byte = std::conditional_t<std::is_same_v<decltype(tensor), const void*&>, const std::byte,
                                    std::byte>;
    if (tensor) tensor = static_cast<Byte*>(tensor) + begin * stride * SizeOf(params.dtype);
  };
  for (const void*& partial : rows.partials) from(partial, params.partial_stride);
  from(rows.residual, params.residual_stride);
  from(rows.residual_out, params.residual_out_stride);
  from(rows.out, params.out_stride);
  return rows;
}

int64_t AllReduceNormBufferBytes(int32_t world_size, int64_t max_tokens, int64_t max_hidden) {
  const auto packets = [&](AllReduceNormVariant variant) {
    return AllReduceInboxPackets(variant, world_size, max_tokens, max_hidden);
  };
  const int64_t most =
      std::max(packets(AllReduceNormVariant::kOneShot), packets(AllReduceNormVariant::kTwoShot));
  return RoundUp(kAllReduceHeaderBytes + 2 * most * kAllReducePacketBytes, 256);
}

AllReduceNormPlan PlanAllReduceNorm(const AllReduceNormParams& params, const DeviceFacts& device,
                                    int32_t ranks_on_device) {
  constexpr int64_t kMostThreads = 1024, kWarp = 32;
  Require(ranks_on_device >= 1 && ranks_on_device <= device.sm_count, ranks_on_device,
          " ranks on a device of ", device.sm_count, " multiprocessors");
  const int64_t threads = RoundUp(AllReducePacketsPerRow(params.hidden_size), kWarp);
  return {.variant = VariantOf(params),
          .vectors = TakesVectors(params),
          .blocks = static_cast<int32_t>(
              std::min<int64_t>(params.num_tokens, device.sm_count / ranks_on_device)),
          .threads = static_cast<int32_t>(std::min(threads, kMostThreads))};
}

void Validate(const AllReduceNormParams& params) {
  Require(params.num_tokens >= 0 && params.num_tokens <= INT32_MAX, "num_tokens is ",
          params.num_tokens, "; it must be 0 to ", INT32_MAX);
  Require(params.hidden_size >= 1 && params.hidden_size <= INT32_MAX / 2, "hidden_size is ",
          params.hidden_size, "; it must be 1 to ", INT32_MAX / 2);
  Require(params.eps >= 0 && std::isfinite(params.eps), "eps is ", params.eps,
          "; it must be finite and >= 0");
  Require(params.time_limit_ms >= 1, "time_limit_ms is ", params.time_limit_ms,
          "; it must be at least 1");
  const PeerBuffers& peers = params.peers;
  Require(peers.world_size >= 1 && peers.world_size <= kMaxRanks, "world_size is ",
          peers.world_size, "; it must be 1 to ", kMaxRanks);
  Require(peers.rank >= 0 && peers.rank < peers.world_size, "rank is ", peers.rank,
          "; it must be 0 to ", peers.world_size - 1);
  if (params.num_tokens == 0) return;
  Require(params.variant != AllReduceNormVariant::kTwoShot || params.num_tokens >= peers.world_size,
          "two_shot needs a row for each of ", peers.world_size, " ranks; num_tokens is ",
          params.num_tokens);
  const void* partial = params.partials[params.peers.rank];
  Require(partial && params.residual_out, "this rank's partial and residual_out must not be null");
  Require((params.weight == nullptr) == (params.out == nullptr), "weight is ", params.weight,
          " and out is ", params.out, "; the norm needs both, and without it both are null");
  Require(params.out == nullptr || (params.out != partial && params.out != params.residual &&
                                    params.out != params.residual_out),
          "out must be none of this rank's partial, residual and residual_out");
  RequireStride(params, params.partial_stride, "partial_stride");
  RequireStride(params, params.residual_out_stride, "residual_out_stride");
  if (params.residual) RequireStride(params, params.residual_stride, "residual_stride");
  if (params.out) RequireStride(params, params.out_stride, "out_stride");
  const auto same_rows = [&](const void* a, int64_t a_stride, const char* names) {
    Require(a != params.residual_out || params.num_tokens <= 1 ||
                a_stride == params.residual_out_stride,
            names, " are one tensor, but have strides ", a_stride, " and ",
            params.residual_out_stride);
  };
  same_rows(partial, params.partial_stride, "this rank's partial and residual_out");
  same_rows(params.residual, params.residual_stride, "residual and residual_out");
}

void ValidateBuffers(const AllReduceNormParams& params) {
  if (params.num_tokens == 0) return;
  const PeerBuffers& peers = params.peers;
  for (int32_t rank = 0; rank < peers.world_size; ++rank) {
    const void* buffer = peers.buffers[rank];
    Require(buffer != nullptr && reinterpret_cast<uintptr_t>(buffer) % 256 == 0, "buffers[", rank,
            "] is ", buffer, "; it must be an address that is a multiple of 256");
  }
  const AllReduceNormVariant variant = VariantOf(params);
  const int64_t needed =
      AllReduceInboxPackets(variant, peers.world_size, params.num_tokens, params.hidden_size);
  Require(needed <= AllReduceInboxCapacity(peers.bytes), "buffers of ", peers.bytes, " bytes hold ",
          AllReduceInboxCapacity(peers.bytes), " packets of a launch; ", params.num_tokens, " x ",
          params.hidden_size, " with ", Name(variant), " and ", peers.world_size, " ranks takes ",
          needed);
}

void RequireAllReduced(const PeerBuffers& peers, const AllReduceHeader& header) {
  if (header.gave_up != 0) {
    throw RuntimeFailure(StrCat("rank ", peers.rank, " gave up its all-reduce number ",
                                header.missing_launch, ": rank ", header.missing_rank, " of ",
                                peers.world_size, " did not send in time"));
  }
  if (header.peer_failed != 0) {
    throw RuntimeFailure(StrCat("rank ", peers.rank, " ended its all-reduces: rank ",
                                header.peer_failed - 1, " gave up"));
  }
}

Cost CostOf(const AllReduceNormParams& params) {
  Cost cost;
  if (params.num_tokens == 0) return cost;
  const double elements = static_cast<double>(params.num_tokens) * params.hidden_size;
  const double bytes = elements * SizeOf(params.dtype);
  cost.read_bytes = bytes;                                // this rank's partial
  cost.write_bytes = bytes;                               // residual_out
  cost.flops = elements * (params.peers.world_size - 1);  // sum of the partials
  if (params.residual) {
    cost.read_bytes += bytes;
    cost.flops += elements;
  }
  if (params.weight) {
    cost.read_bytes += static_cast<double>(params.hidden_size) * SizeOf(params.dtype);  // weight
    cost.write_bytes += bytes;                                                          // out
    cost.flops += 4 * elements;  // square, add, scale, weight
  }
  return cost;
}

double LinkBytesOf(const AllReduceNormParams& params) {
  const double ranks = params.peers.world_size;
  const double bytes =
      static_cast<double>(params.num_tokens) * params.hidden_size * SizeOf(params.dtype);
  return 2 * (ranks - 1) / ranks * bytes;  // partials of the own rows, sums of the others
}

}  // namespace tokline
