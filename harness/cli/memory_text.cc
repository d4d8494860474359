#include "harness/cli/memory_text.h"

#include "harness/cli/status_line.h"
#include "kernels/common/error.h"

namespace tokline {

std::string MemoryText(const Json& report) {
  const auto of = [&](const char* key) { return BytesText(report[key].get<int64_t>()); };
  const bool more = report["unexplained"].get<int64_t>() >= 0;
  return StrCat(of("planned_total"), " planned, ", of("measured"), " measured (", more ? "+" : "",
                of("unexplained"), more ? " not planned" : ": planned, but never touched",
                "); host ", of("host_peak"), " at most");
}

}  // namespace tokline
