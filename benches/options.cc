// Parses the command line of a bench program and prints its help.
#include "benches/options.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>

#include "harness/measure/timing.h"
#include "harness/platform/flags.h"
#include "harness/platform/printable.h"
#include "harness/record/record_file.h"
#include "kernels/common/error.h"

namespace tokline::bench {
namespace {

constexpr int kMaxSamples = 10000;
constexpr int kMaxRepetitions = 1000000;
constexpr int kMaxGpu = 63;
constexpr std::array<std::string_view, 3> kDevices = {"auto", "cpu", "cuda"};
constexpr std::array<std::string_view, 2> kDTypes = {"bf16", "fp16"};

constexpr std::array<std::string_view, 4> kFormats = {"table", "markdown", "csv", "json"};
constexpr std::array<std::string_view, 2> kTruths = {"true", "false"};

FlagSetter NumberInto(double& target, double least, double most) {
  return [=, &target](std::string_view flag, std::string_view text) {
    target = ParseReal(flag, text);
    Require(target >= least && target <= most, flag, " is ", Quoted(text),
            "; it must be a number in [", least, ", ", most, "]");
  };
}

// Throws InvalidArgument for a malformed filter, with which Google Benchmark would run no row.
void RequireFilter(std::string_view flag, std::string_view filter) {
  try {
    // A leading '-' negates the filter.
    const std::regex expression(std::string(filter.substr(filter.starts_with('-') ? 1 : 0)),
                                std::regex::extended);
  } catch (const std::regex_error& error) {
    throw InvalidArgument(StrCat(flag, " is ", Quoted(filter),
                                 ", which is not a regular expression: ", error.what()));
  }
}

// Throws RuntimeFailure; Google Benchmark would end the program in the middle.
void RequireWritable(std::string_view flag, std::string_view path) {
  if (HoldsRecords(std::string(path))) {
    throw RuntimeFailure(StrCat(flag, ": cannot write ", Quoted(path),
                                ": it holds records, which nothing else replaces"));
  }
  if (std::ofstream(std::string(path), std::ios::app)) return;
  throw RuntimeFailure(StrCat(flag, ": cannot write ", Quoted(path), ": ", std::strerror(errno)));
}

std::vector<Flag> Table(Options& options) {
  // Checks the value and passes the flag on.
  const auto handed_on = [&options](FlagSetter check) -> FlagSetter {
    return [&options, check = std::move(check)](std::string_view flag, std::string_view text) {
      check(flag, text);
      options.of_google_benchmark.push_back(StrCat(flag, "=", text));
    };
  };
  const auto one_of = [](std::span<const std::string_view> choices) -> FlagSetter {
    return [choices](auto flag, auto text) { ParseChoice(flag, text, choices); };
  };
  std::vector<Flag> flags = {
      {"--device", "auto|cpu|cuda|N",
       "N: a GPU by its number; cuda: GPU 0; auto: cuda if there is a device, otherwise the CPU "
       "reference on small shapes (default)",
       [&options](auto flag, auto text) {
         const bool is_number = text.find_first_not_of("0123456789") == text.npos;
         options.gpu = is_number ? static_cast<int>(ParseInteger(flag, text, 0, kMaxGpu)) : 0;
         const bool known = is_number || std::ranges::count(kDevices, text) > 0;
         Require(known, flag, " is ", Quoted(text),
                 "; it must be auto, cpu, cuda or a number from 0 to ", kMaxGpu);
         options.device = is_number ? "cuda" : std::string(text);
       }},
      {"--shapes", "FILE", "JSON shapes instead of the default ones (docs/measuring.md)",
       TextInto(options.shapes)},
      {"--axis", "KEY=VALUES",
       "instead of shapes, an axis of a product: batch=1,8,64, len=1024:65536:x2, len=100:500:+100",
       [&options](auto, auto text) { options.axes.emplace_back(text); }},
      {"--sweep", "N", "N shapes drawn from a seed instead (docs/measuring.md)",
       IntegerInto(options.sweep, 1, 10000)},
      {"--seed", "S", "the seed of --sweep (default: 0)", SeedInto(options.seed)},
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
      {"--format", "table|markdown|csv|json", "how the results are printed (default: table)",
       [&options](auto flag, auto text) {
         options.format = static_cast<TableFormat>(ParseChoice(flag, text, kFormats));
       }},
      {"--inject-slowdown", "PERCENT",
       "make every row slower, to test the tools; the record says so",
       NumberInto(options.slowdown_percent, 0.1, 100)},
      {"--benchmark_filter", "REGEX",
       "run the rows whose names match; with a leading '-', the others", handed_on(RequireFilter)},
      {"--benchmark_list_tests", "true|false", "print the names of the rows, and run none",
       handed_on(one_of(kTruths))},
      {"--benchmark_repetitions", "N", "measure each row N times",
       handed_on([](auto flag, auto text) { ParseInteger(flag, text, 1, kMaxRepetitions); })},
      {"--benchmark_out", "FILE", "write the medians as Google Benchmark does, too, in JSON",
       handed_on([&options](auto flag, auto text) {
         RequireWritable(flag, text);
         options.benchmark_out = text;
       })},
      {"--help", "", "print this", SwitchInto(options.help)},
      {"-h", "", "same as --help", SwitchInto(options.help)}};
  for (Flag& flag : flags) flag.repeats = true;  // a user's flag replaces one of scripts/bench
  return flags;
}

}  // namespace

Options ParseOptions(std::vector<std::string> args) {
  Options options;
  const std::vector<Flag> flags = Table(options);
  for (size_t i = 0; i < args.size(); ++i) {
    std::string& arg = args[i];
    const std::string name = arg.substr(0, arg.find('='));
    const bool has_value =
        i + 1 < args.size() && std::ranges::count(kTruths, std::string_view(args[i + 1])) > 0;
    if (arg == "--benchmark_list_tests" && !has_value) arg += "=true";
    Require(!name.starts_with("--benchmark_") || std::ranges::count(flags, name, &Flag::name) > 0,
            name,
            " does nothing here, since the program itself measures and prints: see --precision, "
            "--max-seconds, --samples and --format");
  }
  const std::set<std::string_view> given = ParseFlags("a bench program", flags, args);
  Require(options.axes.empty() || options.shapes.empty(),
          "--axis and --shapes both say which shapes run; only one of them may be given");
  Require(options.sweep == 0 || (options.shapes.empty() && options.axes.empty()),
          "--sweep draws shapes; neither --shapes nor --axis may be given with it");
  Require(options.sweep > 0 || !given.contains("--seed"), "--seed is given without --sweep");
  std::error_code error;
  Require(options.record.empty() || options.benchmark_out.empty() ||
              std::filesystem::weakly_canonical(options.record, error) !=
                  std::filesystem::weakly_canonical(options.benchmark_out, error),
          "--benchmark_out and --record both name ", options.record,
          "; each takes a file of its own");
  return options;
}

std::string OptionsHelp(const std::string& program, const std::string& axes) {
  Options defaults;
  return StrCat("usage: ", program, R"( [flags]

Times one kernel on each shape, verifies its output, and audits it on fresh inputs while it is timed.
)",
                FlagHelp(Table(defaults)), "Axes, with what they are unless given:\n  ", axes,
                "\nExamples: ", program,
                R"( --record out.jsonl
          )",
                program, R"( --benchmark_filter=plain --precision 0.2 --max-seconds 2
Exit code: 0 all rows measured and verified, 1 failure, 2 usage, 130 interrupted.
)");
}

}  // namespace tokline::bench
