// The records of a run: one JSON object a line, as record.schema.json describes them. A "run" line,
// then its "row" and "ablation" lines, then an "end" line; a run without its end was killed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/measure/fingerprint.h"
#include "harness/measure/memory_point.h"
#include "harness/measure/peaks.h"
#include "harness/measure/serving_figures.h"
#include "harness/measure/step_profile.h"
#include "harness/measure/timing.h"
#include "harness/record/schema.h"
#include "kernels/common/cost.h"
#include "tokline_rules.h"

namespace tokline {

// What a workload row follows from its samples: microseconds for each token written.
std::vector<double> MicrosecondsPerToken(std::span<const double> seconds,
                                         std::span<const double> new_tokens);

// Of a run; tells its rows from those of other runs in one file.
std::string NewRunId();

struct RunHeader {
  std::string run_id;
  std::string program;  // "bench_chunk_decode"
  Fingerprint fingerprint;
  std::optional<Peaks> peaks;  // none on the CPU
  std::optional<Datasheet> datasheet;
  Json injected = nullptr;  // what was done to the run on purpose: {"slowdown_percent": 3}
};

struct Verification {
  bool before = false;              // the outputs of a launch before timing matched
  bool after = false;               // what the timed launches wrote, from other inputs, matched
  double max_error_over_bound = 0;  // over all; at most 1 where verified
  int audits = 0;                   // replays on fresh inputs whose outputs were compared besides
};

// What a row was measured by, with and on.
struct RowOrigin {
  std::string run_id;
  std::string implementation;  // "reference", "cuda", a variant, with what was ablated
  std::string dtype;
  std::string device;
};

// What a row is held against.
struct Limits {
  std::optional<Peaks> peaks{};
  std::optional<Datasheet> datasheet{};
};

// What went wrong while a row was measured.
struct Trouble {
  bool interrupted = false;
  std::string failure{};    // why there are no samples, or ""
  std::string disturbed{};  // what slowed it, also when repeated, or ""
};

struct KernelSamples {
  std::vector<double> us{};  // of one launch
  int launches_per_sample = 1;
  int buffer_sets = 1;
  std::string stopped{};  // why sampling ended: "precise", "time", or "" for a stated number
  bool rested = false;    // there were pauses between the samples, since the power cap was met or
                          // the tensor cores limit the row
  std::optional<double> fresh_us{};  // median of replays right after their inputs were refilled and
                                     // their outputs poisoned
};

struct KernelMeasurement {
  RowOrigin origin{};
  std::string kernel{};
  Json shape{};         // "name" and dimensions
  std::string cache{};  // "cold", "warm" or "cpu"
  std::string chain{};  // "plain" or "dependent" launches, "none" on the CPU
  Cost cost{};
  std::optional<int64_t> memory_bytes{};  // of one launch's inputs, outputs, tables and workspace
  KernelSamples samples{};
  Verification verified{};
  Limits limits{};
  Trouble trouble{};
};

// A decoder's batch; tokens are those of each sequence.
struct BatchShape {
  int64_t batch = 0;
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
};

// What a decoder of plain ops said of texts.
struct JudgedTexts {
  int64_t tokens = 0;  // that it was asked about; 0: unverified
  double mean_regret = 0;
  bool drawn = false;  // some text was drawn with a temperature
};

struct DecoderSamples {
  std::vector<double> prefill_s{};  // of all prompts, one a repeat
  std::vector<double> step_ms{};    // of one decode step, the mean of a repeat's, one a repeat
  double host_share = 0;            // of a decode step, in [0, 1]
};

struct DecoderMeasurement {
  RowOrigin origin{};
  std::string model{};
  std::string cache{};  // of a decode step: "cold" where it must move more than the L2 keeps
  BatchShape shape{};
  Cost cost{};                            // of the mean decode step
  std::optional<int64_t> memory_bytes{};  // device memory that the run took
  DecoderSamples samples{};
  JudgedTexts judged{};
  Limits limits{};
  Trouble trouble{};
  std::optional<StepProfile> profile{};
};

// Device memory by use, bytes; as MemoryPlan of the decoder.
struct MemoryByUse {
  int64_t weights = 0;
  int64_t kv_cache = 0;
  int64_t activations = 0;
  int64_t workspaces = 0;
  int64_t tables = 0;

