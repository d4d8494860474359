// Finds a model on disk: a folder, the name of a model that scripts/model made, or a name in the
// Hugging Face cache.
//
// The cache stores each model in HUB/models--ORG--NAME/snapshots/COMMIT/; refs/BRANCH beside
// snapshots/ contains the commit of a branch or tag. The files of a snapshot are links into blobs/.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace tokline {

struct HubCache {
  std::filesystem::path folder;  // empty if no variable determines it
  std::string origin;            // how it was determined, for messages: "from HF_HUB_CACHE"
};

// Follows the rules of huggingface_hub: HF_HUB_CACHE (or HUGGINGFACE_HUB_CACHE), otherwise hub/ in
// HF_HOME, otherwise huggingface/hub/ in XDG_CACHE_HOME, otherwise in ~/.cache. An empty variable
// counts as unset.
using GetEnvironment = std::function<const char*(const char*)>;
HubCache FindHubCache(const GetEnvironment& get = [](const char* name) {
  return std::getenv(name);
});

// The folder in which scripts/model makes a folder for each model: tokline/models/ in
// XDG_CACHE_HOME, otherwise in ~/.cache; empty if neither XDG_CACHE_HOME nor HOME is set.
std::filesystem::path MadeModelsFolder(const GetEnvironment& get = [](const char* name) {
  return std::getenv(name);
});

// Returns the folder that holds a model's files. `model` is a folder, the cache's folder of a
// model, the name of a folder in `made`, or a name in the cache: "ORG/NAME", or just "NAME" if only
// one model in the cache has that name. "@REVISION" (a branch, a tag or a commit) after the name
// selects a revision other than main. What comes first in this list takes precedence. Throws
// RuntimeFailure that says where it looked and what is there.
std::filesystem::path FindModel(std::string_view model, const HubCache& cache = FindHubCache(),
                                const std::filesystem::path& made = MadeModelsFolder());

// The display name of the model in this folder: NAME for a snapshot in the cache, otherwise the
// folder's name.
std::string ModelName(const std::filesystem::path& dir);

}  // namespace tokline
