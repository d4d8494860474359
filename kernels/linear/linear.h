// y = x W^T with the small operations that a decoder puts around it: RMSNorm before; bias, gated
// SiLU or residual after. Projections, MLP and LM head all use this kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/common/cost.h"
#include "kernels/common/device_facts.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"

namespace tokline {

struct KvAppendParams;
struct PeerBuffers;

// cuBLASLt behind the suite's own interface: row-major out = x W^T (+ bias) (+ out) with fp32
// accumulation. It keeps the handle and the algorithm chosen per shape, and must not be used by
// several host threads at the same time. CUDA builds only.
class Matmul {
 public:
  Matmul();
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  struct Problem {
    DType dtype = DType::kBf16;  // of x, weight, bias, and out unless out_f32
    bool out_f32 = false;
    bool accumulate = false;  // out = addend + x W^T, added in fp32, one rounding
    int64_t num_tokens = 0, in_features = 0, out_features = 0;
    const void* x = nullptr;  // [num_tokens, in_features]
    int64_t x_stride = 0;
    const void* weight = nullptr;  // [out_features, in_features], contiguous
    const void* bias = nullptr;    // [out_features] or null
    const void* addend = nullptr;  // [num_tokens, out_features] of out's type; null: out itself
    int64_t addend_stride = 0;     // out_stride if addend is out or null
    void* out = nullptr;           // [num_tokens, out_features]
    int64_t out_stride = 0;
    void* workspace = nullptr;  // kWorkspaceBytes, 256 B aligned
  };
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

