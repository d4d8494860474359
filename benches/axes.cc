// Parses axes and multiplies them.
#include "benches/axes.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/common/error.h"

namespace tokline::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxRows = 1000;

struct Axis {
  std::string key;
  std::vector<Json> values;
};

void RequireFewRows(size_t rows) {
  Require(rows <= kMaxRows, "--axis: these axes make more than ", kMaxRows, " rows");
}

// Appends the values of "1024:131072:x2" or "100:500:+100".
void AppendRange(const std::string& text, std::vector<Json>& values) {
  long long begin = 0, end = 0, step = 0;
  char kind = 0;
  int length = 0;
  const int fields =
      std::sscanf(text.c_str(), "%lld:%lld:%c%lld%n", &begin, &end, &kind, &step, &length);
  const bool multiplies = kind == 'x';
  const long long least = multiplies ? 1 : 0;
  Require(fields == 4 && static_cast<size_t>(length) == text.size() &&
              (multiplies || kind == '+') && begin >= least && begin <= end && step > least,
          "--axis: ", Quoted(text),
          " is no range; ranges are BEGIN:END:xFACTOR, from 1 and with a "
          "factor of at least 2, and BEGIN:END:+STEP");
  while (true) {
    values.push_back(begin);
    RequireFewRows(values.size());
    if (multiplies ? begin > end / step : begin > end - step) return;
    begin = multiplies ? begin * step : begin + step;
  }
}

Axis ParseAxis(const std::string& text) {
  const size_t equals = text.find('=');
  Require(equals != text.npos && equals > 0, "--axis is ", Quoted(text),
          "; it must be KEY=VALUES, such as batch=1,8,64 or len=1024:131072:x2");
  Axis axis{.key = text.substr(0, equals), .values = {}};
  std::istringstream parts(text.substr(equals + 1) + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    if (part.find(':') != part.npos) {
      AppendRange(part, axis.values);
      continue;
    }
    const Json value = Json::parse(part, nullptr, /*allow_exceptions=*/false);
    axis.values.push_back(value.is_number() ? value : Json(part));
    RequireFewRows(axis.values.size());
  }
  return axis;
}

std::string Text(const Json& value) {
  if (value.is_array()) return Joined(value, Text);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Each shape with each value. Its name tells the shapes apart.
std::vector<Json> Multiplied(const std::vector<Json>& shapes, const Axis& axis) {
  std::vector<Json> multiplied;
  for (const Json& shape : shapes) {
    for (const Json& value : axis.values) {
      Json& made = multiplied.emplace_back(shape);
      made[axis.key] = value;
      const std::string part = StrCat(axis.key, "=", Text(value));
      made["name"] = shape.contains("name") ? StrCat(Text(shape["name"]), ",", part) : part;
    }
  }
  return multiplied;
}

std::vector<Json> Product(const std::string& family, Json defaults, const std::vector<Axis>& axes) {
  std::vector<Json> shapes = {std::move(defaults)};
  for (const Axis& axis : axes) {
    if (!shapes.front()[axis.key].is_array()) {
      shapes = Multiplied(shapes, axis);
      continue;
    }
    for (Json& shape : shapes) shape[axis.key] = axis.values;  // makes rows of one shape
  }
  for (Json& shape : shapes) {
    if (!shape.contains("name")) shape["name"] = family;
    for (Json& value : shape) {  // "kv_len": "q_len"
      if (value.is_string() && shape.contains(Text(value))) value = shape[Text(value)];
    }
  }
  return shapes;
}

}  // namespace

ShapeFile ShapesOfAxes(const std::vector<std::string>& families,
                       const std::vector<std::string>& texts) {
  std::vector<Axis> axes;
  size_t rows = 1;
  for (const std::string& text : texts) {
    const Axis& axis = axes.emplace_back(ParseAxis(text));
    Require(std::ranges::count(axes, axis.key, &Axis::key) == 1, "--axis ", Quoted(axis.key),
            " is given twice");
    rows *= axis.values.size();
    RequireFewRows(rows);
  }
  for (const std::string& family : families) {
    const Json defaults = AxisDefaults().value(family, Json::object());
    const auto has = [&](const Axis& axis) { return defaults.contains(axis.key); };
    if (!std::ranges::all_of(axes, has)) continue;
    const Json file{{family, Product(family, defaults, axes)}};
    // Bytes that are not UTF-8 are replaced.
    return ParseShapes("--axis", file.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  // The axes that no family has or, if each is in some family, all of them.
  std::vector<Axis> unknown = axes;
  std::erase_if(unknown, [&](const Axis& axis) {
    return std::ranges::any_of(families, [&](const std::string& family) {
      return AxisDefaults().value(family, Json::object()).contains(axis.key);
    });
  });
  const std::string keys =
      Joined(unknown.empty() ? axes : unknown, [](const Axis& axis) { return Quoted(axis.key); });
  throw InvalidArgument(StrCat("--axis: no shapes of family ", Joined(families), " have ", keys,
                               "; the axes are ", AxesHelp(families, "; ")));
}

std::string AxesHelp(const std::vector<std::string>& families, std::string_view between) {
  std::string help;
  for (const std::string& family : families) {
    help += StrCat(help.empty() ? "" : between, family, ":");
    const Json axes = AxisDefaults().value(family, Json::object());
    for (const auto& [key, value] : axes.items()) {
      help += StrCat(" ", key, "=", Text(value));
    }
  }
  return help;
}

}  // namespace tokline::bench
