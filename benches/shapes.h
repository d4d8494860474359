// Shapes of benches: a JSON object of families, each a list of flat objects.
//   {"decode": [{"name": "b1_s1024_h16-8", "lens": [1024], "hq": 16, "hk": 8, "pages": [64, 256]}]}
// docs/measuring.md lists the families and their keys.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "harness/platform/printable.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline {
constexpr std::string_view Name(KvOrder order) { return order == KvOrder::kHnd ? "hnd" : "nhd"; }
}  // namespace tokline

namespace tokline::bench {

// The whole numbers that a key allows. Larger ones are mistakes: with them, tables and products of
// extents still fit into memory and int64.
struct Range {
  int64_t least;
  int64_t most;
};
inline constexpr Range kExtents = {1, int64_t{1} << 24};  // vocabulary, features, rows
inline constexpr Range kTokens = {1, int64_t{1} << 22};   // of a batch or of one sequence
inline constexpr Range kHeads = {1, 1024};
inline constexpr Range kHeadDims = {1, 1024};
inline constexpr Range kPageSizes = {1, 4096};
inline constexpr Range kBatches = {1, int64_t{1} << 16};
inline constexpr int64_t kMaxBatchTokens = int64_t{1} << 26;  // of all sequences together

// Reads one shape strictly: a key that was never requested is an error. All functions throw
// InvalidArgument that names the file, family, shape and key.
class ShapeReader {
 public:
  ShapeReader(std::string file, std::string family, const nlohmann::ordered_json& shape);

  const std::string& family() const { return family_; }
  const std::string& name() const { return name_; }

  bool Has(const std::string& key);
  int64_t Int(const std::string& key, Range range = kExtents);
  int64_t IntOr(const std::string& key, int64_t fallback, Range range);
  // Must be 0 or 1; false if missing.
  bool Flag(const std::string& key);
  // Each number makes one row, so duplicates are errors.
  std::vector<int64_t> Ints(const std::string& key, Range range = kTokens);
  std::vector<int64_t> IntsOr(const std::string& key, std::vector<int64_t> fallback, Range range);
  // The query heads 'hq' and the KV heads 'hk'. The number of query heads must be a multiple of
  // that of KV heads.
  struct Heads {
    int32_t hq, hk;
  };
  Heads QueryAndKvHeads();
  // The layout of 'hk', 'head_dim' (128 if missing) and 'order' (hnd if missing), without pages.
  PagedKvLayout Layout();
  double NumberOr(const std::string& key, double fallback);
  // Returns the one of `values` whose Name() is the key's value.
  template <typename Enum>
  Enum OneOf(const std::string& key, std::initializer_list<Enum> values) {
    for (const Enum value : values) {
      if (At(key) == Name(value)) return value;
    }
    Fail("'" + key + "' is " + At(key).dump() + "; it must be one of " +
         Joined(values, [](Enum value) { return Name(value); }));
  }
  // Returns the lengths per sequence: the array `list`, or the short form "batch" and `one`; not
  // all may be 0, and all together at most kMaxBatchTokens.
  std::vector<int64_t> Lengths(const std::string& list, const std::string& one);
  // Same as Lengths, with only the short form.
  std::vector<int64_t> EqualLengths(const std::string& one);

  // Throws if the shape has a key that none of the calls above requested.
  void Finish() const;
  [[noreturn]] void Fail(const std::string& why) const;

 private:
  const nlohmann::ordered_json& At(const std::string& key);
  std::vector<int64_t> List(const std::string& key, Range range);
  void RequireFewTokens(const std::string& key, const std::vector<int64_t>& lengths) const;

  std::string where_;  // "FILE: FAMILY: NAME"
  std::string family_;
  std::string name_;
  const nlohmann::ordered_json* shape_;
  std::set<std::string> known_;
};

struct ShapeFile {
  std::string name;  // for messages
  nlohmann::ordered_json families;
};

// Parses the file and checks its outer form: known families, each a list of objects with distinct
// names. Throws InvalidArgument, or RuntimeFailure if the file cannot be read.
ShapeFile ReadShapeFile(const std::string& path);
ShapeFile ParseShapes(const std::string& name, std::string_view json);

// Every family that occurs in the default shapes of some kernel.
const std::set<std::string>& KnownFamilies();

// The shapes that a bench runs unless told otherwise, built into the program from
// benches/shapes/<kernel>.json (on a device) and benches/shapes/cpu/<kernel>.json.
ShapeFile DefaultShapes(const std::string& kernel, bool cuda);

// One shape per family, benches/shapes/axes.json: every key that may be an axis, with its default.
// A list makes a row per value, and a default that is the name of another key is that key's value.
const nlohmann::ordered_json& AxisDefaults();

// Lengths for a record: {"batch": n, KEY: l} when all are equal, else {KEY + "s": [...]}.
void DescribeLengths(nlohmann::ordered_json& shape, const std::string& key,
                     const std::vector<int64_t>& lengths);

// Adds the head dimension, and the order of pages if it is not HND.
void DescribeLayout(nlohmann::ordered_json& shape, const PagedKvLayout& layout);

}  // namespace tokline::bench
