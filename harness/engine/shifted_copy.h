// Copies the K and V of a sequence's shifted spans, layer by layer, from the pages of chunks that
// hold the same tokens at other positions, and rotates the keys by the difference.
//
// RoPE is a rotation, and two rotations add up to one by the sum of their positions. A cached key
// is therefore moved by rotating it again, with the table's row for the difference. Two existing
// ops do this: paged_gather turns pages into rows, and kv_append rotates rows and writes them to
// slots.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/engine/backend.h"
#include "harness/engine/decoder_config.h"
#include "harness/engine/decoder_memory.h"
#include "harness/models/model_spec.h"
#include "harness/scheduler/chunk_registry.h"
#include "harness/scheduler/request.h"

namespace tokline {

// Throws InvalidArgument unless the model's positions are a rotation of its keys.
void RequireShiftable(const ModelSpec& spec);

// Returns the workspace size for copying `pages` pages at a time.
int64_t ShiftedCopyBytes(const DecoderConfig& config, int64_t pages);

class ShiftedCopy {
 public:
  // Keeps references to all arguments. Uses buffers.qkv, which is free between steps, as workspace.
  ShiftedCopy(const ModelSpec& spec, const DecoderConfig& config, const DecoderBuffers& buffers,
              Backend& backend);

  // Pages that are copied together, and the places of their rows, as sent to all ranks.
  struct Block {
    int64_t pages = 0;
    int64_t tokens = 0;
    std::vector<std::byte> tables;
  };
  // Plans the copies of all shifted spans of a sequence from its sources.
  std::vector<Block> Plan(const Sequence& sequence, const ChunkRegistry& chunks) const;
  // Copies a block, whose tables are those of `pages` and `tokens`. Waits for all work enqueued
  // before.
  void Enqueue(int64_t pages, int64_t tokens, std::span<const std::byte> tables);

 private:
  const ModelSpec& spec_;
  const DecoderConfig& config_;
  const DecoderBuffers& buffers_;
  Backend& backend_;
};

}  // namespace tokline
