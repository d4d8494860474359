#include <cmath>
#include <initializer_list>
#include <string>

#include "harness/core/timing.h"
#include "harness/record/record_file.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Fields of one record, read with a message for each that is missing or of another form.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    Require(object.is_object(), where_, " must be an object, but is ", object.dump().substr(0, 60));
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
      Require(number.is_number(), where_, ".", key, " holds ", number.dump().substr(0, 60),
              "; each must be a number");
      numbers.push_back(number);
    }
    return numbers;
  }
  // `value` within one part in a million.
  void Follows(const char* key, double value) const {
    const double stated = Number(key, 0);
    Require(std::abs(stated - value) <= 1e-6 * std::abs(value) + 1e-12, where_, ".", key, " is ",
            stated, ", but from the samples and the cost follows ", value);
  }
  void Fail(bool ok, const char* key, const std::string& needed) const {
    Require(ok, where_, ".", key, " is ", At(key).dump().substr(0, 60), "; it must be ", needed);
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
  const Fields cost = row.Object("cost");
  const double bytes = cost.Number("read_bytes", 0) + cost.Number("write_bytes", 0);
  row.Follows("gbps", bytes / stats.median / 1e3);
  row.Follows("tflops", cost.Number("flops", 0) / stats.median / 1e6);
  const Fields verified = row.Object("verified");
  Require(verified.Flag("before") && verified.Flag("after") &&
              verified.Number("max_error_over_bound", 0) <= 1,
          "row.verified is ", row.At("verified").dump(), "; a row with figures must be verified");
  ValidateShares(row, stats.median);
}

void ValidateDecoderFigures(const Fields& row) {
  const SampleStats step = Summarize(row.Numbers("samples_ms"));
  const double prefill_s = Summarize(row.Numbers("samples_prefill_s")).median;
  const auto batch = static_cast<double>(row.Integer("batch", 1));
  const auto prompt_tokens = static_cast<double>(row.Integer("prompt_tokens", 1));
  row.Follows("ms_per_token", step.median);
  row.Follows("mad_ms", step.mad);
  row.Follows("decode_tok_s", 1e3 * batch / step.median);
  row.Follows("prefill_tok_s", batch * prompt_tokens / prefill_s);
  row.Number("host_share", 0);
  const Fields verified = row.Object("verified");
  Require(verified.Integer("tokens", 0) > 0 && verified.Number("mean_regret", 0) <= kMaxMeanRegret,
          "row.verified is ", row.At("verified").dump(), "; a row with figures must be verified");
  ValidateShares(row, 1e3 * step.median);
}

void ValidateRow(const Fields& row) {
  const bool decoder = row.Text("kernel") == "decoder";
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
  } else {
    row.Object("shape").Text("name");
    row.OneOf("chain", {"plain", "dependent", "none"});
    row.Integer("launches_per_sample", 1);
    row.Integer("buffer_sets", 1);
  }
  row.OneOf("cache", {"cold", "warm", "cpu"});
  row.Object("cost");
  if (!refused) {
    decoder ? ValidateDecoderFigures(row) : ValidateFigures(row);
    return;
  }
  for (const char* key : {"median_us", "samples_us", "ms_per_token", "samples_ms"}) {
    Require(!row.Has(key), "row is refused, but has ", key, "; a refused row must have no figures");
  }
}

}  // namespace

void ValidateRecord(const Json& record) {
  const Fields fields(record, "record");
  Require(fields.Integer("schema", 1) == kRecordSchema, "record.schema is ",
          fields.Integer("schema", 1), "; this program reads schema ", kRecordSchema);
  fields.Text("run_id");
  const std::string kind = fields.OneOf("kind", {"run", "row", "end"});
  if (kind == "run") {
    const Fields run(record, "run");
    run.Text("program");
    const Fields print = run.Object("fingerprint");
    for (const char* key : {"time_utc", "commit", "dirty", "compiler", "flags", "cpu", "os"}) {
      print.Text(key);
    }
    if (!run.IsNull("peaks")) {
      run.Object("peaks").Number("read_gbps", 0);
      run.Object("peaks").Number("copy_gbps", 0);
      run.Object("peaks").Number("matmul_tflops", 0);
    }
  } else if (kind == "row") {
    ValidateRow(Fields(record, "row"));
  } else {
    const Fields end(record, "end");
    end.Flag("interrupted");
    end.Integer("rows", 0);
    end.Integer("refused", 0);
  }
}

}  // namespace tokline
