#include "harness/record/record.h"

#include <random>

#include "harness/measure/timing.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Traffic counts as a copy when at least this share of it is written.
constexpr double kCopyWriteShare = 0.25;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json OrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json ToJson(const Interval& interval) { return Json::array({interval.low, interval.high}); }

Json ToJson(const StepProfile& profile) {
  Json ops = Json::array();
  for (const OpTime& time : profile.ops) {
    ops.push_back(
        {{"op", time.op}, {"kernel", time.kernel}, {"launches", time.launches}, {"us", time.us}});
  }
  return {{"method", profile.method},
          {"steps", profile.steps},
          {"step_us", profile.step_us},
          {"ops", std::move(ops)},
          {"device_gap_us", profile.device_gap_us},
          {"host_gap_us", profile.host_gap_us}};
}

Json ToJson(const GpuState& state) {
  Json json{{"sm_clock_mhz", OrNull(state.sm_clock_mhz)},
            {"memory_clock_mhz", OrNull(state.memory_clock_mhz)},
            {"power_cap_w", OrNull(state.power_cap_w)},
            {"power_w", OrNull(state.power_w)},
            {"temperature_c", OrNull(state.temperature_c)},
            {"throttle_reasons", nullptr},
            {"throttled", nullptr},
            {"other_processes", OrNull(state.other_processes)}};
  if (state.throttle_reasons) {
    json["throttle_reasons"] = ThrottleText(*state.throttle_reasons);
    json["throttled"] = IsThrottled(*state.throttle_reasons);
  }
  return json;
}

Json ToJson(const Fingerprint& print) {
  Json json{{"time_utc", print.time_utc},
            {"command_line", print.command_line},
            {"commit", print.build.commit},
            {"dirty", print.build.dirty},
            {"compiler", print.build.compiler},
            {"cuda_compiler", print.build.cuda_compiler},
            {"flags", print.build.flags},
            {"build_type", print.build.build_type},
            {"cpu", print.cpu},
            {"cpu_threads", print.cpu_threads},
            {"cpu_governor", print.cpu_governor},
            {"os", print.os},
            {"gpu", nullptr}};
  if (print.gpu) {
    json["gpu"] = {{"name", print.gpu->name},
                   {"uuid_hash", print.gpu->uuid_hash},
                   {"compute_capability", print.gpu->compute_capability},
                   {"sm_count", print.gpu->sm_count},
                   {"l2_bytes", print.gpu->l2_bytes},
                   {"memory_bytes", print.gpu->memory_bytes},
                   {"driver", print.gpu->driver},
                   {"cuda_driver", print.gpu->cuda_driver},
                   {"cuda_runtime", print.gpu->cuda_runtime},
                   {"cublaslt", print.gpu->cublaslt},
                   {"max_sm_clock_mhz", OrNull(print.gpu->max_sm_clock_mhz)},
                   {"mig", OrNull(print.gpu->mig)},
                   {"mps", OrNull(print.gpu->mps)},
                   {"before", ToJson(print.gpu_before)}};
  }
  return json;
}

// Why a measurement may not stand as a figure, or "".
std::string ReasonToRefuse(const KernelMeasurement& m) {
  if (!m.failure.empty()) return m.failure;
  if (m.interrupted) return "interrupted";
  const bool within = m.verified.max_error_over_bound <= 1;  // false for NaN
  if (!m.verified.before || !m.verified.after || !within) {
    return StrCat("unverified: before timing ", m.verified.before ? "yes" : "no", ", after timing ",
                  m.verified.after ? "yes" : "no", ", largest error is ",
                  m.verified.max_error_over_bound, " of its bound");
  }
  if (static_cast<int>(m.samples_us.size()) < kMinSamples) {
    return StrCat(m.samples_us.size(), " samples; at least ", kMinSamples, " are needed");
  }
  return "";
}

Json Refused(Json row, const std::string& reason) {
  row["status"] = "refused";
  row["reason"] = reason;
  return row;
}

// Of texts that were judged, or "".
std::string WhyUnverified(int64_t tokens, double mean_regret, double most) {
  if (tokens > 0 && mean_regret <= most) return "";  // false for NaN
  return StrCat("unverified: the mean regret of ", tokens, " tokens is ", mean_regret, "; at most ",
                most, " is allowed");
}

Json MillisecondsJson(const Percentiles& seconds) {
  return {{"median", 1e3 * seconds.median}, {"p90", 1e3 * seconds.p90}, {"p99", 1e3 * seconds.p99}};
}

