// What the tests of shifted spans on the CPU and on CUDA share.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "harness/scheduler/request.h"
#include "harness/tests/engine/golden.h"

namespace tokline::testing {

// In bf16 a key that is rotated twice is rounded twice, which alone is 0.002 of it; and what such
// keys do to the distribution after one layer. A shift that is off by one gives 0.1 and more.
inline constexpr double kBf16KeyError = 0.01;
inline constexpr double kBf16Kl = 0.01;

// The committed checkpoints whose positions can be shifted.
inline std::vector<std::string> RopeModels() {
  std::vector<std::string> names = GoldenNames();
  std::erase_if(names, [](const std::string& name) { return name.starts_with("gpt2"); });
  return names;
}

// Only the first layer: its K and V depend on token and position alone, so there shifted spans are
// exact but for rounding.
inline void KeepFirstLayer(LoadedModel& model) {
  model.spec.num_layers = 1;
  model.weights.layers.resize(1);
}

// Three chunks and a question, of random ids; the first chunk stands where it was computed, the
// others are shifted. No length is a whole number of pages of 16.
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
