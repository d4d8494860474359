// A checkpoint with what was found out about it.
#pragma once

#include <filesystem>
#include <string>

#include "harness/models/checkpoint.h"
#include "harness/models/model_spec.h"
#include "harness/models/model_weights.h"

namespace tokline {

struct LoadedModel {
  explicit LoadedModel(const std::filesystem::path& dir);

  std::string Name() const;  // without the path

  ModelSpec spec;
  Checkpoint checkpoint;
  ModelWeights weights;
};

}  // namespace tokline
