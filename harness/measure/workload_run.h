// A workload run with continuous batching: tokens per second, latencies, and what it holds
// meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/measure/memory_point.h"
#include "harness/measure/serving_figures.h"
#include "harness/measure/throughput.h"
#include "harness/measure/workload.h"

namespace tokline {

// One run of a workload.
struct WorkloadResult {
  double total_s = 0;    // from the first arrival to the last token
  int64_t requests = 0;  // that ended
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
  double output_tokens_per_s = 0;
  double total_tokens_per_s = 0;  // prompt and output
  ServingFigures serving;
  std::vector<MemoryPoint> memory;  // after each tenth of the requests
  std::vector<BenchText> texts;     // of some requests, for verification
  bool interrupted = false;
};

MemoryPoint MemoryOf(Decoder& decoder, int64_t requests);

// Graphs, and a first step of each kind, so that what is done the first time is done; returns the
// seconds. Needs a decoder without sequences. Throws InvalidArgument, with the request's number,
// for one that does not fit.
double WarmUp(Decoder& decoder, const Workload& workload,
              const std::atomic<bool>* interrupted = nullptr);

// Of one request: takes its tokens as they come and says whether one completes a stop string.
using StopReader = std::function<bool(int32_t token)>;
// Makes one for the stop strings of a request.
using MakeStopReader = std::function<StopReader(std::span<const std::string> stops)>;

// Needs a decoder without sequences, and begins with no K and V to reuse. Throws as WarmUp does,
// and InvalidArgument for a workload with stop strings without a `make_stop_reader`.
WorkloadResult RunWorkload(Decoder& decoder, const Workload& workload,
                           const std::atomic<bool>* interrupted = nullptr,
                           const MakeStopReader& make_stop_reader = {});

}  // namespace tokline
