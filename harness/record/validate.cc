#include <cmath>
#include <initializer_list>
#include <span>
#include <string>

#include "harness/measure/timing.h"
#include "harness/record/record_file.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Within one part in a million; false for NaN.
bool Near(double stated, double value) {
  return std::abs(stated - value) <= 1e-6 * std::abs(value) + 1e-12;
}

// The beginning of a value, for a message.
std::string Brief(const Json& value) {
  constexpr size_t kLength = 60;
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, kLength);
}

// Fields of one record, read with a message for each that is missing or of another form.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object())
      throw InvalidArgument(where_ + " must be an object, but is " + Brief(object));
  }

  const Json& At(const char* key) const {
    const auto at = object_.find(key);
    Require(at != object_.end(), where_, " has no field '", key, "'");
    return *at;
  }
  bool Has(const char* key) const { return object_.contains(key); }
  Fields Object(const char* key) const { return Fields(At(key), where_ + "." + key); }
  bool IsNull(const char* key) const { return At(key).is_null(); }
  std::string Text(const char* key) const {
    const Json& value = At(key);
    Fail(value.is_string() && !value.get_ref<const std::string&>().empty(), key,
         "a non-empty string");
    return value;
  }
  std::string OneOf(const char* key, std::initializer_list<const char*> allowed) const {
    const std::string text = Text(key);
    std::string list;
    for (const char* choice : allowed) {
      if (text == choice) return text;
      list += list.empty() ? choice : std::string(", ") + choice;
    }
    Fail(false, key, "one of " + list);
    return text;
  }
  bool Flag(const char* key) const {
    Fail(At(key).is_boolean(), key, "true or false");
    return At(key);
  }
  double Number(const char* key, double least) const {
    const Json& value = At(key);
    Fail(value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= least,
         key, StrCat("a number of at least ", least));
    return value;
  }
  int64_t Integer(const char* key, int64_t least) const {
    const Json& value = At(key);
    Fail(value.is_number_integer() && value.get<int64_t>() >= least, key,
         StrCat("a whole number of at least ", least));
    return value;
  }
  std::vector<double> Numbers(const char* key) const {
    Fail(At(key).is_array(), key, "a list of numbers");
    std::vector<double> numbers;
    for (const Json& number : At(key)) {
      if (!number.is_number()) {
        throw InvalidArgument(
            StrCat(where_, ".", key, " holds ", Brief(number), "; each must be a number"));
      }
      numbers.push_back(number);
    }
    return numbers;
  }
  // Null, or a non-empty string.
  void TextOrNull(const char* key) const {
    if (!IsNull(key)) Text(key);
  }
  void FlagOrNull(const char* key) const {
    if (!IsNull(key)) Flag(key);
  }
  void NumberOrNull(const char* key, double least) const {
    if (!IsNull(key)) Number(key, least);
  }
  void IntegerOrNull(const char* key, int64_t least) const {
    if (!IsNull(key)) Integer(key, least);
  }
  // `value` within one part in a million.
  void Follows(const char* key, double value) const {
    const double stated = Number(key, 0);
    Require(Near(stated, value), where_, ".", key, " is ", stated,
            ", but from the samples and the cost follows ", value);
  }
  void IsMedianInterval(const char* key, std::span<const double> samples) const {
    const std::vector<double> stated = Numbers(key);
    Fail(stated.size() == 2, key, "[low, high]");
    const Interval interval = MedianInterval(samples);
    Require(Near(stated[0], interval.low) && Near(stated[1], interval.high), where_, ".", key,
            " is ", Brief(At(key)), ", but from the samples follows [", interval.low, ", ",
            interval.high, "]");
  }
  void Fail(bool ok, const char* key, const std::string& needed) const {
    if (!ok)
      throw InvalidArgument(
          StrCat(where_, ".", key, " is ", Brief(At(key)), "; it must be ", needed));
  }

 private:
  const Json& object_;
  std::string where_;
};

void ValidateShares(const Fields& row, double median_us) {
  if (row.IsNull("limit")) return;
  row.OneOf("limit", {"read", "copy", "matmul"});
  const double percent = row.Number("percent_of_measured_peak", 0);
  row.Follows("percent_of_measured_peak", 100 * row.Number("floor_us", 0) / median_us);
  Require(row.Text("cache") != "cold" || percent <= kMaxPercentOfPeak,
          "row.percent_of_measured_peak is ", percent, " in a cold row; at most ",
          kMaxPercentOfPeak, " can be true");
}

