// Host decisions of Linear: which variant, how the skinny kernel is cut, where scratch lies.
#pragma once

#include <cstdint>

#include "kernels/common/device_facts.h"
#include "kernels/linear/linear.h"

namespace tokline {

// kAuto takes the skinny kernel up to so many tokens, for weights of at most so many bytes: a large
// weight streams faster through cuBLASLt (README.md), the sooner the more tokens there are.
struct SkinnyRange {
  int64_t tokens = 0;
  int64_t weight_bytes = 0;
};
inline constexpr SkinnyRange kSkinnyRanges[] = {{1, int64_t{48} << 20},
                                                {4, int64_t{32} << 20},
                                                {8, int64_t{24} << 20},
                                                {16, int64_t{16} << 20}};
// From so many tokens kAuto runs the norm as a kernel of its own: in kSkinny every block normalises
// all activations again.
inline constexpr int64_t kNormApartTokens = 3;
// Weight rows of one MMA, K elements of one 16-byte load a lane, loads in flight a lane.
inline constexpr int32_t kSkinnyTileRows = 8;
inline constexpr int32_t kSkinnyBlockK = 32;
inline constexpr int32_t kSkinnyDepth = 8;
inline constexpr int32_t kSkinnyMinSplits = 4;
inline constexpr int32_t kSkinnyMaxWarps = 12;
// Threads an SM holds with the 80 registers that a full ring needs; with 64 the ring spills.
inline constexpr int32_t kSkinnyResidentThreads = 768;
// What the skinny kernel may ask for a block: compute capability 8.0, 9.0 and 10.0 give 163 KB or
// more. Where a device gives less, Launch runs kMatmul for kAuto and refuses kSkinny.
inline constexpr int64_t kSkinnySharedBytes = int64_t{160} << 10;

// One block owns `groups` x 8 weight rows, `splits` warps share the K of 8 rows.
struct SkinnyPlan {
  int32_t splits = 0;
  int32_t groups = 0;             // a power of two; with gated_silu half are gate, half up rows
  int32_t pitch_units = 0;        // 16-byte units between activation rows in shared memory
  int32_t partials_units = 0;     // of one of the two buffers of partial sums
  int32_t tiles = 0;              // of groups x 8 weight rows
  int32_t tile_columns_log2 = 0;  // output columns of a tile
  int32_t grid = 0;               // blocks; each takes every grid-th tile
  int64_t shared_bytes = 0;

  int32_t Threads() const { return 32 * splits * groups; }
};

// Splits depend on the weight's shape and the device alone: within kSkinny a token's result does
// not depend on how many others are computed with it.
SkinnyPlan PlanSkinny(const LinearParams& params, const DeviceFacts& device);

// True where the activations of all tokens fit the shared memory of a block.
bool SkinnyFits(const LinearParams& params);

// What `device` runs: LinearPolicy's variant and its plan, or kMatmul instead where kAuto stands
// for a skinny kernel that needs more shared memory than the device gives a block. Throws
// InvalidArgument, stating both, where that variant was asked for by name.
struct LinearChoice {
  LinearVariant variant = LinearVariant::kAuto;
  SkinnyPlan plan = {};  // unless kMatmul
};
LinearChoice PlanLinear(const LinearParams& params, const DeviceFacts& device);

// Scratch of kMatmul and kNormThenSkinny, offsets in bytes into the workspace. cuBLASLt's own comes
// first.
struct LinearScratch {
  int64_t normalised_bytes_at = 0;  // [num_tokens, in_features], with norm_weight
  int64_t gate_up_bytes_at = 0;     // [num_tokens, 2 * out_features], with gated_silu
  int64_t bytes = 0;
};
LinearScratch LinearScratchOf(const LinearParams& params);

// What a launch needs beyond Validate: a CUDA dtype, a workspace where `variant` uses one, and
// matmul for kMatmul.
void ValidateLaunch(const LinearParams& params, LinearVariant variant);

}  // namespace tokline
