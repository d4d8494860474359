// A checkpoint with its configuration and its tensors bound to their roles.
#pragma once

#include <filesystem>
#include <string>

#include "harness/models/checkpoint.h"
#include "harness/models/model_spec.h"
#include "harness/models/model_weights.h"

namespace tokline {

struct LoadedModel {
  explicit LoadedModel(const std::filesystem::path& dir);

  std::string Name() const;  // see ModelName

  ModelSpec spec;
  Checkpoint checkpoint;
  ModelWeights weights;
};

}  // namespace tokline
