#include "harness/cli/record_flags.h"

#include <ctime>
#include <utility>

#include "harness/measure/fingerprint.h"
#include "harness/measure/peaks.h"
#include "harness/record/reused_peaks.h"
#include "kernels/common/error.h"

namespace tokline {

void RecordFlags::AddTo(std::vector<Flag>& flags) {
  flags.insert(
      flags.end(),
      {{"--json", "FILE", "write the figures and all samples", TextInto(json)},
       {"--record", "FILE", "append a record of the run, one JSON object per line",
        TextInto(record)},
       {"--peaks", "FILE", "use the peaks that a run on this GPU recorded here in the last hour",
        TextInto(peaks)}});
}

void RecordFlags::RequirePeaksOf(Device device) const {
  Require(peaks.empty() || device == Device::kCuda, "--peaks: the CPU has no peaks");
}

RunHeader MakeRunHeader(const CommandLine& line, std::string program, Device device,
                        const RecordFlags& flags, int32_t ranks) {
  flags.RequirePeaksOf(device);
  RunHeader header{
      .run_id = NewRunId(),
      .program = std::move(program),
      .fingerprint = TakeFingerprint(line.argc, line.argv, device == Device::kCuda, ranks),
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
