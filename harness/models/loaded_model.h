// A checkpoint with its configuration and its tensors bound to their roles.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "harness/models/checkpoint.h"
#include "harness/models/model_spec.h"
#include "harness/models/model_weights.h"

namespace tokline {

struct LoadedModel {
  explicit LoadedModel(const std::filesystem::path& dir);
  // With random weights: reads config.json, and never a file of weights.
  LoadedModel(const std::filesystem::path& dir, uint64_t random_seed);

  // A digest of config.json and of the tensors' names, types, shapes and places, but not of their
  // elements.
  uint64_t Digest() const;

  std::string Name() const;  // see ModelName; random weights are named too

  ModelSpec spec;
  Checkpoint checkpoint;
  ModelWeights weights;
};

}  // namespace tokline
