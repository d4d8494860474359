// How decode_step divides its work: what the plan, the launcher and the kernel share.
#pragma once

#include "kernels/decode_step/decode_step.h"

namespace tokline {

// Weights arrive in units of 8 rows x 1,024 elements, two units per stage of the ring. The distance
// between rows exceeds their length by 64 bytes, so that fragments of 8 rows touch all banks. K and
// V tiles of 16 tokens also take stages.
inline constexpr int32_t kDecodeStepRows = 8;
inline constexpr int32_t kDecodeStepBlockK = 1024;
inline constexpr int32_t kDecodeStepPitch = 2 * kDecodeStepBlockK + 64;
inline constexpr int32_t kDecodeStepUnitBytes = kDecodeStepRows * kDecodeStepPitch;
inline constexpr int32_t kDecodeStepStageUnits = 2;
inline constexpr int32_t kDecodeStepStageBytes = kDecodeStepStageUnits * kDecodeStepUnitBytes;
static_assert(kDecodeStepStageBytes % 1024 == 0);      // tiles of K and V start at 1,024s
inline constexpr int32_t kDecodeStepMaxHidden = 4096;  // a normalised x must fit the registers
inline constexpr int32_t kDecodeStepWarps = 8;         // that multiply
inline constexpr int32_t kDecodeStepPassRows = 8;      // groups of 8 rows that are summed per pass
inline constexpr int32_t kDecodeStepMaxGroup = 8;
inline constexpr int32_t kDecodeStepMaxTasks = 8;        // of attention, per block
inline constexpr int32_t kDecodeStepStaticBytes = 2048;  // of shared memory, at most
inline constexpr int32_t kDecodeStepMaxTiles = 1024;     // of 16 tokens, in all tasks of a block
inline constexpr int32_t kDecodeStepMostInFlight = 2;    // copies, which stream at nearly full rate

// The words of activations of one token that pass between blocks in one layer. Each is a pair of
// elements.
struct DecodeStepWords {
  int32_t qkv, attention, mid, act, out, total;

  constexpr explicit DecodeStepWords(const DecodeStepModel& model, int32_t num_kv_heads,
                                     int32_t head_dim) {
    const int32_t q = model.num_q_heads * head_dim / 2, k = num_kv_heads * head_dim / 2;
    const auto hidden = static_cast<int32_t>(model.hidden_size / 2);
    qkv = 0;
    attention = qkv + q + 2 * k;
    mid = attention + q;
    act = mid + hidden;
    out = act + static_cast<int32_t>(model.intermediate_size / 2);
    total = (out + hidden + 3) / 4 * 4;
  }
};

// What a block holds in shared memory, as offsets in bytes from a multiple of 1,024.
struct DecodeStepGeometry {
  int32_t blocks = 0;
  int32_t stages = 0;     // of the ring
  int32_t in_flight = 0;  // copies of a block at a time, while other blocks wait for words
  int32_t x = 0;          // [num_tokens] rows of x, XPitch() apart
  int32_t sums = 0;       // [kDecodeStepPassRows][warp][num_tokens][8] partial sums
  int32_t rows = 0;       // [group + 2][head_dim] queries, K and V of a task, 16 bytes apart
  int32_t states = 0;     // [warp][group][head_dim + 4] and [warp][8] pairs of softmax states
  int32_t tiles = 0;      // the tiles of K and V that the block reads in every layer
  int32_t barriers = 0;
  int32_t shared_bytes = 0;
};

constexpr int32_t DecodeStepXPitch(int64_t features) {
  return static_cast<int32_t>(2 * features) + 64;
}
// The longest x of a projection.
constexpr int64_t DecodeStepMaxFeatures(const DecodeStepModel& model, int32_t head_dim) {
  const int64_t q = int64_t{model.num_q_heads} * head_dim;
  const int64_t most = model.hidden_size > q ? model.hidden_size : q;
  return most > model.intermediate_size ? most : model.intermediate_size;
}

DecodeStepGeometry DecodeStepGeometryOf(const DecodeStepModel& model, const PagedKvLayout& layout,
                                        int64_t num_tokens, const DeviceFacts& device);
// Partial states of attention that a step may have.
constexpr int32_t DecodeStepMaxPartials(const PagedKvLayout& layout, int32_t blocks) {
  const int32_t whole = kMaxDecodeStepTokens * layout.num_kv_heads;
  return blocks > whole ? blocks : whole;
}
// Words of a partial state: outputs, then pairs of maximum and sum; whole 16 bytes.
constexpr int32_t DecodeStepPartialWords(const DecodeStepModel& model,
                                         const PagedKvLayout& layout) {
  return (model.num_q_heads / layout.num_kv_heads * (layout.head_dim + 2) + 3) / 4 * 4;
}
// The workspace consists of a state and two sets of words. A set holds the words of all tokens and
// layers, then the partial states of all layers.
inline constexpr int32_t kDecodeStepStateBytes = 256;
inline constexpr int64_t kDecodeStepWorkspaceAlignment = 256;
inline constexpr int64_t kDecodeStepLogitsAlignment = 8;  // they are stored in pairs
constexpr int64_t DecodeStepRowWords(const DecodeStepModel& model, const PagedKvLayout& layout) {
  return int64_t{kMaxDecodeStepTokens} * model.num_layers *
         DecodeStepWords(model, layout.num_kv_heads, layout.head_dim).total;
}
constexpr int64_t DecodeStepSetWords(const DecodeStepModel& model, const PagedKvLayout& layout,
                                     int32_t blocks) {
  return DecodeStepRowWords(model, layout) + int64_t{DecodeStepMaxPartials(layout, blocks)} *
                                                 model.num_layers *
                                                 DecodeStepPartialWords(model, layout);
}

// Checks what only a launch needs, after Validate(params): that the device can run the step, the
// workspace and the parts. Throws InvalidArgument.
void ValidateLaunch(const DecodeStepParams& params, const DeviceFacts& device);

}  // namespace tokline
