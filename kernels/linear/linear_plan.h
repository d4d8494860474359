// Host decisions for Linear: which variant runs, how the work of kSkinny and kWgmma is divided, and
// where scratch lies.
#pragma once

#include <cstdint>

#include "kernels/common/device_facts.h"
#include "kernels/linear/head_plan.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/tile_plan.h"

namespace tokline {

// kAuto uses the skinny kernel for at most this many tokens and weights of at most this many bytes.
// cuBLASLt streams large weights faster (README.md). The more tokens there are, the smaller is the
// weight from which it wins.
struct FewTokensRange {
  int64_t tokens = 0;
  int64_t weight_bytes = 0;
};
inline constexpr FewTokensRange kSkinnyRanges[] = {{1, int64_t{48} << 20},
                                                   {4, int64_t{32} << 20},
                                                   {8, int64_t{24} << 20},
                                                   {16, int64_t{16} << 20}};
// The same for kWgmma. kAuto takes the first of these that applies; the first four only apply if
// the device and the code have wgmma:
// 1. kHead, for fp32 outputs without a bias if every SM has a tile;
// 2. kTile for more tokens than one of its tiles has, if K or N is at most kManyTokensFeatures and
//    the weight no larger than kManyTokensBytes or, with gated_silu, kManyTokensGatedBytes; with
//    fewer tokens from kTileGatedTokens on with gated_silu, and from kTileWideTokens on for weights
//    with at most as many columns as rows;
// 3. kWgmma by these ranges, or kTile where that ends first by a model;
// 4. kTile from kTileTokens on, with at most one tile of tokens, if the weight is no larger than
//    kTileWeightBytes, if gated_silu is set, or if K > N and its blocks fill the SMs once;
// 5. kSkinny or kNormThenSkinny by the ranges above;
// 6. kMatmul.
inline constexpr FewTokensRange kWgmmaRanges[] = {
    {8, INT64_MAX}, {16, int64_t{128} << 20}, {32, int64_t{64} << 20}, {64, int64_t{13} << 20}};
inline constexpr int64_t kTileTokens = 9, kTileGatedTokens = 33, kTileWideTokens = 33;
inline constexpr int64_t kTileWeightBytes = int64_t{200} << 20;
inline constexpr int64_t kManyTokensFeatures = 1024;
inline constexpr int64_t kManyTokensBytes = int64_t{8} << 20;
inline constexpr int64_t kManyTokensGatedBytes = int64_t{16} << 20;
// From this many tokens on, kAuto runs the norm as a separate kernel, because in kSkinny every
// block normalises all activations again.
inline constexpr int64_t kNormApartTokens = 3;
// Weight rows per MMA; K elements per step of one 16-byte load per lane; loads in flight per lane.
inline constexpr int32_t kSkinnyTileRows = 8;
inline constexpr int32_t kSkinnyBlockK = 32;
inline constexpr int32_t kSkinnyDepth = 8;
inline constexpr int32_t kSkinnyMinSplits = 4;
inline constexpr int32_t kSkinnyMaxWarps = 12;
// Resident threads per SM with the 80 registers that a full ring needs; with 64 the ring spills.
inline constexpr int32_t kSkinnyResidentThreads = 768;
// The shared memory that the skinny kernel may request per block; compute capability 8.0, 9.0 and
// 10.0 offer 163 KB or more. On a device that offers less, Launch runs kMatmul for kAuto and
// rejects kSkinny.
inline constexpr int64_t kSkinnySharedBytes = int64_t{160} << 10;

// One block owns `groups` x 8 weight rows, and `splits` warps share the K dimension of 8 rows.
struct SkinnyPlan {
  int32_t splits = 0;
  int32_t groups = 0;             // a power of two; with gated_silu half are gate rows, half up
                                  // rows
  int32_t pitch_units = 0;        // 16-byte units between activation rows in shared memory
  int32_t partials_units = 0;     // size of each of the two buffers of partial sums
  int32_t tiles = 0;              // tiles of groups x 8 weight rows
  int32_t tile_columns_log2 = 0;  // log2 of the output columns per tile
  int32_t grid = 0;               // blocks; each takes every grid-th tile
  int64_t shared_bytes = 0;

