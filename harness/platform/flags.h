// The table of a program's flags, and the parsers of their values. Every error is an
// InvalidArgument with a one-line message that states the flag, the value and what is allowed.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/common/error.h"

namespace tokline {

// Gets the name of the flag and its value, which is "" for a switch and not empty otherwise.
using FlagSetter = std::function<void(std::string_view flag, std::string_view text)>;

struct Flag {
  std::string_view name;   // "--seed"
  std::string_view value;  // placeholder of its value, such as "N"; empty for a switch
  std::string_view help;
  FlagSetter set;
  bool repeats = false;  // may be given more than once
};

// Parses "--flag value" and "--flag=value". Returns the names of the flags that were given.
std::set<std::string_view> ParseFlags(std::string_view program, std::span<const Flag> flags,
                                      std::span<const std::string> args);

// "; did you mean X?" if one of the names differs from `text` by one or two characters; or "".
std::string NearName(std::string_view text, std::span<const std::string_view> names);
template <typename Range, typename Projection>
std::string Suggestion(std::string_view text, const Range& range, const Projection& projection) {
  std::vector<std::string_view> names;
  for (const auto& item : range) names.push_back(std::invoke(projection, item));
  return NearName(text, names);
}

// Formats one aligned line per flag.
std::string FlagHelp(std::span<const Flag> flags);

int64_t ParseInteger(std::string_view flag, std::string_view text, int64_t least, int64_t most);
uint64_t ParseSeed(std::string_view flag, std::string_view text);
double ParseReal(std::string_view flag, std::string_view text);
// A positive number of bytes, or of K, M or G, which are powers of 1024: "4G".
int64_t ParseBytes(std::string_view flag, std::string_view text);
// One or more integers separated by commas.
std::vector<int64_t> ParseIntegers(std::string_view flag, std::string_view text, int64_t least,
                                   int64_t most);
// Returns the index of the choice.
size_t ParseChoice(std::string_view flag, std::string_view text,
                   std::span<const std::string_view> choices);

// Setters that store the value in a variable.
template <typename T>
FlagSetter IntegerInto(T& target, int64_t least, int64_t most = std::numeric_limits<T>::max()) {
  return [=, &target](std::string_view flag, std::string_view text) {
    target = static_cast<T>(ParseInteger(flag, text, least, most));
  };
}
template <typename T>
FlagSetter TextInto(T& target) {
  return [&target](std::string_view, std::string_view text) { target = T(text); };
}
inline FlagSetter SeedInto(uint64_t& target) {
  return
      [&target](std::string_view flag, std::string_view text) { target = ParseSeed(flag, text); };
}
inline FlagSetter SwitchInto(bool& target, bool value = true) {
  return [=, &target](std::string_view, std::string_view) { target = value; };
}

}  // namespace tokline
