#include "harness/models/loaded_model.h"

#include "harness/models/model_location.h"

namespace tokline {

LoadedModel::LoadedModel(const std::filesystem::path& dir)
    : spec(LoadModelSpec(dir)), checkpoint(dir), weights(BindWeights(checkpoint, spec)) {}

std::string LoadedModel::Name() const { return ModelName(checkpoint.Dir()); }

}  // namespace tokline
