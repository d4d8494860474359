// How the query rows of chunks that several sequences list are packed into tasks, and when run
// lanes read them.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/chunk_decode/chunk_decode.h"

namespace tokline {

// How many of the remaining `members` read a shared run in one task: those that fill one tile of
// query rows if three such tiles hold all members, which is faster than wide tiles; otherwise the
// maximum of a task.
int32_t SharedPartMembers(int32_t members, int32_t group);
// The same for run lanes.
int32_t RunPartMembers(int32_t members, int32_t group);
// Whether run lanes, if there are any, read a run. They do if it has more query rows than a tile
// and no member has to rotate its query.
bool RunLanesRead(const SharedRun& run, int32_t group);
// How many tasks read the run: tasks of ordinary lanes, and tasks of run lanes.
int32_t NumSharedParts(int32_t members, int32_t group);
int32_t NumRunParts(int32_t members, int32_t group);

// Returns the one of ChunkDecodeRunGrids that takes the least time by a model. Returns the full
// grid if run lanes would read no run. Unless `sharing` is kAlways, also returns it if no grid with
// run lanes is faster than those of ChunkDecodeGrids without sharing. Run lanes read runs of more
// query rows than a tile, without shifts. `lengths` are the tokens of each sequence.
ChunkDecodeGrid ChooseChunkDecodeRunGrid(std::span<const SharedRun> runs,
                                         std::span<const int64_t> lengths,
                                         const PagedKvLayout& layout, int32_t group,
                                         const DeviceFacts& device,
                                         ChunkSharing sharing = ChunkSharing::kWhenItPays);

}  // namespace tokline
