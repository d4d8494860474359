// What is said of a run that served requests with continuous batching.
#pragma once

#include <cstdint>

#include "harness/measure/timing.h"

namespace tokline {

struct ServingFigures {
  Percentiles first_token_s;  // from the arrival
  Percentiles between_tokens_s;
  struct {
    double share = 0;    // of the run's time, in which the host worked and did not wait
    double step_us = 0;  // the same per step
  } host;
  struct {
    int64_t all = 0;
    int64_t graphs = 0;  // those that ran as graphs
  } steps;
  struct {
    int64_t preemptions = 0;
    int64_t recomputed = 0;  // after preemptions
    int64_t reused = 0;      // found in the cache
  } tokens;
  struct {
    int64_t bytes = 0;     // of K and V, by the attention of decode steps
    int64_t unshared = 0;  // had each sequence read all of its own
  } decode_reads;
  struct {
    int64_t all = 0;
    double mean = 0;  // in use, over the steps
    int64_t most = 0;
  } kv_pages;
};

}  // namespace tokline
