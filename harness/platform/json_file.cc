#include "harness/platform/json_file.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "harness/platform/mapped_file.h"
#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {

std::string JsonErrorText(const std::exception& error) {
  std::string_view text = error.what();
  if (const size_t prefix = text.find("] "); prefix != text.npos) text.remove_prefix(prefix + 2);
  const std::string quoted = Quoted(text, 240);
  return quoted.substr(1, quoted.rfind('"') - 1);
}

void RefuseNul(std::string_view text, const std::string& file) {
  if (const size_t at = text.find('\0'); at != text.npos) {
    throw RuntimeFailure(StrCat(file, ": not valid JSON: byte ", at, " is 0"));
  }
}

nlohmann::json ParseJson(std::string_view text, const std::string& file) {
  RefuseNul(text, file);
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> open_objects;
  const auto check = [&](int depth, Event event, nlohmann::json& parsed) {
    if ((event == Event::object_start || event == Event::array_start) && depth >= kMaxJsonDepth) {
      throw RuntimeFailure(
          StrCat(file, ": JSON nests deeper than ", kMaxJsonDepth, ", the most that is allowed"));
    }
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        throw RuntimeFailure(StrCat(file, ": the key ", Quoted(key), " occurs twice"));
      }
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, check);
  } catch (const nlohmann::json::exception& error) {
    throw RuntimeFailure(StrCat(file, ": not valid JSON: ", JsonErrorText(error)));
  }
}

std::string ReadJsonText(const std::filesystem::path& path) {
  const MappedFile file(path);
  if (file.Size() > kMaxJsonBytes) {
    throw RuntimeFailure(StrCat(path.string(), ": the file has ", file.Size(), " bytes; at most ",
                                kMaxJsonBytes, " are allowed"));
  }
  return file.Read(0, file.Size());
}

nlohmann::json ReadJsonFile(const std::filesystem::path& path) {
  return ParseJson(ReadJsonText(path), path.string());
}

}  // namespace tokline
