#include "harness/record/run_record.h"

#include <exception>

#include "harness/measure/nvml.h"

namespace tokline {

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
  if (!unfinished_) return;
  try {
    Finish(/*interrupted=*/true);
  } catch (const std::exception&) {  // only the first of two failures is reported
  }
}

void RunRecord::Start(const RunHeader& header) {
  end_.run_id = header.run_id;
  fingerprint_ = header.fingerprint;
  Append(ToJson(header));
  unfinished_ = true;
}

void RunRecord::Add(const Json& row, bool stands) {
  Append(row);
  ++end_.rows;
  if (!stands) ++end_.refused;
}

void RunRecord::Finish(bool interrupted) {
  unfinished_ = false;
  end_.interrupted = interrupted;
  end_.gpu_after = StateOf(fingerprint_);
  Append(ToJson(end_));
}

void RunRecord::Append(const Json& record) {
  if (writer_) writer_->Append(record);
}

}  // namespace tokline
