// Random shapes: drawn from a seed, in the schema of benches/shapes.h, and the same on every
// platform.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "benches/shapes.h"

namespace tokline::bench {

// The ranges from which a sweep draws. Sizes are drawn uniformly in their logarithm.
struct SweepRanges {
  Range batch;
  Range context;         // tokens of a sequence
  Range kv_heads;        // of attention, append and gather
  Range groups;          // query heads per KV head
  Range tokens;          // of projections, norms, activations and embeddings
  Range appended;        // tokens of an append
  Range layers;          // of decode_step
  int64_t shrink = 1;    // divides the sizes of published models
  double max_flops = 0;  // of a launch; larger shapes are drawn again
};
// A launch of 8e12 operations takes 10 ms at 800 TFLOP/s.
inline constexpr SweepRanges kDeviceSweep{.batch = {1, 256},
                                          .context = {1, 131072},
                                          .kv_heads = {1, 32},
                                          .groups = {1, 16},
                                          .tokens = {1, 8192},
                                          .appended = {1, 131072},
                                          .layers = {1, 8},
                                          .max_flops = 8e12};
// The references are slow: five such shapes take seconds.
inline constexpr SweepRanges kCpuSweep{.batch = {1, 8},
                                       .context = {1, 512},
                                       .kv_heads = {1, 8},
                                       .groups = {1, 16},
                                       .tokens = {1, 64},
                                       .appended = {1, 256},
                                       .layers = {1, 2},
                                       .shrink = 16,
                                       .max_flops = 2e7};

// The sizes of a published model, as its config.json states them.
struct PublishedModel {
  std::string_view name;
  int64_t hidden;
  int64_t inner;
  int64_t hq;
  int64_t hk;
  int64_t head_dim;
  int64_t vocab;
};
std::span<const PublishedModel> PublishedModels();

struct Sweep {
  ShapeFile shapes;
  std::map<std::string, int64_t> redrawn{};  // draws by the reason for which they were drawn again
};

// Returns why a drawn shape is not to be run, or "".
using SweepRefusal =
    std::function<std::string(const std::string& family, const nlohmann::ordered_json& shape)>;

// Draws `count` shapes, named sweep:SEED:0 and so on. A shape depends only on the kernel, the seed,
// its number, the ranges, and the shapes that `refusal` refuses. Throws RuntimeFailure if a
// thousand draws in a row are refused.
Sweep DrawSweep(const std::string& kernel, int64_t count, uint64_t seed, const SweepRanges& ranges,
                const SweepRefusal& refusal);

}  // namespace tokline::bench
