// The table of a command's flags, and the parsers of their values. Every error is an
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

struct Flag {
  std::string_view name;   // "--seed"
  std::string_view value;  // placeholder of its value, such as "N"; empty for a switch
  std::string_view help;
  std::function<void(std::string_view)> set;  // gets "" for a switch
  bool repeats = false;                       // may be given more than once
};

// Parses "--flag value" and "--flag=value". Returns the names of the flags that were given.
std::set<std::string_view> ParseFlags(std::string_view command, std::span<const Flag> flags,
                                      std::span<const std::string> args);

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

// Returns a Flag::set that stores an integer in a variable.
template <typename T>
std::function<void(std::string_view)> IntegerInto(std::string_view flag, T& target, int64_t least,
                                                  int64_t most = std::numeric_limits<T>::max()) {
  return [=, &target](std::string_view text) {
    target = static_cast<T>(ParseInteger(flag, text, least, most));
  };
}

// Returns a Flag::set that stores a path or a name, which must not be empty.
template <typename T>
std::function<void(std::string_view)> TextInto(std::string_view flag, T& target) {
  return [=, &target](std::string_view text) {
    Require(!text.empty(), flag, " is empty; it needs a value");
    target = T(text);
  };
}

}  // namespace tokline
