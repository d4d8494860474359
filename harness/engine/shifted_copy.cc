// Batches the pages of the shifted spans, and gathers, rotates and appends them once per layer.
#include "harness/engine/shifted_copy.h"

#include <algorithm>
#include <numeric>

#include "harness/engine/carver.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// The workspace for a batch of pages: its tables, which are uploaded as one block, and its rows.
struct Room {
  Room(const DecoderConfig& config, int64_t num_pages, std::byte* base) {
    Carver carver(base);
    const int64_t tokens = config.layout.Pages().TokensIn(num_pages);
    const int64_t row = int64_t{config.layout.num_kv_heads} * config.layout.head_dim;
    ends = carver.Take<int32_t>(4);
    numbers = carver.Take<int32_t>(num_pages + 1);
    pages = carver.Take<int32_t>(num_pages);
    lengths = carver.Take<int32_t>(num_pages);
    positions = carver.Take<int32_t>(tokens);
    slots = carver.Take<int64_t>(tokens);
    table_bytes = carver.Size();
    k = carver.TakeBytes(tokens * row * SizeOf(config.options.dtype));
    v = carver.TakeBytes(tokens * row * SizeOf(config.options.dtype));
    bytes = carver.Size();
  }

  int32_t* ends = nullptr;     // 0, number of pages, 0, number of tokens: two CSR index arrays
  int32_t* numbers = nullptr;  // 0, 1, 2, ...: every page is a chunk
  int32_t* pages = nullptr;
  int32_t* lengths = nullptr;
  int32_t* positions = nullptr;
  int64_t* slots = nullptr;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int64_t table_bytes = 0;
  int64_t bytes = 0;
};

// A block before its tables are laid out.
struct Batch {
  std::vector<int32_t> pages;
  std::vector<int32_t> lengths;    // [pages] number of tokens in each page
  std::vector<int32_t> positions;  // [tokens] number of positions by which each key is rotated
  std::vector<int64_t> slots;      // [tokens] target in the KV cache; -1: not copied
};

ShiftedCopy::Block BlockOf(const DecoderConfig& config, const Batch& batch) {
  ShiftedCopy::Block block{.pages = std::ssize(batch.pages), .tokens = std::ssize(batch.slots)};
  block.tables.resize(static_cast<size_t>(Room(config, block.pages, nullptr).table_bytes));
  const Room host(config, block.pages, block.tables.data());
  host.ends[0] = host.ends[2] = 0;
  host.ends[1] = static_cast<int32_t>(block.pages);
  host.ends[3] = static_cast<int32_t>(block.tokens);
  std::iota(host.numbers, host.numbers + block.pages + 1, 0);
  std::ranges::copy(batch.pages, host.pages);
  std::ranges::copy(batch.lengths, host.lengths);
  std::ranges::copy(batch.positions, host.positions);
  std::ranges::copy(batch.slots, host.slots);
  return block;
}

}  // namespace

void RequireShiftable(const ModelSpec& spec) {
  Require(spec.position == PositionKind::kRope, "a model of family ", spec.family, " has ",
          Name(spec.position), " positions; chunks can be shifted with rope positions only");
}

int64_t ShiftedCopyBytes(const DecoderConfig& config, int64_t pages) {
  return Room(config, pages, nullptr).bytes;
}

ShiftedCopy::ShiftedCopy(const ModelSpec& spec, const DecoderConfig& config,
                         const DecoderBuffers& buffers, Backend& backend)
    : spec_(spec), config_(config), buffers_(buffers), backend_(backend) {}

std::vector<ShiftedCopy::Block> ShiftedCopy::Plan(const Sequence& sequence,
                                                  const ChunkRegistry& chunks) const {
  const Request& request = sequence.request;
  const int64_t page_size = config_.layout.page_size;
  std::vector<Block> blocks;
  Batch batch;
  const auto end_block = [&] {
    blocks.push_back(BlockOf(config_, batch));
    batch = {};
  };
  for (size_t i = 0; i < request.shifted.size(); ++i) {
    const int64_t shift = request.shifted[i].begin - request.shifted_after;
    int64_t position = 0;  // position in the source
    for (const ChunkId id : sequence.sources[i]) {
      const Chunk& chunk = chunks.Get(id);
      int64_t left = static_cast<int64_t>(chunk.tokens.size());
      for (const int32_t page : chunk.pages) {
        const int64_t length = std::min(left, page_size);
        left -= length;
        position += length;
        if (position <= request.shifted_after) continue;
        batch.pages.push_back(page);
        batch.lengths.push_back(static_cast<int32_t>(length));
        batch.positions.insert(batch.positions.end(), static_cast<size_t>(length),
                               static_cast<int32_t>(shift));
        for (int64_t from = position - length; from < position; ++from) {
          batch.slots.push_back(from < request.shifted_after ? -1
                                                             : sequence.pages.SlotOf(from + shift));
        }
        const auto pages = static_cast<int64_t>(batch.pages.size());
        if (ShiftedCopyBytes(config_, pages + 1) > buffers_.qkv_bytes) end_block();
      }
    }
  }
  if (!batch.pages.empty()) end_block();
  return blocks;
}

void ShiftedCopy::Enqueue(int64_t pages, int64_t tokens, std::span<const std::byte> tables) {
  const Room room(config_, pages, buffers_.qkv);
  backend_.Upload(buffers_.qkv, tables.data(), std::ssize(tables));

  const DType dtype = config_.options.dtype;
  const LaunchOptions launch{.stream = backend_.stream(), .dependent = false};
  std::byte* kv = buffers_.kv;
  for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
    backend_.ops().paged_gather({.dtype = dtype,
                                 .layout = config_.layout,
                                 .table = {.num_seqs = 1,
                                           .num_chunks = static_cast<int32_t>(pages),
                                           .seq_chunk_indptr = room.ends,
                                           .seq_chunks = room.numbers,
                                           .chunk_page_indptr = room.numbers,
                                           .chunk_pages = room.pages,
                                           .chunk_lengths = room.lengths},
                                 .total_tokens = tokens,
                                 .token_indptr = room.ends + 2,
                                 .kv = kv,
                                 .k_out = room.k,
                                 .v_out = room.v},
                                launch);
    backend_.ops().kv_append({.dtype = dtype,
                              .num_tokens = tokens,
                              .layout = config_.layout,
                              .k = room.k,
                              .k_stride = spec_.KvSize(),
                              .v = room.v,
                              .v_stride = spec_.KvSize(),
                              .kv = kv,
                              .slots = room.slots,
                              .positions = room.positions,
                              .rope_cos_sin = buffers_.rope,
                              .rope_rows = config_.options.max_context},
                             launch);
    kv += config_.layout.NumElements() * SizeOf(dtype);
  }
}

}  // namespace tokline
