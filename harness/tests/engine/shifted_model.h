// Models, requests and bounds shared by the CPU and CUDA tests of shifted spans.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "harness/scheduler/request.h"
#include "harness/tests/engine/golden.h"

namespace tokline::testing {

// Bounds for bf16: on the error of a key that is rotated, and thus rounded, twice (rounding alone
// gives 0.002), and on its effect on the distribution after one layer. A shift that is off by one
// gives 0.1 or more.
inline constexpr double kBf16KeyError = 0.01;
inline constexpr double kBf16Kl = 0.01;

// The committed checkpoints whose positions can be shifted.
inline std::vector<std::string> RopeModels() {
  std::vector<std::string> names = GoldenNames();
  std::erase_if(names, [](const std::string& name) { return name.starts_with("gpt2"); });
  return names;
}

// Removes all layers but the first. Its K and V depend only on token and position, so shifted spans
// are exact there except for rounding.
inline void KeepFirstLayer(LoadedModel& model) {
  model.spec.num_layers = 1;
  model.weights.layers.resize(1);
}

// Returns three chunks and a question with random ids. The first chunk is at the position where it
// is computed, the others are shifted. No length is a multiple of a page of 16.
inline Request ChunkedRequest(int64_t vocab_size, uint64_t seed, int64_t prefix = 0) {
  std::mt19937_64 rng(seed);
  Request request{.max_new_tokens = 24, .shifted_after = prefix};
  const auto add = [&](int64_t tokens) {
    for (int64_t i = 0; i < tokens; ++i) {
      request.prompt.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab_size)));
    }
  };
  add(prefix);
  for (const int64_t tokens : {21, 39, 18}) {
    const auto begin = static_cast<int64_t>(request.prompt.size());
    add(tokens);
    request.shifted.push_back({begin, begin + tokens});
  }
  add(7);
  return request;
}

}  // namespace tokline::testing
