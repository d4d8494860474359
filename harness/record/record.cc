// Turns measurements into the rows of a record: computes their figures, or the reason why they are
// refused.
#include "harness/record/record.h"

#include <random>

#include "harness/measure/timing.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

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
    for (const PhaseTime& phase : time.phases) {
      ops.back()["phases"].push_back({{"phase", phase.phase}, {"us", phase.us}});
    }
    if (!time.in_place) continue;
    ops.back()["in_place_us"] = time.in_place->us;
    ops.back()["in_place_ci95_us"] = ToJson(time.in_place->ci95_us);
    if (time.in_place->traced) {
      ops.back()["in_place_traced_us"] = time.in_place->traced->us;
      ops.back()["in_place_stamps_us"] = time.in_place->traced->stamps_us;
    }
  }
  Json json{{"method", profile.method},
            {"steps", profile.steps},
            {"step_us", profile.step_us},
            {"ops", std::move(ops)},
            {"device_gap_us", profile.device_gap_us},
            {"host_gap_us", profile.host_gap_us}};
  if (profile.tracing_us) json["tracing_us"] = *profile.tracing_us;
  json["unexplained_us"] = profile.unexplained_us;
  return json;
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
  if (!print.hosts.empty()) json["hosts"] = print.hosts;
  if (print.group) {
    Json gpus = Json::array();
    for (const GpuIdentity& gpu : print.group->gpus) {
      gpus.push_back(
          {{"name", gpu.name}, {"uuid_hash", gpu.uuid_hash}, {"nvlinks", OrNull(gpu.nvlinks)}});
    }
    json["group"] = {{"gpus", std::move(gpus)},
                     {"without_peer_access", print.group->without_peer_access},
                     {"nccl", OrNull(print.group->nccl)}};
  }
  return json;
}

// The fields that every row begins with.
Json BeginRow(const std::string& kernel, const RowOrigin& origin, const Trouble& trouble,
              const std::string& refusal) {
  return {{"schema", kRecordSchema},
          {"kind", "row"},
          {"run_id", origin.run_id},
          {"kernel", kernel},
          {"implementation", origin.implementation},
          {"dtype", origin.dtype},
          {"device", origin.device},
          {"status", refusal.empty() ? "ok" : "refused"},
          {"reason", OrNull(refusal)},
          {"interrupted", trouble.interrupted},
          {"disturbed", OrNull(trouble.disturbed)},
          {"library", nullptr}};
}

// Returns why texts are unverified, or "".
std::string WhyUnverified(const JudgedTexts& judged) {
  const double most = judged.drawn ? kMaxMeanDrawRegret : kMaxMeanRegret;
  if (judged.tokens > 0 && judged.mean_regret <= most) return "";  // false for NaN
  return StrCat("unverified: the mean regret of ", judged.tokens, " tokens is ", judged.mean_regret,
                "; at most ", most, " is allowed");
}

// Returns why outputs are unverified, or "".
std::string WhyUnverified(const Verification& verified) {
  const bool within = verified.max_error_over_bound <= 1;  // false for NaN
  if (verified.before && verified.after && within) return "";
  return StrCat("unverified: before timing ", verified.before ? "yes" : "no", ", after timing ",
                verified.after ? "yes" : "no", ", largest error is ", verified.max_error_over_bound,
                " of its bound");
}

// Returns the first reason to refuse the row, or "".
std::string WhyRefused(const Trouble& trouble, const std::string& unverified, size_t samples,
                       size_t least = 1) {
  if (!trouble.failure.empty()) return trouble.failure;
  if (trouble.interrupted) return "interrupted";
  if (!unverified.empty()) return unverified;
  if (samples >= least) return "";
  if (least == 1) return "no samples";
  return StrCat(samples, " samples; at least ", least, " are needed");
}

Json JudgedJson(const JudgedTexts& judged) {
  return {{"tokens", judged.tokens}, {"mean_regret", judged.mean_regret}};
}

Json MillisecondsJson(const std::optional<Percentiles>& seconds) {
  if (!seconds) return nullptr;
  const auto ms = [](std::optional<double> value) {
    return value ? Json(1e3 * *value) : Json(nullptr);
  };
  return {{"count", seconds->count},
          {"median", ms(seconds->median)},
          {"p90", ms(seconds->p90)},
          {"p99", ms(seconds->p99)}};
}

