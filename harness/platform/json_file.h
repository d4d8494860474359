// JSON files that others wrote, read within limits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tokline {

inline constexpr int64_t kMaxJsonBytes = int64_t{32} << 20;
inline constexpr int kMaxJsonDepth = 32;

// Throws RuntimeFailure, with `file` in the message, if the text is not one JSON value, nests more
// than kMaxJsonDepth deep or has an object with a key twice.
nlohmann::json ParseJson(std::string_view text, const std::string& file);

// The text of a file of at most kMaxJsonBytes. Throws RuntimeFailure naming the file.
std::string ReadJsonText(const std::filesystem::path& path);

// Both in one.
nlohmann::json ReadJsonFile(const std::filesystem::path& path);

// The parser takes a NUL for the end of its input and ignores what follows. Throws RuntimeFailure,
// with `file` in the message, if `text` has one.
void RefuseNul(std::string_view text, const std::string& file);

// A parser's complaint on one line, without the library's own prefix.
std::string JsonErrorText(const nlohmann::json::exception& error);

}  // namespace tokline
