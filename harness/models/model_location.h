// Where a model is: a folder, or a name in the cache that Hugging Face's tools keep.
//
// The cache is HUB/models--ORG--NAME/snapshots/COMMIT/ for each model; refs/BRANCH beside
// snapshots/ holds the commit of a branch or tag. The files of a snapshot are links into blobs/.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace tokline {

struct HubCache {
  std::filesystem::path folder;  // empty: there is nothing to derive it from
  std::string origin;            // what says so: "HF_HUB_CACHE"
};

// As huggingface_hub does: HF_HUB_CACHE (or HUGGINGFACE_HUB_CACHE), else hub/ in HF_HOME, else
// huggingface/hub/ in XDG_CACHE_HOME, else in ~/.cache. An empty variable counts as not set.
using GetEnvironment = std::function<const char*(const char*)>;
HubCache FindHubCache(const GetEnvironment& get = [](const char* name) {
  return std::getenv(name);
});

// The folder of a model's files. `model` is a folder, the cache's own folder of a model, or a name:
// "ORG/NAME", or "NAME" if only one model of the cache is called so, with "@REVISION" (a branch, a
// tag or a commit) for another than main. A folder comes before a name. Throws RuntimeFailure that
// says where was looked and what is there.
std::filesystem::path FindModel(std::string_view model, const HubCache& cache = FindHubCache());

// What to call the model in this folder: the folder's name, or for a snapshot of the cache NAME.
std::string ModelName(const std::filesystem::path& dir);

}  // namespace tokline
