// The table that a bench program prints at the end.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/record/record.h"

namespace tokline::bench {

enum class TableFormat { kText, kMarkdown, kCsv, kJson };

// A row of the printed table.
struct Result {
  // `shape_label` distinguishes the shape from the program's others: "b1_s1024_h16-8, page 64". A
  // row that was only verified has no figures.
  Result(KernelMeasurement measurement, std::string shape_label, bool timed);

  KernelMeasurement m;  // without samples
  std::string shape;
  KernelFigures figures;
  bool has_figures;
  double ci95_percent = 0;  // half of the median's 95 % interval
  std::string verdict;      // "ok", why the figures need care, or why there are none
  std::string note;         // why the row is refused, or what disturbed it
};

// Text fits into `most_columns` columns of a terminal if possible; 0: any width. CSV and JSON have
// the dimensions of shapes as columns, and their units do not vary. "" if there are no results.
std::string TableOf(const std::vector<Result>& results, TableFormat format, size_t most_columns,
                    bool colours);

// Three significant digits, or all of a larger number: "0.0123", "5.83", "1,234".
std::string Figure(double value);
// The same with the unit prefix for its size: "4.12 TB/s".
std::string Rate(double per_second, std::string_view unit);

}  // namespace tokline::bench
