// Reads shapes from JSON files or from the defaults that are built into the program, and refuses
// unknown keys and values out of range.
#include "benches/shapes.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>

#include "harness/platform/json_file.h"
#include "kernels/common/error.h"

namespace tokline::bench {
namespace {

using Json = nlohmann::ordered_json;

bool IsInt(const Json& value, Range range) {
  return value.is_number_integer() &&
         !(value.is_number_unsigned() && value > static_cast<uint64_t>(range.most)) &&
         value.get<int64_t>() >= range.least && value.get<int64_t>() <= range.most;
}

// A value as it is shown in a message: ASCII, and not longer than a line.
std::string Shown(const Json& value) { return value.dump(-1, ' ', true).substr(0, 60); }

std::string RangeText(Range range) { return StrCat("from ", range.least, " to ", range.most); }

}  // namespace

ShapeReader::ShapeReader(std::string file, std::string family, const Json& shape)
    : family_(std::move(family)), shape_(&shape) {
  name_ = shape.at("name").get<std::string>();
  const std::string shown = Quoted(name_);
  where_ = file + ": " + family_ + ": " + shown.substr(1, shown.size() - 2);
  known_.insert("name");
}

void ShapeReader::Fail(const std::string& why) const { throw InvalidArgument(where_ + ": " + why); }

bool ShapeReader::Has(const std::string& key) {
  known_.insert(key);
  return shape_->contains(key);
}

const Json& ShapeReader::At(const std::string& key) {
  if (!Has(key)) Fail("'" + key + "' is missing");
  return shape_->at(key);
}

int64_t ShapeReader::Int(const std::string& key, Range range) {
  const Json& value = At(key);
  if (!IsInt(value, range)) {
    Fail(StrCat("'", key, "' is ", Shown(value), "; it must be a whole number ", RangeText(range)));
  }
  return value;
}

int64_t ShapeReader::IntOr(const std::string& key, int64_t fallback, Range range) {
  return Has(key) ? Int(key, range) : fallback;
}

bool ShapeReader::Flag(const std::string& key) { return Has(key) && Int(key, {0, 1}) == 1; }

std::vector<int64_t> ShapeReader::List(const std::string& key, Range range) {
  const Json& value = At(key);
  const bool good =
      value.is_array() && !value.empty() && static_cast<int64_t>(value.size()) <= kBatches.most &&
      std::ranges::all_of(value, [range](const Json& item) { return IsInt(item, range); });
  if (!good) {
    Fail(StrCat("'", key, "' is ", Shown(value), "; it must be a list of 1 to ", kBatches.most,
                " whole numbers ", RangeText(range)));
  }
  return value;
}

std::vector<int64_t> ShapeReader::Ints(const std::string& key, Range range) {
  const std::vector<int64_t> values = List(key, range);
  std::set<int64_t> seen;
  for (const int64_t value : values) {
    if (!seen.insert(value).second) Fail(StrCat("'", key, "' has ", value, " twice"));
  }
  return values;
}

std::vector<int64_t> ShapeReader::IntsOr(const std::string& key, std::vector<int64_t> fallback,
                                         Range range) {
  return Has(key) ? Ints(key, range) : fallback;
}

ShapeReader::Heads ShapeReader::QueryAndKvHeads() {
  const Heads heads{static_cast<int32_t>(Int("hq", kHeads)),
                    static_cast<int32_t>(Int("hk", kHeads))};
  if (heads.hq % heads.hk != 0) {
    Fail(StrCat("'hq' is ", heads.hq, "; it must be a multiple of 'hk', ", heads.hk));
  }
  return heads;
}

PagedKvLayout ShapeReader::Layout() {
  return {.num_kv_heads = static_cast<int32_t>(Int("hk", kHeads)),
          .head_dim = static_cast<int32_t>(IntOr("head_dim", 128, kHeadDims)),
          .order = Has("order") ? OneOf("order", {KvOrder::kHnd, KvOrder::kNhd}) : KvOrder::kHnd};
}

double ShapeReader::NumberOr(const std::string& key, double fallback) {
  if (!Has(key)) return fallback;
  const Json& value = At(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    Fail(StrCat("'", key, "' is ", Shown(value), "; it must be a number"));
  }
  return value;
}

std::vector<int64_t> ShapeReader::Lengths(const std::string& list, const std::string& one) {
  const bool has_list = Has(list);
  const bool has_one = Has(one);
  if (has_list == has_one) {
    Fail(StrCat("give the lengths either as '", list, "' or as 'batch' and '", one, "'"));
  }
  if (!has_list) return EqualLengths(one);
  const std::vector<int64_t> lengths = List(list, {0, kTokens.most});
  if (std::ranges::max(lengths) == 0) Fail("'" + list + "' has no length above 0");
  RequireFewTokens(list, lengths);
  return lengths;
}

std::vector<int64_t> ShapeReader::EqualLengths(const std::string& one) {
  const auto batch = static_cast<size_t>(Int("batch", kBatches));
  const std::vector<int64_t> lengths(batch, Int(one, kTokens));
  RequireFewTokens(one, lengths);
  return lengths;
}

void ShapeReader::RequireFewTokens(const std::string& key,
                                   const std::vector<int64_t>& lengths) const {
  const int64_t all = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (all <= kMaxBatchTokens) return;
  Fail(StrCat("'", key, "' makes ", all, " tokens of ", lengths.size(), " sequences; at most ",
              kMaxBatchTokens, " are allowed"));
}

void ShapeReader::Finish() const {
  for (const auto& [key, value] : shape_->items()) {
    if (!known_.contains(key)) {
      Fail("unknown key " + Quoted(key) + "; known are " + Joined(known_));
    }
  }
}

ShapeFile ReadShapeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file && file.peek() != file.eof()) text << file.rdbuf();
  if (!file.is_open() || file.bad() || text.bad()) {
    throw RuntimeFailure("cannot read shapes from " + path + ": " + std::strerror(errno));
  }
  return ParseShapes(path, text.str());
}