Json ToJson(const Cost& cost) {
  return {
      {"read_bytes", cost.read_bytes}, {"write_bytes", cost.write_bytes}, {"flops", cost.flops}};
}

// A median time, and what it was held against.
struct TimedWork {
  Cost cost;
  double median_us = 0;
  bool cold = false;
  const std::optional<Peaks>& peaks;
  const std::optional<Datasheet>& datasheet;
};

// Adds the shares of the peaks to `figures`. Returns why they cannot be true, or "".
std::string AddShares(const TimedWork& work, Json& figures) {
  for (const char* key :
       {"limit", "floor_us", "percent_of_measured_peak", "percent_of_datasheet_peak"}) {
    figures[key] = nullptr;
  }
  if (work.peaks) {
    const Floor floor = FloorOf(work.cost, *work.peaks);
    const double percent = 100 * floor.us / work.median_us;
    if (work.cold && percent > kMaxPercentOfPeak) {
      return StrCat("above the roofline: ", work.median_us, " us is ", percent,
                    " % of the measured ", floor.limit, " peak, and at most ", kMaxPercentOfPeak,
                    " % can be true");
    }
    figures["limit"] = floor.limit;
    figures["floor_us"] = floor.us;
    figures["percent_of_measured_peak"] = percent;
  }
  if (work.datasheet) {
    const Floor floor = FloorOf(work.cost, work.datasheet->memory_gbps, work.datasheet->memory_gbps,
                                work.datasheet->bf16_tflops);
    figures["percent_of_datasheet_peak"] = 100 * floor.us / work.median_us;
  }
  return "";
}

}  // namespace

std::string NewRunId() {
  std::random_device device;
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += std::to_string(device()) + ' ';
  return HashText(bytes);
}

Floor FloorOf(const Cost& cost, double read_gbps, double copy_gbps, double matmul_tflops) {
  const bool copies = cost.write_bytes >= kCopyWriteShare * cost.Bytes();
  const double memory_us = cost.Bytes() / (copies ? copy_gbps : read_gbps) / 1e3;
  const double matmul_us = matmul_tflops > 0 ? cost.flops / matmul_tflops / 1e6 : 0;
  if (matmul_us > memory_us) return {matmul_us, "matmul"};
  return {memory_us, copies ? "copy" : "read"};
}

Floor FloorOf(const Cost& cost, const Peaks& peaks) {
  return FloorOf(cost, peaks.read_gbps, peaks.copy_gbps, peaks.matmul_tflops);
}

Json KernelRow(const KernelMeasurement& m) {
  Json row{{"schema", kRecordSchema},
           {"kind", "row"},
           {"run_id", m.run_id},
           {"kernel", m.kernel},
           {"implementation", m.implementation},
           {"shape", m.shape},
           {"dtype", m.dtype},
           {"device", m.device},
           {"cache", m.cache},
           {"chain", m.chain},
           {"status", "ok"},
           {"reason", nullptr},
           {"interrupted", m.interrupted},
           {"disturbed", OrNull(m.disturbed)},
           {"library", nullptr},
           {"verified",
            {{"before", m.verified.before},
             {"after", m.verified.after},
             {"max_error_over_bound", m.verified.max_error_over_bound},
             {"audits", m.verified.audits}}},
           {"cost", ToJson(m.cost)},
           {"memory_bytes", OrNull(m.memory_bytes)},
           {"launches_per_sample", m.launches_per_sample},
           {"buffer_sets", m.buffer_sets}};
  const std::string reason = ReasonToRefuse(m);
  if (!reason.empty()) return Refused(std::move(row), reason);

  const SampleStats stats = Summarize(m.samples_us);
  Json figures{{"samples_us", m.samples_us},
               {"median_us", stats.median},
               {"mad_us", stats.mad},
               {"ci95_us", ToJson(MedianInterval(m.samples_us))},
               {"stopped", OrNull(m.stopped)},
               {"fresh_us", OrNull(m.fresh_us)},
               {"rested", m.rested},
               {"gbps", m.cost.Bytes() / stats.median / 1e3},
               {"tflops", m.cost.flops / stats.median / 1e6}};
  const std::string untrue = AddShares({.cost = m.cost,
                                        .median_us = stats.median,
                                        .cold = m.cache == "cold",
                                        .peaks = m.peaks,
                                        .datasheet = m.datasheet},
                                       figures);
  if (!untrue.empty()) return Refused(std::move(row), untrue);
  row.update(figures);
  return row;
}

