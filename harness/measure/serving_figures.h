// The figures of a run that served requests with continuous batching, and its memory.
#pragma once

#include <cstdint>
#include <optional>

#include "harness/measure/token_latencies.h"
#include "harness/platform/process_memory.h"

namespace tokline {

// How long a request waited.
struct RequestLatency {
  double first_token_s = 0;   // since its arrival
  double mean_between_s = 0;  // between its tokens; 0 for a request of one token
};

// The latencies that a service promises; an empty one is not promised.
struct LatencyBound {
  std::optional<double> first_token_s{};
  std::optional<double> mean_between_s{};

  bool IsMetBy(const RequestLatency& latency) const {
    return latency.first_token_s <= first_token_s.value_or(latency.first_token_s) &&
           latency.mean_between_s <= mean_between_s.value_or(latency.mean_between_s);
  }
};

struct ServingFigures {
  LatencyFigures latencies{};  // since the requests' arrival
  struct {
    double share = 0;    // share of the run's time in which the host worked instead of waiting
    double step_us = 0;  // the host's working time per step
  } host;
  struct {
    int64_t all = 0;
    int64_t graphs = 0;  // those that ran as graphs
  } steps;
  struct {
    int64_t preemptions = 0;
    int64_t recomputed = 0;  // computed again after preemptions
    int64_t reused = 0;      // found in the cache
  } tokens;
  struct {
    int64_t bytes = 0;     // K and V bytes that the attention of decode steps read
    int64_t unshared = 0;  // the bytes that would have been read without sharing
  } decode_reads;
  struct {
    int64_t all = 0;
    double mean = 0;  // pages in use, averaged over the steps
    int64_t most = 0;
  } kv_pages;
};

// The memory that a service holds at one moment of its run. A series of these shows whether memory
// use grows.
struct MemoryPoint {
  int64_t requests = 0;  // that have ended so far
  ProcessMemory host;
  std::optional<int64_t> device_free;  // bytes; none on the CPU
  int64_t sequences = 0;
  int64_t chunks = 0;
  int64_t chunk_ids = 0;  // existing chunks and free chunk slots
  int64_t kv_pages = 0;   // in use or kept for reuse
};

}  // namespace tokline
