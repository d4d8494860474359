// Numbers lanes by what the SMs of their blocks have to read.
#include "kernels/chunk_decode/chunk_decode_sms.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "kernels/chunk_decode/chunk_decode_plan.h"

namespace tokline {

ChunkDecodeSms ChunkDecodeSmsOf(const ChunkDecodeGrid& grid, const PagedKvLayout& layout,
                                const DeviceFacts& device) {
  const int64_t block_bytes = grid.block_lanes > 1 ? ChunkDecodeWarpsSharedBytes(layout.head_dim)
                                                   : ChunkDecodeBlockBytes(layout.head_dim);
  const int64_t blocks_per_sm = ChunkDecodeBlocksPerSmOf(block_bytes, layout.head_dim, device);
  const int32_t blocks = grid.num_lanes / grid.block_lanes;
  if (grid.run_lanes > 0 ||
      int64_t{blocks} * layout.num_kv_heads > device.sm_count * blocks_per_sm) {
    return {};
  }
  return {.sm_count = device.sm_count, .kv_heads = layout.num_kv_heads, .blocks = blocks};
}

std::vector<int32_t> EvenLaneNumbers(std::span<const int64_t> loads, const ChunkDecodeSms& sms) {
  const auto lanes = static_cast<int32_t>(loads.size());
  std::vector<int32_t> numbers(loads.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto changes = std::ranges::adjacent_find(loads, std::ranges::not_equal_to{});
  if (sms.sm_count == 0 || changes == loads.end()) return numbers;
  using LoadAndLane = std::pair<int64_t, int32_t>;
  std::vector<LoadAndLane> largest_first;
  for (int32_t lane = 0; lane < lanes; ++lane) {
    largest_first.emplace_back(-loads[static_cast<size_t>(lane)], lane);
  }
  std::ranges::sort(largest_first);
  std::vector<int64_t> of_sm(static_cast<size_t>(sms.sm_count), 0);
  const auto for_each_sm = [&](int32_t number, const auto& visit) {
    auto sm = static_cast<size_t>(number % sms.blocks * sms.kv_heads % sms.sm_count);
    for (int32_t head = 0; head < sms.kv_heads; ++head) {
      visit(of_sm[sm]);
      if (++sm == of_sm.size()) sm = 0;
    }
  };
  // Blocks begin in rounds over the SMs. If lanes are warps, the first ones of all blocks come
  // before any second one.
  const auto round_of = [&](int32_t number) {
    return std::pair(number / sms.blocks,
                     int64_t{number % sms.blocks} * sms.kv_heads / sms.sm_count);
  };
  std::vector<LoadAndLane> free;  // the numbers of a round
  for (int32_t begin = 0, end = 0; begin < lanes; begin = end) {
    free.clear();
    for (; end < lanes && round_of(end) == round_of(begin); ++end) {
      int64_t most = 0;
      for_each_sm(end, [&](int64_t load) { most = std::max(most, load); });
      free.emplace_back(most, end);
    }
    std::ranges::sort(free);
    for (int32_t i = begin; i < end; ++i) {
      const auto [negative_load, lane] = largest_first[static_cast<size_t>(i)];
      const int32_t number = free[static_cast<size_t>(i - begin)].second;
      numbers[static_cast<size_t>(lane)] = number;
      for_each_sm(number, [load = -negative_load](int64_t& of) { of += load; });
    }
  }
  const int64_t most = std::ranges::max(of_sm);
  std::ranges::fill(of_sm, 0);
  for (int32_t lane = 0; lane < lanes; ++lane) {
    for_each_sm(lane, [load = loads[static_cast<size_t>(lane)]](int64_t& of) { of += load; });
  }
  if (std::ranges::max(of_sm) <= most) std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace tokline
