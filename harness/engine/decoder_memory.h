// The buffers that a decoder needs: their sizes and their places in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "harness/engine/backend.h"
#include "harness/engine/decoder_config.h"
#include "harness/models/model_spec.h"
#include "kernels/common/device_facts.h"

namespace tokline {

// Bytes that a decoder allocates on its device, or on that of each rank, and on the host.
struct MemoryNeeds {
  int64_t weight_bytes = 0;
  int64_t kv_bytes = 0;
  int64_t activation_bytes = 0;  // logits included
  int64_t workspace_bytes = 0;   // of kernels, cuBLASLt and exchange_bytes included
  int64_t exchange_bytes = 0;    // of the sums among ranks that are threads
  int64_t table_bytes = 0;       // RoPE table and step arrays
  int64_t staging_bytes = 0;     // on the host, pinned on CUDA: two steps' arrays and tokens

  // On the device.
  int64_t Total() const {
    return weight_bytes + kv_bytes + activation_bytes + workspace_bytes + table_bytes;
  }
};

// The needs of rank 0. Those of the others are the same, but parts may differ by a few rows.
// Without a device, `facts` may be all 0; the workspaces of attention are then left out.
MemoryNeeds MemoryNeedsOf(const ModelSpec& spec, const DecoderOptions& options,
                          const DeviceFacts& facts);

// Throws RuntimeFailure, which states the free bytes and the needed ones by their use, if they
// do not fit.
void RequireRoom(const MemoryNeeds& needs, int64_t free_bytes);

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
  uint64_t* best = nullptr;        // [B, MostLinearBestParts()] largest logits; CUDA only
  int32_t* sampled = nullptr;      // [B] newest token of each seat; the next decode step's input
  std::byte* linear_workspace = nullptr;
  std::byte* sampling_workspace = nullptr;
  // One per bucket. All have their partial states at the same place, and their counters before that
  // place.
  std::vector<DecodeWorkspace> decode_workspaces;
  DecodeWorkspace prefill_workspace;   // only for ablation paged_prefill: for any number of
                                       // sequences; its counters must be zeroed before each step
  std::byte* prefill_parts = nullptr;  // workspace of paged_prefill
  int64_t prefill_parts_bytes = 0;
  std::byte* decode_step_workspace = nullptr;
  int64_t decode_step_workspace_bytes = 0;
  float* rope = nullptr;      // [max_context, head_dim / 2] pairs; null without RoPE
  std::byte* step = nullptr;  // arrays of a step
  std::byte* kv = nullptr;    // [num_layers] pools

 private:
  friend MemoryNeeds MemoryNeedsOf(const ModelSpec&, const DecoderOptions&, const DeviceFacts&);
  DecoderBuffers() = default;
  // Places all buffers from `base` on. If `base` is null, it only measures.
  MemoryNeeds Place(const DecoderConfig& config, std::byte* base);

  Memory memory_;
};

}  // namespace tokline
