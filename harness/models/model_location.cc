// Resolves a model's name to a folder in one of the caches. Names are untrusted: they must not lead
// out of a cache, and every failure says what the Hugging Face cache contains.
#include "harness/models/model_location.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "harness/platform/mapped_file.h"
#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRepoPrefix = "models--";
constexpr std::string_view kSeparator = "--";
constexpr std::string_view kMain = "main";
constexpr size_t kListed = 5;
constexpr int64_t kMaxRefBytes = 256;
constexpr std::string_view kNameChars =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
constexpr std::string_view kFromGguf =
    "scripts/model --gguf FILE makes one of a GGUF file, which is not read itself; ";
constexpr std::string_view kWhatAModelIs =
    "a folder with config.json and model.safetensors, a name that scripts/model makes, such as "
    "smollm2-135m, or a name in the Hugging Face cache, such as Qwen/Qwen3-0.6B";

// Whether `text` is one component of a path or of a name that cannot lead anywhere else.
bool IsPlainName(std::string_view text) {
  return !text.empty() && text.size() <= 255 && text.front() != '.' && text.front() != '-' &&
         text.find_first_not_of(kNameChars) == text.npos && text.find("..") == text.npos;
}

// Whether `text` may be a revision, such as "v1.0" or "refs/pr/2".
bool IsRevision(std::string_view text) {
  while (true) {
    const size_t slash = text.find('/');
    if (!IsPlainName(text.substr(0, slash))) return false;
    if (slash == text.npos) return true;
    text.remove_prefix(slash + 1);
  }
}

struct HubName {
  std::string organisation;  // empty if not given
  std::string name;
  std::string revision;  // empty if not given

  std::string Id() const { return organisation.empty() ? name : organisation + "/" + name; }
};

std::optional<HubName> ParseName(std::string_view text) {
  HubName parsed;
  if (const size_t at = text.find('@'); at != text.npos) {
    parsed.revision = text.substr(at + 1);
    if (!IsRevision(parsed.revision)) return std::nullopt;
    text = text.substr(0, at);
  }
  if (const size_t slash = text.find('/'); slash != text.npos) {
    parsed.organisation = text.substr(0, slash);
    if (!IsPlainName(parsed.organisation)) return std::nullopt;
    text.remove_prefix(slash + 1);
  }
  parsed.name = text;
  const bool plain = IsPlainName(parsed.name) && parsed.Id().find(kSeparator) == std::string::npos;
  return plain ? std::optional(parsed) : std::nullopt;
}

// Parses a folder name such as "models--Qwen--Qwen3-0.6B" or "models--gpt2".
std::optional<HubName> NameOfRepo(const fs::path& repo) {
  const std::string folder = repo.filename().string();
  if (!folder.starts_with(kRepoPrefix)) return std::nullopt;
  std::string_view rest = std::string_view(folder).substr(kRepoPrefix.size());
  HubName parsed;
  if (const size_t at = rest.find(kSeparator); at != rest.npos) {
    parsed.organisation = rest.substr(0, at);
    rest.remove_prefix(at + kSeparator.size());
  }
  parsed.name = rest;
  return parsed;
}

// The sorted names of a folder's entries; empty if the folder cannot be read.
std::vector<std::string> EntriesOf(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// Formats a list such as "a, b and 3 more".
std::string Listed(const std::vector<std::string>& names, size_t most = kListed) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < most; ++i) {
    const std::string quoted = Quoted(names[i]);
    text += StrCat(i == 0 ? "" : ", ", quoted.substr(1, quoted.rfind('"') - 1));
  }
  if (names.size() > most) text += StrCat(" and ", names.size() - most, " more");
  return text;
}

// Reads the commit that a ref points to.
std::string ReadRef(const fs::path& path) {
  const MappedFile file(path);
  std::string commit = file.Read(0, std::min(file.Size(), kMaxRefBytes));
  while (commit.ends_with('\n') || commit.ends_with('\r') || commit.ends_with(' ')) {
    commit.pop_back();
  }
  if (file.Size() > kMaxRefBytes || !IsPlainName(commit)) {
    throw RuntimeFailure(
        StrCat(path.string(), ": it says ", Quoted(commit), "; it must be the name of a snapshot"));
  }
  return commit;
}

// Returns the folder of a model's snapshot in the cache. An empty revision means main.
fs::path SnapshotOf(const fs::path& repo, std::string_view id, std::string revision) {
  if (revision.empty()) revision = kMain;
  std::error_code error;
  const fs::path ref = repo / "refs" / revision;
  fs::path snapshot;
  if (fs::is_regular_file(ref, error)) {
    snapshot = repo / "snapshots" / ReadRef(ref);
    if (!fs::is_directory(snapshot, error)) {
      throw RuntimeFailure(StrCat(ref.string(), ": it names the snapshot ", snapshot.string(),
                                  ", which is not there (was the download interrupted?)"));
    }
  } else {
    snapshot = repo / "snapshots" / revision;
    if (!IsPlainName(revision) || !fs::is_directory(snapshot, error)) {
      std::vector<std::string> known = EntriesOf(repo / "refs");
      std::erase(known, "refs");  // the folder of pull requests
      std::ranges::copy(EntriesOf(repo / "snapshots"), std::back_inserter(known));
      throw RuntimeFailure(
          StrCat(repo.string(), ": ", id, " has no revision ", Quoted(revision), " here; ",
                 known.empty() ? "it has none at all (was the download interrupted?)"
                               : "it has " + Listed(known)));
    }
  }
  if (!fs::exists(fs::symlink_status(snapshot / "config.json", error))) {
    throw RuntimeFailure(StrCat(snapshot.string(), ": the snapshot of ", id,
                                " has no config.json (was the download interrupted?)"));
  }
  return snapshot;
}

