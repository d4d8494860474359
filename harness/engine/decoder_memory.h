// Which buffers a decoder needs, how large they are, and where they lie.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/engine/ablation.h"
#include "harness/engine/backend.h"
#include "harness/engine/step_arrays.h"
#include "harness/engine/step_ops.h"
#include "harness/models/model_spec.h"
#include "harness/models/sharding.h"
#include "kernels/common/device_facts.h"
#include "kernels/common/dtype.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline {

class ProcessGroup;

struct DecoderOptions {
  Device device = Device::kCpu;
  // Among how many ranks the model is divided: as many devices, or threads on the CPU.
  int32_t ranks = 1;
  // If set and there are several ranks, they are these processes, of which this is rank 0.
  // Otherwise they are threads.
  ProcessGroup* processes = nullptr;
  std::chrono::milliseconds rank_limit{60'000};  // how far a rank may fall behind the others
  std::function<void(const std::string&)> on_hang = {};  // as in RankGroup::Options
  DType dtype = DType::kF32;    // of weights, activations and KV; CUDA takes bf16 and f16
  int32_t max_batch = 1;        // sequences that run at a time
  int64_t max_context = 0;      // tokens per sequence, prompt and new; 0: what the model allows
  int64_t kv_pages = 0;         // 0: enough for max_batch sequences of max_context
  int32_t page_size = 256;      // tokens
  int64_t token_budget = 8192;  // prompt tokens per step; longer prompts take several steps
  bool reuse = false;           // K and V of prompts that begin with the same tokens
  // With reuse: whether decode steps read what their sequences share only once.
  ChunkSharing sharing = ChunkSharing::kWhenItPays;
  int64_t pinned_pages = 0;  // at most so many may be pinned; sequences do not rely on them
  AblationSet ablate = {};
  std::optional<DelayedOp> delayed = {};  // to test the tools

  // The ranks, if they are processes.
  ProcessGroup* Processes() const { return ranks > 1 ? processes : nullptr; }
};

// The checked options with all defaults filled in, and what follows from them for a rank.
struct DecoderConfig {
  DecoderOptions options;
  ShardPlan shard;            // whose local model all sizes are of, except those of logits
  PagedKvLayout layout;       // of one layer; includes the scratch page if there is one
  int32_t group = 1;          // query heads per KV head
  int32_t max_runs = 1;       // per sequence; see SequencePages
  int32_t max_pages = 0;      // per sequence
  int32_t scratch_page = -1;  // stays zero; padding rows read it when paged_prefill decodes
  DeviceFacts facts;
  ChunkDecodeGrid full_grid;     // of chunk_decode; has no lanes on the host
  std::vector<int32_t> buckets;  // numbers of decode rows that steps are padded to, ascending
  int64_t max_tokens = 0;        // per step
  // These have kernels of their own, because an ablation asks for it or because no fused op does
  // what the model needs.
  bool split_input_norm = false;
  bool split_mlp = false;  // norm, first projection, activation
  bool split_final_norm = false;
  int32_t one_kernel_rows = 0;  // the largest bucket whose steps may run as one kernel
  StepShape largest_step;       // no step's arrays are larger
  int64_t linear_workspace_bytes = 0;
  int64_t sampling_workspace_bytes = 0;

  // Throws InvalidArgument, which states values and limits.
  DecoderConfig(const ModelSpec& whole, const DecoderOptions& options, const DeviceFacts& facts,
                int32_t rank = 0);

