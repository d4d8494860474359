// Gives a sequence the K and V of its shifted spans: copies them, layer by layer, from the pages of
// chunks in which the same tokens stand at other positions, and rotates the keys by the difference.
//
// RoPE is a rotation, and rotations by two positions add up to one by their sum; so a cached key is
// moved by rotating it once more, with the table's row of the difference. Both ops exist:
// paged_gather makes rows of pages, kv_append rotates rows and writes them to slots.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/engine/backend.h"
#include "harness/engine/decoder_memory.h"
#include "harness/models/model_spec.h"
#include "harness/scheduler/chunk_registry.h"
#include "harness/scheduler/request.h"

namespace tokline {

// Throws InvalidArgument unless the model's positions are a rotation of its keys.
void RequireShiftable(const ModelSpec& spec);

// What a copy of so many pages at a time needs to work in.
int64_t ShiftedCopyBytes(const DecoderConfig& config, int64_t pages);

class ShiftedCopy {
 public:
  // Borrows everything. Works in buffers.qkv, which is free between steps.
  ShiftedCopy(const ModelSpec& spec, const DecoderConfig& config, const DecoderBuffers& buffers,
              Backend& backend);

  // Copies all shifted spans of a sequence from its sources. Waits for the work enqueued so far.
  void Enqueue(const Sequence& sequence, const ChunkRegistry& chunks);

 private:
  // Pages that are copied at a time, and where their rows go.
  struct Batch {
    std::vector<int32_t> pages;
    std::vector<int32_t> lengths;    // [pages] tokens
    std::vector<int32_t> positions;  // [tokens] by which the key is rotated
    std::vector<int64_t> slots;      // [tokens] of the KV cache; -1: not copied
  };
  void Run(Batch& batch);

  const ModelSpec& spec_;
  const DecoderConfig& config_;
  const DecoderBuffers& buffers_;
  Backend& backend_;
};

}  // namespace tokline