void ValidateFigures(const Fields& row) {
  const std::vector<double> samples = row.Numbers("samples_us");
  Require(static_cast<int>(samples.size()) >= kMinSamples, "row.samples_us has ", samples.size(),
          " samples; at least ", kMinSamples, " are needed");
  const SampleStats stats = Summarize(samples);
  row.Follows("median_us", stats.median);
  row.Follows("mad_us", stats.mad);
  row.IsMedianInterval("ci95_us", samples);
  if (!row.IsNull("stopped")) row.OneOf("stopped", {"precise", "time"});
  row.NumberOrNull("fresh_us", 0);
  if (row.Has("rested")) row.Flag("rested");
  const Fields cost = row.Object("cost");
  const double bytes = cost.Number("read_bytes", 0) + cost.Number("write_bytes", 0);
  row.Follows("gbps", bytes / stats.median / 1e3);
  row.Follows("tflops", cost.Number("flops", 0) / stats.median / 1e6);
  const Fields verified = row.Object("verified");
  verified.Integer("audits", 0);
  Require(verified.Flag("before") && verified.Flag("after") &&
              verified.Number("max_error_over_bound", 0) <= 1,
          "row.verified is ", Brief(row.At("verified")), "; a row with figures must be verified");
  ValidateShares(row, stats.median);
}

void ValidateProfile(const Fields& profile) {
  profile.OneOf("method", {"cupti", "events", "clock"});
  profile.Integer("steps", 1);
  double sum = profile.Number("device_gap_us", 0) + profile.Number("host_gap_us", 0);
  profile.Fail(profile.At("ops").is_array(), "ops", "a list of ops");
  for (const Json& time : profile.At("ops")) {
    const Fields op(time, "row.profile.ops[]");
    op.Text("op");
    op.Text("kernel");
    op.Integer("launches", 1);
    sum += op.Number("us", 0);
  }
  const double step_us = profile.Number("step_us", 0);
  Require(Near(step_us, sum), "row.profile.step_us is ", step_us,
          ", but its ops and gaps add up to ", sum);
}

void ValidateJudged(const Fields& row, double most) {
  const Fields verified = row.Object("verified");
  Require(verified.Integer("tokens", 0) > 0 && verified.Number("mean_regret", 0) <= most,
          "row.verified is ", Brief(row.At("verified")), "; a row with figures must be verified");
}

void ValidateDecoderFigures(const Fields& row) {
  const std::vector<double> samples = row.Numbers("samples_ms");
  const SampleStats step = Summarize(samples);
  const double prefill_s = Summarize(row.Numbers("samples_prefill_s")).median;
  const auto batch = static_cast<double>(row.Integer("batch", 1));
  const auto prompt_tokens = static_cast<double>(row.Integer("prompt_tokens", 1));
  row.Follows("ms_per_token", step.median);
  row.Follows("mad_ms", step.mad);
  row.IsMedianInterval("ci95_ms", samples);
  if (!row.IsNull("profile")) ValidateProfile(row.Object("profile"));
  row.Follows("decode_tok_s", 1e3 * batch / step.median);
  row.Follows("prefill_tok_s", batch * prompt_tokens / prefill_s);
  row.Number("host_share", 0);
  ValidateJudged(row, kMaxMeanRegret);
  ValidateShares(row, 1e3 * step.median);
}

void ValidateMemory(const Fields& row) {
  const Fields memory = row.Object("memory");
  int64_t sum = 0;
  for (const char* use : {"weights", "kv_cache", "activations", "workspaces", "tables"}) {
    sum += memory.Integer(use, 0);
  }
  Require(row.Integer("memory_bytes", 1) == sum, "row.memory_bytes is ",
          row.Integer("memory_bytes", 1), ", but its uses add up to ", sum);
}

void ValidatePercentiles(const Fields& latency, const char* what) {
  const double median = latency.Number("median", 0), p90 = latency.Number("p90", 0);
  Require(median <= p90 && p90 <= latency.Number("p99", 0), "row.", what,
          " does not ascend from the median to p99");
}

