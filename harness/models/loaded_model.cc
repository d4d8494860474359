#include "harness/models/loaded_model.h"

#include "harness/models/model_location.h"

namespace tokline {

LoadedModel::LoadedModel(const std::filesystem::path& dir)
    : spec(LoadModelSpec(dir)), checkpoint(dir), weights(BindWeights(checkpoint, spec)) {}

LoadedModel::LoadedModel(const std::filesystem::path& dir, uint64_t random_seed)
    : spec(LoadModelSpec(dir)),
      checkpoint(Checkpoint::WithoutTensors(dir)),
      weights(RandomWeights(spec, random_seed)) {}

std::string LoadedModel::Name() const {
  return ModelName(checkpoint.Dir()) + (weights.random_seed ? " of random weights" : "");
}

}  // namespace tokline
