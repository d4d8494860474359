#include "harness/cli/run_record.h"

#include <ctime>
#include <utility>

#include "harness/core/fingerprint.h"
#include "harness/core/nvml.h"
#include "harness/core/peaks.h"
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
                   .help = "append a record with the run's fingerprint, one JSON object a line",
                   .set = TextInto("--record", record)});
  flags.push_back({.name = "--peaks",
                   .value = "FILE",
                   .help = "the peaks that a run on this GPU, at most an hour old, recorded there",
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

std::string DeviceName(Device device, const Fingerprint& fingerprint) {
  if (device == Device::kCuda && fingerprint.gpu) return fingerprint.gpu->name;
  return "cpu";
}

GpuState StateOf(const Fingerprint& fingerprint) {
  return fingerprint.gpu ? ReadGpuState(fingerprint.gpu->pci_bus_id) : GpuState{};
}

RunRecord::RunRecord(const std::string& path) {
  if (!path.empty()) writer_.emplace(path);
}

RunRecord::~RunRecord() {
  if (!under_way_) return;
  try {
    Finish(/*interrupted=*/true);
  } catch (const std::exception&) {  // of two failures the first is told
  }
}

void RunRecord::Start(const RunHeader& header) {
  end_.run_id = header.run_id;
  fingerprint_ = header.fingerprint;
  Append(ToJson(header));
  under_way_ = true;
}

void RunRecord::Add(const Json& row) {
  Append(row);
  ++end_.rows;
  if (row["status"] != "ok") ++end_.refused;
}

void RunRecord::Finish(bool interrupted) {
  under_way_ = false;
  end_.interrupted = interrupted;
  end_.gpu_after = StateOf(fingerprint_);
  Append(ToJson(end_));
}

void RunRecord::Append(const Json& record) {
  if (writer_) writer_->Append(record);
}

}  // namespace tokline
