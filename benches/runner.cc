// The main function of every bench program: reads flags and shapes, chooses the device, and
// registers one Google Benchmark per row.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <random>
#include <regex>

#include "benches/bench_case.h"
#include "benches/console_output.h"
#include "benches/execution.h"
#include "benches/measure_row.h"
#include "benches/options.h"
#include "harness/platform/flags.h"
#include "harness/platform/interrupt.h"
#include "harness/platform/printable.h"
#include "harness/platform/standard_streams.h"
#include "harness/record/record_file.h"
#include "harness/record/reused_peaks.h"
#include "kernels/common/error.h"
#if TOKLINE_HAS_CUDA
#include "harness/platform/device.h"
#endif

namespace tokline::bench {
namespace {

constexpr int kUsageExit = 2;
constexpr int kFailureExit = 1;

// A row is measured by one benchmark: a case, and how its launches are chained.
struct Row {
  const CaseSpec* spec;
  std::string implementation;
  std::string chain;
};

class Session {
 public:
  Session(const BenchProgram& program, const Options& options, std::unique_ptr<Execution> execution,
          int argc, char** argv)
      : program_(program),
        options_(options),
        execution_(std::move(execution)),
        context_(execution_->Context(options.dtype)),
        argc_(argc),
        argv_(argv) {
    if (!options.peaks.empty()) {
      Require(context_.device.has_value(), "--peaks: the CPU has no peaks");
      peaks_ =
          ReusePeaks(options.peaks, execution_->UuidHash(), PeaksNeeded::kAll, std::time(nullptr));
    }
    if (!options.record.empty() && !options.verify_only) writer_.emplace(options.record);
  }

  const CaseContext& context() const { return context_; }

  void RunRow(const Row& row, benchmark::State& state) {
    if (InterruptRequested()) {
      state.SkipWithError("interrupted");
      return;
    }
    KernelMeasurement m{.origin = {.run_id = run_id_,
                                   .implementation = row.implementation,
                                   .dtype = std::string(Name(options_.dtype)),
                                   .device = execution_->DeviceName()},
                        .kernel = program_.kernel,
                        .shape = row.spec->shape,
                        .cache = context_.device ? "warm" : "cpu",
                        .chain = row.chain};
    try {
      Start();
      m.limits = {.peaks = peaks_, .datasheet = datasheet_};
      MeasureRow(Prepare(*row.spec), *execution_,
                 {.dependent = row.chain == "dependent",
                  .verify_only = options_.verify_only,
                  .rule = options_.rule,
                  .slowdown_percent = options_.slowdown_percent},
                 rng_, m);
      peaks_ = m.limits.peaks;  // may have been measured again
    } catch (const std::exception& error) {
      m.trouble.failure = error.what();
      prepared_.reset();
    }
    if (options_.verify_only) {
      FinishVerifyOnly(m, state);
    } else {
      Finish(m, state);
    }
  }

  // Appends the last line of the record, for complete and interrupted runs alike.
  void EndRecord(bool interrupted) {
    prepared_.reset();
    if (!writer_ || !started_) return;
    RunEnd end{.run_id = run_id_,
               .interrupted = interrupted,
               .rows = rows_,
               .refused = refused_,
               .gpu_after = {}};
    if (gpu_) end.gpu_after = ReadGpuState(gpu_->pci_bus_id);
    writer_->Append(ToJson(end));
  }

  // Called after the last row. Returns the exit code.
  int End() {
    EndRecord(InterruptRequested());
    if (InterruptRequested()) {
      std::fprintf(stderr, "%s: interrupted; the record has what was measured before and says so\n",
                   Program().c_str());
      return kInterruptedExit;
    }
    if (refused_ > 0) {
      std::fprintf(stderr, "%s: %lld of %lld rows failed or were refused\n", Program().c_str(),
                   static_cast<long long>(refused_), static_cast<long long>(rows_));
      return kFailureExit;
    }
    return 0;
  }

 private:
  std::string Program() const { return "bench_" + program_.kernel; }

  // Called by the first row that runs, so that no time is lost on a filter that matches nothing.
  void Start() {
    if (started_) return;
    Fingerprint fingerprint = TakeFingerprint(argc_, argv_, context_.device.has_value());
    gpu_ = fingerprint.gpu;
    if (!options_.verify_only && !peaks_) {
      peaks_ = execution_->Measure();
      if (peaks_) execution_->Rest(kCoolingUs);  // the matmuls have reached the power cap
    }
    if (gpu_) datasheet_ = DatasheetOf(gpu_->name);
    if (peaks_) PrintPeaks();
    if (writer_) {
      writer_->Append(ToJson(RunHeader{.run_id = run_id_,
                                       .program = Program(),
                                       .fingerprint = std::move(fingerprint),
                                       .peaks = peaks_,
                                       .datasheet = datasheet_,
                                       .injected = Injected()}));
    }
    started_ = true;
  }

  Json Injected() const {
    if (options_.slowdown_percent == 0) return nullptr;
    return {{"slowdown_percent", options_.slowdown_percent}};
  }

