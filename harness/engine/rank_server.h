// Makes a decoder on all processes of mpirun: rank 0 sends its options, and then what it tells its
// own rank; the others serve it. As rank 0 alone schedules, reads the clock and is interrupted, the
// ranks cannot come to different decisions.
#pragma once

#include "harness/engine/process_group.h"
#include "harness/engine/rank_order.h"
#include "harness/models/loaded_model.h"

namespace tokline {

struct DecoderOptions;

// Obeys rank 0 until it leaves. Throws what a decoder throws, with the name of the rank, and
// RuntimeFailure if the model here is another one.
void ServeRank(ProcessGroup& processes);

// What rank 0 tells the others of one decoder, from its making to its end.
class RemoteRanks {
 public:
  RemoteRanks(ProcessGroup& processes, const LoadedModel& model, const DecoderOptions& options);
  ~RemoteRanks();
  RemoteRanks(const RemoteRanks&) = delete;
  RemoteRanks& operator=(const RemoteRanks&) = delete;

  void Tell(const RankOrder& order);

 private:
  ProcessGroup& processes_;
  int64_t decoder_;
};

// Is called by all processes when they have made their ranks. See RequireSameKind.
void RequireSameKinds(ProcessGroup& processes, const DeviceFacts& facts);

}  // namespace tokline