void ValidateWorkloadFigures(const Fields& row) {
  const std::vector<double> seconds = row.Numbers("samples_s");
  const std::vector<double> new_tokens = row.Numbers("samples_new_tokens");
  Summarize(seconds);
  Summarize(new_tokens);
  Require(seconds.size() == new_tokens.size(), "row.samples_s has ", seconds.size(),
          " samples and row.samples_new_tokens ", new_tokens.size(),
          "; a repeat gives one of both");
  const std::vector<double> us = MicrosecondsPerToken(seconds, new_tokens);
  const SampleStats stats = Summarize(us);
  row.Follows("median_us", stats.median);
  row.Follows("mad_us", stats.mad);
  row.IsMedianInterval("ci95_us", us);
  row.Follows("output_tok_s", 1e6 / stats.median);
  row.Follows("total_s", Median(seconds));
  const auto prompt_tokens = static_cast<double>(row.Object("shape").Integer("prompt_tokens", 1));
  std::vector<double> tokens_per_s;
  for (size_t i = 0; i < seconds.size(); ++i) {
    tokens_per_s.push_back((prompt_tokens + new_tokens[i]) / seconds[i]);
  }
  row.Follows("total_tok_s", Median(tokens_per_s));
  ValidatePercentiles(row.Object("first_token_ms"), "first_token_ms");
  ValidatePercentiles(row.Object("between_tokens_ms"), "between_tokens_ms");
  for (const char* key : {"warm_up_s", "host_share", "step_host_us"}) row.Number(key, 0);
  for (const char* key :
       {"steps", "graph_steps", "preemptions", "recomputed_tokens", "reused_tokens"}) {
    row.Integer(key, 0);
  }
  Require(row.Integer("decode_read_bytes", 0) <= row.Integer("decode_unshared_bytes", 0),
          "row.decode_read_bytes is more than decode_unshared_bytes");
  const auto pages = static_cast<double>(row.Integer("kv_pages", 1));
  Require(row.Number("mean_kv_pages", 0) <= row.Number("max_kv_pages", 0) &&
              row.Number("max_kv_pages", 0) <= pages,
          "row.mean_kv_pages, max_kv_pages and kv_pages do not ascend");
  row.Fail(row.At("memory_points").is_array(), "memory_points", "a list");
  for (const Json& json : row.At("memory_points")) {
    const Fields point(json, "row.memory_points[]");
    for (const char* key : {"requests", "host_resident", "host_anonymous", "host_heap", "sequences",
                            "chunks", "chunk_ids", "kv_pages"}) {
      point.Integer(key, 0);
    }
    point.IntegerOrNull("device_free", 0);
  }
  ValidateJudged(row, kMaxMeanDrawRegret);
}

void ValidateWorkloadShape(const Fields& shape) {
  shape.Text("name");
  shape.Text("hash");
  for (const char* key :
       {"requests", "prompt_tokens", "new_tokens", "max_batch", "token_budget", "page_size"}) {
    shape.Integer(key, 1);
  }
  shape.Flag("reuse");
  if (!shape.IsNull("kv_limit")) shape.Object("kv_limit");
  if (shape.Has("sharing")) shape.OneOf("sharing", {"never", "always"});
}

void ValidateRow(const Fields& row) {
  const bool decoder = row.Text("kernel") == "decoder", workload = row.Text("kernel") == "workload";
  row.Text("implementation");
  row.Text("dtype");
  row.Text("device");
  row.Flag("interrupted");
  const bool refused = row.OneOf("status", {"ok", "refused"}) == "refused";
  if (refused) row.Text("reason");
  if (decoder) {
    row.Text("model");
    row.Integer("batch", 1);
    row.Integer("prompt_tokens", 1);
    row.Integer("new_tokens", 1);
  } else if (workload) {
    row.Text("model");
    ValidateWorkloadShape(row.Object("shape"));
    ValidateMemory(row);
  } else {
    row.Object("shape").Text("name");
    row.OneOf("chain", {"plain", "dependent", "none"});
    row.Integer("launches_per_sample", 1);
    row.Integer("buffer_sets", 1);
  }
  if (!workload) {
    row.OneOf("cache", {"cold", "warm", "cpu"});
    row.Object("cost");
  }
  row.TextOrNull("disturbed");
  row.IntegerOrNull("memory_bytes", 1);
  if (!row.IsNull("library")) {
    row.Object("library").Text("name");
    row.Object("library").Text("version");
  }
  if (!refused) {
    workload  ? ValidateWorkloadFigures(row)
    : decoder ? ValidateDecoderFigures(row)
              : ValidateFigures(row);
    return;
  }
  for (const char* key : {"median_us", "samples_us", "ci95_us", "fresh_us", "ms_per_token",
                          "samples_ms", "ci95_ms", "profile", "samples_s", "output_tok_s"}) {
    Require(!row.Has(key), "row is refused, but has ", key, "; a refused row must have no figures");
  }
}

