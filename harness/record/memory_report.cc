#include "harness/record/memory_report.h"

#include <memory>

#include "harness/platform/process_memory.h"

namespace tokline {
namespace {

// A figure that grows as memory is allocated.
int64_t TakenNow(const Backend& backend) {
  if (backend.device() == Device::kCuda) return -backend.FreeBytes();
  return ReadProcessMemory().anonymous;
}

}  // namespace

MemoryWatch::MemoryWatch(Device device) : before_(TakenNow(*MakeBackend(device))) {}

Json MemoryWatch::Report(Decoder& decoder) const {
  const MemoryNeeds needs = decoder.Memory();
  Json planned = ToJson(needs);
  planned["staging"] = needs.staging_bytes;
  const bool on_device = decoder.GetBackend().device() == Device::kCuda;
  // A process holds the memory of all of its ranks, and a device that of one rank.
  const DecoderOptions& options = decoder.Options();
  const int32_t ranks_here = options.Processes() == nullptr ? options.ranks : 1;
  const int64_t total =
      on_device ? needs.Total() : ranks_here * (needs.Total() + needs.staging_bytes);
  const int64_t measured = TakenNow(decoder.GetBackend()) - before_;
  const ProcessMemory host = ReadProcessMemory();
  return {{"planned", std::move(planned)},  {"planned_total", total},
          {"measured", measured},           {"unexplained", measured - total},
          {"host_resident", host.resident}, {"host_peak", host.peak_resident}};
}

}  // namespace tokline
