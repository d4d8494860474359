#include "harness/cli/rate_table.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "harness/cli/latency_text.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

std::string PerSecondText(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", value < 10 ? 3 : value < 1000 ? 1 : 0, value);
  return text;
}

}  // namespace

std::string RateText(double rate) { return StrCat(rate); }

std::string RateLine(double rate, const WorkloadMeasurement& m) {
  const WorkloadFigures figures = FiguresOf(m);
  char text[160];
  if (!figures.refusal.empty()) {
    std::snprintf(text, sizeof(text), "%6s ", RateText(rate).c_str());
    return StrCat(text, "refused: ", figures.refusal, "\n");
  }
  const auto requests = static_cast<double>(m.requests);
  const auto& [first, between, end] = m.serving.latencies;
  const Percentiles none{};
  const auto p50 = [](const auto& latency) {
    return MillisecondsCell(latency ? std::optional(latency->median) : std::nullopt);
  };
  std::string goodput = "-", met = "-";
  if (m.promise) {
    goodput = PerSecondText(*figures.goodput_req_s);
    std::snprintf(text, sizeof(text), "%.1f%%",
                  100 * static_cast<double>(m.promise->good_requests) / requests);
    met = text;
  }
  std::snprintf(text, sizeof(text), "%6s %7s %12.1f %8s %8s %8s %8s %9s %6s\n",
                RateText(rate).c_str(), PerSecondText(requests / figures.total_s).c_str(),
                figures.output_tok_s, p50(first).c_str(),
                MillisecondsCell(first.value_or(none).p99).c_str(), p50(between).c_str(),
                MillisecondsCell(between.value_or(none).p99).c_str(), goodput.c_str(), met.c_str());
  return text;
}

std::string BestRate(std::span<const double> rates,
                     std::span<const WorkloadMeasurement> measurements) {
  std::optional<size_t> best;
  const auto goodput = [&](size_t i) { return FiguresOf(measurements[i]).goodput_req_s; };
  for (size_t i = 0; i < std::min(rates.size(), measurements.size()); ++i) {
    if (goodput(i) && (!best || *goodput(i) > *goodput(*best))) best = i;
  }
  if (!best) return "";
  if (*goodput(*best) == 0) return "no request met the bound at any rate\n";
  return StrCat("most goodput: ", PerSecondText(*goodput(*best)), " requests per second, at rate ",
                RateText(rates[*best]), "\n");
}

}  // namespace tokline
