// Checks what a schema cannot express about a record: that figures follow from samples and cost,
// and that sums add up.
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "harness/measure/timing.h"
#include "harness/record/record_file.h"
#include "harness/record/schema.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using Numbers = std::vector<double>;

// Within one part per million; false for NaN.
bool Near(double stated, double value) {
  return std::abs(stated - value) <= 1e-6 * std::abs(value) + 1e-12;
}

void RequireFigures(const Json& row,
                    std::initializer_list<std::pair<const char*, double>> figures) {
  for (const auto& [name, value] : figures) {
    Require(Near(row[name], value), "row.", name, " is ", row[name].get<double>(),
            ", but from the samples and the cost follows ", value);
  }
}

// Checks the figures that end with `unit` and returns the median.
double RequireSpread(const Json& row, const char* median, const std::string& unit,
                     const Numbers& samples) {
  const SampleStats stats = Summarize(samples);
  const Interval follows = MedianInterval(samples);
  RequireFigures(row, {{median, stats.median}, {("mad_" + unit).c_str(), stats.mad}});
  const Json& stated = row["ci95_" + unit];
  Require(Near(stated[0], follows.low) && Near(stated[1], follows.high), "row.ci95_", unit, " is ",
          Brief(stated), ", but from the samples follows [", follows.low, ", ", follows.high, "]");
  return stats.median;
}

void RequireShare(const Json& row, double median_us) {
  if (row["limit"].is_null()) return;
  RequireFigures(row,
                 {{"percent_of_measured_peak", 100 * row["floor_us"].get<double>() / median_us}});
}

void RequireAscending(const std::string& name, const Numbers& values, const char* what) {
  for (size_t i = 1; i < values.size(); ++i) {
    Require(values[i - 1] <= values[i], "row.", name, " is ", values[i - 1], " and then ",
            values[i], "; ", what, " must ascend");
  }
}

// Checks two lists of samples of the same rounds or repeats.
void RequirePairs(const Json& row, const char* one, const char* other) {
  Require(row[one].size() == row[other].size(), "there are ", row[one].size(), " samples of ", one,
          " and ", row[other].size(), " of ", other, "; each round or repeat gives one of each");
}

// Checks the latencies that the row has: percentiles ascend, and one is stated exactly where there
// are enough latencies for it.
void RequireLatencies(const Json& row) {
  for (const char* name : {"first_token_ms", "between_tokens_ms", "end_to_end_ms"}) {
    const Json latency = row.value(name, Json(nullptr));
    if (latency.is_null()) continue;
    Numbers stated = {latency["median"]};
    for (const auto& [percentile, least] : {std::pair("p90", 10), std::pair("p99", 100)}) {
      const bool is_stated = !latency[percentile].is_null();
      if (is_stated) stated.push_back(latency[percentile]);
      Require(!latency.contains("count") || is_stated == (latency["count"] >= least), "row.", name,
              ".", percentile, " is ", Brief(latency[percentile]), " of ",
              Brief(latency.value("count", Json(nullptr))), " latencies; it is stated of ", least,
              " and more");
    }
    RequireAscending(name, stated, "percentiles");
  }
}

void ValidateKernel(const Json& row) {
  const double median = RequireSpread(row, "median_us", "us", row["samples_us"]);
  const Json& cost = row["cost"];
  const double bytes = cost["read_bytes"].get<double>() + cost["write_bytes"].get<double>();
  RequireFigures(row, {{"gbps", bytes / median / 1e3},
                       {"tflops", cost["flops"].get<double>() / median / 1e6}});
  RequireShare(row, median);
}

void ValidateDecoder(const Json& row) {
  const double step_ms = RequireSpread(row, "ms_per_token", "ms", row["samples_ms"]);
  const double prefill_s = Median(row["samples_prefill_s"]);
  const double batch = row["batch"], prompt_tokens = row["prompt_tokens"];
  RequireFigures(row, {{"decode_tok_s", 1e3 * batch / step_ms},
                       {"prefill_tok_s", batch * prompt_tokens / prefill_s}});
  RequireShare(row, 1e3 * step_ms);
  RequireLatencies(row);
  const Json& profile = row["profile"];
  if (profile.is_null()) return;
  double sum = profile["device_gap_us"].get<double>() + profile["host_gap_us"].get<double>() +
               profile.value("tracing_us", 0.0) + profile.value("unexplained_us", 0.0);
  for (const Json& op : profile["ops"]) {
    sum += op["us"].get<double>();
    if (!op.contains("phases")) continue;
    double phases_us = 0;
    for (const Json& phase : op["phases"]) phases_us += phase["us"].get<double>();
    Require(Near(op["us"], phases_us), "us of op ", op["op"].get<std::string>(), " is ",
            op["us"].get<double>(), ", but its phases add up to ", phases_us);
  }
  const double step_us = profile["step_us"];
  Require(Near(step_us, sum), "row.profile.step_us is ", step_us, ", but its parts add up to ",
          sum);
}

void ValidateWorkload(const Json& row) {
  RequirePairs(row, "samples_s", "samples_new_tokens");
  const Numbers seconds = row["samples_s"], new_tokens = row["samples_new_tokens"];
  const double us =
      RequireSpread(row, "median_us", "us", MicrosecondsPerToken(seconds, new_tokens));
  const double prompt_tokens = row["shape"]["prompt_tokens"];
  Numbers tokens_per_s;
  for (size_t i = 0; i < seconds.size(); ++i) {
    tokens_per_s.push_back((prompt_tokens + new_tokens[i]) / seconds[i]);
  }
  RequireFigures(row, {{"output_tok_s", 1e6 / us},
                       {"total_s", Median(seconds)},
                       {"total_tok_s", Median(tokens_per_s)}});
  if (!row["library"].is_null()) return;  // only the throughput of another program is known
  RequireLatencies(row);
  if (row.contains("slo")) {
    RequireAscending("good_requests", {row["good_requests"], row["shape"]["requests"]},
                     "it and the number of requests");
    RequireFigures(row, {{"goodput_req_s", row["good_requests"].get<double>() / Median(seconds)}});
  }
  RequireAscending("decode_read_bytes", {row["decode_read_bytes"], row["decode_unshared_bytes"]},
                   "it and decode_unshared_bytes");
  RequireAscending("mean_kv_pages", {row["mean_kv_pages"], row["max_kv_pages"], row["kv_pages"]},
                   "it, max_kv_pages and kv_pages");
}

void ValidateRow(const Json& row) {
  const bool workload = row["kernel"] == "workload";
  if (workload && row["library"].is_null()) {
    int64_t sum = 0;
    for (const Json& use : row["memory"]) sum += use.get<int64_t>();
    Require(row["memory_bytes"] == sum, "row.memory_bytes is ", row["memory_bytes"].get<int64_t>(),
            ", but its uses add up to ", sum);
  }
  if (row["status"] != "ok") return;
  workload                     ? ValidateWorkload(row)
  : row["kernel"] == "decoder" ? ValidateDecoder(row)
                               : ValidateKernel(row);
}

}  // namespace

void ValidateRecord(const Json& record) {
  const std::string kind =
      record.is_object() && record.contains("kind") && record["kind"].is_string() ? record["kind"]
                                                                                  : "record";
  RecordSchema().Validate(record, kind);
  if (kind == "row") ValidateRow(record);
  if (kind != "ablation" || record["status"] != "ok") return;
  RequirePairs(record["end_to_end"], "with_ms", "without_ms");
  if (!record["isolated"].is_null()) RequirePairs(record["isolated"], "with_us", "without_us");
}

}  // namespace tokline
