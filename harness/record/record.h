// The records of a run: one JSON object a line, schema kRecordSchema, described in
// docs/measuring.md. A "run" line, then its "row" and "ablation" lines, then an "end" line; a run
// without its end was killed.
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
#include "harness/measure/step_profile.h"
#include "harness/measure/timing.h"
#include "kernels/common/cost.h"

namespace tokline {

using Json = nlohmann::ordered_json;

inline constexpr int kRecordSchema = 2;

// A cold row above this share of the measured peak is refused: something that should have been done
// was not.
inline constexpr double kMaxPercentOfPeak = 102;

// A decoder row is verified when the mean regret of its texts (harness/measure/text_regret.h) is at
// most this. Greedy texts in bf16, judged in fp32, have less than 0.001 on the golden checkpoints;
// tokens drawn blindly about 1.
inline constexpr double kMaxMeanRegret = 0.02;
// The same of a workload whose texts are drawn: another measure, of which bf16 alone gives 0.014
// to 0.021 with random weights, where tokens lie close together; blind tokens about 1/3.
inline constexpr double kMaxMeanDrawRegret = 0.05;

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
  std::string disturbed{};                // what slowed it, also when repeated, or ""
  std::optional<int64_t> memory_bytes{};  // of one launch's inputs, outputs, tables and workspace
  std::optional<double> fresh_us{};  // median of replays right after their inputs were refilled and
                                     // their outputs poisoned
  std::string stopped{};  // why sampling ended: "precise", "time", or "" for a stated number
  bool rested = false;    // there were pauses between the samples, since the power cap was met or
                          // the tensor cores limit the row
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
  std::string disturbed{};                // as a kernel's
  std::optional<int64_t> memory_bytes{};  // device memory that the run took
  std::optional<StepProfile> profile{};
};

// The row of a measurement, as KernelRow: refused when unverified, interrupted, without samples, or
// cold and above the roofline.
Json DecoderRow(const DecoderMeasurement& measurement);

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
  std::string run_id;
  std::string implementation;
  std::string model;
  // "name" and "hash" of the requests, their "requests", "prompt_tokens" and "new_tokens", and how
  // they ran: "max_batch", "token_budget", "page_size", "reuse", "kv_limit", and "sharing"
  // where the plan does not decide it: "never" or "always".
  Json shape;
  std::string dtype;
  std::string device;
  std::vector<WorkloadSample> samples;
  double warm_up_s = 0;
  // Of the sample with the median time:
  Percentiles first_token_s;
  Percentiles between_tokens_s;
  double host_share = 0;    // of the time, in [0, 1]
  double step_host_us = 0;  // of a step
  int64_t steps = 0;
  int64_t graph_steps = 0;
  int64_t preemptions = 0;
  int64_t recomputed_tokens = 0;
  int64_t reused_tokens = 0;
  int64_t decode_read_bytes = 0;      // of K and V, by the attention of decode steps
  int64_t decode_unshared_bytes = 0;  // had each sequence read all of its own
  int64_t kv_pages = 0;
  double mean_kv_pages = 0;  // in use, over the steps
  int64_t max_kv_pages = 0;
  MemoryByUse memory;
  // At the start, after the warm-up, and after each tenth of each repeat's requests.
  std::vector<MemoryPoint> memory_points;
  int64_t judged_tokens = 0;  // as a decoder's
  bool drawn = true;          // some request has a temperature
  double mean_regret = 0;
  bool interrupted = false;
  std::string disturbed{};  // as a kernel's
};

// The row of a measurement, as KernelRow: refused when unverified, interrupted or without samples.
Json WorkloadRow(const WorkloadMeasurement& measurement);

struct PairedSamples {
  std::vector<double> with{};
  std::vector<double> without{};  // of the same rounds
};

// A decoder with a fused or custom op beside the same decoder with the op's plain counterpart.
struct AblationMeasurement {
  std::string run_id;
  std::string model;
  std::string dtype;
  std::string device;
  int64_t batch = 0;
  int64_t prompt_tokens = 0;                   // a sequence
  int64_t new_tokens = 0;                      // a sequence
  std::string name;                            // of the op, "rmsnorm_qkv"
  std::string instead;                         // what does its work in the other decoder, in words
  PairedSamples end_to_end_ms{};               // of a decode step, one a round
  std::optional<PairedSamples> isolated_us{};  // the op alone, at the decoder's own shapes
  bool interrupted = false;
  std::string failure{};  // why there are no samples, or ""
};

// The line of a measurement: refused when interrupted, failed or without samples.
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

// The least time that the cost can take at these rates, and which rate it is.
struct Floor {
  double us = 0;
  std::string limit;  // "read", "copy" or "matmul"
};
Floor FloorOf(const Cost& cost, double read_gbps, double copy_gbps, double matmul_tflops);
Floor FloorOf(const Cost& cost, const Peaks& peaks);

}  // namespace tokline
