// Host side of all_reduce_norm: the variant, the grid, the sizes of buffers, validation and cost.
#include "kernels/all_reduce_norm/all_reduce_norm_plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "kernels/common/alignment.h"
#include "kernels/common/error.h"
#include "kernels/common/rounding.h"
#include "kernels/common/rows.h"

namespace tokline {
namespace {

constexpr int64_t kVectorBytes = 8, kSlabVectorBytes = 16;

bool TakesVectors(const AllReduceNormParams& params, int64_t bytes) {
  const int64_t width = bytes / SizeOf(params.dtype);
  const auto aligned = [&](const void* pointer, int64_t stride) {
    return IsAligned(pointer, bytes) && (params.num_tokens <= 1 || stride % width == 0);
  };
  return params.hidden_size % width == 0 &&
         aligned(params.partials[params.peers.rank], params.partial_stride) &&
         aligned(params.residual, params.residual_stride) && aligned(params.weight, 0) &&
         aligned(params.residual_out, params.residual_out_stride) &&
         aligned(params.out, params.out_stride);
}

// The rows of a launch at each rank, in bytes.
int64_t SlabRowBytes(const AllReduceSlabs& slabs, int32_t world_size, int64_t hidden_bytes) {
  return slabs.Flags(world_size) * slabs.rows * hidden_bytes;
}

// The bytes that each of two launches in turn has for its rows.
int64_t SlabRoom(int64_t slab_bytes) {
  const int64_t flags = 2 * kAllReduceSlabFlags * int64_t{sizeof(uint32_t)};
  return std::max<int64_t>(0, slab_bytes - flags) / 2 / kSlabVectorBytes * kSlabVectorBytes;
}

bool SlabsFit(int32_t world_size, int64_t num_tokens, int64_t hidden_bytes, int64_t slab_bytes) {
  const AllReduceSlabs slabs = SlabsOf(world_size, num_tokens);
  return slabs.Flags(world_size) <= kAllReduceSlabFlags &&
         SlabRowBytes(slabs, world_size, hidden_bytes) <= SlabRoom(slab_bytes);
}

// Whether every rank owns a slab. Then a rank whose launch has ended has heard from all others.
bool SlabsForAll(int32_t world_size, int64_t num_tokens) {
  return world_size >= 2 && SlabsOf(world_size, num_tokens).slabs >= world_size;
}

int64_t HiddenBytes(const AllReduceNormParams& params) {
  return params.hidden_size * SizeOf(params.dtype);
}

// Whether kAuto takes slabs for these tokens, if they fit. All ranks must decide alike, so this
// ignores everything in which they may differ, such as addresses.
bool PrefersSlabs(const AllReduceNormParams& params, int64_t num_tokens) {
  constexpr int64_t kLeastBytes = 3 << 20;
  return num_tokens * HiddenBytes(params) >= kLeastBytes &&
         SlabsForAll(params.peers.world_size, num_tokens) &&
         HiddenBytes(params) % kSlabVectorBytes == 0;
}

}  // namespace

// With two ranks one_shot sends no more than two_shot, and is faster below a MiB; above it two_shot
// takes 1 to 7 % less, as each rank norms half of the rows while the other half is on its way. With
// more ranks two_shot pays once its second hop costs less than the bytes that it saves. The sizes
// are those at which vLLM's custom all-reduce changes over. All of its bytes are data, whereas half
// of ours are launch numbers, so two_shot should pay from smaller sizes on: at 380 GB/s and 1.4 us
// per hop, from about 170 KB with 4 ranks and from 50 KB with 8. That is an estimate; more than two
// ranks have not been measured.
AllReduceNormVariant ChooseAllReduceNormVariant(const AllReduceNormParams& params) {
  if (params.variant != AllReduceNormVariant::kAuto) return params.variant;
  const int32_t ranks = params.peers.world_size;
  if (PrefersSlabs(params, params.num_tokens) &&
      SlabsFit(ranks, params.num_tokens, HiddenBytes(params), params.peers.slab_bytes)) {
    return AllReduceNormVariant::kSlabs;
  }
  const int64_t bytes = params.num_tokens * HiddenBytes(params);
  const int64_t limit = ranks <= 4 ? 512 << 10 : 256 << 10;
  const bool one_shot = ranks <= 2 || bytes <= limit || params.num_tokens < ranks;
  return one_shot ? AllReduceNormVariant::kOneShot : AllReduceNormVariant::kTwoShot;
}

namespace {

int64_t PacketBytes(const PeerBuffers& peers) { return peers.bytes - peers.slab_bytes; }

// Returns `most` if it fits, otherwise the largest smaller count that fits; at least 1. If a count
// fits, all smaller ones must fit, too.
template <typename Fits>
int64_t LargestThat(int64_t most, const Fits& fits) {
  if (fits(most)) return most;
  int64_t low = 1, high = most - 1;
  while (low < high) {
    const int64_t middle = high - (high - low) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
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
    case AllReduceNormVariant::kSlabs:
      return "slabs";
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

// Few rows make small slabs, so that there are enough of them for the device.
AllReduceSlabs SlabsOf(int32_t world_size, int64_t num_tokens) {
  constexpr int64_t kFewTokens = 2048;
  AllReduceSlabs slabs{.rows = num_tokens <= kFewTokens ? 4 : 16};
  slabs.slabs = static_cast<int32_t>(DivideUp(num_tokens, slabs.rows));
  slabs.owned = static_cast<int32_t>(DivideUp(slabs.slabs, world_size));
  return slabs;
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

int64_t AllReduceNormSlabBytes(int32_t world_size, int64_t max_tokens, int64_t max_hidden) {
  constexpr int64_t kElementBytes = 2;
  const int64_t rows = SlabRowBytes(SlabsOf(world_size, max_tokens), world_size,
                                    RoundUp(max_hidden * kElementBytes, kSlabVectorBytes));
  return RoundUp(2 * (kAllReduceSlabFlags * int64_t{sizeof(uint32_t)} + rows), 256);
}

int64_t RowsInOneLaunch(const AllReduceNormParams& params) {
  const int32_t ranks = params.peers.world_size;
  const int64_t tokens = std::max<int64_t>(params.num_tokens, 1);
  const auto slabs_fit = [&](int64_t rows) {
    return SlabsFit(ranks, rows, HiddenBytes(params), params.peers.slab_bytes);
  };
  const auto packets_fit = [&](int64_t rows) {
    AllReduceNormParams part = params;
    part.num_tokens = rows;
    part.peers.slab_bytes = 0;  // with kAuto: one_shot or two_shot
    return AllReduceInboxPackets(ChooseAllReduceNormVariant(part), ranks, rows,
                                 params.hidden_size) <=
           AllReduceInboxCapacity(PacketBytes(params.peers));
  };
  if (params.variant == AllReduceNormVariant::kSlabs) return LargestThat(tokens, slabs_fit);
  if (params.variant == AllReduceNormVariant::kAuto) {
    const int64_t rows = LargestThat(tokens, slabs_fit);
    if (slabs_fit(rows) && PrefersSlabs(params, rows)) return rows;
  }
  return LargestThat(tokens, packets_fit);
}

bool TakesSentPartials(const AllReduceNormParams& params) {
  return params.peers.world_size > 1 && params.num_tokens > 0 && params.hidden_size % 8 == 0 &&
         RowsInOneLaunch(params) >= params.num_tokens &&
         ChooseAllReduceNormVariant(params) == AllReduceNormVariant::kOneShot;
}

AllReduceNormPlan PlanAllReduceNorm(const AllReduceNormParams& params, const DeviceFacts& device,
                                    int32_t ranks_on_device) {
  constexpr int64_t kMostThreads = 1024, kWarp = 32;
  Require(ranks_on_device >= 1 && ranks_on_device <= device.sm_count, ranks_on_device,
          " ranks on a device of ", device.sm_count, " multiprocessors");
  if (ChooseAllReduceNormVariant(params) == AllReduceNormVariant::kSlabs) {
    const AllReduceSlabs slabs = SlabsOf(params.peers.world_size, params.num_tokens);
    const int64_t room = device.sm_count * (kMostThreads / kWarp) / slabs.rows / ranks_on_device;
    return {.variant = AllReduceNormVariant::kSlabs,
            .vectors = true,
            .blocks = static_cast<int32_t>(std::min<int64_t>(slabs.slabs, room)),
            .threads = static_cast<int32_t>(slabs.rows * kWarp),
            .slabs = slabs};
  }
  const int64_t threads = RoundUp(AllReducePacketsPerRow(params.hidden_size), kWarp);
  return {.variant = ChooseAllReduceNormVariant(params),
          .vectors = TakesVectors(params, kVectorBytes),
          .blocks = static_cast<int32_t>(
              std::min<int64_t>(params.num_tokens, device.sm_count / ranks_on_device)),
          .threads = static_cast<int32_t>(std::min(threads, kMostThreads)),
          .slabs = {}};
}

void Validate(const AllReduceNormParams& params) {
  Require(params.num_tokens >= 0 && params.num_tokens <= INT32_MAX, "num_tokens is ",
          params.num_tokens, "; it must be 0 to ", INT32_MAX);
  Require(params.hidden_size >= 1 && params.hidden_size <= INT32_MAX / 2, "hidden_size is ",
          params.hidden_size, "; it must be 1 to ", INT32_MAX / 2);
  Require(params.eps >= 0 && std::isfinite(params.eps), "eps is ", params.eps,
          "; it must be finite and >= 0");
  Require(params.time_limit_ms >= 1 && params.time_limit_ms <= kMaxAllReduceTimeLimitMs,
          "time_limit_ms is ", params.time_limit_ms, "; it must be 1 to ",
          kMaxAllReduceTimeLimitMs);
  const PeerBuffers& peers = params.peers;
  Require(peers.world_size >= 1 && peers.world_size <= kMaxRanks, "world_size is ",
          peers.world_size, "; it must be 1 to ", kMaxRanks);
  Require(peers.rank >= 0 && peers.rank < peers.world_size, "rank is ", peers.rank,
          "; it must be 0 to ", peers.world_size - 1);
  if (params.num_tokens == 0) return;
  Require(params.variant != AllReduceNormVariant::kTwoShot || params.num_tokens >= peers.world_size,
          "two_shot needs a row for each of ", peers.world_size, " ranks; num_tokens is ",
          params.num_tokens);
  Require(params.variant != AllReduceNormVariant::kSlabs ||
              SlabsForAll(peers.world_size, params.num_tokens),
          "slabs needs 2 ranks or more and a slab for each of them; ", params.num_tokens,
          " tokens have ", SlabsOf(peers.world_size, params.num_tokens).slabs, " for ",
          peers.world_size);
  const void* partial = params.partials[params.peers.rank];
  Require(partial && params.residual_out, "this rank's partial and residual_out must not be null");
  Require((params.weight == nullptr) == (params.out == nullptr), "weight is ", params.weight,
          " and out is ", params.out, "; the norm needs both, and without it both are null");
  Require(params.out == nullptr || (params.out != partial && params.out != params.residual &&
                                    params.out != params.residual_out),
          "out must be none of this rank's partial, residual and residual_out");
  const int64_t rows = params.num_tokens;
  const auto require_stride = [&](int64_t stride, const char* name) {
    RequireStride(rows, stride, name, params.hidden_size, "hidden_size");
  };
  require_stride(params.partial_stride, "partial_stride");
  require_stride(params.residual_out_stride, "residual_out_stride");
  if (params.residual) require_stride(params.residual_stride, "residual_stride");
  if (params.out) require_stride(params.out_stride, "out_stride");
  RequireOneStride(rows, partial, params.partial_stride, params.residual_out,
                   params.residual_out_stride, "this rank's partial and residual_out");
  RequireOneStride(rows, params.residual, params.residual_stride, params.residual_out,
                   params.residual_out_stride, "residual and residual_out");
}

void ValidateBuffers(const AllReduceNormParams& params) {
  if (params.num_tokens == 0) return;
  const PeerBuffers& peers = params.peers;
  RequireBuffers(peers);
  Require(peers.slab_bytes == 0 ||
              (peers.slab_bytes > 0 && peers.slab_bytes % 256 == 0 && peers.bytes % 256 == 0 &&
               PacketBytes(peers) >= kAllReduceHeaderBytes),
          "slab_bytes is ", peers.slab_bytes, " of ", peers.bytes,
          " bytes; both must be multiples of 256, with ", kAllReduceHeaderBytes,
          " bytes or more before the slabs");
  const AllReduceNormVariant variant = ChooseAllReduceNormVariant(params);
  Require(!params.sent || TakesSentPartials(params), "sent partials of ", params.num_tokens, " x ",
          params.hidden_size, " with ", Name(variant), " and ", peers.world_size,
          " ranks; they need 2 ranks or more, one_shot in one launch, and a hidden_size that is a "
          "multiple of 8");
  Require(!params.sent || params.residual_out != params.partials[peers.rank],
          "residual_out is this rank's partial, which the projection that sent it may still write");
  if (variant == AllReduceNormVariant::kSlabs) {
    Require(TakesVectors(params, kSlabVectorBytes), "slabs needs rows of a multiple of ",
            kSlabVectorBytes, " B that are as well aligned; hidden_size is ", params.hidden_size);
    Require(SlabsFit(peers.world_size, params.num_tokens, HiddenBytes(params), peers.slab_bytes),
            "slab_bytes is ", peers.slab_bytes, "; ", params.num_tokens, " x ", params.hidden_size,
            " with ", peers.world_size, " ranks takes ",
            AllReduceNormSlabBytes(peers.world_size, params.num_tokens, params.hidden_size),
            ", and at most ", kAllReduceSlabFlags, " flags of ",
            SlabsOf(peers.world_size, params.num_tokens).Flags(peers.world_size));
    return;
  }
  const int64_t needed =
      AllReduceInboxPackets(variant, peers.world_size, params.num_tokens, params.hidden_size);
  const int64_t room = AllReduceInboxCapacity(PacketBytes(peers));
  Require(needed <= room, "buffers of ", PacketBytes(peers), " bytes hold ", room,
          " packets of a launch; ", params.num_tokens, " x ", params.hidden_size, " with ",
          Name(variant), " and ", peers.world_size, " ranks takes ", needed);
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
  return 2 * (ranks - 1) / ranks * bytes;  // partials of this rank's rows, sums of the others
}

}  // namespace tokline