Json ToJson(const LatencyFigures& latencies) {
  return {{"first_token_ms", MillisecondsJson(latencies.first_token_s)},
          {"between_tokens_ms", MillisecondsJson(latencies.between_tokens_s)},
          {"end_to_end_ms", MillisecondsJson(latencies.end_to_end_s)}};
}

Json ToJson(const Cost& cost) {
  return {
      {"read_bytes", cost.read_bytes}, {"write_bytes", cost.write_bytes}, {"flops", cost.flops}};
}

// Stores in `refusal` why the shares cannot be true, if they cannot.
Shares SharesOf(const Cost& cost, double median_us, const std::string& cache, const Limits& limits,
                std::string& refusal) {
  Shares shares;
  if (limits.peaks) {
    shares.floor = FloorOf(cost, *limits.peaks);
    const double percent = 100 * shares.floor->us / median_us;
    shares.percent_of_measured_peak = percent;
    shares.limit_is_wrong = cache == "cold" && percent > kMaxPercentOfPeak;
  }
  if (limits.datasheet) {
    const double gbps = limits.datasheet->memory_gbps;
    const Floor floor = FloorOf(cost, {.read_gbps = gbps,
                                       .two_to_one_gbps = gbps,
                                       .copy_gbps = gbps,
                                       .matmul_tflops = limits.datasheet->bf16_tflops});
    const double percent = 100 * floor.us / median_us;
    shares.percent_of_datasheet_peak = percent;
    if (cache == "cold" && percent > kMaxPercentOfPeak) {
      refusal = StrCat("above the roofline: ", median_us, " us is ", percent,
                       " % of the datasheet's ", floor.limit == "matmul" ? "matmul" : "memory",
                       " peak, and at most ", kMaxPercentOfPeak, " % can be true");
    }
  }
  return shares;
}

Json ToJson(const Shares& shares) {
  return {{"limit", shares.floor ? Json(shares.floor->limit) : Json(nullptr)},
          {"floor_us", shares.floor ? Json(shares.floor->us) : Json(nullptr)},
          {"percent_of_measured_peak", OrNull(shares.percent_of_measured_peak)},
          {"percent_of_datasheet_peak", OrNull(shares.percent_of_datasheet_peak)},
          {"limit_is_wrong", shares.limit_is_wrong}};
}

}  // namespace

std::string NewRunId() {
  std::random_device device;
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += std::to_string(device()) + ' ';
  return HashText(bytes);
}

Floor FloorOf(const Cost& cost, const Peaks& peaks) {
  Floor memory{cost.Bytes() / peaks.read_gbps / 1e3, "read"};
  if (cost.write_bytes >= kCopyWriteShare * cost.Bytes()) {
    memory = {cost.Bytes() / peaks.copy_gbps / 1e3, "copy"};
  } else if (cost.write_bytes >= kTwoToOneWriteShare * cost.Bytes() && peaks.two_to_one_gbps > 0) {
    memory = {cost.Bytes() / peaks.two_to_one_gbps / 1e3, "2:1"};
  }
  const double matmul_us = peaks.matmul_tflops > 0 ? cost.flops / peaks.matmul_tflops / 1e6 : 0;
  return matmul_us > memory.us ? Floor{matmul_us, "matmul"} : memory;
}

KernelFigures FiguresOf(const KernelMeasurement& m) {
  KernelFigures figures{.refusal = WhyRefused(m.trouble, WhyUnverified(m.verified),
                                              m.samples.us.size(), kMinSamples)};
  if (!figures.refusal.empty()) return figures;
  figures.us = Summarize(m.samples.us);
  figures.gbps = m.cost.Bytes() / figures.us.median / 1e3;
  figures.tflops = m.cost.flops / figures.us.median / 1e6;
  figures.shares = SharesOf(m.cost, figures.us.median, m.cache, m.limits, figures.refusal);
  return figures;
}

