// Host side of paged_prefill: divides a batch into query tiles, validates parameters, and computes
// the minimum cost.
#include "kernels/paged_prefill/paged_prefill_plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <unordered_map>

#include "kernels/common/alignment.h"
#include "kernels/common/error.h"
#include "kernels/paged_prefill/paged_prefill_deal.h"

namespace tokline {
namespace {

void RequireHeads(int32_t num_q_heads, const PagedKvLayout& layout) {
  Validate(layout);
  Require(num_q_heads >= 1 && num_q_heads % layout.num_kv_heads == 0 &&
              num_q_heads / layout.num_kv_heads <= kPagedPrefillMaxGroup,
          "num_q_heads is ", num_q_heads, " with ", layout.num_kv_heads,
          " KV heads; it must be a multiple of them, 1 to ", kPagedPrefillMaxGroup, " times");
  constexpr int32_t kMaxKvHeads = std::numeric_limits<decltype(PagedPrefillTile::kv_head)>::max();
  Require(layout.num_kv_heads <= kMaxKvHeads, "num_kv_heads is ", layout.num_kv_heads,
          "; it must be at most ", kMaxKvHeads);
}

void RequireNewTokens(int32_t seq, int64_t rows, int64_t length) {
  Require(rows >= 0 && rows <= length, "sequence ", seq, " has ", rows,
          " new tokens; its context of ", length, " holds 0 to ", length);
}

void RequireRows(const char* name, const void* data, int64_t stride,
                 const PagedPrefillParams& params) {
  const int64_t row = int64_t{params.num_q_heads} * params.layout.head_dim;
  Require(data != nullptr, name, " is null");
  Require(IsAligned(data, 16) && stride * SizeOf(params.dtype) % 16 == 0, name, " is at ", data,
          " with stride ", stride, "; its rows must be 16 B aligned");
  Require(stride >= row, name, "_stride is ", stride,
          "; it must be at least num_q_heads * head_dim, ", row);
}

// A sequence with new tokens.
struct NewTokens {
  int32_t seq;
  int32_t rows;
  int32_t length;  // of the context, new tokens included
};

// Sequences whose tiles begin at about the same time, for `kv_heads` KV heads at once.
struct Section {
  std::vector<NewTokens> sequences;
  int32_t kv_heads;
  int64_t bytes;  // of K and V, all heads together
};

// Divides the sequences with new tokens into sections, longest sequences first, so that the data
// that a section reads repeatedly stays in L2. Otherwise every tile's K and V would come from
// memory.
std::vector<Section> DivideIntoSections(const ChunkTableView& table, const int32_t* q_indptr,
                                        const PagedKvLayout& layout, const DeviceFacts& device) {
  const int64_t room = device.l2_bytes / 3;  // the rest is for queries, outputs and neighbours
  std::vector<NewTokens> sequences;
  for (int32_t seq = 0; seq < table.num_seqs; ++seq) {
    const int32_t rows = q_indptr[seq + 1] - q_indptr[seq];
    if (rows <= 0) continue;
    const auto length = static_cast<int32_t>(SequenceLength(table, seq));
    RequireNewTokens(seq, rows, length);
    sequences.push_back({.seq = seq, .rows = rows, .length = length});
  }
  std::ranges::stable_sort(sequences, std::greater(), &NewTokens::length);
  std::vector<Section> sections;
  for (const NewTokens& one : sequences) {
    const int64_t head_bytes = int64_t{one.length} * layout.head_dim * 2 * 2;  // K, V; 2 bytes each
    const int64_t bytes = layout.num_kv_heads * head_bytes;
    if (sections.empty() || sections.back().bytes + bytes > room) {
      const int64_t heads = std::clamp<int64_t>(room / head_bytes, 1, layout.num_kv_heads);
      sections.push_back({.sequences = {}, .kv_heads = static_cast<int32_t>(heads), .bytes = 0});
    }
    sections.back().sequences.push_back(one);
    sections.back().bytes += bytes;
  }
  return sections;
}

void AddTiles(const ChunkTableView& table, const int32_t* q_indptr, const NewTokens& of,
              bool causal, int32_t tile_tokens, std::vector<PagedPrefillTile>& tiles) {
  const auto& [seq, rows, length] = of;
  const int32_t chunk = table.seq_chunks[table.seq_chunk_indptr[seq]];
  for (int32_t begin = 0; begin < rows; begin += tile_tokens) {
    const int32_t end = std::min(rows, begin + tile_tokens);
    tiles.push_back({.q_begin = q_indptr[seq] + begin,
                     .num_tokens = static_cast<int16_t>(end - begin),
                     .kv_head = 0,
                     .kv_end = causal ? length - rows + end : length,
                     .next_chunk = table.seq_chunk_indptr[seq] + 1,
                     .chunk_length = table.chunk_lengths[chunk],
                     .page_begin = table.chunk_page_indptr[chunk],
                     .left = 1,
                     .next = -1});
  }
}

}  // namespace

PagedPrefillPlan PlanPagedPrefill(const ChunkTableView& table, const int32_t* q_indptr,
                                  const PagedKvLayout& layout, int32_t num_q_heads, bool causal,
                                  const DeviceFacts& device, int32_t max_parts) {
  RequireHeads(num_q_heads, layout);
  Require(device.sm_count >= 1, "sm_count is ", device.sm_count, "; it must be >= 1");
  PagedPrefillPlan plan;
  const int64_t tokens = table.num_seqs == 0 ? 0 : q_indptr[table.num_seqs];
  const int64_t room = MaxPagedPrefillTiles(layout, num_q_heads, table.num_seqs, tokens);
  Require(room <= INT32_MAX, tokens, " new tokens of ", table.num_seqs, " sequences with ",
          layout.num_kv_heads, " KV heads may take ", room, " tiles; there may be ", INT32_MAX);
  for (const Section& section : DivideIntoSections(table, q_indptr, layout, device)) {
    std::vector<PagedPrefillTile> tiles;  // of each KV head
    for (const NewTokens& one : section.sequences) {
      const size_t first_tile = tiles.size();  // no other tile of the sequence has more tokens
      AddTiles(table, q_indptr, one, causal, PagedPrefillTileTokens(num_q_heads, layout), tiles);
      plan.tile_tokens = std::max<int32_t>(plan.tile_tokens, tiles[first_tile].num_tokens);
    }
    std::ranges::stable_sort(tiles, std::greater(), &PagedPrefillTile::kv_end);
    for (int32_t first = 0; first < layout.num_kv_heads; first += section.kv_heads) {
      const int32_t end = std::min(first + section.kv_heads, layout.num_kv_heads);
      for (const PagedPrefillTile& tile : tiles) {
        for (int32_t head = first; head < end; ++head) {
          plan.tiles.push_back(tile);
          plan.tiles.back().kv_head = static_cast<int16_t>(head);
        }
      }
    }
  }
  const uint64_t end = DealTiles(plan, device);
  CutContexts(table, end, max_parts, device, plan);
  return plan;
}

int64_t PagedPrefillWorkspaceBytes(int32_t head_dim, int64_t num_parts) {
  // Of each row the output, its largest score and its sum of weights, all in fp32.
  return num_parts * kPagedPrefillTileRows * (head_dim + 2) * int64_t{sizeof(float)};
}

int64_t MaxPagedPrefillTiles(const PagedKvLayout& layout, int32_t num_q_heads, int64_t num_seqs,
                             int64_t num_tokens) {
  const int64_t full = num_tokens / PagedPrefillTileTokens(num_q_heads, layout);
  return layout.num_kv_heads * std::min(num_tokens, num_seqs + full);
}

void Validate(const PagedPrefillParams& params) {
  RequireHeads(params.num_q_heads, params.layout);
  Require(params.table.num_seqs >= 0, "num_seqs is ", params.table.num_seqs, "; it must be >= 0");
  Require(params.total_tokens >= 0 && params.total_tokens <= INT32_MAX, "total_tokens is ",
          params.total_tokens, "; it must be 0 to ", INT32_MAX);
  Require(std::isfinite(params.scale) && params.scale > 0, "scale is ", params.scale,
          "; it must be finite and > 0");
  if (params.total_tokens == 0) return;
  Require(params.table.num_seqs >= 1, "total_tokens is ", params.total_tokens,
          " but there are no sequences");
  Require(params.table.seq_chunk_indptr && params.table.seq_chunks &&
              params.table.chunk_page_indptr && params.table.chunk_pages &&
              params.table.chunk_lengths && params.q_indptr,
          "a pointer of the chunk table, or q_indptr, is null");
  RequireTensor("kv", params.kv);
  RequireRows("q", params.q, params.q_stride, params);
  RequireRows("out", params.out, params.out_stride, params);
  Require(params.num_parts >= 0 && params.num_parts <= params.num_tiles, "num_parts is ",
          params.num_parts, " with ", params.num_tiles, " tiles; it must be 0 to that");
  if (params.num_parts == 0) return;
  RequireTensor("parts", params.parts);
  RequireTensor("workspace", params.workspace);
  const int64_t needed = PagedPrefillWorkspaceBytes(params.layout.head_dim, params.num_parts);
  Require(params.workspace_bytes >= needed, "workspace_bytes is ", params.workspace_bytes, "; ",
          params.num_parts, " parts with head_dim ", params.layout.head_dim, " need ", needed);
}

void ValidateLengths(const ChunkTableView& table, const int32_t* q_indptr,
                     const PagedKvLayout& layout, int64_t total_tokens) {
  Validate(table, layout);
  Require(table.num_seqs == 0 || (q_indptr != nullptr && q_indptr[0] == 0),
          "q_indptr is missing or does not start at 0");
  for (int32_t seq = 0; seq < table.num_seqs; ++seq) {
    const int64_t rows = int64_t{q_indptr[seq + 1]} - q_indptr[seq];
    const int64_t length = SequenceLength(table, seq);
    RequireNewTokens(seq, rows, length);
    for (int32_t i = table.seq_chunk_indptr[seq];
         table.seq_shifts != nullptr && i < table.seq_chunk_indptr[seq + 1]; ++i) {
      Require(table.seq_shifts[i] == 0, "sequence ", seq, " has shift ", table.seq_shifts[i],
              " on chunk ", table.seq_chunks[i], "; prefill supports only 0");
    }
  }
  const int64_t rows = table.num_seqs == 0 ? 0 : q_indptr[table.num_seqs];
  Require(rows == total_tokens, "q_indptr ends at ", rows, "; total_tokens is ", total_tokens);
}

Cost CostOf(const PagedPrefillParams& params) {
  const ChunkTableView& table = params.table;
  const PagedKvLayout& layout = params.layout;
  double pairs = 0;                              // pairs of (new token, visible token)
  std::unordered_map<int32_t, int64_t> in_page;  // tokens read per page, once for all sequences
  for (int32_t seq = 0; seq < table.num_seqs; ++seq) {
    const double rows = params.q_indptr[seq + 1] - params.q_indptr[seq];
    if (rows == 0) continue;
    const double length = static_cast<double>(SequenceLength(table, seq));
    pairs += rows * length - (params.causal ? rows * (rows - 1) / 2 : 0);
    for (int32_t i = table.seq_chunk_indptr[seq]; i < table.seq_chunk_indptr[seq + 1]; ++i) {
      const int32_t chunk = table.seq_chunks[i];
      const int32_t* page = table.chunk_pages + table.chunk_page_indptr[chunk];
      for (int64_t left = table.chunk_lengths[chunk]; left > 0; left -= layout.page_size) {
        int64_t& tokens = in_page[*page++];
        tokens = std::max(tokens, std::min<int64_t>(left, layout.page_size));
      }
    }
  }
  double kv_tokens = 0;
  for (const auto& [page, tokens] : in_page) kv_tokens += static_cast<double>(tokens);

  const double element = static_cast<double>(SizeOf(params.dtype));
  const double q_heads = params.num_q_heads, dim = layout.head_dim;
  const double tokens = static_cast<double>(params.total_tokens);
  Cost cost;
  cost.read_bytes += tokens * q_heads * dim * element;                     // q
  cost.read_bytes += 2 * kv_tokens * layout.num_kv_heads * dim * element;  // K and V
  cost.write_bytes += tokens * q_heads * dim * element;                    // out
  if (params.lse_ln != nullptr) cost.write_bytes += tokens * q_heads * 4;  // lse
  cost.flops = 4 * q_heads * dim * pairs;                                  // Q K^T and P V
  return cost;
}

}  // namespace tokline
