// Shapes from the command line: the product of axes such as "batch=1,8,64" and
// "len=1024:131072:x2".
#pragma once

#include <string>
#include <vector>

#include "benches/shapes.h"

namespace tokline::bench {

// Returns shapes of the first of the families that has all the axes' keys. A key that is not given
// has its default of benches/shapes/axes.json. Throws InvalidArgument for an axis that is
// malformed, unknown or given twice, and for too many rows; values are checked when the shapes are
// read.
ShapeFile ShapesOfAxes(const std::vector<std::string>& families,
                       const std::vector<std::string>& axes);

// The axes of each family with their defaults: "decode: batch=1 len=4096 hq=32".
std::string AxesHelp(const std::vector<std::string>& families, std::string_view between);

}  // namespace tokline::bench