Json DecoderRow(const DecoderMeasurement& m) {
  Json row{{"schema", kRecordSchema},
           {"kind", "row"},
           {"run_id", m.run_id},
           {"kernel", "decoder"},
           {"implementation", m.implementation},
           {"model", m.model},
           {"dtype", m.dtype},
           {"device", m.device},
           {"cache", m.cache},
           {"status", "ok"},
           {"reason", nullptr},
           {"interrupted", m.interrupted},
           {"disturbed", OrNull(m.disturbed)},
           {"library", nullptr},
           {"batch", m.batch},
           {"prompt_tokens", m.prompt_tokens},
           {"new_tokens", m.new_tokens},
           {"verified", {{"tokens", m.judged_tokens}, {"mean_regret", m.mean_regret}}},
           {"cost", ToJson(m.cost)},
           {"memory_bytes", OrNull(m.memory_bytes)}};
  if (m.interrupted) return Refused(std::move(row), "interrupted");
  const std::string unverified = WhyUnverified(m.judged_tokens, m.mean_regret, kMaxMeanRegret);
  if (!unverified.empty()) return Refused(std::move(row), unverified);
  if (m.samples_ms.empty()) return Refused(std::move(row), "no samples");

  const SampleStats step = Summarize(m.samples_ms);
  const double prefill_s = Summarize(m.samples_prefill_s).median;
  const auto batch = static_cast<double>(m.batch);
  Json figures{{"samples_prefill_s", m.samples_prefill_s},
               {"samples_ms", m.samples_ms},
               {"prefill_tok_s", batch * static_cast<double>(m.prompt_tokens) / prefill_s},
               {"decode_tok_s", 1e3 * batch / step.median},
               {"ms_per_token", step.median},
               {"mad_ms", step.mad},
               {"ci95_ms", ToJson(MedianInterval(m.samples_ms))},
               {"host_share", m.host_share},
               {"profile", m.profile ? ToJson(*m.profile) : Json(nullptr)}};
  const std::string untrue = AddShares({.cost = m.cost,
                                        .median_us = 1e3 * step.median,
                                        .cold = m.cache == "cold",
                                        .peaks = m.peaks,
                                        .datasheet = m.datasheet},
                                       figures);
  if (!untrue.empty()) return Refused(std::move(row), untrue);
  row.update(figures);
  return row;
}

Json ToJson(const MemoryByUse& memory) {
  return {{"weights", memory.weights},
          {"kv_cache", memory.kv_cache},
          {"activations", memory.activations},
          {"workspaces", memory.workspaces},
          {"tables", memory.tables}};
}

Json ToJson(const MemoryPoint& point) {
  return {{"requests", point.requests},
          {"host_resident", point.host.resident},
          {"host_anonymous", point.host.anonymous},
          {"host_heap", point.host.heap_in_use},
          {"device_free", OrNull(point.device_free)},
          {"sequences", point.sequences},
          {"chunks", point.chunks},
          {"chunk_ids", point.chunk_ids},
          {"kv_pages", point.kv_pages}};
}

std::vector<double> MicrosecondsPerToken(std::span<const double> seconds,
                                         std::span<const double> new_tokens) {
  std::vector<double> each;
  for (size_t i = 0; i < seconds.size(); ++i) each.push_back(1e6 * seconds[i] / new_tokens[i]);
  return each;
}

