// Plans a step of chunk_decode. A sequence's context becomes segments: runs of chunks that the
// same members read with the same shifts. All segments of all sequences are laid end to end and cut
// into equal shares, one a lane (a block of each KV head), so that every SM reads as many bytes;
// where a cut falls inside a segment, its members get a further partial state.
#include "kernels/chunk_decode/chunk_decode_policy.h"

#include <algorithm>
#include <map>
#include <queue>
#include <utility>

#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

constexpr int64_t kAlignment = 256;
// Reading a chunk once saves (members - 1) * length tokens; below this many the further partial
// states cost more than they save.
constexpr int64_t kMinSharedTokens = 512;
// A segment of up to so many tiles is quicker in one block than cut and merged (H200: the merge
// costs about 2.5 us, a tile 0.6).
constexpr int32_t kWholeTiles = 4;
// Most pieces that batch_invariant cuts a sequence into, and the least tokens in one.
constexpr int32_t kInvariantPieces = 32;
constexpr int32_t kInvariantTokens = 256;

// Query heads of a KV head.
int32_t GroupOf(int32_t num_q_heads, const PagedKvLayout& layout) {
  Require(num_q_heads > 0 && num_q_heads % layout.num_kv_heads == 0 &&
              num_q_heads / layout.num_kv_heads <= 16,
          "num_q_heads is ", num_q_heads, "; it must be 1 to 16 times num_kv_heads, which is ",
          layout.num_kv_heads);
  return num_q_heads / layout.num_kv_heads;
}

// The position shift of entry `listing` of the table's seq_chunks.
int32_t ShiftOf(const ChunkTableView& table, int32_t listing) {
  return table.seq_shifts ? table.seq_shifts[listing] : 0;
}

struct Member {
  int32_t seq;
  int32_t shift;
  bool operator==(const Member&) const = default;
};

struct Segment {
  std::vector<Member> members;
  std::vector<ChunkDecodeRange> ranges;
  int32_t tiles = 0;

  void Add(const ChunkTableView& table, int32_t chunk) {
    const int32_t length = table.chunk_lengths[chunk];
    if (length == 0) return;
    ranges.push_back({table.chunk_page_indptr[chunk], 0, length});
    tiles += (length + kChunkDecodeTileTokens - 1) / kChunkDecodeTileTokens;
  }
};

// Members of each chunk that is worth reading once for all of them; the others stay empty.
std::vector<std::vector<Member>> SharedMembers(const ChunkTableView& table) {
  std::vector<std::vector<Member>> members(static_cast<size_t>(table.num_chunks));
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    for (int32_t i = table.seq_chunk_indptr[s]; i < table.seq_chunk_indptr[s + 1]; ++i) {
      members[static_cast<size_t>(table.seq_chunks[i])].push_back({s, ShiftOf(table, i)});
    }
  }
  for (int32_t c = 0; c < table.num_chunks; ++c) {
    auto& list = members[static_cast<size_t>(c)];
    const int64_t saved = (static_cast<int64_t>(list.size()) - 1) * table.chunk_lengths[c];
    if (saved < kMinSharedTokens) list.clear();
  }
  return members;
}

// Cuts a shared segment into groups of members whose query rows fit one block.
void AddShared(const Segment& shared, int32_t max_members, std::vector<Segment>& segments) {
  const int32_t count = static_cast<int32_t>(shared.members.size());
  for (int32_t begin = 0; begin < count; begin += max_members) {
    Segment part = shared;
    part.members.assign(shared.members.begin() + begin,
                        shared.members.begin() + std::min(count, begin + max_members));
    segments.push_back(std::move(part));
  }
}

std::vector<Segment> Segments(const ChunkTableView& table, int32_t group, bool share) {
  const int32_t max_members = kChunkDecodeMaxRows / group;
  std::vector<std::vector<Member>> shared;
  if (share && table.num_seqs > 1) shared = SharedMembers(table);
  std::vector<Segment> segments;
  segments.reserve(static_cast<size_t>(table.num_seqs));
  std::vector<bool> done(shared.empty() ? 0 : static_cast<size_t>(table.num_chunks), false);
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    const int32_t end = table.seq_chunk_indptr[s + 1];
    for (int32_t i = table.seq_chunk_indptr[s]; i < end;) {
      const auto is_shared = [&](int32_t at) {
        return !shared.empty() && !shared[static_cast<size_t>(table.seq_chunks[at])].empty();
      };
      Segment segment;
      if (is_shared(i)) {
        const int32_t first = table.seq_chunks[i++];
        if (done[static_cast<size_t>(first)]) continue;
        done[static_cast<size_t>(first)] = true;
        segment.members = shared[static_cast<size_t>(first)];
        segment.Add(table, first);
        // Chunks that follow with the same members are read in the same go.
        for (; i < end && is_shared(i); ++i) {
          const auto next = static_cast<size_t>(table.seq_chunks[i]);
          if (done[next] || shared[next] != segment.members) break;
          done[next] = true;
          segment.Add(table, table.seq_chunks[i]);
        }
        AddShared(segment, max_members, segments);
      } else {
        const int32_t shift = ShiftOf(table, i);
        segment.members = {{s, shift}};
        for (; i < end && !is_shared(i); ++i) {
          if (ShiftOf(table, i) != shift) break;
          segment.Add(table, table.seq_chunks[i]);
        }
        if (segment.tiles > 0) segments.push_back(std::move(segment));
      }
    }
  }
  return segments;
}

