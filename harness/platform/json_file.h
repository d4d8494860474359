// Reads JSON files from untrusted sources within limits on size and depth.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace tokline {

inline constexpr int64_t kMaxJsonBytes = int64_t{32} << 20;
inline constexpr int kMaxJsonDepth = 32;

// Throws RuntimeFailure, with `file` in the message, if the text is not exactly one JSON value,
// nests deeper than kMaxJsonDepth, or contains an object with a duplicate key.
nlohmann::json ParseJson(std::string_view text, const std::string& file);

// Returns the text of a file of at most kMaxJsonBytes. Throws RuntimeFailure naming the file.
std::string ReadJsonText(const std::filesystem::path& path);

// Reads the file with ReadJsonText and parses it with ParseJson.
nlohmann::json ReadJsonFile(const std::filesystem::path& path);

// Throws RuntimeFailure, with `file` in the message, if `text` contains a NUL: the parser would
// take it for the end of its input and ignore what follows.
void RefuseNul(std::string_view text, const std::string& file);

// The parser's error message on one line, without the prefix that the library adds.
std::string JsonErrorText(const std::exception& error);

}  // namespace tokline
