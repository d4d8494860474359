#include "harness/record/record.h"

#include <random>

#include "harness/core/timing.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Traffic counts as a copy when at least this share of it is written.
constexpr double kCopyWriteShare = 0.25;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
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
    const Floor floor =
        FloorOf(work.cost, work.peaks->read_gbps, work.peaks->copy_gbps, work.peaks->matmul_tflops);
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
           {"verified",
            {{"before", m.verified.before},
             {"after", m.verified.after},
             {"max_error_over_bound", m.verified.max_error_over_bound}}},
           {"cost", ToJson(m.cost)},
           {"launches_per_sample", m.launches_per_sample},
           {"buffer_sets", m.buffer_sets}};
  const auto refuse = [&row](const std::string& reason) {
    row["status"] = "refused";
    row["reason"] = reason;
    return row;
  };
  const std::string reason = ReasonToRefuse(m);
  if (!reason.empty()) return refuse(reason);

  const SampleStats stats = Summarize(m.samples_us);
  Json figures{{"samples_us", m.samples_us},
               {"median_us", stats.median},
               {"mad_us", stats.mad},
               {"gbps", m.cost.Bytes() / stats.median / 1e3},
               {"tflops", m.cost.flops / stats.median / 1e6}};
  const std::string untrue = AddShares({.cost = m.cost,
                                        .median_us = stats.median,
                                        .cold = m.cache == "cold",
                                        .peaks = m.peaks,
                                        .datasheet = m.datasheet},
                                       figures);
  if (!untrue.empty()) return refuse(untrue);
  row.update(figures);
  return row;
}

Json DecoderRow(const DecoderMeasurement& m) {
  const bool verified = m.judged_tokens > 0 && m.mean_regret <= kMaxMeanRegret;  // false for NaN
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
           {"batch", m.batch},
           {"prompt_tokens", m.prompt_tokens},
           {"new_tokens", m.new_tokens},
           {"verified", {{"tokens", m.judged_tokens}, {"mean_regret", m.mean_regret}}},
           {"cost", ToJson(m.cost)}};
  const auto refuse = [&row](const std::string& reason) {
    row["status"] = "refused";
    row["reason"] = reason;
    return row;
  };
  if (m.interrupted) return refuse("interrupted");
  if (!verified) {
    return refuse(StrCat("unverified: the mean regret of ", m.judged_tokens, " tokens is ",
                         m.mean_regret, "; at most ", kMaxMeanRegret, " is allowed"));
  }
  if (m.samples_ms.empty()) return refuse("no samples");

  const SampleStats step = Summarize(m.samples_ms);
  const double prefill_s = Summarize(m.samples_prefill_s).median;
  const auto batch = static_cast<double>(m.batch);
  Json figures{{"samples_prefill_s", m.samples_prefill_s},
               {"samples_ms", m.samples_ms},
               {"prefill_tok_s", batch * static_cast<double>(m.prompt_tokens) / prefill_s},
               {"decode_tok_s", 1e3 * batch / step.median},
               {"ms_per_token", step.median},
               {"mad_ms", step.mad},
               {"host_share", m.host_share}};
  const std::string untrue = AddShares({.cost = m.cost,
                                        .median_us = 1e3 * step.median,
                                        .cold = m.cache == "cold",
                                        .peaks = m.peaks,
                                        .datasheet = m.datasheet},
                                       figures);
  if (!untrue.empty()) return refuse(untrue);
  row.update(figures);
  return row;
}

Json ToJson(const RunHeader& header) {
  Json json{{"schema", kRecordSchema},
            {"kind", "run"},
            {"run_id", header.run_id},
            {"program", header.program},
            {"fingerprint", ToJson(header.fingerprint)},
            {"peaks", nullptr},
            {"datasheet", nullptr}};
  if (header.peaks) {
    json["peaks"] = {{"read_gbps", header.peaks->read_gbps},
                     {"copy_gbps", header.peaks->copy_gbps},
                     {"matmul_tflops", header.peaks->matmul_tflops},
                     {"launch_us", header.peaks->launch_us},
                     {"graph_node_us", header.peaks->graph_node_us}};
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
