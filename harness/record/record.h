// The records of a run: one JSON object a line, schema kRecordSchema, described in
// docs/measuring.md. A "run" line, then its "row" lines, then an "end" line; a run without its end
// was killed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "harness/core/fingerprint.h"
#include "harness/core/peaks.h"
#include "kernels/common/cost.h"

namespace tokline {

using Json = nlohmann::ordered_json;

inline constexpr int kRecordSchema = 1;

// A cold row above this share of the measured peak is refused: something that should have been done
// was not.
inline constexpr double kMaxPercentOfPeak = 102;

// A decoder row is verified when the mean regret of its texts (harness/decoder/text_regret.h) is at
// most this. Texts drawn in bf16 and judged in fp32 have less than 0.001 on the golden checkpoints,
// tokens drawn blindly about 1.
inline constexpr double kMaxMeanRegret = 0.02;

// Of a run; tells its rows from those of other runs in one file.
std::string NewRunId();

struct RunHeader {
  std::string run_id;
  std::string program;  // "bench_chunk_decode"
  Fingerprint fingerprint;
  std::optional<Peaks> peaks;  // none on the CPU
  std::optional<Datasheet> datasheet;
};

struct Verification {
  bool before = false;              // the outputs of a launch before timing matched
  bool after = false;               // what the timed launches wrote, from other inputs, matched
  double max_error_over_bound = 0;  // over both; at most 1 where verified
};

struct KernelMeasurement {
  std::string run_id;
  std::string kernel;
  std::string implementation;
  Json shape;  // "name" and dimensions
  std::string dtype;
  std::string device;
  std::string cache;  // "cold", "warm" or "cpu"
  std::string chain;  // "plain" or "dependent" launches, "none" on the CPU
  int launches_per_sample = 1;
  int buffer_sets = 1;
  std::vector<double> samples_us;  // of one launch
  Cost cost;
  Verification verified;
  bool interrupted = false;
  std::string failure;  // why there are no samples, or ""
  std::optional<Peaks> peaks;
  std::optional<Datasheet> datasheet;
};

// The row of a measurement: its figures, or why they are refused ("status": "refused", "reason"). A
// row is refused when it is unverified, has fewer than kMinSamples samples, was interrupted, or is
// cold and above kMaxPercentOfPeak of the measured peak.
Json KernelRow(const KernelMeasurement& measurement);

struct DecoderMeasurement {
  std::string run_id;
  std::string implementation;  // "reference" or "cuda", with what was ablated
  std::string model;
  std::string dtype;
  std::string device;
  std::string cache;  // of a decode step: "cold" where it must move more than the L2 keeps
  int64_t batch = 0;
  int64_t prompt_tokens = 0;              // a sequence
  int64_t new_tokens = 0;                 // a sequence
  std::vector<double> samples_prefill_s;  // of all prompts, one a repeat
  std::vector<double> samples_ms;  // of one decode step, the mean of a repeat's, one a repeat
  double host_share = 0;           // of a decode step, in [0, 1]
  Cost cost;                       // of the mean decode step
  int64_t judged_tokens = 0;       // that a decoder of plain ops was asked about; 0: unverified
  double mean_regret = 0;          // what it said
  bool interrupted = false;
  std::optional<Peaks> peaks;
  std::optional<Datasheet> datasheet;
};

// The row of a measurement, as KernelRow: refused when unverified, interrupted, without samples, or
// cold and above the roofline.
Json DecoderRow(const DecoderMeasurement& measurement);

struct RunEnd {
  std::string run_id;
  bool interrupted = false;
  int64_t rows = 0;     // written in this run
  int64_t refused = 0;  // of them
  GpuState gpu_after;
};

Json ToJson(const RunHeader& header);
Json ToJson(const RunEnd& end);

// The least time that the cost can take at these rates, and which rate it is.
struct Floor {
  double us = 0;
  std::string limit;  // "read", "copy" or "matmul"
};
Floor FloorOf(const Cost& cost, double read_gbps, double copy_gbps, double matmul_tflops);

}  // namespace tokline