// A part of a segment: `tiles` tiles from `tile_begin`.
struct Piece {
  int32_t segment;
  int32_t tile_begin;
  int32_t tiles;
};

// Lays all segments end to end and gives each lane an equal share. While there are lanes for every
// tile, short segments stay whole.
std::vector<std::vector<Piece>> EqualShares(const std::vector<Segment>& segments, int32_t lanes) {
  int64_t total = 0;
  for (const Segment& segment : segments) total += segment.tiles;
  std::vector<std::vector<Piece>> shares(static_cast<size_t>(lanes));
  const bool keep_whole = total <= lanes;
  int64_t at = 0;  // tiles given out
  int32_t lane = 0;
  for (int32_t s = 0; s < static_cast<int32_t>(segments.size()); ++s) {
    for (int32_t begin = 0; begin < segments[s].tiles;) {
      while ((lane + 1) * total / lanes <= at) ++lane;
      const int64_t room = keep_whole && segments[s].tiles <= kWholeTiles
                               ? segments[s].tiles
                               : (lane + 1) * total / lanes - at;
      const auto tiles = static_cast<int32_t>(std::min<int64_t>(room, segments[s].tiles - begin));
      shares[static_cast<size_t>(lane)].push_back({s, begin, tiles});
      begin += tiles;
      at += tiles;
    }
  }
  return shares;
}

int32_t InvariantPieceTiles(int32_t segment_tiles) {
  return std::max(kInvariantTokens / kChunkDecodeTileTokens,
                  (segment_tiles + kInvariantPieces - 1) / kInvariantPieces);
}

// Cuts each segment by its own length and gives the longest piece to the least loaded lane.
std::vector<std::vector<Piece>> InvariantShares(const std::vector<Segment>& segments,
                                                int32_t lanes) {
  std::vector<Piece> pieces;
  for (int32_t s = 0; s < static_cast<int32_t>(segments.size()); ++s) {
    const int32_t size = InvariantPieceTiles(segments[s].tiles);
    for (int32_t begin = 0; begin < segments[s].tiles; begin += size) {
      pieces.push_back({s, begin, std::min(size, segments[s].tiles - begin)});
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.tiles > b.tiles; });
  using Load = std::pair<int64_t, int32_t>;  // tiles, lane
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int32_t lane = 0; lane < lanes; ++lane) loads.push({0, lane});
  std::vector<std::vector<Piece>> shares(static_cast<size_t>(lanes));
  for (const Piece& piece : pieces) {
    const auto [load, lane] = loads.top();
    loads.pop();
    shares[static_cast<size_t>(lane)].push_back(piece);
    loads.push({load + piece.tiles, lane});
  }
  return shares;
}

// Appends the ranges that cover a piece of a segment.
void AddRanges(const Segment& segment, const Piece& piece, std::vector<ChunkDecodeRange>& ranges) {
  int32_t skip = piece.tile_begin, left = piece.tiles;
  for (const ChunkDecodeRange& range : segment.ranges) {
    const int32_t tiles = (range.token_end + kChunkDecodeTileTokens - 1) / kChunkDecodeTileTokens;
    if (skip >= tiles) {
      skip -= tiles;
      continue;
    }
    const int32_t take = std::min(tiles - skip, left);
    ranges.push_back({range.page_begin, skip * kChunkDecodeTileTokens,
                      std::min(range.token_end, (skip + take) * kChunkDecodeTileTokens)});
    skip = 0;
    left -= take;
    if (left == 0) return;
  }
}

}  // namespace

