// Workloads: lists of requests as a service receives them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "harness/scheduler/request.h"

namespace tokline {

inline constexpr int64_t kMaxRequests = 1'000'000;  // of a workload

struct WorkloadRequest {
  Request request;
  double arrival_s = 0;                // after the start of the run
  std::vector<std::string> stop = {};  // generation ends as soon as the text contains one of these
  // line number in the workload's file, from 1; 0 without a file
  int64_t line = 0;

  int64_t Context() const {  // maximum number of tokens
    return static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
  }
};

struct Workload {
  std::string name;
  std::vector<WorkloadRequest> requests;  // by arrival

  int64_t PromptTokens() const;
  int64_t NewTokens() const;   // maximum
  int64_t MaxContext() const;  // of the longest request
  bool HasStopStrings() const;
  bool HasArrivals() const;  // whether its requests do not all arrive at once
  // Lets requests arrive at random times, on average `rate` per second, and the first one at once;
  // infinity lets all arrive at once. The gaps of one seed are the same for every rate, apart from
  // their scale. Throws InvalidArgument if the last request would arrive too late.
  void SetRate(double rate, uint64_t seed);
  // How an error refers to request `i`: "FILE:LINE", or its number if there is no file.
  std::string Where(size_t i) const;
};

// Throws InvalidArgument that names `what` if it has more prompt tokens than a workload may have.
void RequireFewTokens(const std::string& what, int64_t prompt_tokens);

// Reproduces the benchmark of nano-vllm number by number: 256 requests from Python's generator with
// seed 0, prompts and outputs of 100 to 1,024 tokens, ids up to 10,000, temperature 0.6, without
// stop ids.
Workload NanoVllmWorkload();

// Parses requests=N,prompt=A-B,new=A-B,shared=N,ids=N,seed=N,temperature=T,rate=R, each of which
// has a default. `rate` is in requests per second; 0 means that all arrive at once. All prompts
// begin with the same `shared` tokens (default 0), which form a chunk, followed by their own A to B
// tokens. Throws InvalidArgument that names the invalid part.
Workload SyntheticWorkload(std::string_view parts);

// Reads one JSON object per line: "prompt_ids" (a list of ids) or "prompt_tokens" N (ids drawn
// below "ids", default 10000), and "new_tokens" N, "temperature", "top_k", "top_p", "seed",
// "stop_ids", "stop" (a text or a list of texts), "arrival_s". Throws InvalidArgument with the line
// and the reason, RuntimeFailure if the file cannot be read.
Workload ReadWorkload(const std::filesystem::path& file);

// Accepts "nano-vllm", "synthetic:..." or the path of a file.
Workload MakeWorkload(const std::string& text);

// A hash of the requests that does not depend on the workload's name.
std::string HashOf(const Workload& workload);

}  // namespace tokline