  int64_t Total() const { return weights + kv_cache + activations + workspaces + tables; }
};
Json ToJson(const MemoryByUse& memory);
Json ToJson(const MemoryPoint& point);

// One run of a workload.
struct WorkloadSample {
  double total_s = 0;
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
};

// Requests with continuous batching, run once or more.
struct WorkloadMeasurement {
  RowOrigin origin{};
  std::string model{};
  Json shape{};  // of the requests, and how they ran
  std::vector<WorkloadSample> samples{};
  double warm_up_s = 0;
  ServingFigures serving{};  // of the sample with the median time
  MemoryByUse memory{};
  // At the start, after the warm-up, and after each tenth of each repeat's requests.
  std::vector<MemoryPoint> memory_points{};
  JudgedTexts judged{};
  Trouble trouble{};
};

struct PairedSamples {
  std::vector<double> with{};
  std::vector<double> without{};  // of the same rounds
};

// A decoder with a fused or custom op beside the same decoder with the op's plain counterpart.
struct AblationMeasurement {
  RowOrigin origin{};
  std::string model{};
  BatchShape shape{};
  std::string name{};                          // of the op, "rmsnorm_qkv"
  std::string instead{};                       // what does its work in the other decoder, in words
  PairedSamples end_to_end_ms{};               // of a decode step, one a round
  std::optional<PairedSamples> isolated_us{};  // the op alone, at the decoder's own shapes
  Trouble trouble{};
};

// The least time that the cost can take at these rates, and which rate it is.
struct Floor {
  double us = 0;
  std::string limit;  // "read", "copy" or "matmul"
};
Floor FloorOf(const Cost& cost, double read_gbps, double copy_gbps, double matmul_tflops);
Floor FloorOf(const Cost& cost, const Peaks& peaks);

struct Shares {
  std::optional<Floor> floor;  // at the measured peaks
  std::optional<double> percent_of_measured_peak;
  std::optional<double> percent_of_datasheet_peak;
};

// What follows from the samples of a row, or why its figures are refused.
struct KernelFigures {
  std::string refusal;  // or ""
  SampleStats us;
  double gbps = 0;
  double tflops = 0;
  Shares shares;
};
struct DecoderFigures {
  std::string refusal;
  SampleStats step_ms;
  double prefill_tok_s = 0;
  double decode_tok_s = 0;
  Shares shares;
};
struct WorkloadFigures {
  std::string refusal;
  std::vector<double> us_per_token;  // one a repeat
  SampleStats us;
  double total_s = 0;
  double output_tok_s = 0;
  double total_tok_s = 0;
};

// A row is refused when it failed, was interrupted, is unverified or without samples (a kernel's
// with fewer than kMinSamples), or is cold and above kMaxPercentOfPeak of the measured peak.
KernelFigures FiguresOf(const KernelMeasurement& measurement);
DecoderFigures FiguresOf(const DecoderMeasurement& measurement);
WorkloadFigures FiguresOf(const WorkloadMeasurement& measurement);
std::string WhyRefused(const AblationMeasurement& measurement);

// The row of a measurement: its figures, or why they are refused ("status": "refused", "reason").
Json KernelRow(const KernelMeasurement& measurement);
Json DecoderRow(const DecoderMeasurement& measurement);
Json WorkloadRow(const WorkloadMeasurement& measurement);
Json AblationRow(const AblationMeasurement& measurement);

struct RunEnd {
  std::string run_id;
  bool interrupted = false;
  int64_t rows = 0;     // and ablations, written in this run
  int64_t refused = 0;  // of them
  GpuState gpu_after;
};

Json ToJson(const RunHeader& header);
Json ToJson(const RunEnd& end);

}  // namespace tokline