Json KernelRow(const KernelMeasurement& m) {
  const KernelFigures figures = FiguresOf(m);
  Json row = BeginRow(m.kernel, m.origin, m.trouble, figures.refusal);
  row.update(Json{{"shape", m.shape},
                  {"cache", m.cache},
                  {"chain", m.chain},
                  {"chosen", m.chosen},
                  {"verified",
                   {{"before", m.verified.before},
                    {"after", m.verified.after},
                    {"max_error_over_bound", m.verified.max_error_over_bound},
                    {"audits", m.verified.audits}}},
                  {"cost", ToJson(m.cost)},
                  {"memory_bytes", OrNull(m.memory_bytes)},
                  {"launches_per_sample", m.samples.launches_per_sample},
                  {"buffer_sets", m.samples.buffer_sets}});
  if (!figures.refusal.empty()) return row;
  row.update(Json{{"samples_us", m.samples.us},
                  {"median_us", figures.us.median},
                  {"mad_us", figures.us.mad},
                  {"ci95_us", ToJson(MedianInterval(m.samples.us))},
                  {"stopped", OrNull(m.samples.stopped)},
                  {"fresh_us", OrNull(m.samples.fresh_us)},
                  {"rested", m.samples.rested},
                  {"gbps", figures.gbps},
                  {"tflops", figures.tflops}});
  row.update(ToJson(figures.shares));
  return row;
}

DecoderFigures FiguresOf(const DecoderMeasurement& m) {
  DecoderFigures figures{
      .refusal = WhyRefused(m.trouble, WhyUnverified(m.judged), m.samples.step_ms.size())};
  if (!figures.refusal.empty()) return figures;
  figures.step_ms = Summarize(m.samples.step_ms);
  const auto batch = static_cast<double>(m.shape.batch);
  figures.prefill_tok_s =
      batch * static_cast<double>(m.shape.prompt_tokens) / Summarize(m.samples.prefill_s).median;
  figures.decode_tok_s = 1e3 * batch / figures.step_ms.median;
  figures.shares =
      SharesOf(m.cost, 1e3 * figures.step_ms.median, m.cache, m.limits, figures.refusal);
  return figures;
}

Json DecoderRow(const DecoderMeasurement& m) {
  const DecoderFigures figures = FiguresOf(m);
  Json row = BeginRow("decoder", m.origin, m.trouble, figures.refusal);
  row.update(Json{{"model", m.model},
                  {"cache", m.cache},
                  {"batch", m.shape.batch},
                  {"depth", m.shape.depth},
                  {"prompt_tokens", m.shape.prompt_tokens},
                  {"new_tokens", m.shape.new_tokens},
                  {"page_size", m.page_size},
                  {"verified", JudgedJson(m.judged)},
                  {"cost", ToJson(m.cost)},
                  {"memory_bytes", OrNull(m.memory_bytes)}});
  if (m.ranks > 1) row.update(Json{{"ranks", m.ranks}, {"link_bytes", m.link_bytes}});
  if (!figures.refusal.empty()) return row;
  row.update(Json{{"samples_prefill_s", m.samples.prefill_s},
                  {"samples_ms", m.samples.step_ms},
                  {"prefill_tok_s", figures.prefill_tok_s},
                  {"decode_tok_s", figures.decode_tok_s},
                  {"ms_per_token", figures.step_ms.median},
                  {"mad_ms", figures.step_ms.mad},
                  {"ci95_ms", ToJson(MedianInterval(m.samples.step_ms))},
                  {"host_share", m.samples.host_share},
                  {"profile", m.profile ? ToJson(*m.profile) : Json(nullptr)}});
  row.update(ToJson(m.samples.latencies));
  row.update(ToJson(figures.shares));
  return row;
}

