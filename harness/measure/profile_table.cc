#include "harness/measure/profile_table.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "kernels/common/error.h"

namespace tokline {

std::string ProfileTable(const BenchOptions& bench, const ProfiledSteps& profiled,
                         double measured_ms) {
  const StepProfile& profile = profiled.profile;
  char text[200];
  std::snprintf(text, sizeof(text),
                ": a decode step of %.1f us (%s, mean of %lld; %.1f us in the bench)\n",
                profile.step_us, profile.method.c_str(), static_cast<long long>(profile.steps),
                1e3 * measured_ms);
  std::string table = StrCat("\nbatch ", bench.batch);
  if (bench.depth > 0) table += StrCat(", depth ", bench.depth);
  table += StrCat(", ", bench.prompt_tokens, "+", bench.new_tokens, " tokens", text);
  if (!profiled.note.empty()) table += StrCat("  no trace of the kernels: ", profiled.note, "\n");
  std::vector<OpTime> ops = profile.ops;
  std::ranges::stable_sort(ops, std::ranges::greater(), &OpTime::us);
  ops.push_back({.op = "device gap", .us = profile.device_gap_us});
  ops.push_back({.op = "host gap", .us = profile.host_gap_us});
  if (profile.tracing_us) ops.push_back({.op = "tracing", .us = *profile.tracing_us});
  ops.push_back({.op = "unexplained", .us = profile.unexplained_us});
  for (const OpTime& op : ops) {
    const std::string launches = op.launches == 0 ? "" : StrCat(op.launches, " x");
    std::snprintf(text, sizeof(text), "  %-18s %6s %-14s %9.1f us %5.1f%%", op.op.c_str(),
                  launches.c_str(), op.kernel.c_str(), op.us, 100 * op.us / profile.step_us);
    table += text;
    if (op.in_place) {
      std::snprintf(text, sizeof(text), " %9.1f us in place, %+.1f%%", op.in_place->us,
                    100 * (op.in_place->us / op.us - 1));
      table += text;
    }
    table += '\n';
    for (const PhaseTime& phase : op.phases) {
      std::snprintf(text, sizeof(text), "    %-16s %6s %-14s %9.1f us %5.1f%%\n",
                    phase.phase.c_str(), "", "", phase.us, 100 * phase.us / profile.step_us);
      table += text;
    }
  }
  return table;
}

}  // namespace tokline
