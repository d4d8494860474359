// Deals tiles to blocks, and chooses the cuts of contexts by the modelled end of the last block.
#include "kernels/paged_prefill/paged_prefill_deal.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "kernels/common/rounding.h"

namespace tokline {
namespace {

int32_t TokensOf(const PagedPrefillPlan& plan, size_t tile) {
  return tile < plan.parts.size() ? plan.parts[tile].end - plan.parts[tile].begin
                                  : plan.tiles[tile].kv_end;
}

int64_t KvTilesOf(int32_t tokens) { return DivideUp(tokens, kPagedPrefillKvTokens); }

// A place in a tile's context where a KV tile may begin.
class KvBorder {
 public:
  KvBorder(const ChunkTableView& table, const PagedPrefillTile& tile) : table_(table), at_(tile) {}

  // Moves to the first KV tile that begins at `position` or later, which the context contains.
  void MoveTo(int64_t position) {
    while (position_ < position) {
      const int64_t step = RoundUp(position - position_, kPagedPrefillKvTokens);
      if (token_ + step < at_.chunk_length) {
        token_ += static_cast<int32_t>(step);
        position_ += static_cast<int32_t>(step);
        return;
      }
      position_ += at_.chunk_length - token_;
      token_ = 0;
      const int32_t chunk = table_.seq_chunks[at_.next_chunk++];
      at_.chunk_length = table_.chunk_lengths[chunk];
      at_.page_begin = table_.chunk_page_indptr[chunk];
    }
  }

  // The tile with a walk that begins here.
  const PagedPrefillTile& Tile() const { return at_; }
  int32_t Position() const { return position_; }
  int32_t Token() const { return token_; }

 private:
  const ChunkTableView& table_;
  PagedPrefillTile at_;
  int32_t position_ = 0;
  int32_t token_ = 0;
};

// How to cut contexts of more than `tiles` KV tiles: into equal parts of at most this length, or
// into parts of this length and a rest.
struct Cut {
  int64_t tiles;  // >= 2
  bool equal;
  size_t from = 0;  // the first tile of the plan whose context may be cut