Json ToJson(const MemoryNeeds& memory) {
  return {{"weights", memory.weight_bytes},
          {"kv_cache", memory.kv_bytes},
          {"activations", memory.activation_bytes},
          {"workspaces", memory.workspace_bytes},
          {"tables", memory.table_bytes}};
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

WorkloadFigures FiguresOf(const WorkloadMeasurement& m) {
  WorkloadFigures figures{.refusal =
                              WhyRefused(m.trouble, WhyUnverified(m.judged), m.samples.size())};
  if (!figures.refusal.empty()) return figures;
  std::vector<double> seconds, new_tokens, tokens_per_s;
  for (const WorkloadSample& sample : m.samples) {
    seconds.push_back(sample.total_s);
    new_tokens.push_back(static_cast<double>(sample.new_tokens));
    tokens_per_s.push_back(static_cast<double>(sample.prompt_tokens + sample.new_tokens) /
                           sample.total_s);
  }
  figures.us_per_token = MicrosecondsPerToken(seconds, new_tokens);
  figures.us = Summarize(figures.us_per_token);
  figures.total_s = Median(seconds);
  figures.output_tok_s = 1e6 / figures.us.median;
  figures.total_tok_s = Median(tokens_per_s);
  if (m.promise) {
    figures.goodput_req_s = static_cast<double>(m.promise->good_requests) / figures.total_s;
  }
  return figures;
}

Json WorkloadRow(const WorkloadMeasurement& m) {
  const WorkloadFigures figures = FiguresOf(m);
  Json row = BeginRow("workload", m.origin, m.trouble, figures.refusal);
  Json shape = m.shape;
  shape.update(Json{{"requests", m.requests}, {"prompt_tokens", m.prompt_tokens}});
  row.update(Json{{"model", m.model},
                  {"shape", std::move(shape)},
                  {"verified", JudgedJson(m.judged)},
                  {"memory_bytes", m.memory.Total()},
                  {"memory", ToJson(m.memory)}});
  if (!m.conversations.is_null()) row["conversations"] = m.conversations;
  if (!figures.refusal.empty()) return row;
  const ServingFigures& s = m.serving;
  row.update(Json{{"samples_s", Json::array()},
                  {"samples_new_tokens", Json::array()},
                  {"total_s", figures.total_s},
                  {"output_tok_s", figures.output_tok_s},
                  {"total_tok_s", figures.total_tok_s},
                  {"median_us", figures.us.median},
                  {"mad_us", figures.us.mad},
                  {"ci95_us", ToJson(MedianInterval(figures.us_per_token))},
                  {"warm_up_s", m.warm_up_s},
                  {"host_share", s.host.share},
                  {"step_host_us", s.host.step_us},
                  {"steps", s.steps.all},
                  {"graph_steps", s.steps.graphs},
                  {"preemptions", s.tokens.preemptions},
                  {"recomputed_tokens", s.tokens.recomputed},
                  {"reused_tokens", s.tokens.reused},
                  {"decode_read_bytes", s.decode_reads.bytes},
                  {"decode_unshared_bytes", s.decode_reads.unshared},
                  {"kv_pages", s.kv_pages.all},
                  {"mean_kv_pages", s.kv_pages.mean},
                  {"max_kv_pages", s.kv_pages.most},
                  {"memory_points", Json::array()}});
  row.update(ToJson(s.latencies));
  if (m.promise) {
    const auto ms = [](std::optional<double> seconds) {
      return seconds ? Json(1e3 * *seconds) : Json(nullptr);
    };
    row["slo"] = {{"first_token_ms", ms(m.promise->bound.first_token_s)},
                  {"mean_between_ms", ms(m.promise->bound.mean_between_s)}};
    row["good_requests"] = m.promise->good_requests;
    row["goodput_req_s"] = *figures.goodput_req_s;
  }
  for (const WorkloadSample& sample : m.samples) {
    row["samples_s"].push_back(sample.total_s);
    row["samples_new_tokens"].push_back(sample.new_tokens);
  }
  for (const MemoryPoint& point : m.memory_points) row["memory_points"].push_back(ToJson(point));
  return row;
}

std::string WhyRefused(const AblationMeasurement& m) {
  return WhyRefused(m.trouble, "", m.end_to_end_ms.with.size());
}

Json AblationRow(const AblationMeasurement& m) {
  const std::string refusal = WhyRefused(m);
  Json row{{"schema", kRecordSchema},
           {"kind", "ablation"},
           {"run_id", m.origin.run_id},
           {"model", m.model},
           {"dtype", m.origin.dtype},
           {"device", m.origin.device},
           {"batch", m.shape.batch},
           {"prompt_tokens", m.shape.prompt_tokens},
           {"new_tokens", m.shape.new_tokens},
           {"name", m.name},
           {"instead", m.instead},
           {"status", refusal.empty() ? "ok" : "refused"},
           {"reason", OrNull(refusal)},
           {"interrupted", m.trouble.interrupted}};
  if (!refusal.empty()) return row;
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
                     {"two_to_one_gbps", header.peaks->two_to_one_gbps},
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
