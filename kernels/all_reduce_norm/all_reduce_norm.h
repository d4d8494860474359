// The sum of the partial activations of several ranks, a residual, and RMSNorm, in one kernel that
// writes into the memory of its peers.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/common/cost.h"
#include "kernels/common/device_facts.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"
#include "kernels/common/peer_buffers.h"

struct ncclComm;

namespace tokline {

enum class AllReduceNormVariant : uint8_t {
  kAuto,     // PlanAllReduceNorm decides by ranks and bytes
  kOneShot,  // every rank sends its partial to all others, and each sums for itself: one hop
  kTwoShot,  // a row is summed by the rank that owns it, which sends the sum to the others: two
             // hops, and 2 (N - 1) / N times the bytes instead of N - 1 times
  kSlabs,    // two_shot for many rows: a slab of rows is sent as it is, followed by a flag, so that
             // the bytes on the link are half of those of packets. Needs rows of a multiple of 16 B
             // that are 16 B aligned on every rank, and at least one slab per rank
};

// "auto", "one_shot", "two_shot", "slabs".
std::string_view Name(AllReduceNormVariant variant);

// s = round(partial of rank 0 + partial of rank 1 + ... + residual), added in this order in fp32
//   with one rounding, and stored to residual_out;
// out = round(round(s / sqrt(mean(s^2) + eps)) * weight), as norm.h defines it.
// The order does not depend on the variant or on the rank, so that all ranks have the same bits.
// All ranks must launch the same sequence of dtypes, shapes, variants and `sent`, and hold the same
// residual. A rank with two_shot or slabs reads the residual of its own rows only.
struct AllReduceNormParams {
  DType dtype = DType::kBf16;
  AllReduceNormVariant variant = AllReduceNormVariant::kAuto;
  int64_t num_tokens = 0;
  int64_t hidden_size = 0;  // any; 8 B vectors are used if all rows are 8 B aligned and multiples
                            // of 8 B
  float eps = 0;
  // The ranks' partials, [num_tokens, hidden_size] each. CUDA reads that of this rank only, the
  // reference reads all.
  const void* partials[kMaxRanks] = {};
  int64_t partial_stride = 0;  // elements between rows
  // This rank's partial is already being sent to all ranks as packets by the projection before
  // (LinearParams::send); CUDA does not read it. TakesSentPartials says where that works. The
  // reference ignores it.
  bool sent = false;
  const void* residual = nullptr;  // [num_tokens, hidden_size] or null: nothing is added
  int64_t residual_stride = 0;
  const void* weight = nullptr;  // [hidden_size], or null: no norm
  // [num_tokens, hidden_size]; may be residual or, unless that was sent, this rank's partial
  void* residual_out = nullptr;
  int64_t residual_out_stride = 0;
  void* out = nullptr;  // [num_tokens, hidden_size]; null without weight
  int64_t out_stride = 0;
  PeerBuffers peers = {};
  // The minimum time that a launch waits for the packets of its peers. After that it gives up,
  // tells its peers, and leaves its outputs unspecified. All later launches of the group then do so
  // at once.
  int64_t time_limit_ms = 10'000;  // 1 to kMaxAllReduceTimeLimitMs
};
// A year: in nanoseconds it can be added to any time of the device.
inline constexpr int64_t kMaxAllReduceTimeLimitMs = int64_t{365} * 24 * 3600 * 1000;

// Returns a launch of rows [begin, begin + count) of `params` alone.
AllReduceNormParams RowsOf(const AllReduceNormParams& params, int64_t begin, int64_t count);

// A size that suffices with one_shot and two_shot for every shape of at most `max_tokens` rows of
// `max_hidden` elements.
int64_t AllReduceNormBufferBytes(int32_t world_size, int64_t max_tokens, int64_t max_hidden);
// The same for slabs, with which a launch takes at most 65,504 tokens. A multiple of 256.
int64_t AllReduceNormSlabBytes(int32_t world_size, int64_t max_tokens, int64_t max_hidden);
// The variant that runs: the one asked for, or what kAuto selects for the number of ranks, the
// tokens and the slabs of `peers`. All ranks decide alike.
AllReduceNormVariant ChooseAllReduceNormVariant(const AllReduceNormParams& params);
// How many of the rows one launch can take with these buffers and this variant; at least 1. The
// caller divides more rows among several launches with RowsOf. They need kAuto, because the last
// one may have too few rows for another variant.
int64_t RowsInOneLaunch(const AllReduceNormParams& params);

// Whether the projections that compute the partials of this launch may send them. They may if it is
// a single launch of one_shot whose rows are whole vectors of eight elements. All ranks decide
// alike.
bool TakesSentPartials(const AllReduceNormParams& params);

// Validate does not look at the buffers of `peers`, which the reference does not use;
// ValidateBuffers does. Launch calls both.
void Validate(const AllReduceNormParams& params);
void ValidateBuffers(const AllReduceNormParams& params);
// The memory of the rank's own device. LinkBytesOf counts what crosses its links.
Cost CostOf(const AllReduceNormParams& params);
// The minimum number of bytes that a rank has to receive with one owner per row: 2 (N - 1) / N
// partials.
double LinkBytesOf(const AllReduceNormParams& params);

// Launches this rank's part. The launches of all ranks must be able to run at the same time.
void Launch(const AllReduceNormParams& params, const LaunchOptions& options);

// Launches all ranks of a group on the current device, in one cooperative grid whose blocks are all
// resident: `ranks[i]` is rank i. For tests and measurements without a second device.
void LaunchVirtualRanks(std::span<const AllReduceNormParams> ranks, const LaunchOptions& options);

// Throws RuntimeFailure if the header, which was read from the buffer of this rank, shows that this
// rank or a peer has given up since the buffers were zeroed. The error says for whom it waited.
void RequireAllReduced(const PeerBuffers& peers, const AllReduceHeader& header);
// Reads the header after the work on the stream. CUDA builds only.
void RequireAllReduced(const PeerBuffers& peers, CUstream_st* stream);

// The same operation where the ranks have no access to each other's memory: ncclAllReduce, then
// norm. NCCL chooses the order of the sum, which is rounded once more, before the residual is
// added. It is written to residual_out or, if that is the residual, over this rank's partial; both
// must be contiguous. A residual requires a weight. CUDA builds only. Throws RuntimeFailure if NCCL
// is missing, and CudaError if it fails.
void LaunchOverNccl(const AllReduceNormParams& params, ncclComm* communicator,
                    const LaunchOptions& options);

}  // namespace tokline
