// How the query rows of chunks that several sequences list are packed into tasks.
#pragma once

#include <cstdint>

#include "kernels/chunk_decode/chunk_decode.h"

namespace tokline {

// How many of the `members` that are left read a shared run in one task: those that fill one tile
// of query rows if three such tiles hold all members, which is faster than wide tiles; otherwise as
// many as a task may have.
int32_t SharedPartMembers(int32_t members, int32_t group);
// The same for run lanes.
int32_t RunPartMembers(int32_t members, int32_t group);
// Whether run lanes, if there are any, read a run: one with more query rows than a tile has, which
// nobody has to rotate.
bool RunLanesRead(const SharedRun& run, int32_t group);
// How many tasks read the run: of lanes, and of run lanes.
int32_t NumSharedParts(int32_t members, int32_t group);
int32_t NumRunParts(int32_t members, int32_t group);

}  // namespace tokline