// Two lists of samples, one of each a round.
void ValidatePairs(const Fields& pairs, const char* with_key, const char* without_key) {
  const std::vector<double> with = pairs.Numbers(with_key);
  const std::vector<double> without = pairs.Numbers(without_key);
  Summarize(with);
  Summarize(without);
  Require(with.size() == without.size(), "ablation has ", with.size(), " samples ", with_key,
          " and ", without.size(), " samples ", without_key, "; each round gives one of both");
}

void ValidateAblation(const Fields& row) {
  for (const char* key : {"model", "dtype", "device", "name", "instead"}) row.Text(key);
  for (const char* key : {"batch", "prompt_tokens", "new_tokens"}) row.Integer(key, 1);
  row.Flag("interrupted");
  if (row.OneOf("status", {"ok", "refused"}) == "refused") {
    row.Text("reason");
    Require(!row.Has("end_to_end") && !row.Has("isolated"),
            "ablation is refused, but has samples; a refused one must have none");
    return;
  }
  ValidatePairs(row.Object("end_to_end"), "with_ms", "without_ms");
  if (!row.IsNull("isolated")) ValidatePairs(row.Object("isolated"), "with_us", "without_us");
}

void ValidateGpu(const Fields& gpu) {
  for (const char* key : {"name", "uuid_hash", "compute_capability"}) gpu.Text(key);
  gpu.NumberOrNull("max_sm_clock_mhz", 1);
  gpu.FlagOrNull("mig");
  gpu.FlagOrNull("mps");
}

// Words for what was done to the run on purpose, each with its amount or its target.
void ValidateInjected(const Fields& run) {
  const Json& injected = run.At("injected");
  run.Fail(injected.is_null() || (injected.is_object() && !injected.empty()), "injected",
           "null, or an object that says what was done");
  for (const auto& [key, value] : injected.items()) {
    Require(value.is_number() || value.is_string(), "run.injected.", key, " is ", Brief(value),
            "; it must be a number or a string");
  }
}

}  // namespace

void ValidateRecord(const Json& record) {
  const Fields fields(record, "record");
  Require(fields.Integer("schema", 1) == kRecordSchema, "record.schema is ",
          fields.Integer("schema", 1), "; this program reads schema ", kRecordSchema);
  fields.Text("run_id");
  const std::string kind = fields.OneOf("kind", {"run", "row", "ablation", "end"});
  if (kind == "run") {
    const Fields run(record, "run");
    run.Text("program");
    const Fields print = run.Object("fingerprint");
    for (const char* key : {"time_utc", "commit", "dirty", "compiler", "flags", "cpu", "os"}) {
      print.Text(key);
    }
    if (!print.IsNull("gpu")) ValidateGpu(print.Object("gpu"));
    ValidateInjected(run);
    if (!run.IsNull("peaks")) {
      run.Object("peaks").Number("read_gbps", 0);
      run.Object("peaks").Number("copy_gbps", 0);
      run.Object("peaks").Number("matmul_tflops", 0);
      run.Object("peaks").TextOrNull("from_run");
    }
  } else if (kind == "row") {
    ValidateRow(Fields(record, "row"));
  } else if (kind == "ablation") {
    ValidateAblation(Fields(record, "ablation"));
  } else {
    const Fields end(record, "end");
    end.Flag("interrupted");
    end.Integer("rows", 0);
    end.Integer("refused", 0);
  }
}

}  // namespace tokline
