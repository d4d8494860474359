// tokline bench --workload: requests as a service gets them, with continuous batching.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/cli/commands.h"
#include "harness/cli/flags.h"
#include "harness/cli/model_run.h"
#include "harness/cli/record_flags.h"
#include "harness/measure/op_delay.h"
#include "harness/record/record.h"

namespace tokline {

struct WorkloadFlags {
  std::string workload;  // empty: none
  int32_t max_batch = 256;
  int64_t token_budget = DecoderOptions().token_budget;
  bool reuse = false;
  std::optional<ChunkSharing> sharing;  // none: when it pays

  void AddTo(std::vector<Flag>& flags);
};

// What `tokline bench` has besides.
struct WorkloadRun {
  const RunFlags& run;
  const RecordFlags& record;
  std::optional<int32_t> repeats;  // none: 3 on CUDA, 1 on the CPU
  std::optional<OpDelay> op_delay;
  Json injected = nullptr;  // as records say it
};

// The figures of a row that stands, as lines to read.
std::string WorkloadText(const Json& row);

// Runs the workload, prints its figures, records its row and writes it to --json. Returns an exit
// code.
int RunWorkloadBench(const CommandLine& line, const WorkloadFlags& flags, const WorkloadRun& with);

}  // namespace tokline
