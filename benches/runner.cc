// The main function of every bench program: reads flags and shapes, chooses the device, and
// registers one Google Benchmark per row.
#include <benchmark/benchmark.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <random>
#include <sstream>

#include "benches/axes.h"
#include "benches/bench_case.h"
#include "benches/execution.h"
#include "benches/measure_row.h"
#include "benches/options.h"
#include "benches/result_table.h"
#include "benches/sweep.h"
#include "harness/platform/device.h"
#include "harness/platform/interrupt.h"
#include "harness/platform/printable.h"
#include "harness/platform/standard_streams.h"
#include "harness/record/record_file.h"
#include "harness/record/reused_peaks.h"
#include "kernels/common/error.h"

namespace tokline::bench {
namespace {

constexpr int kUsageExit = 2;
constexpr int kFailureExit = 1;

// A row is measured by one benchmark: a case, and how its launches are chained.
struct Row {
  std::string name;
  const CaseSpec* spec;
  std::string implementation;
  std::string chain;
};

// Writes the file of --benchmark_out. Google Benchmark itself does not check whether that worked.
class FileReporter : public benchmark::JSONReporter {
 public:
  void Finalize() override {
    JSONReporter::Finalize();
    written = GetOutputStream().flush().good();
  }
  bool written = false;
};

// "b1_s1024_h16-8, tokens 8, append"
std::string ShapeLabel(const CaseSpec& spec) {
  std::string label = spec.shape["name"].get<std::string>() + ", ";
  for (const char c : spec.variant) label += c == '/' ? ", " : std::string(1, c == ':' ? ' ' : c);
  return label;
}

// The number of columns of the terminal on this standard stream; 0 if it is not a terminal.
size_t TerminalColumns(int stream) {
  winsize size{};
  return ::isatty(stream) != 0 && ::ioctl(stream, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

// The program prints its own table; of Google Benchmark's output only the list of rows is wanted.
class ListReporter : public benchmark::BenchmarkReporter {
 public:
  ListReporter() {
    SetOutputStream(&list_);
    SetErrorStream(&errors_);
  }
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
  std::string List() const { return list_.str(); }

 private:
  std::ostringstream list_;
  std::ostringstream errors_;  // a filter that matches no row, which is reported elsewhere
};

std::unique_ptr<BenchCase> MakeCase(const CaseSpec& spec, CaseContext context) {
  context.dtype = spec.dtype;
  return spec.make(context);
}

// Ends a repetition of a row without figures. Google Benchmark ends the program unless all
// repetitions count the same iterations, which this one does once its loop has begun.
void Skip(benchmark::State& state, const std::string& reason) {
  state.SkipWithError(reason.c_str());
  for ([[maybe_unused]] auto _ : state) {
  }
}

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
      Skip(state, "interrupted");
      return;
    }
    KernelMeasurement m{.origin = {.run_id = run_id_,
                                   .implementation = row.implementation,
                                   .dtype = std::string(Name(row.spec->dtype)),
                                   .device = execution_->DeviceName()},
                        .kernel = program_.kernel,
                        .shape = row.spec->shape,
                        .cache = context_.device ? "warm" : "cpu",
                        .chain = row.chain,
                        .chosen = row.spec->chosen};
    try {
      Start();
      ShowStatus(StrCat("row ", results_.size() + 1, ": ", row.name));
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
    ShowStatus("");
    Finish(std::move(m), ShapeLabel(*row.spec), state);
  }

  // Prints what was measured, however the run ended.
  void PrintTable() const {
    const bool colours = ::isatty(STDOUT_FILENO) != 0 && !NoColor();
    Print(TableOf(results_, options_.format, TerminalColumns(STDOUT_FILENO), colours));
  }

  // Appends the last line of the record, for complete and interrupted runs alike.
  void EndRecord(bool interrupted) {
    prepared_.reset();
    if (!writer_ || !started_) return;
    RunEnd end{.run_id = run_id_,
               .interrupted = interrupted,
               .rows = std::ssize(results_),
               .refused = refused_,
               .gpu_after = {}};
    if (gpu_) end.gpu_after = ReadGpuState(gpu_->pci_bus_id);
    writer_->Append(ToJson(end));
  }

  // Called after the last row. Returns the exit code.
  int End() {
    EndRecord(InterruptRequested());
    PrintTable();
    if (InterruptRequested()) {
      std::fprintf(stderr, "%s: interrupted%s\n", Program().c_str(),
                   writer_ ? "; the record has what was measured before and says so" : "");
      return kInterruptedExit;
    }
    if (refused_ > 0) {
      std::fprintf(stderr, "%s: %lld of %lld rows failed or were refused\n", Program().c_str(),
                   static_cast<long long>(refused_), static_cast<long long>(results_.size()));
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
    prepared_.emplace(MakeCase(spec, context_), *execution_);
    prepared_spec_ = &spec;
    return *prepared_;
  }

  // Shows what is being measured, on a terminal only; "" removes it.
  static void ShowStatus(const std::string& text) {
    const size_t columns = TerminalColumns(STDERR_FILENO);
    if (columns == 0) return;
    const std::string line = "\r\x1b[K" + Printable(text).substr(0, columns - 1);
    std::fwrite(line.data(), 1, line.size(), stderr);
  }

  void Finish(KernelMeasurement m, std::string shape, benchmark::State& state) {
    if (writer_) writer_->Append(KernelRow(m));
    const Result& result =
        results_.emplace_back(std::move(m), std::move(shape), !options_.verify_only);
    if (!result.figures.refusal.empty()) {
      ++refused_;
      Skip(state, result.note);
      return;
    }
    for ([[maybe_unused]] auto _ : state) state.SetIterationTime(1e-6 * result.figures.us.median);
    state.counters["GB/s"] = result.figures.gbps;
    state.counters["TFLOP/s"] = result.figures.tflops;
    state.SetLabel(result.verdict);
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
  std::vector<Result> results_;
  int64_t refused_ = 0;
};

std::unique_ptr<Execution> ChooseExecution(const Options& options) {
  if (options.device == "cpu") return MakeHostExecution();
#if TOKLINE_HAS_CUDA
  if (options.device == "cuda" || CudaDeviceCount() > 0) {
    UseCudaDevice(options.gpu);
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

void AddCases(const BenchProgram& program, ShapeReader reader, const CaseContext& context,
              std::vector<CaseSpec>& cases) {
  const size_t first = cases.size();
  const DType dtype =
      reader.Has("dtype") ? reader.OneOf("dtype", {DType::kBf16, DType::kF16}) : context.dtype;
  program.add_cases(reader, context, cases);
  reader.Finish();
  for (size_t i = first; i < cases.size(); ++i) cases[i].dtype = dtype;
}

std::vector<CaseSpec> MakeCases(const BenchProgram& program, const ShapeFile& shapes,
                                const CaseContext& context) {
  std::vector<CaseSpec> cases;
  for (const std::string& family : program.families) {
    const auto list = shapes.families.find(family);
    if (list == shapes.families.end()) continue;
    for (const auto& shape : *list) {
      AddCases(program, ShapeReader(shapes.name, family, shape), context, cases);
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

// Draws shapes until enough fit this device, and says how many did not.
ShapeFile DrawShapes(const BenchProgram& program, const Options& options,
                     const Execution& execution) {
  const CaseContext context = execution.Context(options.dtype);
  const SweepRanges& ranges = context.device ? kDeviceSweep : kCpuSweep;
  const int64_t most_bytes = execution.SweepBytes();
  const auto refusal = [&](const std::string& family, const Json& shape) -> std::string {
    std::vector<CaseSpec> cases;
    try {
      AddCases(program, ShapeReader("sweep", family, shape), context, cases);
    } catch (const InvalidArgument&) {
      return "that the kernel does not take";
    }
    for (const CaseSpec& spec : cases) {
      const std::unique_ptr<BenchCase> made = MakeCase(spec, context);
      const TensorList& tensors = made->tensors();
      if (tensors.RotatingBytes() + tensors.SharedBytes() > most_bytes) {
        return StrCat("of more than ", most_bytes, " bytes");
      }
      if (made->GetCost().flops > ranges.max_flops) {
        return StrCat("of more than ", ranges.max_flops, " operations");
      }
    }
    return "";
  };
  Sweep sweep = DrawSweep(program.kernel, options.sweep, options.seed, ranges, refusal);
  for (const auto& [reason, draws] : sweep.redrawn) {
    std::fprintf(stderr, "drawn again: %lld %s %s\n", static_cast<long long>(draws),
                 draws == 1 ? "shape" : "shapes", reason.c_str());
  }
  return std::move(sweep.shapes);
}

void Register(const BenchProgram& program, const std::vector<CaseSpec>& cases, Session& session) {
  const std::optional<DeviceFacts>& device = session.context().device;
  const bool cuda = device.has_value();
  std::vector<std::string> chains = {cuda ? "plain" : "none"};
  // If the device has no dependent launch, dependent rows would only repeat the plain ones.
  if (cuda && device->HasDependentLaunch()) chains.push_back("dependent");
  for (const CaseSpec& spec : cases) {
    for (const std::string& chain : chains) {
      const std::string implementation = cuda ? spec.implementation : "reference";
      std::string name = program.kernel + "/" + spec.shape["name"].get<std::string>() + "/" +
                         spec.variant + "/" + implementation;
      if (cuda) name += "/" + chain;
      const Row row{name, &spec, implementation, chain};
      benchmark::RegisterBenchmark(
          name.c_str(), [&session, row](benchmark::State& state) { session.RunRow(row, state); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

int RunProgram(int argc, char** argv, const BenchProgram& program) {
  const Options options = ParseOptions({argv + 1, argv + argc});
  if (options.help) {
    Print(OptionsHelp("bench_" + program.kernel, AxesHelp(program.families, "\n  ")));
    return 0;
  }
  std::vector<std::string> handed_on = options.of_google_benchmark;
  std::vector<char*> pointers{argv[0]};
  for (std::string& arg : handed_on) pointers.push_back(arg.data());
  int count = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  benchmark::Initialize(&count, pointers.data());

  CatchInterrupts();
  std::unique_ptr<Execution> execution = ChooseExecution(options);
  const bool cuda = execution->Context(options.dtype).device.has_value();
  const ShapeFile shapes = options.sweep > 0         ? DrawShapes(program, options, *execution)
                           : !options.axes.empty()   ? ShapesOfAxes(program.families, options.axes)
                           : !options.shapes.empty() ? ReadShapeFile(options.shapes)
                                                     : DefaultShapes(program.kernel, cuda);
  Session session(program, options, std::move(execution), argc, argv);
  const std::vector<CaseSpec> cases = MakeCases(program, shapes, session.context());
  Register(program, cases, session);
  ListReporter reporter;
  FileReporter file;
  const bool to_file = !options.benchmark_out.empty();
  size_t matched = 0;
  try {
    matched = benchmark::RunSpecifiedBenchmarks(&reporter, to_file ? &file : nullptr);
  } catch (...) {
    session.PrintTable();
    session.EndRecord(/*interrupted=*/true);
    throw;
  }
  benchmark::Shutdown();
  Print(reporter.List());
  if (matched == 0) {
    throw RuntimeFailure("the filter matches none of the " + std::to_string(cases.size()) +
                         " cases");
  }
  const int exit_code = session.End();
  if (!to_file || file.written) return exit_code;
  throw RuntimeFailure(StrCat("--benchmark_out: cannot write ", Quoted(options.benchmark_out)));
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
