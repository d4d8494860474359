// Makes a decoder on all processes of mpirun: rank 0 sends its options, and then the orders that it
// gives its own rank; the others serve it. Because only rank 0 schedules, reads the clock and is
// interrupted, the ranks cannot come to different decisions.
#pragma once

#include "harness/engine/process_group.h"
#include "harness/engine/rank_order.h"
#include "harness/models/loaded_model.h"

namespace tokline {

struct DecoderOptions;

// Obeys rank 0 until it leaves. Throws what a decoder throws, with the name of the rank, and
// RuntimeFailure if the model in this process is a different one.
void ServeRank(ProcessGroup& processes);

// Sends the orders of one decoder from rank 0 to the others, from its creation to its end.
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

// Called by all processes once they have made their ranks. See RequireSameKind.
void RequireSameKinds(ProcessGroup& processes, const DeviceFacts& facts);

}  // namespace tokline
