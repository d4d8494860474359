// The records of a run: one JSON object per line, as described by record.schema.json. A "run" line
// is followed by the "row" and "ablation" lines of the run and an "end" line; a run without an end
// was killed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/engine/decoder_memory.h"
#include "harness/measure/fingerprint.h"
#include "harness/measure/peaks.h"
#include "harness/measure/serving_figures.h"
#include "harness/measure/step_profile.h"
#include "harness/measure/timing.h"
#include "harness/measure/token_latencies.h"
#include "harness/record/schema.h"
#include "kernels/common/cost.h"
#include "tokline_rules.h"

namespace tokline {

// The figure of a workload row that follows from its samples: microseconds per output token.
std::vector<double> MicrosecondsPerToken(std::span<const double> seconds,
                                         std::span<const double> new_tokens);

// Identifies a run, so that its rows can be told from those of other runs in the same file.
std::string NewRunId();

struct RunHeader {
  std::string run_id;
  std::string program;  // for example "bench_chunk_decode"
  Fingerprint fingerprint;
  std::optional<Peaks> peaks;  // none on the CPU
  std::optional<Datasheet> datasheet;
  Json injected = nullptr;  // what was deliberately done to the run: {"slowdown_percent": 3}
};

struct Verification {
  bool before = false;  // the outputs of a launch before timing matched
  // the outputs of the timed launches, computed from other inputs, matched
  bool after = false;
  double max_error_over_bound = 0;  // maximum over all comparisons; at most 1 if verified
  // additional replays on fresh inputs whose outputs were compared
  int audits = 0;
};

// The program, implementation and device with which a row was measured.
struct RowOrigin {
  std::string run_id;
  std::string implementation;  // "reference", "cuda" or a variant, with what was ablated
  std::string dtype;
  std::string device;
};

// What a row's figures are compared with.
struct Limits {
  std::optional<Peaks> peaks{};
  std::optional<Datasheet> datasheet{};
};

// What went wrong while a row was measured.
struct Trouble {
  bool interrupted = false;
  std::string failure{};    // why there are no samples, or ""
  std::string disturbed{};  // what slowed the row, even when repeated, or ""
};

struct KernelSamples {
  std::vector<double> us{};  // per launch
  int launches_per_sample = 1;
  int buffer_sets = 1;
  // why sampling ended: "precise", "time", or "" for a fixed number of samples
  std::string stopped{};
  // whether there were pauses between the samples, because the power cap was reached or the tensor
  // cores limit the row
  bool rested = false;
  // median of replays that ran right after their inputs were refilled and their outputs poisoned
  std::optional<double> fresh_us{};
};

struct KernelMeasurement {
  RowOrigin origin{};
  std::string kernel{};
  Json shape{};         // "name" and dimensions
  std::string cache{};  // "cold", "warm" or "cpu"
  std::string chain{};  // "plain" or "dependent" launches, "none" on the CPU
  bool chosen = true;   // whether the kernel takes this variant by itself
  Cost cost{};
  std::optional<int64_t> memory_bytes{};  // inputs, outputs, tables and workspace of one launch
  KernelSamples samples{};
  Verification verified{};
  Limits limits{};
  Trouble trouble{};
};

// The batch of a decoder; the token counts are per sequence.
struct BatchShape {
  int64_t batch = 0;
  int64_t depth = 0;  // tokens in the KV cache before the prompt
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
};

// How a decoder of plain ops judged the texts.
struct JudgedTexts {
  int64_t tokens = 0;  // number of tokens judged; 0: unverified
  double mean_regret = 0;
  bool drawn = false;  // whether some text was drawn with a temperature
};

struct DecoderSamples {
  std::vector<double> prefill_s{};  // of all prompts together; one value per repeat
  // of one decode step, the mean over a repeat's steps; one value per repeat
  std::vector<double> step_ms{};
  double host_share = 0;  // of a decode step, in [0, 1]
  LatencyFigures latencies{};
};

struct DecoderMeasurement {
  RowOrigin origin{};
  std::string model{};
  std::string cache{};  // of a decode step: "cold" if the step moves more data than the L2 can keep
  BatchShape shape{};
  int64_t page_size = 0;  // tokens per page of the KV cache
  int32_t ranks = 1;
  Cost cost{};                            // of the average decode step, on each rank
  double link_bytes = 0;                  // that each rank receives in it
  std::optional<int64_t> memory_bytes{};  // device memory that the run used
  DecoderSamples samples{};
  JudgedTexts judged{};
  Limits limits{};
  Trouble trouble{};
  std::optional<StepProfile> profile{};
};

// Device memory by use, without the staging memory on the host.
Json ToJson(const MemoryNeeds& memory);
Json ToJson(const MemoryPoint& point);

// One run of a workload.
struct WorkloadSample {
  double total_s = 0;
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
};

// Requests served with continuous batching, in one or more runs.
struct WorkloadMeasurement {
  RowOrigin origin{};
  std::string model{};
  int64_t requests = 0;
  int64_t prompt_tokens = 0;
  Json shape{};                  // other properties of the requests, and how they were run
  Json conversations = nullptr;  // the outcome of the conversations from which the requests were
                                 // made
  std::vector<WorkloadSample> samples{};
  double warm_up_s = 0;
  ServingFigures serving{};  // from the sample with the median time
  struct Promise {
    LatencyBound bound{};
    int64_t good_requests = 0;  // that met the bound, in the sample with the median time
  };
  std::optional<Promise> promise{};
  MemoryNeeds memory{};
  // At the start, after the warm-up, and after each tenth of each repeat's requests.
  std::vector<MemoryPoint> memory_points{};
  JudgedTexts judged{};
  Trouble trouble{};
};

struct PairedSamples {
  std::vector<double> with{};
  std::vector<double> without{};  // of the same rounds as `with`
};

// A decoder with a fused or custom op compared with the same decoder with the op's plain
// counterpart.
struct AblationMeasurement {
  RowOrigin origin{};
  std::string model{};
  BatchShape shape{};
  std::string name{};  // of the op, for example "rmsnorm_qkv"
  // what does the op's work in the other decoder, in words
  std::string instead{};
  PairedSamples end_to_end_ms{};               // of a decode step, one value per round
  std::optional<PairedSamples> isolated_us{};  // the op alone, at the decoder's own shapes
  Trouble trouble{};
};

// The least time in which the cost can be paid at these rates, and the rate that determines it.
struct Floor {
  double us = 0;
  std::string limit;  // "read", "2:1", "copy" or "matmul"
};
// The memory rate that counts is that of the kind of traffic that the cost resembles. A cost that
// writes a little less than one kind may be faster than that kind's rate, so the next faster rate
// counts.
Floor FloorOf(const Cost& cost, const Peaks& peaks);

struct Shares {
  std::optional<Floor> floor;  // at the measured peaks
  std::optional<double> percent_of_measured_peak;
  // Set for a cold row that exceeds the measured peak by more than is allowed: the peak was not the
  // limit.
  bool limit_is_wrong = false;
  std::optional<double> percent_of_datasheet_peak;
};

// The figures that follow from a row's samples, or why they are refused.
struct KernelFigures {
  std::string refusal;  // "" if the figures are not refused
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
  std::vector<double> us_per_token;  // one value per repeat
  SampleStats us;
  double total_s = 0;
  double output_tok_s = 0;
  double total_tok_s = 0;
  std::optional<double> goodput_req_s{};  // requests per second that met the bound, if there is one
};

// Refuses a row that failed, was interrupted, is unverified, has no samples (a kernel's row: fewer
// than kMinSamples), or is cold and above kMaxPercentOfPeak of what the datasheet allows. A cold
// row that only exceeds the measured peak is kept, and its limit is marked as wrong.
KernelFigures FiguresOf(const KernelMeasurement& measurement);
DecoderFigures FiguresOf(const DecoderMeasurement& measurement);
WorkloadFigures FiguresOf(const WorkloadMeasurement& measurement);
std::string WhyRefused(const AblationMeasurement& measurement);

// Returns the row of a measurement with its figures, or with the reason why they are refused
// ("status": "refused", "reason").
Json KernelRow(const KernelMeasurement& measurement);
Json DecoderRow(const DecoderMeasurement& measurement);
Json WorkloadRow(const WorkloadMeasurement& measurement);
Json AblationRow(const AblationMeasurement& measurement);

struct RunEnd {
  std::string run_id;
  bool interrupted = false;
  int64_t rows = 0;     // including ablations, written in this run
  int64_t refused = 0;  // of those rows
  GpuState gpu_after;
};

Json ToJson(const RunHeader& header);
Json ToJson(const RunEnd& end);

}  // namespace tokline
