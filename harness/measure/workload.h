// Requests as a service gets them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "harness/scheduler/request.h"

namespace tokline {

struct WorkloadRequest {
  Request request;
  double arrival_s = 0;                // after the begin
  std::vector<std::string> stop = {};  // the text ends as soon as it has one of these
  int64_t line = 0;                    // of the file that it stands in, from 1; 0: in none

  int64_t Context() const {  // tokens at most
    return static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
  }
};

struct Workload {
  std::string name;
  std::vector<WorkloadRequest> requests;  // by arrival

  int64_t PromptTokens() const;
  int64_t NewTokens() const;   // at most
  int64_t MaxContext() const;  // of the longest request
  bool HasStopStrings() const;
  // What an error calls request `i`: "FILE:LINE", or its number in what is no file.
  std::string Where(size_t i) const;
};

// The benchmark of nano-vllm, number by number: 256 requests, Python's generator with seed 0,
// prompts and outputs of 100 to 1,024 tokens, ids up to 10,000, temperature 0.6, nothing stops
// them.
Workload NanoVllmWorkload();

// requests=N,prompt=A-B,new=A-B,shared=N,ids=N,seed=N,temperature=T,rate=R (a second; 0: all at
// once), all with defaults. All prompts begin with the same `shared` tokens (0), a chunk, before
// their own A to B. Throws InvalidArgument that names the part.
Workload SyntheticWorkload(std::string_view parts);

// One JSON object a line: "prompt_ids" [ids] or "prompt_tokens" N (drawn below "ids", 10000), and
// "new_tokens" N, "temperature", "top_k", "top_p", "seed", "stop_ids", "stop" (a text or a list of
// them), "arrival_s". Throws InvalidArgument with the line and the reason, RuntimeFailure if the
// file cannot be read.
Workload ReadWorkload(const std::filesystem::path& file);

// "nano-vllm", "synthetic:...", or else a file.
Workload MakeWorkload(const std::string& text);

// Tells requests from others, whatever they are called.
std::string HashOf(const Workload& workload);

}  // namespace tokline
