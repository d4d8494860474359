// The record of a program's run: a header, rows and an end.
#pragma once

#include <optional>
#include <string>

#include "harness/engine/backend.h"
#include "harness/record/record.h"
#include "harness/record/record_file.h"

namespace tokline {

// The device's name in rows: the GPU's name, or "cpu".
std::string DeviceName(Device device, const Fingerprint& fingerprint);

// The GPU's current state; all values are absent on the CPU.
GpuState StateOf(const Fingerprint& fingerprint);

// Writes to the record file if the run has one; the file is opened before the work starts.
class RunRecord {
 public:
  explicit RunRecord(const std::string& path);
  // A run that was started but not finished because something failed ends as interrupted.
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
  bool unfinished_ = false;
};

}  // namespace tokline