int32_t ChunkDecodeLanes(const PagedKvLayout& layout, const DeviceFacts& device) {
  constexpr int64_t kReservedBytes = 1024;  // that CUDA keeps a block
  const int64_t block_bytes = ChunkDecodeSharedBytes(layout.head_dim) + kReservedBytes;
  const int64_t blocks_per_sm = std::clamp<int64_t>(device.shared_bytes_per_sm / block_bytes, 1, 2);
  return static_cast<int32_t>(
      std::max<int64_t>(1, device.sm_count * blocks_per_sm / layout.num_kv_heads));
}

int64_t ChunkDecodeMaxPartials(int32_t num_seqs, const PagedKvLayout& layout,
                               const DeviceFacts& device, const ChunkDecodePlanOptions& options) {
  if (options.batch_invariant) return int64_t{num_seqs} * kInvariantPieces;
  const int32_t lanes =
      options.max_lanes > 0 ? options.max_lanes : ChunkDecodeLanes(layout, device);
  return int64_t{num_seqs} + lanes;
}

ChunkDecodePlan PlanChunkDecode(const ChunkTableView& table, const PagedKvLayout& layout,
                                int32_t num_q_heads, const DeviceFacts& device,
                                const ChunkDecodePlanOptions& options) {
  const int32_t group = GroupOf(num_q_heads, layout);
  const int32_t lanes =
      options.max_lanes > 0 ? options.max_lanes : ChunkDecodeLanes(layout, device);
  const std::vector<Segment> segments =
      Segments(table, group, options.share_chunks && !options.batch_invariant);
  std::vector<std::vector<Piece>> shares =
      options.batch_invariant ? InvariantShares(segments, lanes) : EqualShares(segments, lanes);

  ChunkDecodePlan plan;
  plan.num_seqs = table.num_seqs;
  plan.num_lanes = lanes;

  // A sequence's partial states lie side by side, so count them first.
  std::vector<int32_t> states(static_cast<size_t>(table.num_seqs), 0);
  for (const auto& share : shares) {
    for (const Piece& piece : share) {
      for (const Member& member : segments[piece.segment].members) {
        ++states[static_cast<size_t>(member.seq)];
      }
    }
  }
  plan.seq_partial_indptr.assign(1, 0);
  for (int32_t count : states) {
    plan.seq_partial_indptr.push_back(plan.seq_partial_indptr.back() + (count > 1 ? count : 0));
  }
  plan.num_partials = plan.seq_partial_indptr.back();

  std::vector<int32_t> next(plan.seq_partial_indptr.begin(), plan.seq_partial_indptr.end() - 1);
  const auto close_task = [&plan](ChunkDecodeTask task) {
    task.member_count = static_cast<int32_t>(plan.members.size()) - task.member_begin;
    task.range_end = static_cast<int32_t>(plan.ranges.size());
    plan.tasks.push_back(task);
  };
  const auto open_task = [&plan]() {
    return ChunkDecodeTask{.member_begin = static_cast<int32_t>(plan.members.size()),
                           .member_count = 0,
                           .range_begin = static_cast<int32_t>(plan.ranges.size()),
                           .range_end = 0};
  };
  // Pieces of a segment are numbered in KV order, whichever lane has them, so that the merge adds
  // in an order that does not depend on the lanes.
  std::map<std::pair<int32_t, int32_t>, int32_t> order;  // (segment, tile_begin) -> rank
  if (options.batch_invariant) {
    for (const auto& share : shares) {
      for (const Piece& piece : share) order[{piece.segment, piece.tile_begin}] = 0;
    }
    std::map<int32_t, int32_t> rank;  // by sequence: its segments come in order
    for (auto& [key, value] : order) value = rank[segments[key.first].members[0].seq]++;
  }
  plan.lane_task_indptr.assign(1, 0);
  int32_t empty_seq = 0;  // sequences with no KV are handed out evenly too
  for (int32_t lane = 0; lane < lanes; ++lane) {
    for (const Piece& piece : shares[static_cast<size_t>(lane)]) {
      const Segment& segment = segments[static_cast<size_t>(piece.segment)];
      const ChunkDecodeTask task = open_task();
      AddRanges(segment, piece, plan.ranges);
      for (const Member& member : segment.members) {
        const auto seq = static_cast<size_t>(member.seq);
        int32_t partial = -1;
        if (states[seq] > 1) {
          partial = options.batch_invariant
                        ? plan.seq_partial_indptr[seq] + order[{piece.segment, piece.tile_begin}]
                        : next[seq]++;
        }
        plan.members.push_back({member.seq, member.shift, partial});
      }
      close_task(task);
    }
    const auto empty_end = static_cast<int32_t>(int64_t{table.num_seqs} * (lane + 1) / lanes);
    for (; empty_seq < empty_end; ++empty_seq) {
      if (states[static_cast<size_t>(empty_seq)] > 0) continue;
      const ChunkDecodeTask task = open_task();
      plan.members.push_back({empty_seq, 0, -1});
      close_task(task);
    }
    plan.lane_task_indptr.push_back(static_cast<int32_t>(plan.tasks.size()));
  }
  return plan;
}

