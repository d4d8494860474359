// The record of a program's run: its header, its rows, its end.
#pragma once

#include <optional>
#include <string>

#include "harness/engine/backend.h"
#include "harness/record/record.h"
#include "harness/record/record_file.h"

namespace tokline {

// As rows name it: the GPU, or "cpu".
std::string DeviceName(Device device, const Fingerprint& fingerprint);

// The GPU's state now; nothing known of the CPU.
GpuState StateOf(const Fingerprint& fingerprint);

// Writes to the file, if the run has one: opened before the work starts.
class RunRecord {
 public:
  explicit RunRecord(const std::string& path);
  // A run that was started and not finished, since something failed, ends as interrupted.
  ~RunRecord();
  RunRecord(const RunRecord&) = delete;
  RunRecord& operator=(const RunRecord&) = delete;

  void Start(const RunHeader& header);
  void Add(const Json& row, bool stands);
  int64_t Refused() const { return end_.refused; }
  void Finish(bool interrupted);

 private:
  void Append(const Json& record);

  std::optional<RecordWriter> writer_;
  RunEnd end_;
  Fingerprint fingerprint_;
  bool under_way_ = false;
};

}  // namespace tokline
