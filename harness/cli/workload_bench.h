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
#include "harness/measure/serving_figures.h"
#include "harness/platform/flags.h"
#include "harness/record/record.h"

namespace tokline {

struct WorkloadFlags {
  std::string workload;             // empty if no workload is given
  std::optional<int64_t> requests;  // of a file of conversations
  int32_t max_batch = 256;
  int64_t token_budget = DecoderOptions().token_budget;
  bool reuse = false;
  std::optional<ChunkSharing> sharing;  // empty: share when it pays
  std::vector<double> rates;            // empty: as the workload says
  std::optional<LatencyBound> slo;

  void AddTo(std::vector<Flag>& flags);
};

// The other settings of `tokline bench` that a workload uses.
struct WorkloadRun {
  const RunFlags& run;
  const RecordFlags& record;
  std::optional<int32_t> repeats;  // if empty: 3 on CUDA, 1 on the CPU
  uint64_t seed = 0;               // of the arrivals at a rate
  std::optional<OpDelay> op_delay;
  Json injected = nullptr;  // as written to records
};

// Runs the workload, once at each rate if there are rates, prints its figures, records a row for
// each and writes them to --json. Returns an exit code.
int RunWorkloadBench(const CommandLine& line, const WorkloadFlags& flags, const WorkloadRun& with);

}  // namespace tokline