  void PrintPeaks() const {
    const auto beside = [this](double datasheet, const char* unit) {
      return datasheet_ ? StrCat(" (datasheet ", datasheet, " ", unit, ")") : std::string();
    };
    const Datasheet sheet = datasheet_.value_or(Datasheet{});
    const std::string from_run =
        peaks_->from_run.empty() ? "" : " (by run " + peaks_->from_run + ")";
    std::fprintf(
        stderr,
        "measured peaks of %s%s: read %.0f GB/s%s, 2:1 %.0f GB/s, copy %.0f GB/s, bf16 matmul "
        "%.0f TFLOP/s%s, launch %.2f us, graph node %.2f us\n",
        gpu_->name.c_str(), from_run.c_str(), peaks_->read_gbps,
        beside(sheet.memory_gbps, "GB/s").c_str(), peaks_->two_to_one_gbps, peaks_->copy_gbps,
        peaks_->matmul_tflops, beside(sheet.bf16_tflops, "TFLOP/s").c_str(), peaks_->launch_us,
        peaks_->graph_node_us);
  }

  // Prepares a case. Its plain and its dependent row share the buffers.
  PreparedCase& Prepare(const CaseSpec& spec) {
    if (prepared_ && prepared_spec_ == &spec) return *prepared_;
    prepared_.reset();  // frees its memory first
    prepared_.emplace(spec.make(context_), *execution_);
    prepared_spec_ = &spec;
    return *prepared_;
  }

  // Counts the row. Returns true if there is a reason to refuse it.
  bool Refuses(const std::string& reason, benchmark::State& state) {
    ++rows_;
    if (reason.empty()) return false;
    ++refused_;
    state.SkipWithError(reason.c_str());
    return true;
  }

  void Finish(const KernelMeasurement& m, benchmark::State& state) {
    const KernelFigures figures = FiguresOf(m);
    if (writer_) writer_->Append(KernelRow(m));
    if (Refuses(figures.refusal, state)) return;
    for ([[maybe_unused]] auto _ : state) state.SetIterationTime(figures.us.median * 1e-6);
    state.counters["GB/s"] = figures.gbps;
    state.counters["TFLOP/s"] = figures.tflops;
    state.counters["mad_us"] = figures.us.mad;
    std::string label = m.cache + " verified";
    if (figures.shares.floor) {
      state.counters["%limit"] = *figures.shares.percent_of_measured_peak;
      label = "limit:" + figures.shares.floor->limit + " " + label;
      if (figures.shares.limit_is_wrong) label += ", above its limit, which is wrong";
    }
    if (m.samples.rested) label += ", rested";
    if (!m.trouble.disturbed.empty()) label += ", " + m.trouble.disturbed;
    state.SetLabel(label);
  }

  void FinishVerifyOnly(const KernelMeasurement& m, benchmark::State& state) {
    if (Refuses(m.trouble.failure, state)) return;
    for ([[maybe_unused]] auto _ : state) state.SetIterationTime(0);
    state.counters["error/bound"] = m.verified.max_error_over_bound;
    state.SetLabel("verified, not timed");
  }

