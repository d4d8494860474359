// Writes a cache with the layout of Hugging Face's tools, for tests.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "harness/tests/models/model_files.h"
#include "kernels/common/error.h"

namespace tokline::testing {

class HubCacheFolder {
 public:
  // Adds a snapshot whose files are links to blobs, and returns its folder. If `ref` is not empty,
  // a ref of that name points to it.
  std::filesystem::path Add(std::string_view repo, std::string_view commit,
                            const std::map<std::string, std::string>& files,
                            std::string_view ref = "main") const {
    const std::filesystem::path folder = folder_ / repo;
    const std::filesystem::path snapshot = folder / "snapshots" / commit;
    std::filesystem::create_directories(folder / "blobs");
    std::filesystem::create_directories(snapshot);
    for (const auto& [name, text] : files) {
      const std::string blob = StrCat(commit, "-", name, "-blob");
      WriteFile(folder / "blobs" / blob, text);
      std::filesystem::create_symlink(std::filesystem::path("../../blobs") / blob, snapshot / name);
    }
    if (!ref.empty()) {
      const std::filesystem::path path = folder / "refs" / ref;
      std::filesystem::create_directories(path.parent_path());
      WriteFile(path, commit);
    }
    return snapshot;
  }
  std::filesystem::path operator/(std::string_view name) const { return folder_ / name; }
  const std::filesystem::path& Path() const { return folder_.Path(); }

 private:
  TempFolder folder_;
};

}  // namespace tokline::testing
