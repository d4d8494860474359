#include "harness/record/reused_peaks.h"

#include "harness/record/record_file.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Parses a time such as 2026-01-31T09:30:00Z.
std::time_t SecondsOf(const std::string& time_utc, const std::string& path) {
  std::tm parts{};
  const char* end = strptime(time_utc.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  Require(end != nullptr && *end == '\0', path, ": time_utc is '", time_utc,
          "'; it must be like 2026-01-31T09:30:00Z");
  return timegm(&parts);
}

// Whether the record is the header of a run that measured all the needed peaks of this GPU itself.
bool MeasuredPeaksOf(const Json& record, const std::string& uuid_hash, PeaksNeeded needed) {
  if (record["kind"] != "run" || record["peaks"].is_null()) return false;
  const Json &gpu = record["fingerprint"]["gpu"], &peaks = record["peaks"];
  return !gpu.is_null() && gpu["uuid_hash"] == uuid_hash && peaks["from_run"].is_null() &&
         (needed == PeaksNeeded::kMemory || peaks["matmul_tflops"].get<double>() > 0);
}

}  // namespace

Peaks ReusePeaks(const std::string& path, const std::string& uuid_hash, PeaksNeeded needed,
                 std::time_t now) {
  Json newest;
  std::time_t newest_time = 0;
  for (const Json& record : ReadRecords(path)) {
    if (!MeasuredPeaksOf(record, uuid_hash, needed)) continue;
    const std::time_t time = SecondsOf(record["fingerprint"]["time_utc"], path);
    if (!newest.is_null() && time < newest_time) continue;
    newest = record;
    newest_time = time;
  }
  Require(!newest.is_null(), "--peaks ", path, ": no run in it measured the ",
          needed == PeaksNeeded::kAll ? "peaks" : "memory peaks", " of this GPU (", uuid_hash,
          needed == PeaksNeeded::kAll ? "), its matmul rate included" : ")");
  Require(now - newest_time <= kMaxPeaksAge, "--peaks ", path,
          ": the newest peaks of this GPU are ", (now - newest_time) / 60, " minutes old; at most ",
          kMaxPeaksAge / 60, " are allowed");
  const Json& peaks = newest["peaks"];
  return {.read_gbps = peaks["read_gbps"],
          .two_to_one_gbps = peaks.value("two_to_one_gbps", 0.0),  // not by older programs
          .copy_gbps = peaks["copy_gbps"],
          .matmul_tflops = peaks["matmul_tflops"],
          .launch_us = peaks["launch_us"],
          .graph_node_us = peaks["graph_node_us"],
          .from_run = newest["run_id"]};
}

}  // namespace tokline