  bool operator==(const Cut&) const = default;
};

// The number of parts of a tile's context, 1 if it stays whole. They are at least a KV tile long.
int64_t PartsOf(const PagedPrefillPlan& plan, size_t tile, const Cut& cut) {
  const int32_t tokens = plan.tiles[tile].kv_end;
  if (tile < cut.from || KvTilesOf(tokens) <= cut.tiles) return 1;
  if (cut.equal) return DivideUp(KvTilesOf(tokens), cut.tiles);
  return 1 + (tokens - 2 * kPagedPrefillKvTokens) / (cut.tiles * kPagedPrefillKvTokens);
}

// The plan with its contexts cut. Parts come first, the longest of them before the others.
PagedPrefillPlan WithCut(const ChunkTableView& table, const PagedPrefillPlan& whole,
                         const Cut& cut) {
  using TileOfPart = std::pair<PagedPrefillTile, PagedPrefillPart>;
  PagedPrefillPlan plan{
      .tile_tokens = whole.tile_tokens, .num_blocks = 0, .tiles = {}, .parts = {}};
  std::vector<TileOfPart> parts;
  std::vector<PagedPrefillTile> uncut;
  for (size_t i = 0; i < whole.tiles.size(); ++i) {
    const PagedPrefillTile& tile = whole.tiles[i];
    const auto count = static_cast<int32_t>(PartsOf(whole, i, cut));
    if (count == 1) {
      uncut.push_back(tile);
      continue;
    }
    const auto first = static_cast<int32_t>(parts.size());
    KvBorder border(table, tile);
    for (int32_t index = 0; index < count; ++index) {
      if (index > 0) {
        border.MoveTo(cut.equal ? int64_t{tile.kv_end} * index / count
                                : cut.tiles * kPagedPrefillKvTokens * index);
        parts.back().second.end = border.Position();
      }
      parts.emplace_back(border.Tile(), PagedPrefillPart{.begin = border.Position(),
                                                         .token = border.Token(),
                                                         .end = tile.kv_end,
                                                         .first_state = first,
                                                         .index = index,
                                                         .count = count});
    }
  }
  std::ranges::stable_sort(parts, std::greater(), [](const TileOfPart& part) {
    return KvTilesOf(part.second.end - part.second.begin);
  });
  for (const auto& [tile, part] : parts) {
    plan.tiles.push_back(tile);
    plan.parts.push_back(part);
  }
  plan.tiles.insert(plan.tiles.end(), uncut.begin(), uncut.end());
  for (PagedPrefillTile& tile : plan.tiles) {
    tile.left = 1;
    tile.next = -1;
  }
  return plan;
}

// The time that blocks which are all busy until the end take, merge included: no plan with this cut
// takes less. The plan without cuts has `work` for them. Empty if there are no parts or too many.
std::optional<uint64_t> LeastTime(const PagedPrefillPlan& whole, uint64_t work, const Cut& cut,
                                  int32_t max_parts, const DeviceFacts& device) {
  size_t num_parts = 0;
  for (size_t i = 0; i < whole.tiles.size(); ++i) {
    const auto count = static_cast<size_t>(PartsOf(whole, i, cut));
    if (count == 1) continue;
    num_parts += count;
    work += (count - 1) * PagedPrefillTileCost(0);
  }
  if (num_parts == 0 || num_parts > static_cast<size_t>(max_parts)) return {};
  return work / static_cast<uint64_t>(device.sm_count) + PagedPrefillMergeCost(num_parts);
}

// The cuts that may be best, each once: those with one or two tiles or parts for each block; those
// whose parts take a block's equal share of the time or somewhat more, so that rests fit beside
// them; and those of the last tiles only, which remain after whole rounds of all blocks, into one
// or two parts for each block.
std::vector<Cut> CutsToTry(const PagedPrefillPlan& plan, uint64_t share,
                           const DeviceFacts& device) {
  std::vector<Cut> cuts;
  const auto add = [&](const Cut& cut) {
    if (std::ranges::find(cuts, cut) == cuts.end()) cuts.push_back(cut);
  };
  const auto longest_of = [](std::span<const PagedPrefillTile> tiles) {
    return KvTilesOf(std::ranges::max(tiles, {}, &PagedPrefillTile::kv_end).kv_end);
  };
  const int64_t longest = longest_of(plan.tiles);
  const auto count_with = [&](int64_t tiles) {
    int64_t count = 0;
    for (const PagedPrefillTile& tile : plan.tiles) {
      count += std::max<int64_t>(1, DivideUp(KvTilesOf(tile.kv_end), tiles));
    }
    return count;
  };
  for (const int64_t each : {1, 2}) {
    const int64_t wanted = each * device.sm_count;
    if (std::ssize(plan.tiles) > wanted) continue;
    int64_t low = 2, high = std::max<int64_t>(2, longest);  // the least length with few enough
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (count_with(middle) <= wanted) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    add({low, true});
  }
  const uint64_t fixed = PagedPrefillTileCost(0);
  const int64_t of_share =
      std::max<int64_t>(2, DivideUp(static_cast<int64_t>(share - std::min(share, fixed)), 100));
  for (const int64_t tiles : {of_share, of_share + of_share / 16, of_share + of_share / 8}) {
    add({tiles, true});
    add({tiles, false});
  }
  const int64_t remaining = (std::ssize(plan.tiles) - 1) % device.sm_count + 1;
  const auto last = std::span(plan.tiles).last(static_cast<size_t>(remaining));
  for (const int64_t each : {1, 2}) {
    const int64_t parts = each * device.sm_count / remaining;
    add({std::max<int64_t>(2, DivideUp(longest_of(last), parts)), true,
         plan.tiles.size() - last.size()});
  }
  return cuts;
}

}  // namespace

uint64_t DealTiles(PagedPrefillPlan& plan, const DeviceFacts& device) {
  plan.num_blocks =
      static_cast<int32_t>(std::min<int64_t>(std::ssize(plan.tiles), device.sm_count));
  const auto num_blocks = static_cast<uint64_t>(plan.num_blocks);
  std::vector<size_t> last(num_blocks);  // tile of each block
  // busy_until * num_blocks + block: comparing one number is faster than comparing two.
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> blocks;
  uint64_t end = 0;
  for (size_t i = 0; i < plan.tiles.size(); ++i) {
    uint64_t block = i;  // the first tile of each
    if (i >= num_blocks) {
      block = blocks.top();
      blocks.pop();
      plan.tiles[last[block % num_blocks]].next = static_cast<int32_t>(i);
    }
    last[block % num_blocks] = i;
    const uint64_t busy = block + num_blocks * PagedPrefillTileCost(TokensOf(plan, i));
    blocks.push(busy);
    end = std::max(end, busy / num_blocks);
  }
  for (size_t i = plan.tiles.size(); i-- > 0;) {
    PagedPrefillTile& tile = plan.tiles[i];
    if (tile.next >= 0) tile.left = plan.tiles[static_cast<size_t>(tile.next)].left + 1;
  }
  return end;
}

void CutContexts(const ChunkTableView& table, uint64_t end, int32_t max_parts,
                 const DeviceFacts& device, PagedPrefillPlan& plan) {
  if (max_parts < 2) return;
  uint64_t work = 0;
  for (const PagedPrefillTile& tile : plan.tiles) work += PagedPrefillTileCost(tile.kv_end);
  const uint64_t share = work / static_cast<uint64_t>(device.sm_count);
  // Most plans keep all blocks busy, and need no search.
  uint64_t best = end * 9 / 10, worth_dealing = best;
  if (share + PagedPrefillMergeCost(2) >= best) return;
  PagedPrefillPlan chosen;
  for (const Cut& cut : CutsToTry(plan, share, device)) {
    const std::optional<uint64_t> least = LeastTime(plan, work, cut, max_parts, device);
    if (!least || *least >= worth_dealing) continue;
    PagedPrefillPlan candidate = WithCut(table, plan, cut);
    const uint64_t time =
        DealTiles(candidate, device) + PagedPrefillMergeCost(candidate.parts.size());
    if (time >= best) continue;
    best = time;
    worth_dealing = best - best / 64;  // dealing itself takes time
    chosen = std::move(candidate);
  }
  if (!chosen.parts.empty()) plan = std::move(chosen);
}

}  // namespace tokline