// The value of a variable that names a folder, in which "~/" is the user's home. An empty variable
// counts as unset.
std::optional<std::string> FolderVariable(const GetEnvironment& get, const char* name) {
  const char* value = get(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  const char* home = get("HOME");
  const bool of_home = std::string_view(value).starts_with("~/") && home != nullptr;
  return of_home ? home + std::string(value + 1) : value;
}

std::string WhatIsCached(const HubCache& cache, const std::vector<std::string>& ids) {
  if (cache.folder.empty()) {
    return "in no Hugging Face cache: none of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME "
           "is set";
  }
  std::error_code error;
  return StrCat("not in the Hugging Face cache ", cache.folder.string(), " (", cache.origin, "), ",
                !ids.empty()                            ? "which has " + Listed(ids)
                : fs::is_directory(cache.folder, error) ? "which has no models"
                                                        : "which does not exist");
}

fs::path FindCached(const HubName& wanted, std::string_view text, const HubCache& cache,
                    const fs::path& made) {
  std::vector<std::string> ids, matches;
  std::vector<fs::path> repos;
  for (const std::string& folder : EntriesOf(cache.folder)) {
    const std::optional<HubName> name = NameOfRepo(folder);
    if (!name) continue;
    ids.push_back(name->Id());
    if (name->Id() == wanted.Id()) {
      return SnapshotOf(cache.folder / folder, name->Id(), wanted.revision);
    }
    if (wanted.organisation.empty() && name->name == wanted.name) {
      matches.push_back(name->Id());
      repos.push_back(cache.folder / folder);
    }
  }
  if (matches.size() == 1) return SnapshotOf(repos[0], matches[0], wanted.revision);
  if (matches.size() > 1) {
    throw RuntimeFailure(StrCat("the model ", Quoted(text), " could be each of ",
                                Listed(matches, matches.size()), " in the Hugging Face cache ",
                                cache.folder.string(), "; give the whole name"));
  }
  std::error_code error;
  throw RuntimeFailure(
      StrCat("no model ", Quoted(text), ": ", fs::absolute(fs::path(text), error).string(),
             " is not a folder, scripts/model has made none of this name",
             made.empty() ? "" : " in " + made.string(), ", and it is ", WhatIsCached(cache, ids)));
}

}  // namespace

HubCache FindHubCache(const GetEnvironment& get) {
  const auto variable = [&](const char* name) { return FolderVariable(get, name); };
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto value = variable(name)) return {*value, StrCat("from ", name)};
  }
  if (const auto value = variable("HF_HOME")) return {fs::path(*value) / "hub", "from HF_HOME"};
  if (const auto value = variable("XDG_CACHE_HOME")) {
    return {fs::path(*value) / "huggingface" / "hub", "from XDG_CACHE_HOME"};
  }
  if (const auto value = variable("HOME")) {
    return {fs::path(*value) / ".cache" / "huggingface" / "hub",
            "as HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME are not set"};
  }
  return {};
}

fs::path MadeModelsFolder(const GetEnvironment& get) {
  if (const auto cache = FolderVariable(get, "XDG_CACHE_HOME")) {
    return fs::path(*cache) / "tokline" / "models";
  }
  if (const auto home = FolderVariable(get, "HOME")) {
    return fs::path(*home) / ".cache" / "tokline" / "models";
  }
  return {};
}

fs::path FindModel(std::string_view model, const HubCache& cache, const fs::path& made) {
  const fs::path path(model);
  std::error_code error;
  if (fs::is_directory(path, error)) {
    if (!fs::exists(path / "config.json", error) && fs::is_directory(path / "snapshots", error)) {
      const fs::path repo = fs::canonical(path);
      const std::optional<HubName> name = NameOfRepo(repo);
      return SnapshotOf(repo, name ? name->Id() : repo.filename().string(), {});
    }
    return path;
  }
  if (fs::exists(path, error)) {
    throw RuntimeFailure(StrCat(path.string(), ": not a folder; ",
                                path.extension() == ".gguf" ? kFromGguf : "", "a model is ",
                                kWhatAModelIs));
  }
  const std::optional<HubName> name = ParseName(model);
  if (!name) {
    throw RuntimeFailure(
        StrCat(path.string(), ": not a folder, nor can it be a name; a model is ", kWhatAModelIs));
  }
  const fs::path of_this_name = made / name->name;
  if (name->name == model && !made.empty() && fs::exists(of_this_name / "config.json", error)) {
    return of_this_name;
  }
  return FindCached(*name, model, cache, made);
}

std::string ModelName(const fs::path& dir) {
  const fs::path real = fs::canonical(dir);
  if (real.parent_path().filename() == "snapshots") {
    if (const auto name = NameOfRepo(real.parent_path().parent_path())) return name->name;
  }
  return Printable(real.filename().string());
}

}  // namespace tokline