ChunkDecodeWorkspace ChunkDecodeWorkspaceLayout(int32_t num_seqs, int64_t max_partials,
                                                int32_t num_q_heads, const PagedKvLayout& layout) {
  const int64_t rows = max_partials * num_q_heads;
  ChunkDecodeWorkspace workspace;
  workspace.max_sum = workspace.counters + ChunkDecodeCounterBytes(num_seqs, layout);
  workspace.outputs = workspace.max_sum + RoundUp(rows * 2 * int64_t{sizeof(float)}, kAlignment);
  workspace.bytes =
      workspace.outputs + RoundUp(rows * layout.head_dim * int64_t{sizeof(float)}, kAlignment);
  return workspace;
}

int64_t ChunkDecodeCounterBytes(int32_t num_seqs, const PagedKvLayout& layout) {
  return RoundUp(int64_t{num_seqs} * layout.num_kv_heads * int64_t{sizeof(uint32_t)}, kAlignment);
}

int64_t ChunkDecodeWorkspaceBytes(int32_t num_seqs, int64_t max_partials, int32_t num_q_heads,
                                  const PagedKvLayout& layout) {
  return ChunkDecodeWorkspaceLayout(num_seqs, max_partials, num_q_heads, layout).bytes;
}

void Validate(const ChunkDecodeParams& params) {
  Validate(params.layout);
  const PagedKvLayout& layout = params.layout;
  GroupOf(params.num_q_heads, layout);
  Require(params.scale > 0, "scale is ", params.scale, "; it must be > 0");
  Require(params.table.num_seqs >= 0, "num_seqs is ", params.table.num_seqs, "; it must be >= 0");
  const int64_t width = int64_t{params.num_q_heads} * layout.head_dim;
  Require(params.q_stride >= width && params.q_stride % 8 == 0, "q_stride is ", params.q_stride,
          "; it must be a multiple of 8 and at least num_q_heads * head_dim = ", width);
  Require(params.out_stride >= width && params.out_stride % 8 == 0, "out_stride is ",
          params.out_stride,
          "; it must be a multiple of 8 and at least num_q_heads * head_dim = ", width);
  if (params.table.num_seqs == 0) return;
  Require(params.q && params.out, "q or out is null");
  Require(params.kv || layout.num_pages == 0, "kv is null but the pool has ", layout.num_pages,
          " pages");
  const auto aligned = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  };
  Require(aligned(params.q) && aligned(params.out) && aligned(params.kv), "q ", params.q, ", out ",
          params.out, " and kv ", params.kv, " must be 16 B aligned");
  Require((params.rope_cos_sin == nullptr) == (params.rope_rows == 0), "rope_rows is ",
          params.rope_rows, " with rope_cos_sin ", params.rope_cos_sin, "; give both or neither");
}

Cost CostOf(const ChunkDecodeParams& params) {
  const ChunkTableView& table = params.table;
  const double element = static_cast<double>(SizeOf(params.dtype));
  const double head_dim = params.layout.head_dim;
  const double query_elements = double(table.num_seqs) * params.num_q_heads * head_dim;
  std::vector<bool> listed(static_cast<size_t>(table.num_chunks), false);
  double context_tokens = 0, distinct_tokens = 0;
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    for (int32_t i = table.seq_chunk_indptr[s]; i < table.seq_chunk_indptr[s + 1]; ++i) {
      const int32_t chunk = table.seq_chunks[i];
      context_tokens += table.chunk_lengths[chunk];
      if (!listed[static_cast<size_t>(chunk)]) distinct_tokens += table.chunk_lengths[chunk];
      listed[static_cast<size_t>(chunk)] = true;
    }
  }
  Cost cost;
  cost.read_bytes = query_elements * element;                                                // q
  cost.read_bytes += distinct_tokens * params.layout.num_kv_heads * 2 * head_dim * element;  // K, V
  cost.write_bytes = query_elements * element;                                               // out
  if (params.lse_ln) cost.write_bytes += double(table.num_seqs) * params.num_q_heads * 4;    // lse
  cost.flops = 4 * context_tokens * params.num_q_heads * head_dim;  // q k and p v
  return cost;
}

}  // namespace tokline
