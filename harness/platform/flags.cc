// Parses the command line by a table of flags, and the values of flags within their limits.
#include "harness/platform/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Parses the whole text as a number; returns nothing if it is anything else.
template <typename T>
std::optional<T> Number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::set<std::string_view> ParseFlags(std::string_view program, std::span<const Flag> flags,
                                      std::span<const std::string> args) {
  std::set<std::string_view> seen;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string_view arg = args[i];
    const size_t equals = arg.find('=');
    const std::string_view name = arg.substr(0, equals);
    const auto flag = std::ranges::find(flags, name, &Flag::name);
    Require(flag != flags.end(), arg.starts_with("--") ? "unknown flag " : "unexpected argument ",
            Quoted(name), Suggestion(name, flags, &Flag::name), "; ", program, " takes ",
            Joined(flags, &Flag::name));
    Require(seen.insert(flag->name).second || flag->repeats, name, " is given twice");
    std::string_view text;
    if (flag->value.empty()) {
      Require(equals == arg.npos, name, " takes no value; it is ", Quoted(arg.substr(equals + 1)));
    } else {
      Require(equals != arg.npos || i + 1 < args.size(), name, " needs a value: ", name, " ",
              flag->value);
      text = equals != arg.npos ? arg.substr(equals + 1) : args[++i];
      Require(!text.empty(), name, " is empty; it needs a value");
    }
    flag->set(flag->name, text);
  }
  return seen;
}

std::string NearName(std::string_view text, std::span<const std::string_view> names) {
  size_t least = std::min<size_t>(3, std::max<size_t>(text.size(), 1));
  std::string_view nearest;
  for (const std::string_view name : names) {
    // Levenshtein's distance, row by row.
    std::vector<size_t> row(name.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= text.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j <= name.size(); ++j) {
        const size_t replaced = diagonal + (text[i - 1] != name[j - 1]);
        diagonal = row[j];
        row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
      }
    }
    if (row.back() < least) {
      least = row.back();
      nearest = name;
    }
  }
  return nearest.empty() ? "" : StrCat("; did you mean ", nearest, "?");
}

std::string FlagHelp(std::span<const Flag> flags) {
  const auto left = [](const Flag& flag) {
    return StrCat("  ", flag.name, flag.value.empty() ? "" : " ", flag.value);
  };
  size_t width = 0;
  for (const Flag& flag : flags) width = std::max(width, left(flag).size() + 2);
  std::string help;
  for (const Flag& flag : flags) {
    std::string line = left(flag);
    line.resize(width, ' ');
    help += StrCat(line, flag.help, "\n");
  }
  return help;
}

int64_t ParseInteger(std::string_view flag, std::string_view text, int64_t least, int64_t most) {
  const std::optional<int64_t> value = Number<int64_t>(text);
  Require(value && *value >= least && *value <= most, flag, " is ", Quoted(text),
          "; it must be an integer from ", least, " to ", most);
  return *value;
}

uint64_t ParseSeed(std::string_view flag, std::string_view text) {
  const std::optional<uint64_t> value = Number<uint64_t>(text);
  Require(value.has_value(), flag, " is ", Quoted(text), "; it must be an integer from 0 to ",
          std::numeric_limits<uint64_t>::max());
  return *value;
}

double ParseReal(std::string_view flag, std::string_view text) {
  const std::optional<double> value = Number<double>(text);
  Require(value && std::isfinite(*value), flag, " is ", Quoted(text),
          "; it must be a finite number");
  return *value;
}

int64_t ParseBytes(std::string_view flag, std::string_view text) {
  constexpr std::string_view kSuffixes = "KMG";
  const size_t suffix = text.empty() ? kSuffixes.npos : kSuffixes.find(text.back());
  const int shift = suffix == kSuffixes.npos ? 0 : 10 * (static_cast<int>(suffix) + 1);
  const std::optional<int64_t> value =
      Number<int64_t>(text.substr(0, text.size() - (shift > 0 ? 1 : 0)));
  Require(value && *value >= 1 && *value <= (INT64_MAX >> shift), flag, " is ", Quoted(text),
          "; it must be a positive whole number of bytes, optionally followed by K, M or G");
  return *value << shift;
}

std::vector<int64_t> ParseIntegers(std::string_view flag, std::string_view text, int64_t least,
                                   int64_t most) {
  std::vector<int64_t> values;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const std::optional<int64_t> value = Number<int64_t>(part);
    Require(value && *value >= least && *value <= most, flag, " has ", Quoted(part), " in ",
            Quoted(text), "; it must be integers from ", least, " to ", most,
            " separated by commas");
    values.push_back(*value);
    begin = end + 1;
  }
  return values;
}

size_t ParseChoice(std::string_view flag, std::string_view text,
                   std::span<const std::string_view> choices) {
  const auto found = std::ranges::find(choices, text);
  Require(found != choices.end(), flag, " is ", Quoted(text), "; it must be one of ",
          Joined(choices));
  return static_cast<size_t>(found - choices.begin());
}

}  // namespace tokline