ShapeFile ParseShapes(const std::string& name, std::string_view json) {
  ShapeFile shapes{.name = name, .families = {}};
  Require(json.find_first_not_of(" \t\r\n") != json.npos, name,
          " is empty; it must hold a JSON object of families");
  try {
    ParseJson(json, name);  // unlike the parser below, refuses duplicate keys
  } catch (const RuntimeFailure& error) {
    throw InvalidArgument(error.what());
  }
  shapes.families = Json::parse(json);
  Require(shapes.families.is_object(), name, ": must be an object of families");
  for (const auto& [family, list] : shapes.families.items()) {
    Require(KnownFamilies().contains(family), name, ": unknown family ", Quoted(family),
            "; known are ", Joined(KnownFamilies()));
    Require(list.is_array(), name, ": ", family, ": must be a list of shapes");
    std::set<std::string> names;
    for (size_t i = 0; i < list.size(); ++i) {
      const Json& shape = list[i];
      Require(shape.is_object() && shape.contains("name") && shape["name"].is_string() &&
                  !shape["name"].get_ref<const std::string&>().empty(),
              name, ": ", family, ": shape ", i, " must be an object with a name, but is ",
              Shown(shape));
      Require(names.insert(shape["name"]).second, name, ": ", family, ": two shapes are named ",
              Quoted(shape["name"].get<std::string>()));
    }
  }
  return shapes;
}

void DescribeLayout(Json& shape, const PagedKvLayout& layout) {
  shape["head_dim"] = layout.head_dim;
  if (layout.order != KvOrder::kHnd) shape["order"] = Name(layout.order);
}

void DescribeLengths(Json& shape, const std::string& key, const std::vector<int64_t>& lengths) {
  shape["batch"] = lengths.size();
  const bool equal =
      std::adjacent_find(lengths.begin(), lengths.end(), std::not_equal_to<>()) == lengths.end();
  if (equal && !lengths.empty()) {
    shape[key] = lengths.front();
  } else {
    shape[key + "s"] = lengths;
  }
}

}  // namespace tokline::bench
