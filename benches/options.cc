// Parses the command line of a bench program and prints its help.
#include "benches/options.h"

#include <array>

#include "harness/measure/timing.h"
#include "harness/platform/flags.h"
#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline::bench {
namespace {

constexpr int kMaxSamples = 10000;
constexpr std::array<std::string_view, 3> kDevices = {"auto", "cpu", "cuda"};
constexpr std::array<std::string_view, 2> kDTypes = {"bf16", "fp16"};

FlagSetter NumberInto(double& target, double least, double most) {
  return [=, &target](std::string_view flag, std::string_view text) {
    target = ParseReal(flag, text);
    Require(target >= least && target <= most, flag, " is ", Quoted(text),
            "; it must be a number in [", least, ", ", most, "]");
  };
}

std::vector<Flag> Table(Options& options) {
  std::vector<Flag> flags = {
      {"--device", "auto|cpu|cuda",
       "auto: cuda if there is a device, otherwise the CPU reference on small shapes (default)",
       [&options](auto flag, auto text) {
         options.device = kDevices[ParseChoice(flag, text, kDevices)];
       }},
      {"--shapes", "FILE", "JSON shapes instead of the default ones (docs/measuring.md)",
       TextInto(options.shapes)},
      {"--dtype", "bf16|fp16", "storage type (default: bf16)",
       [&options](auto flag, auto text) {
         options.dtype = ParseChoice(flag, text, kDTypes) == 0 ? DType::kBf16 : DType::kF16;
       }},
      {"--precision", "PERCENT",
       "sample until half the median's 95 % interval is at most this (default: 0.5)",
       [&options](auto flag, auto text) {
         NumberInto(options.rule.precision, 0.01, 100)(flag, text);
         options.rule.precision /= 100;
       }},
      {"--max-seconds", "S",
       "or until a row's samples have taken this long in total (default: 0.5)",
       NumberInto(options.rule.seconds, 0, 3600)},
      {"--samples", "N", "take exactly N samples per row instead, at least 15",
       IntegerInto(options.rule.samples, kMinSamples, kMaxSamples)},
      {"--peaks", "FILE", "use the peaks that a run on this GPU recorded here in the last hour",
       TextInto(options.peaks)},
      {"--verify-only", "", "compare with the reference without timing or recording",
       SwitchInto(options.verify_only)},
      {"--record", "FILE", "append machine-readable rows (JSON lines)", TextInto(options.record)},
      {"--inject-slowdown", "PERCENT",
       "make every row slower, to test the tools; the record says so",
       NumberInto(options.slowdown_percent, 0.1, 100)},
      {"--help", "", "print this", SwitchInto(options.help)},
      {"-h", "", "same as --help", SwitchInto(options.help)}};
  for (Flag& flag : flags) flag.repeats = true;  // a user's flag replaces one of scripts/bench
  return flags;
}

}  // namespace

Options ParseOptions(const std::vector<std::string>& args) {
  Options options;
  std::vector<std::string> own;
  for (const std::string& arg : args) {
    const bool is_own = !arg.starts_with("--benchmark_") && arg.substr(0, arg.find('=')) != "--v";
    (is_own ? own : options.rest).push_back(arg);
  }
  ParseFlags("a bench program", Table(options), own);
  return options;
}

std::string OptionsHelp(const std::string& program) {
  Options defaults;
  return StrCat("usage: ", program, R"( [flags]

Times one kernel on each shape, verifies its output, and audits it on fresh inputs while it is timed.
)",
                FlagHelp(Table(defaults)), "Examples: ", program, R"( --record out.jsonl
          )",
                program, R"( --benchmark_filter=plain --precision 0.2 --max-seconds 2
Exit code: 0 all rows measured and verified, 1 failure, 2 usage, 130 interrupted.

Google Benchmark's own flags:
)");
}

}  // namespace tokline::bench
