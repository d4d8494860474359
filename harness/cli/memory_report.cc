#include "harness/cli/memory_report.h"

#include <memory>

#include "harness/cli/status_line.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// What grows as memory is taken.
int64_t TakenNow(const Backend& backend) {
  if (backend.device() == Device::kCuda) return -backend.FreeBytes();
  return ReadProcessMemory().anonymous;
}

}  // namespace

MemoryByUse ByUse(const MemoryPlan& plan) {
  return {.weights = plan.weight_bytes,
          .kv_cache = plan.kv_bytes,
          .activations = plan.activation_bytes,
          .workspaces = plan.workspace_bytes,
          .tables = plan.table_bytes};
}

MemoryWatch::MemoryWatch(Device device) : before_(TakenNow(*MakeBackend(device))) {}

Json MemoryWatch::Report(Decoder& decoder) const {
  const MemoryPlan plan = decoder.Memory();
  Json planned = ToJson(ByUse(plan));
  planned["staging"] = plan.staging_bytes;
  const bool on_device = decoder.GetBackend().device() == Device::kCuda;
  const int64_t total = plan.Total() + (on_device ? 0 : plan.staging_bytes);
  const int64_t measured = TakenNow(decoder.GetBackend()) - before_;
  const ProcessMemory host = ReadProcessMemory();
  return {{"planned", std::move(planned)},  {"planned_total", total},
          {"measured", measured},           {"unexplained", measured - total},
          {"host_resident", host.resident}, {"host_peak", host.peak_resident}};
}

std::string MemoryText(const Json& report) {
  const auto of = [&](const char* key) { return BytesText(report[key].get<int64_t>()); };
  const bool more = report["unexplained"].get<int64_t>() >= 0;
  return StrCat(of("planned_total"), " planned, ", of("measured"), " measured (", more ? "+" : "",
                of("unexplained"), more ? " of no plan" : ": planned, but never touched",
                "); host ", of("host_peak"), " at most");
}

}  // namespace tokline
