// Loads the committed strings and the results of Hugging Face tokenizers for them (format:
// harness/tests/text/golden/README.md). TOKLINE_TEXT_GOLDEN names another folder of the same
// format.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace tokline::testing {

inline std::filesystem::path TextGoldenFolder() {
  const char* other = std::getenv("TOKLINE_TEXT_GOLDEN");
  return other != nullptr ? std::filesystem::path(other)
                          : std::filesystem::path(TOKLINE_SOURCE_DIR "/harness/tests/text/golden");
}

inline std::string ReadBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::json ReadGolden(const std::string& name) {
  return nlohmann::json::parse(ReadBytes(TextGoldenFolder() / name));
}

inline const std::vector<std::string>& PipelineNames() {
  static const std::vector<std::string> names{"gpt2",   "llama3",   "qwen",      "smollm",
                                              "o200k",  "deepseek", "gemma",     "mistral",
                                              "llama2", "ernie45",  "metaspace", "embedded"};
  return names;
}

struct PipelineGolden {
  std::filesystem::path folder;
  std::vector<std::string> strings;            // the shared strings, then those with special tokens
  size_t special_from = 0;                     // index of the first string with special tokens
  std::vector<std::vector<int32_t>> ids;       // with the template and special tokens allowed
  std::vector<std::vector<int32_t>> text_ids;  // strings from special_from on, with neither
  nlohmann::json decoded;                      // by index: texts that decode differently
  nlohmann::json decodes;                      // random ids and their texts

  explicit PipelineGolden(const std::string& name) : folder(TextGoldenFolder() / name) {
    strings = ReadGolden("strings.json").get<std::vector<std::string>>();
    special_from = strings.size();
    nlohmann::json cases = ReadGolden(name + "/cases.json");
    for (const auto& text : cases.at("special_strings")) strings.push_back(text);
    decoded = cases.at("decoded");
    decodes = cases.at("decodes");
    const std::string records = ReadBytes(folder / "ids.bin");
    size_t at = 0;
    const auto number = [&] {
      const auto low = static_cast<unsigned char>(records.at(at));
      const auto high = static_cast<unsigned char>(records.at(at + 1));
      at += 2;
      return low | high << 8;
    };
    while (at < records.size()) {
      std::vector<int32_t> list(static_cast<size_t>(number()));
      for (int32_t& id : list) id = number();
      (ids.size() < strings.size() ? ids : text_ids).push_back(std::move(list));
    }
    if (text_ids.size() != strings.size() - special_from) {
      throw std::runtime_error(name + "/ids.bin has another number of records");
    }
  }
};

}  // namespace tokline::testing