Json WorkloadRow(const WorkloadMeasurement& m) {
  Json row{{"schema", kRecordSchema},
           {"kind", "row"},
           {"run_id", m.run_id},
           {"kernel", "workload"},
           {"implementation", m.implementation},
           {"model", m.model},
           {"shape", m.shape},
           {"dtype", m.dtype},
           {"device", m.device},
           {"status", "ok"},
           {"reason", nullptr},
           {"interrupted", m.interrupted},
           {"disturbed", OrNull(m.disturbed)},
           {"library", nullptr},
           {"verified", {{"tokens", m.judged_tokens}, {"mean_regret", m.mean_regret}}},
           {"memory_bytes", m.memory.Total()},
           {"memory", ToJson(m.memory)}};
  if (m.interrupted) return Refused(std::move(row), "interrupted");
  const std::string unverified =
      WhyUnverified(m.judged_tokens, m.mean_regret, m.drawn ? kMaxMeanDrawRegret : kMaxMeanRegret);
  if (!unverified.empty()) return Refused(std::move(row), unverified);
  if (m.samples.empty()) return Refused(std::move(row), "no samples");

  std::vector<double> seconds, new_tokens, tokens_per_s;
  for (const WorkloadSample& sample : m.samples) {
    seconds.push_back(sample.total_s);
    new_tokens.push_back(static_cast<double>(sample.new_tokens));
    tokens_per_s.push_back(static_cast<double>(sample.prompt_tokens + sample.new_tokens) /
                           sample.total_s);
  }
  const std::vector<double> us = MicrosecondsPerToken(seconds, new_tokens);
  const SampleStats stats = Summarize(us);
  row.update(Json{{"samples_s", seconds},
                  {"samples_new_tokens", Json::array()},
                  {"total_s", Median(seconds)},
                  {"output_tok_s", 1e6 / stats.median},
                  {"total_tok_s", Median(tokens_per_s)},
                  {"median_us", stats.median},
                  {"mad_us", stats.mad},
                  {"ci95_us", ToJson(MedianInterval(us))},
                  {"warm_up_s", m.warm_up_s},
                  {"first_token_ms", MillisecondsJson(m.first_token_s)},
                  {"between_tokens_ms", MillisecondsJson(m.between_tokens_s)},
                  {"host_share", m.host_share},
                  {"step_host_us", m.step_host_us},
                  {"steps", m.steps},
                  {"graph_steps", m.graph_steps},
                  {"preemptions", m.preemptions},
                  {"recomputed_tokens", m.recomputed_tokens},
                  {"reused_tokens", m.reused_tokens},
                  {"decode_read_bytes", m.decode_read_bytes},
                  {"decode_unshared_bytes", m.decode_unshared_bytes},
                  {"kv_pages", m.kv_pages},
                  {"mean_kv_pages", m.mean_kv_pages},
                  {"max_kv_pages", m.max_kv_pages},
                  {"memory_points", Json::array()}});
  for (const WorkloadSample& sample : m.samples) {
    row["samples_new_tokens"].push_back(sample.new_tokens);
  }
  for (const MemoryPoint& point : m.memory_points) row["memory_points"].push_back(ToJson(point));
  return row;
}

Json AblationRow(const AblationMeasurement& m) {
  Json row{{"schema", kRecordSchema},    {"kind", "ablation"},
           {"run_id", m.run_id},         {"model", m.model},
           {"dtype", m.dtype},           {"device", m.device},
           {"batch", m.batch},           {"prompt_tokens", m.prompt_tokens},
           {"new_tokens", m.new_tokens}, {"name", m.name},
           {"instead", m.instead},       {"status", "ok"},
           {"reason", nullptr},          {"interrupted", m.interrupted}};
  if (!m.failure.empty()) return Refused(std::move(row), m.failure);
  if (m.interrupted) return Refused(std::move(row), "interrupted");
  if (m.end_to_end_ms.with.empty()) return Refused(std::move(row), "no samples");
  row["end_to_end"] = {{"with_ms", m.end_to_end_ms.with}, {"without_ms", m.end_to_end_ms.without}};
  row["isolated"] = nullptr;
  if (m.isolated_us) {
    row["isolated"] = {{"with_us", m.isolated_us->with}, {"without_us", m.isolated_us->without}};
  }
  return row;
}

Json ToJson(const RunHeader& header) {
  Json json{{"schema", kRecordSchema},
            {"kind", "run"},
            {"run_id", header.run_id},
            {"program", header.program},
            {"injected", header.injected},
            {"fingerprint", ToJson(header.fingerprint)},
            {"peaks", nullptr},
            {"datasheet", nullptr}};
  if (header.peaks) {
    json["peaks"] = {{"read_gbps", header.peaks->read_gbps},
                     {"copy_gbps", header.peaks->copy_gbps},
                     {"matmul_tflops", header.peaks->matmul_tflops},
                     {"launch_us", header.peaks->launch_us},
                     {"graph_node_us", header.peaks->graph_node_us},
                     {"from_run", OrNull(header.peaks->from_run)}};
  }
  if (header.datasheet) {
    json["datasheet"] = {{"memory_gbps", header.datasheet->memory_gbps},
                         {"bf16_tflops", header.datasheet->bf16_tflops}};
  }
  return json;
}

Json ToJson(const RunEnd& end) {
  return {{"schema", kRecordSchema},           {"kind", "end"},    {"run_id", end.run_id},
          {"interrupted", end.interrupted},    {"rows", end.rows}, {"refused", end.refused},
          {"gpu_after", ToJson(end.gpu_after)}};
}

}  // namespace tokline