  int32_t Bucket(int32_t rows) const;  // the smallest bucket that holds `rows`
  // The shape of a decode step whose longest context, with the new token, is `longest`, as a chain
  // of kernels.
  StepShape DecodeShape(int32_t bucket, int64_t longest) const;
  // The same as one kernel.
  StepShape OneKernelShape(int32_t bucket) const;
  // Whether a decode step of `bucket` rows can run as one kernel.
  bool RunsAsOneKernel(int32_t bucket) const { return bucket <= one_kernel_rows; }
  // Every shape that a decode step can have. Each is captured as a graph.
  std::vector<StepShape> DecodeShapes() const;
  bool Ablates(Ablation ablation) const { return options.ablate.Has(ablation); }
  bool Divided() const { return shard.world_size > 1; }  // among several ranks
  // Of a decode step.
  StepOpSet DecodeOps() const;
  bool OnDevice() const { return options.device == Device::kCuda; }
  bool SharesReads() const {
    return options.reuse && options.sharing != ChunkSharing::kNever &&
           !Ablates(Ablation::kChunkDecode);
  }
};

// Whether the ablation swaps anything in a decoder of this model. It does not if no fused op does
// the work for this model anyway.
bool Swaps(const ModelSpec& spec, Ablation ablation);

// Bytes that a decoder allocates on its device, or on that of each rank, and on the host.
struct MemoryPlan {
  int64_t weight_bytes = 0;
  int64_t kv_bytes = 0;
  int64_t activation_bytes = 0;  // logits included
  int64_t workspace_bytes = 0;   // of kernels, cuBLASLt included
  int64_t table_bytes = 0;       // RoPE table and step arrays
  int64_t staging_bytes = 0;     // on the host, pinned on CUDA: two steps' arrays and tokens

  // On the device.
  int64_t Total() const {
    return weight_bytes + kv_bytes + activation_bytes + workspace_bytes + table_bytes;
  }
};

// The plan of rank 0, which the others have too, except that parts may differ by a few rows.
// Without a device at hand `facts` may be all 0; the workspace of chunk_decode is then left out.
MemoryPlan PlanMemory(const ModelSpec& spec, const DecoderOptions& options,
                      const DeviceFacts& facts);

// Throws RuntimeFailure, which states the free bytes and the needed ones by their use, if the plan
// does not fit.
void RequireRoom(const MemoryPlan& plan, int64_t free_bytes);

// A workspace of chunk_decode for one number of sequences. Its counters stay zero between launches,
// because no launch with another number of sequences writes partial states there.
struct DecodeWorkspace {
  int32_t num_seqs = 0;
  int64_t max_partials = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

// All buffers except weights. N = max_tokens, B = max_batch; elements of options.dtype unless
// typed.
struct DecoderBuffers {
  DecoderBuffers(const DecoderConfig& config, Backend& backend);

  std::byte* x = nullptr;        // [N, H] residual stream
  std::byte* partial = nullptr;  // [N, H] what this rank adds to it; only if there are several
  std::byte* qkv = nullptr;  // [N, Q + 2 K], or more, since ShiftedCopy works here between steps
  int64_t qkv_bytes = 0;
  std::byte* attention = nullptr;  // [N, Q]
  std::byte* mlp = nullptr;        // [N, I]
  std::byte* last = nullptr;       // [B, H] rows that logits are computed from
  std::byte* normed = nullptr;     // [N, H]; only if a norm is no part of a projection
  float* x_squares = nullptr;      // [min(N, kMaxSquaresTokens), H / 64, kLinearSquares] of x
  std::byte* gate_up = nullptr;    // [N, 2 I]; only if a gated MLP is split
  float* logits = nullptr;         // [B, vocab_size] of the whole model
  int32_t* sampled = nullptr;      // [B] newest token of each slot; the next decode step's input
  std::byte* linear_workspace = nullptr;
  std::byte* sampling_workspace = nullptr;
  // One per bucket. All have their partial states at the same place and their counters before it.
  std::vector<DecodeWorkspace> decode_workspaces;
  DecodeWorkspace prefill_workspace;  // only for ablation paged_prefill: for any number of
                                      // sequences; its counters must be zeroed before each step
  std::byte* decode_step_workspace = nullptr;
  int64_t decode_step_workspace_bytes = 0;
  float* rope = nullptr;      // [max_context, head_dim / 2] pairs; null without RoPE
  std::byte* step = nullptr;  // arrays of a step
  std::byte* kv = nullptr;    // [num_layers] pools

 private:
  friend MemoryPlan PlanMemory(const ModelSpec&, const DecoderOptions&, const DeviceFacts&);
  DecoderBuffers() = default;
  // Places all buffers from `base` on. If `base` is null, it only measures.
  MemoryPlan Place(const DecoderConfig& config, std::byte* base);

  Memory memory_;
};

}  // namespace tokline
