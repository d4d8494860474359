// Runs a workload with continuous batching and measures tokens per second, latencies and memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/measure/serving_figures.h"
#include "harness/measure/throughput.h"
#include "harness/measure/workload.h"

namespace tokline {

// One run of a workload.
struct WorkloadResult {
  double total_s = 0;    // from the first arrival to the last token
  int64_t requests = 0;  // that have ended
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
  ServingFigures serving;
  std::vector<RequestLatency> waits;  // of the requests that have ended, in the order of their ends
  std::vector<MemoryPoint> memory;    // after each tenth of the requests
  std::vector<BenchText> texts;       // of some requests, for verification
  bool interrupted = false;
};

MemoryPoint MemoryOf(Decoder& decoder, int64_t requests);

// Captures graphs and runs a first step of each kind, so that one-time work is done before the run;
// returns the seconds that this took. The decoder must have no sequences. Throws InvalidArgument
// with the number of the request if one does not fit.
double WarmUp(Decoder& decoder, const Workload& workload,
              const std::atomic<bool>* interrupted = nullptr);

// For one request: receives its tokens as they come and returns whether one completes a stop
// string.
using StopReader = std::function<bool(int32_t token)>;
// Creates a reader for the stop strings of a request.
using MakeStopReader = std::function<StopReader(std::span<const std::string> stops)>;

// The decoder must have no sequences; the run starts with no K and V to reuse. Throws as WarmUp
// does, and InvalidArgument if the workload has stop strings but there is no `make_stop_reader`.
// `on_step` takes the number of tokens of each step.
WorkloadResult RunWorkload(Decoder& decoder, const Workload& workload,
                           const std::atomic<bool>* interrupted = nullptr,
                           const MakeStopReader& make_stop_reader = {},
                           const std::function<void(int64_t)>& on_step = {});

}  // namespace tokline