  int32_t Threads() const { return 32 * splits * groups; }
};

// kWgmma: a tile of 64 weight rows belongs to `splits` blocks of a cluster, which share its K in
// units of kWgmmaSplitK. Each block of the cluster finishes some of the tokens.
inline constexpr int32_t kWgmmaRows = 64;
inline constexpr int32_t kWgmmaSplitK = 128;
inline constexpr int32_t kWgmmaConsumers = 128;                 // threads of the consumer warpgroup
inline constexpr int32_t kWgmmaThreads = kWgmmaConsumers + 32;  // and the producer warp
// Up to this many tokens it multiplies with mma.sync from registers, and with more tokens with
// wgmma.
inline constexpr int32_t kWgmmaRegisterTokens = 16;
// The largest K with which a share's norm weight fits beside two stages.
inline constexpr int64_t kMaxWgmmaFeatures = 65536;
// The most tokens with which it appends. With more, kTile followed by a kernel that appends is
// faster.
inline constexpr int32_t kWgmmaAppendTokens = 32;
// Warps of a block that end after its first barrier. While they exist, a block has more than half
// of an SM's registers, so that the blocks of a launch go to different SMs as long as there are
// some.
constexpr int32_t WgmmaIdleWarps(int32_t token_tile) { return token_tile == 64 ? 10 : 0; }
// The number of blocks of K whose weights wait for x in registers.
constexpr int32_t WgmmaHeldBlocks(int32_t token_tile) {
  return token_tile <= kWgmmaRegisterTokens ? 2 : 0;
}
// The distances in floats between two rows of sums of `tokens` tokens, chosen so that four rows
// begin in different banks, and between two groups of 8 rows, chosen so that neighbouring groups do
// too.
constexpr int32_t WgmmaSumsPitch(int32_t tokens) { return tokens <= 8 ? tokens : tokens + 8; }
constexpr int32_t WgmmaSumsOfEight(int32_t tokens) { return 8 * WgmmaSumsPitch(tokens) + tokens; }
inline constexpr int32_t kWgmmaBlockK = 128;  // K per stage

struct WgmmaPlan {
  int32_t token_tile = 0;     // 8, 16, 32 or 64: wgmma's columns
  int32_t splits = 0;         // of K: blocks per tile of rows
  int32_t cluster = 0;        // blocks per cluster: those of a tile, or of an appended head
  int32_t pairs_log2 = 0;     // log2 of the most pairs of tokens that a block finishes
  int32_t k_units = 0;        // of kWgmmaSplitK
  int32_t weight_stages = 0;  // of the ring of weights
  int32_t x_stages = 0;       // of the ring of x; at most weight_stages plus the held blocks
  int32_t partials_bytes = 0;
  int32_t norm_bytes = 0;  // of the share's norm weight, if the kernel normalises
  int32_t grid = 0;        // blocks
  int64_t shared_bytes = 0;
};

// Splits depend on the weight's shape, the device, and whether there are more than
// kWgmmaRegisterTokens tokens. A token's result thus does not depend on how many other tokens are
// computed with it, as long as their number stays on one side of this limit. Its out_squares may
// differ by an ulp between up to 8 tokens and more, because they are added in another order.
WgmmaPlan PlanWgmma(const LinearParams& params, const DeviceFacts& device);

// Whether kWgmma normalises x itself.
bool WgmmaNormalises(const LinearParams& params);

// Whether the norm is a separate kernel that runs before that of `variant`. kMatmul handles its
// norm itself.
bool NormRunsApart(const LinearParams& params, LinearVariant variant);

// Whether the variant is for sm_90a alone: kWgmma, kTile and kHead.
bool NeedsHopperCode(LinearVariant variant);

// Whether the device and the loaded code have wgmma, and K consists of whole wgmma panels and is
// not too large.
bool WgmmaRuns(const LinearParams& params, const DeviceFacts& device);

// Splits depend only on the weight's shape and the device, so within kSkinny a token's result does
// not depend on how many other tokens are computed with it.
SkinnyPlan PlanSkinny(const LinearParams& params, const DeviceFacts& device);

// True if the activations of all tokens fit into the shared memory of a block.
bool SkinnyFits(const LinearParams& params);

// What `device` runs: ChooseLinearVariant's variant and its plan, or kMatmul if kAuto selects a
// skinny kernel that needs more shared memory than the device offers per block. If that variant was
// requested by name, throws InvalidArgument, which states both sizes.
struct LinearChoice {
  LinearVariant variant = LinearVariant::kAuto;
  SkinnyPlan skinny = {};  // kSkinny and kNormThenSkinny
  WgmmaPlan wgmma = {};    // kWgmma
  TilePlan tile = {};      // kTile
  HeadPlan head = {};      // kHead
};
LinearChoice PlanLinear(const LinearParams& params, const DeviceFacts& device);

// Scratch of kMatmul, and of the other variants if the norm is a separate kernel, as byte offsets
// into the workspace. cuBLASLt's own workspace comes first.
struct LinearScratch {
  int64_t normalised_bytes_at = 0;  // [num_tokens, in_features], with norm_weight
  int64_t gate_up_bytes_at = 0;     // [num_tokens, 2 * out_features], with gated_silu
  int64_t bytes = 0;
};
LinearScratch LinearScratchOf(const LinearParams& params);

// Checks what a launch needs beyond Validate: a CUDA dtype, a workspace if `variant` uses one, and
// matmul for kMatmul.
void ValidateLaunch(const LinearParams& params, LinearVariant variant);

}  // namespace tokline
