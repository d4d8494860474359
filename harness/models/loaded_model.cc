#include "harness/models/loaded_model.h"

#include <fstream>
#include <functional>
#include <sstream>

#include "harness/models/model_location.h"

namespace tokline {

LoadedModel::LoadedModel(const std::filesystem::path& dir)
    : spec(LoadModelSpec(dir)), checkpoint(dir), weights(BindWeights(checkpoint, spec)) {}

LoadedModel::LoadedModel(const std::filesystem::path& dir, uint64_t random_seed)
    : spec(LoadModelSpec(dir)),
      checkpoint(Checkpoint::WithoutTensors(dir)),
      weights(RandomWeights(spec, random_seed)) {}

uint64_t LoadedModel::Digest() const {
  std::ostringstream text;
  text << std::ifstream(checkpoint.Dir() / "config.json").rdbuf();
  for (const auto& [name, tensor] : checkpoint.Tensors()) {
    text << name << tensor.dtype << tensor.file << '/'
         << tensor.data - checkpoint.Files()[static_cast<size_t>(tensor.file)].Bytes().data();
    for (const int64_t extent : tensor.shape) text << ' ' << extent;
  }
  return std::hash<std::string>()(text.str());
}

std::string LoadedModel::Name() const {
  return ModelName(checkpoint.Dir()) + (weights.random_seed ? " of random weights" : "");
}

}  // namespace tokline
