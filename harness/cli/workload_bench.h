// tokline bench --workload: runs requests as a service receives them, with continuous batching.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/cli/commands.h"
#include "harness/cli/model_run.h"
#include "harness/cli/record_flags.h"
#include "harness/measure/op_delay.h"
#include "harness/platform/flags.h"
#include "harness/record/record.h"

namespace tokline {

struct WorkloadFlags {
  std::string workload;  // empty if no workload is given
  int32_t max_batch = 256;
  int64_t token_budget = DecoderOptions().token_budget;
  bool reuse = false;
  std::optional<ChunkSharing> sharing;  // empty: share when it pays

  void AddTo(std::vector<Flag>& flags);
};

// The other settings of `tokline bench` that a workload uses.
struct WorkloadRun {
  const RunFlags& run;
  const RecordFlags& record;
  std::optional<int32_t> repeats;  // if empty: 3 on CUDA, 1 on the CPU
  std::optional<OpDelay> op_delay;
  Json injected = nullptr;  // as written to records
};

// Runs the workload, prints its figures, records its row and writes it to --json. Returns an exit
// code.
int RunWorkloadBench(const CommandLine& line, const WorkloadFlags& flags, const WorkloadRun& with);

}  // namespace tokline
