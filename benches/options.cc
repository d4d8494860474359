// Parses the command line of a bench program and prints its help.
#include "benches/options.h"

#include <charconv>

#include "harness/measure/timing.h"
#include "kernels/common/error.h"

namespace tokline::bench {
namespace {

constexpr int kMaxSamples = 10000;

int ParseSamples(const std::string& text) {
  int samples = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), samples);
  Require(error == std::errc() && end == text.data() + text.size() && samples >= kMinSamples &&
              samples <= kMaxSamples,
          "--samples is '", text, "'; it must be a whole number in [", kMinSamples, ", ",
          kMaxSamples, "]");
  return samples;
}

// Parses a percentage or a number of seconds.
double ParseNumber(const std::string& flag, const std::string& text, double least, double most) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  Require(
      error == std::errc() && end == text.data() + text.size() && number >= least && number <= most,
      flag, " is '", text, "'; it must be a number in [", least, ", ", most, "]");
  return number;
}

DType ParseDType(const std::string& text) {
  if (text == "bf16") return DType::kBf16;
  if (text == "fp16") return DType::kF16;
  throw InvalidArgument(StrCat("--dtype is '", text, "'; it must be bf16 or fp16"));
}

}  // namespace

Options ParseOptions(const std::vector<std::string>& args) {
  Options options;
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t equals = args[i].find('=');
    const std::string flag = args[i].substr(0, equals);
    const auto value = [&]() -> std::string {
      if (equals != std::string::npos) return args[i].substr(equals + 1);
      Require(i + 1 < args.size(), flag, " needs a value");
      return args[++i];
    };
    const auto no_value = [&] {
      Require(equals == std::string::npos, flag, " takes no value");
      return true;
    };
    if (flag.starts_with("--benchmark_") || flag == "--v") {
      options.rest.push_back(args[i]);
    } else if (flag == "--device") {
      options.device = value();
      Require(options.device == "auto" || options.device == "cpu" || options.device == "cuda",
              "--device is '", options.device, "'; it must be auto, cpu or cuda");
    } else if (flag == "--shapes") {
      options.shapes = value();
      Require(!options.shapes.empty(), "--shapes is empty; it must name a file");
    } else if (flag == "--record") {
      options.record = value();
      Require(!options.record.empty(), "--record is empty; it must name a file");
    } else if (flag == "--dtype") {
      options.dtype = ParseDType(value());
    } else if (flag == "--samples") {
      options.rule.samples = ParseSamples(value());
    } else if (flag == "--precision") {
      options.rule.precision = ParseNumber(flag, value(), 0.01, 100) / 100;
    } else if (flag == "--max-seconds") {
      options.rule.seconds = ParseNumber(flag, value(), 0, 3600);
    } else if (flag == "--peaks") {
      options.peaks = value();
      Require(!options.peaks.empty(), "--peaks is empty; it must name a record file");
    } else if (flag == "--inject-slowdown") {
      options.slowdown_percent = ParseNumber(flag, value(), 0.1, 100);
    } else if (flag == "--verify-only") {
      options.verify_only = no_value();
    } else if (flag == "--help" || flag == "-h") {
      options.help = no_value();
    } else {
      throw InvalidArgument("unknown argument '" + args[i] + "'; --help lists all flags");
    }
  }
  return options;
}

std::string OptionsHelp(const std::string& program) {
  std::string help =
      "usage: PROGRAM [flags]\n"
      R"(
Times one kernel on each shape, verifies its output, and audits it on fresh inputs while it is timed.
          [--device auto|cpu|cuda]   cuda needs a device; without one, auto runs the CPU reference
                                     on small shapes (default: auto)
          [--shapes FILE]            JSON shapes instead of the default ones (docs/measuring.md)
          [--dtype bf16|fp16]        storage type (default: bf16)
          [--precision PERCENT]      sample until half the width of the median's 95 % confidence
                                     interval is at most this (default: 0.5)
          [--max-seconds S]          or until a row's samples have taken S seconds in total
                                     (default: 0.5), but take at least 15 samples
          [--samples N]              take exactly N samples per row instead, at least 15
          [--peaks FILE]             use the peaks that a run on the same GPU recorded in this file
                                     within the last hour, instead of measuring them
          [--verify-only]            compare with the reference without timing or recording
          [--record FILE]            append machine-readable rows (JSON lines)
          [--inject-slowdown PERCENT]
                                     make every row slower, to test the tools; the record says so
          [--help]
Examples: PROGRAM --record out.jsonl
          PROGRAM --benchmark_filter=plain --precision 0.2 --max-seconds 2
Exit code: 0 all rows measured and verified, 1 failure, 2 usage, 130 interrupted.

Google Benchmark's own flags:
)";
  const std::string placeholder = "PROGRAM";
  for (size_t at = 0; (at = help.find(placeholder, at)) != std::string::npos;) {
    help.replace(at, placeholder.size(), program);
  }
  return help;
}

}  // namespace tokline::bench
