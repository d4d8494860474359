// Which block processes which tile, and where contexts are cut so that all blocks have work.
#pragma once

#include <cstdint>

#include "kernels/paged_prefill/paged_prefill_plan.h"

namespace tokline {

// Sets num_blocks and gives each tile to the block that will have finished its earlier ones first.
// Returns when the last block ends, in the unit of PagedPrefillTileCost.
uint64_t DealTiles(PagedPrefillPlan& plan, const DeviceFacts& device);

// Cuts the contexts of the longest tiles of a dealt plan without parts, or of those of its last
// round, into parts. The plan ends at `end`, and is left as it is unless it then ends earlier by
// more than a tenth, merge included.
void CutContexts(const ChunkTableView& table, uint64_t end, int32_t max_parts,
                 const DeviceFacts& device, PagedPrefillPlan& plan);

}  // namespace tokline