  // Chooses and stores the algorithm for a shape. Run does so itself on first use.
  void Prepare(const Problem& problem);
  // During a rehearsal it runs only problems that have not run before.
  void Run(const Problem& problem, const LaunchOptions& options);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

enum class LinearVariant : uint8_t {
  kAuto,    // ChooseLinearVariant decides by tokens, weight, outputs, and whether there is a norm
  kSkinny,  // hand-written: weights stream once, everything fused; at most kMaxSkinnyTokens tokens
  kNormThenSkinny,  // RMSNorm kernel, then kSkinny with everything except the norm
  kWgmma,  // hand-written for sm_90a: RMSNorm kernel, then everything else in one kernel, whose
           // weights stream through shared memory; in_features a multiple of 64, 256 to 65,536; at
           // most kMaxWgmmaTokens tokens
  kTile,   // hand-written for sm_90a, also for more tokens: the same, in tiles that fill the device
           // once where possible; in_features as for kWgmma; at most kMaxTileTokens tokens
  kHead,   // hand-written for sm_90a: fp32 outputs of a weight with many rows, such as an LM head,
           // with the largest of each row; RMSNorm kernel before; in_features as for kWgmma; no
           // bias; at most kMaxHeadTokens tokens
  kMatmul,  // RMSNorm kernel, cuBLASLt, SiLU kernel, as needed
};

inline constexpr int64_t kMaxSkinnyTokens = 16;
inline constexpr int64_t kMaxWgmmaTokens = 64;
inline constexpr int64_t kMaxTileTokens = 256;
// With more tokens no projection sends its outputs to other ranks.
inline constexpr int64_t kMaxSentTokens = 128;
inline constexpr int64_t kMaxHeadTokens = 128;
// The number of sums of squares that are kept for the next norm for each 64 elements of a row.
// Which elements a sum covers is left open; the norm needs their total.
inline constexpr int32_t kLinearSquares = 4;
inline constexpr int64_t kMaxSquaresTokens = 16;

// "auto", "skinny", "norm_then_skinny", "wgmma", "tile", "head", "matmul".
std::string_view Name(LinearVariant variant);

// n = x, or RMSNorm(x, norm_weight) as norm.h defines it.
// y = round(n W^T + bias), fp32 accumulation.
// gated_silu: W is [2 * out_features, in_features], gate rows then up rows, and
//   out = round(round(silu(gate)) * up).  residual: out = round(y + residual).
// kMatmul adds the residual in fp32 before its only rounding, so it rounds once less.
struct LinearParams {
  DType dtype = DType::kBf16;
  bool out_f32 = false;  // out is fp32 and not rounded to dtype; not with residual or gated
  bool gated_silu = false;
  LinearVariant variant = LinearVariant::kAuto;
  int64_t num_tokens = 0;
  int64_t in_features = 0;            // a multiple of 8
  int64_t out_features = 0;           // any; a multiple of 8 with gated_silu
  const void* x = nullptr;            // [num_tokens, in_features], rows 16 B aligned
  int64_t x_stride = 0;               // elements between rows
  const void* norm_weight = nullptr;  // [in_features], 16 B aligned, or null: no norm
  float norm_eps = 0;
  // fp32 [num_tokens, in_features / 64, rounded up, kLinearSquares], 16 B aligned, or null: sums of
  // squares of x, from an earlier kernel's out_squares. With them kWgmma normalises up to
  // kMaxSquaresTokens tokens itself, without a separate kernel for the norm. With more tokens, and
  // in all other variants, they are ignored.
  const float* x_squares = nullptr;
  const void* weight = nullptr;    // [out_features, in_features], contiguous, 16 B aligned
  const void* bias = nullptr;      // [out_features] ([2 * out_features] when gated) or null
  const void* residual = nullptr;  // [num_tokens, out_features] or null; may be out
  int64_t residual_stride = 0;
  void* out = nullptr;  // [num_tokens, out_features]
  int64_t out_stride = 0;
  // fp32 [num_tokens, out_features / 64, rounded up, kLinearSquares], or null: receives sums of
  // squares of out. It must not be the buffer of x_squares. kWgmma only; neither with gated_silu
  // nor with out_f32.
  float* out_squares = nullptr;
  // If not null, rows of out are heads of q, k and v, and the same kernel also does QK-norm, RoPE
  // and the append, with the parameters that AppendOf (rmsnorm_qkv.h) returns. LinearAppends says
  // where that works. The k and v columns of out are then not written.
  const KvAppendParams* append = nullptr;
  // If not null, out is this rank's partial of the next launch of all_reduce_norm on these buffers,
  // and is also sent to all ranks, whose launches must then set AllReduceNormParams::sent.
  // LinearSends says where that works. Earlier launches on the buffers must be complete when the
  // kernels before this one are complete. The next launch must write neither x nor out, since it
  // begins before this kernel ends. The reference ignores it.
  const PeerBuffers* send = nullptr;
  // uint64 [num_tokens, LinearBestParts()], or null: receives the largest output of each part of a
  // row with its feature, packed as in packed_best.cuh. Only kHead finds it; the reference ignores
  // it.
  uint64_t* best = nullptr;
  // int32 [num_tokens], only with best, or null: not 0 for rows of out that are never read. kHead
  // does not write these rows.
  const int32_t* only_best = nullptr;
  // The weights of a later kernel, 16 B aligned, or null. kSkinny prefetches them into L2 while its
  // own weights are in flight. This is a hint, which the reference and all other variants ignore.
  const void* prefetch = nullptr;
  int64_t prefetch_bytes = 0;
  Matmul* matmul = nullptr;     // CUDA, kMatmul
  void* workspace = nullptr;    // CUDA, 256 B aligned; kSkinny needs none
  int64_t workspace_bytes = 0;  // LinearWorkspaceBytes(params)
};

// The variant that runs: the one asked for, or what kAuto selects on this device.
LinearVariant ChooseLinearVariant(const LinearParams& params, const DeviceFacts& device);
// Whether the device can run these tokens, features and norm with the variant asked for.
bool LinearRuns(const LinearParams& params, const DeviceFacts& device);
// Whether a projection before an RMSNorm should have out_squares, from which the projection after
// it normalises up to kMaxSquaresTokens tokens. Otherwise that norm is a kernel of its own.
bool LinearLeavesSquares(LinearParams params, const DeviceFacts& device);
// Whether `append` can be part of the projection's kernel: kWgmma with at most 32 tokens.
bool LinearAppends(const LinearParams& params, const DeviceFacts& device);
// Whether the projection's kernel can send its outputs to the peers: kWgmma and kTile, with at most
// kMaxSentTokens tokens, outputs in dtype and out_features a multiple of 8, neither gated nor with
// append or residual.
bool LinearSends(const LinearParams& params, const DeviceFacts& device);
// The number of parts of a row whose largest outputs the projection's kernel finds; 0 if it finds
// none.
int32_t LinearBestParts(const LinearParams& params, const DeviceFacts& device);
// An upper bound on LinearBestParts.
inline int32_t MostLinearBestParts(const DeviceFacts& device) { return 2 * device.sm_count; }
// The size suffices for every variant.
int64_t LinearWorkspaceBytes(const LinearParams& params);
void Validate(const LinearParams& params);
// Checks that the outputs are the heads that `append` takes. Validate does so for params.append.
void ValidateAppend(const LinearParams& params, const KvAppendParams& append);
Cost CostOf(const LinearParams& params);
void Launch(const LinearParams& params, const LaunchOptions& options);

}  // namespace tokline
