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
           {"cost",
            {{"read_bytes", m.cost.read_bytes},
             {"write_bytes", m.cost.write_bytes},
             {"flops", m.cost.flops}}},
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
               {"tflops", m.cost.flops / stats.median / 1e6},
               {"limit", nullptr},
               {"floor_us", nullptr},
               {"percent_of_measured_peak", nullptr},
               {"percent_of_datasheet_peak", nullptr}};
  if (m.peaks) {
    const Floor floor =
        FloorOf(m.cost, m.peaks->read_gbps, m.peaks->copy_gbps, m.peaks->matmul_tflops);
    const double percent = 100 * floor.us / stats.median;
    if (m.cache == "cold" && percent > kMaxPercentOfPeak) {
      return refuse(StrCat("above the roofline: ", stats.median, " us is ", percent,
                           " % of the measured ", floor.limit, " peak, and at most ",
                           kMaxPercentOfPeak, " % can be true"));
    }
    figures["limit"] = floor.limit;
    figures["floor_us"] = floor.us;
    figures["percent_of_measured_peak"] = percent;
  }
  if (m.datasheet) {
    const Floor floor = FloorOf(m.cost, m.datasheet->memory_gbps, m.datasheet->memory_gbps,
                                m.datasheet->bf16_tflops);
    figures["percent_of_datasheet_peak"] = 100 * floor.us / stats.median;
  }
  row.update(figures);
  return row;
}

Json DecoderRow(const DecoderMeasurement& m) {
  return {{"schema", kRecordSchema},
          {"kind", "row"},
          {"run_id", m.run_id},
          {"kernel", "decoder"},
          {"implementation", m.implementation},
          {"model", m.model},
          {"dtype", m.dtype},
          {"device", m.device},
          {"status", m.interrupted ? "refused" : "ok"},
          {"reason", m.interrupted ? Json("interrupted") : Json(nullptr)},
          {"interrupted", m.interrupted},
          {"batch", m.batch},
          {"prompt_tokens", m.prompt_tokens},
          {"new_tokens", m.new_tokens},
          {"prefill_tok_s", m.prefill_tok_s},
          {"decode_tok_s", m.decode_tok_s},
          {"ms_per_token", m.ms_per_token},
          {"host_share", m.host_share}};
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
