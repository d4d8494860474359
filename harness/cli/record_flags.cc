#include "harness/cli/record_flags.h"

#include <ctime>
#include <utility>

#include "harness/measure/fingerprint.h"
#include "harness/measure/peaks.h"
#include "harness/record/reused_peaks.h"
#include "kernels/common/error.h"

namespace tokline {

void RecordFlags::AddTo(std::vector<Flag>& flags) {
  flags.push_back({.name = "--json",
                   .value = "FILE",
                   .help = "write the figures and all samples",
                   .set = TextInto("--json", json)});
  flags.push_back({.name = "--record",
                   .value = "FILE",
                   .help = "append a record of the run, one JSON object per line",
                   .set = TextInto("--record", record)});
  flags.push_back({.name = "--peaks",
                   .value = "FILE",
                   .help = "use the peaks that a run on this GPU recorded here in the last hour",
                   .set = TextInto("--peaks", peaks)});
}

void RecordFlags::RequirePeaksOf(Device device) const {
  Require(peaks.empty() || device == Device::kCuda, "--peaks: the CPU has no peaks");
}

RunHeader MakeRunHeader(const CommandLine& line, std::string program, Device device,
                        const RecordFlags& flags) {
  flags.RequirePeaksOf(device);
  RunHeader header{.run_id = NewRunId(),
                   .program = std::move(program),
                   .fingerprint = TakeFingerprint(line.argc, line.argv, device == Device::kCuda),
                   .peaks = std::nullopt,
                   .datasheet = std::nullopt};
  if (!header.fingerprint.gpu) return header;
  header.datasheet = DatasheetOf(header.fingerprint.gpu->name);
  if (!flags.peaks.empty()) {
    header.peaks = ReusePeaks(flags.peaks, header.fingerprint.gpu->uuid_hash, PeaksNeeded::kMemory,
                              std::time(nullptr));
    return header;
  }
#if TOKLINE_HAS_CUDA
  header.peaks = MeasurePeaks(std::nullopt);
#endif
  return header;
}

}  // namespace tokline
