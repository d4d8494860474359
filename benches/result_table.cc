// Formats results as aligned text, Markdown, CSV and JSON.
#include "benches/result_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "harness/platform/printable.h"
#include "kernels/common/error.h"
#include "tokline_rules.h"

namespace tokline::bench {
namespace {

// A row is noisy if half of its median's interval is wider than the least change that counts.
constexpr double kNoisyPercent = 100 * kMinChange;

std::string VerdictOf(const Result& result) {
  const std::string& refusal = result.figures.refusal;
  if (!refusal.empty()) return refusal.starts_with("unverified") ? "wrong" : "refused";
  const std::string verdict = result.figures.shares.limit_is_wrong  ? "above limit"
                              : !result.m.trouble.disturbed.empty() ? "disturbed"
                              : result.ci95_percent > kNoisyPercent ? "noisy"
                                                                    : "ok";
  return result.m.samples.rested ? verdict + ", rested" : verdict;
}

bool IsLimitedByMatmul(const Result& result) {
  return result.figures.shares.floor && result.figures.shares.floor->limit == "matmul";
}

template <typename... Values>
std::string Formatted(const char* format, Values... values) {
  char text[128];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

std::string Variant(const Result& r) {
  return r.m.origin.implementation + (r.m.chain == "dependent" ? ", dependent" : "") +
         (r.m.chosen ? "" : ", not chosen");
}

struct Column {
  std::string title;
  std::string (*cell)(const Result&);
  bool is_number = false;
  bool may_be_above = false;  // printed above the table if all rows agree
};

// Columns whose cells are all empty are left out.
const std::vector<Column>& Columns() {
  static const std::vector<Column> columns = {
      {"shape", [](const Result& r) { return Printable(r.shape); }},
      {"dtype", [](const Result& r) { return r.m.origin.dtype; }, false, true},
      {"variant", Variant, false, true},
      {"cache", [](const Result& r) { return r.m.cache == "cpu" ? std::string() : r.m.cache; },
       false, true},
      {"median µs",
       [](const Result& r) { return r.has_figures ? Figure(r.figures.us.median) : ""; }, true},
      {"± %",
       [](const Result& r) {
         if (!r.has_figures) return std::string();
         return Formatted(r.ci95_percent < 10 ? "%.2f" : "%.0f", r.ci95_percent);
       },
       true},
      {"% of limit",
       [](const Result& r) {
         const Shares& shares = r.figures.shares;
         return r.has_figures && shares.floor
                    ? Formatted("%.0f %s", *shares.percent_of_measured_peak,
                                shares.floor->limit.c_str())
                    : "";
       },
       true},
      {"rate",
       [](const Result& r) {
         if (!r.has_figures) return std::string();
         return IsLimitedByMatmul(r) ? Rate(1e12 * r.figures.tflops, "FLOP/s")
                                     : Rate(1e9 * r.figures.gbps, "B/s");
       },
       true},
      {"error / bound",
       [](const Result& r) {
         return r.has_figures || !r.figures.refusal.empty()
                    ? ""
                    : Formatted("%.3f", r.m.verified.max_error_over_bound);
       },
       true},
      {"verdict", [](const Result& r) { return r.verdict; }}};
  return columns;
}

// The number of columns that a text takes on a terminal: one per code point.
size_t Width(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

// The table for people: a title, the columns that are not empty, and notes.
struct Sheet {
  explicit Sheet(const std::vector<Result>& results) {
    const KernelMeasurement& first = results.front().m;
    title = StrCat(first.kernel, " on ", first.origin.device);
    lines.resize(results.size());
    for (const Column& column : Columns()) {
      std::vector<std::string> cells;
      for (const Result& result : results) cells.push_back(column.cell(result));
      const bool agree = std::ranges::count(cells, cells.front()) == std::ssize(cells);
      if (agree && (column.may_be_above || cells.front().empty())) {
        if (!cells.front().empty()) title += ", " + cells.front();
        continue;
      }
      columns.push_back(&column);
      for (size_t i = 0; i < cells.size(); ++i) lines[i].push_back(cells[i]);
    }
    for (const Result& r : results) {
      if (r.note.empty()) continue;
      notes += Printable(StrCat(r.shape, ", ", Variant(r), ": ", r.verdict, ": ", r.note)) + "\n";
    }
  }

  std::vector<std::string> Titles() const {
    std::vector<std::string> titles;
    for (const Column* column : columns) titles.push_back(column->title);
    return titles;
  }

  std::string title;
  std::vector<const Column*> columns;
  std::vector<std::vector<std::string>> lines;  // one per result
  std::string notes;
};

std::string Text(const std::vector<Result>& results, size_t most_columns, bool colours) {
  const Sheet sheet(results);
  const size_t columns = sheet.columns.size();
  std::vector<size_t> widths(columns);
  size_t width = 2 * (columns - 1);
  for (size_t i = 0; i < columns; ++i) {
    widths[i] = Width(sheet.columns[i]->title);
    for (const auto& line : sheet.lines) widths[i] = std::max(widths[i], Width(line[i]));
    width += widths[i];
  }
  const auto painted = [colours](const std::string& text, int code) {
    return colours && code > 0 ? StrCat("\x1b[", code, "m", text, "\x1b[0m") : text;
  };
  // If lines would be too long, shapes are printed above their rows.
  const bool shape_above = most_columns > 0 && width > most_columns;
  const auto joined = [&](const std::vector<std::string>& cells, int code_of_last) {
    std::string line = shape_above ? "  " : "";
    for (size_t i = shape_above ? 1 : 0; i + 1 < columns; ++i) {
      const std::string space(widths[i] - Width(cells[i]), ' ');
      line += (sheet.columns[i]->is_number ? space + cells[i] : cells[i] + space) + "  ";
    }
    return line + painted(cells.back(), code_of_last);
  };
  constexpr int kBold = 1, kRed = 31, kYellow = 33;
  std::string text = sheet.title + "\n" + painted(joined(sheet.Titles(), 0), kBold) + "\n";
  std::string shape;
  for (size_t i = 0; i < results.size(); ++i) {
    const Result& result = results[i];
    if (shape_above && shape != result.shape) text += sheet.lines[i].front() + "\n";
    shape = result.shape;
    const int code = !result.figures.refusal.empty()    ? kRed
                     : result.verdict.starts_with("ok") ? 0
                                                        : kYellow;
    text += joined(sheet.lines[i], code) + "\n";
  }
  return text + sheet.notes;
}

std::string Replaced(std::string text, std::string_view old, std::string_view with) {
  for (size_t at = 0; (at = text.find(old, at)) != text.npos; at += with.size()) {
    text.replace(at, old.size(), with);
  }
  return text;
}

std::string Markdown(const std::vector<Result>& results) {
  const Sheet sheet(results);
  const auto joined = [](const std::vector<std::string>& cells) {
    std::string line = "|";
    for (const std::string& cell : cells) line += StrCat(" ", Replaced(cell, "|", "\\|"), " |");
    return line + "\n";
  };
  std::string text = StrCat("## ", sheet.title, "\n\n", joined(sheet.Titles()), "|");
  for (const Column* column : sheet.columns) text += column->is_number ? "---:|" : "---|";
  text += "\n";
  for (const auto& line : sheet.lines) text += joined(line);
  return sheet.notes.empty() ? text : text + "\n" + sheet.notes;
}

// Returns a flat object in which values that do not apply are null.
Json ValuesOf(const Result& r) {
  const auto number = [&r](double value) { return r.has_figures ? Json(value) : Json(); };
  const Shares& shares = r.figures.shares;
  const bool has_limit = r.has_figures && shares.floor;
  Json values{{"kernel", r.m.kernel}, {"device", r.m.origin.device}, {"dtype", r.m.origin.dtype}};
  values.update(r.m.shape);
  values.update(
      {{"implementation", r.m.origin.implementation},
       {"chain", r.m.chain},
       {"chosen", r.m.chosen},
       {"cache", r.m.cache},
       {"median_us", number(r.figures.us.median)},
       {"ci95_percent", number(r.ci95_percent)},
       {"limit", has_limit ? Json(shares.floor->limit) : Json()},
       {"percent_of_measured_peak", has_limit ? Json(*shares.percent_of_measured_peak) : Json()},
       {"gbps", number(r.figures.gbps)},
       {"tflops", number(r.figures.tflops)},
       {"max_error_over_bound", r.m.verified.max_error_over_bound},
       {"verdict", r.verdict},
       {"note", r.note}});
  return values;
}

std::string CsvCell(const Json& value) {
  if (value.is_null()) return "";
  const std::string text = value.is_string() ? Printable(value.get<std::string>()) : value.dump();
  if (text.find_first_of(",\"") == text.npos) return text;
  return StrCat("\"", Replaced(text, "\"", "\"\""), "\"");
}

std::string ForPrograms(const std::vector<Result>& results, bool csv) {
  Json columns{{"kernel", nullptr}, {"device", nullptr}, {"dtype", nullptr}};
  for (const Result& result : results) columns.update(result.m.shape);  // differ in their keys
  columns.update(ValuesOf(results.front()));
  std::string text;
  for (auto& [name, value] : columns.items()) {
    if (csv) text += (text.empty() ? "" : ",") + name;
    value = nullptr;
  }
  for (const Result& result : results) {
    Json row = columns;
    row.update(ValuesOf(result));
    if (!csv) {
      text += (text.empty() ? "[\n  " : ",\n  ") + row.dump();
      continue;
    }
    std::string line;
    for (const Json& value : row) line += StrCat(line.empty() ? "\n" : ",", CsvCell(value));
    text += line;
  }
  return text + (csv ? "\n" : "\n]\n");
}

}  // namespace

Result::Result(KernelMeasurement measurement, std::string shape_label, bool timed)
    : m(std::move(measurement)), shape(std::move(shape_label)) {
  if (timed) {
    figures = FiguresOf(m);
  } else {
    figures.refusal = m.trouble.failure;
  }
  has_figures = timed && figures.refusal.empty();
  if (has_figures) {
    const Interval interval = MedianInterval(m.samples.us);
    ci95_percent = 50 * (interval.high - interval.low) / figures.us.median;
  }
  m.samples.us.clear();
  verdict = VerdictOf(*this);
  note = figures.refusal.empty() ? m.trouble.disturbed : figures.refusal;
}

std::string TableOf(const std::vector<Result>& results, TableFormat format, size_t most_columns,
                    bool colours) {
  if (results.empty()) return "";
  switch (format) {
    case TableFormat::kText:
      return Text(results, most_columns, colours);
    case TableFormat::kMarkdown:
      return Markdown(results);
    default:
      return ForPrograms(results, format == TableFormat::kCsv);
  }
}

std::string Figure(double value) {
  const double size = std::abs(value) * 1.0005;  // 9.996 becomes 10.0
  const int digits = size > 0 ? static_cast<int>(std::floor(std::log10(size))) : 0;
  if (digits >= 3 && size < 1e15) return Grouped(std::llround(value));
  return Formatted("%.*f", std::clamp(2 - digits, 0, 4), value);
}

std::string Rate(double per_second, std::string_view unit) {
  constexpr std::string_view kPrefixes = "kMGT";
  double value = per_second / 1e3;
  size_t prefix = 0;
  for (; value >= 999.5 && prefix + 1 < kPrefixes.size(); ++prefix) value /= 1e3;
  return StrCat(Figure(value), " ", kPrefixes[prefix], unit);
}

}  // namespace tokline::bench