  const BenchProgram& program_;
  const Options& options_;
  std::unique_ptr<Execution> execution_;
  CaseContext context_;
  int argc_;
  char** argv_;
  std::optional<RecordWriter> writer_;
  std::string run_id_ = NewRunId();
  std::mt19937_64 rng_{std::random_device{}()};
  bool started_ = false;
  std::optional<GpuIdentity> gpu_;
  std::optional<Peaks> peaks_;
  std::optional<Datasheet> datasheet_;
  std::optional<PreparedCase> prepared_;
  const CaseSpec* prepared_spec_ = nullptr;
  int64_t rows_ = 0;
  int64_t refused_ = 0;
};

std::unique_ptr<Execution> ChooseExecution(const Options& options) {
  if (options.device == "cpu") return MakeHostExecution();
#if TOKLINE_HAS_CUDA
  if (options.device == "cuda" || CudaDeviceCount() > 0) {
    RequireUsableCudaDevice();
    return MakeDeviceExecution();
  }
  std::fprintf(stderr, "no CUDA device: CUDA rows not run, the CPU reference runs instead\n");
#else
  if (options.device == "cuda") {
    throw RuntimeFailure("--device cuda: this program was built without CUDA");
  }
  std::fprintf(stderr,
               "no CUDA device: CUDA rows not run (this program was built without CUDA), the CPU "
               "reference runs instead\n");
#endif
  return MakeHostExecution();
}

std::vector<CaseSpec> MakeCases(const BenchProgram& program, const ShapeFile& shapes,
                                const CaseContext& context) {
  std::vector<CaseSpec> cases;
  for (const std::string& family : program.families) {
    const auto list = shapes.families.find(family);
    if (list == shapes.families.end()) continue;
    for (const auto& shape : *list) {
      ShapeReader reader(shapes.name, family, shape);
      program.add_cases(reader, context, cases);
      reader.Finish();
    }
  }
  std::string wanted;
  for (const std::string& family : program.families) {
    wanted += (wanted.empty() ? "'" : " or '") + family + "'";
  }
  Require(!cases.empty(), shapes.name, ": no shapes of family ", wanted, " for bench_",
          program.kernel);
  return cases;
}

void Register(const BenchProgram& program, const std::vector<CaseSpec>& cases, Session& session) {
  const std::optional<DeviceFacts>& device = session.context().device;
  const bool cuda = device.has_value();
  std::vector<std::string> chains = {cuda ? "plain" : "none"};
  // If the device has no dependent launch, dependent rows would only repeat the plain ones.
  if (cuda && device->HasDependentLaunch()) chains.push_back("dependent");
  for (const CaseSpec& spec : cases) {
    for (const std::string& chain : chains) {
      const Row row{.spec = &spec,
                    .implementation = cuda ? spec.implementation : "reference",
                    .chain = chain};
      std::string name = program.kernel + "/" + spec.shape["name"].get<std::string>() + "/" +
                         spec.variant + "/" + row.implementation;
      if (cuda) name += "/" + chain;
      benchmark::RegisterBenchmark(
          name.c_str(), [&session, row](benchmark::State& state) { session.RunRow(row, state); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

// Throws InvalidArgument for a format that Google Benchmark does not know; it would end with exit
// code 0 and without a row.
void RequireFormat(const std::vector<std::string>& args) {
  constexpr std::array<std::string_view, 3> kFormats = {"console", "json", "csv"};
  for (const std::string& arg : args) {
    const size_t equals = std::min(arg.find('='), arg.size() - 1);
    const std::string_view flag = std::string_view(arg).substr(0, equals);
    if (flag == "--benchmark_format" || flag == "--benchmark_out_format") {
      ParseChoice(flag, std::string_view(arg).substr(equals + 1), kFormats);
    }
  }
}

// Throws InvalidArgument for a malformed filter. Google Benchmark would only print a message and
// run no row.
void RequireFilter(std::string filter) {
  const std::string given = filter;
  if (filter.starts_with('-')) filter.erase(0, 1);  // a leading '-' negates the filter
  try {
    const std::regex expression(filter, std::regex::extended);
  } catch (const std::regex_error& error) {
    throw InvalidArgument(StrCat("--benchmark_filter is '", given,
                                 "', which is not a regular expression: ", error.what()));
  }
}

int RunProgram(int argc, char** argv, const BenchProgram& program) {
  const Options options = ParseOptions({argv + 1, argv + argc});
  if (options.help) {
    Print(OptionsHelp("bench_" + program.kernel));
    benchmark::PrintDefaultHelp();
    Print("");
    return 0;
  }
  RequireFormat(options.rest);
  std::vector<std::string> rest{argv[0]};
  if (NoColor()) rest.push_back("--benchmark_color=false");
  rest.insert(rest.end(), options.rest.begin(), options.rest.end());
  std::vector<char*> rest_pointers;
  for (std::string& arg : rest) rest_pointers.push_back(arg.data());
  int rest_count = static_cast<int>(rest_pointers.size());
  rest_pointers.push_back(nullptr);
  benchmark::Initialize(&rest_count, rest_pointers.data());
  Require(rest_count <= 1, "unknown argument '", rest_pointers[1], "'; --help lists all flags");
  RequireFilter(benchmark::GetBenchmarkFilter());

  CatchInterrupts();
  std::unique_ptr<Execution> execution = ChooseExecution(options);
  const bool cuda = execution->Context(options.dtype).device.has_value();
  const ShapeFile shapes =
      options.shapes.empty() ? DefaultShapes(program.kernel, cuda) : ReadShapeFile(options.shapes);
  Session session(program, options, std::move(execution), argc, argv);
  const std::vector<CaseSpec> cases = MakeCases(program, shapes, session.context());
  Register(program, cases, session);
  size_t matched = 0;
  try {
    const ConsoleOutput output;
    const NoDebugWarning no_warning;
    matched = benchmark::RunSpecifiedBenchmarks();
  } catch (...) {
    session.EndRecord(/*interrupted=*/true);
    throw;
  }
  benchmark::Shutdown();
  if (matched == 0) {
    throw RuntimeFailure("the filter matches none of the " + std::to_string(cases.size()) +
                         " cases");
  }
  return session.End();
}

}  // namespace

int BenchMain(int argc, char** argv, const BenchProgram& program) {
  const auto fail = [&](const std::exception& error, int code) {
    std::fprintf(stderr, "bench_%s: %s\n", program.kernel.c_str(), Printable(error.what()).c_str());
    return code;
  };
  try {
    PrepareStandardStreams();
    return RunProgram(argc, argv, program);
  } catch (const InvalidArgument& error) {
    return fail(error, kUsageExit);
  } catch (const std::exception& error) {
    return fail(error, kFailureExit);
  }
}

}  // namespace tokline::bench
