// The main of every bench program: flags, shapes, device, then a Google Benchmark a row. A row
// verifies fresh inputs, times other fresh inputs, and verifies what the timed launches wrote.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <random>

#include "benches/bench_case.h"
#include "benches/execution.h"
#include "benches/options.h"
#include "benches/verify.h"
#include "harness/core/interrupt.h"
#include "harness/record/record_file.h"
#include "kernels/common/error.h"
#if TOKLINE_HAS_CUDA
#include "harness/core/device.h"
#endif

namespace tokline::bench {
namespace {

constexpr int kUsageExit = 2;
constexpr int kFailureExit = 1;

// One benchmark: a case and how its launches are chained.
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
    if (!options.record.empty() && !options.verify_only) writer_.emplace(options.record);
  }

  const CaseContext& context() const { return context_; }

  void RunRow(const Row& row, benchmark::State& state) {
    if (InterruptRequested()) {
      state.SkipWithError("interrupted");
      return;
    }
    KernelMeasurement m{.run_id = run_id_,
                        .kernel = program_.kernel,
                        .implementation = row.implementation,
                        .shape = row.spec->shape,
                        .dtype = std::string(Name(options_.dtype)),
                        .device = execution_->DeviceName(),
                        .cache = context_.device ? "warm" : "cpu",
                        .chain = row.chain,
                        .samples_us = {},
                        .cost = {},
                        .verified = {},
                        .failure = {},
                        .peaks = {},
                        .datasheet = {}};
    std::string failure;
    try {
      Start();
      m.peaks = peaks_;
      m.datasheet = datasheet_;
      failure = Measure(row, m);
    } catch (const std::exception& error) {
      failure = m.failure = error.what();
      prepared_.reset();
    }
    if (options_.verify_only) {
      FinishVerifyOnly(m, failure, state);
    } else {
      Finish(KernelRow(m), failure, state);
    }
  }

  // After the last row. Returns the exit code.
  int End() {
    prepared_.reset();
    if (writer_ && started_) {
      RunEnd end{.run_id = run_id_,
                 .interrupted = InterruptRequested(),
                 .rows = rows_,
                 .refused = refused_,
                 .gpu_after = {}};
      if (gpu_) end.gpu_after = ReadGpuState(gpu_->pci_bus_id);
      writer_->Append(ToJson(end));
    }
    if (InterruptRequested()) {
      std::fprintf(stderr, "%s: interrupted; what was measured until then is recorded as such\n",
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
  struct Prepared {
    const CaseSpec* spec = nullptr;
    std::unique_ptr<BenchCase> bench_case;
    Cost cost;
    Placement placement;
    std::unique_ptr<TensorStore> store;
  };

  std::string Program() const { return "bench_" + program_.kernel; }

  // Before the first row that runs, so that a mistaken filter costs nothing.
  void Start() {
    if (started_) return;
    Fingerprint fingerprint = TakeFingerprint(argc_, argv_, context_.device.has_value());
    gpu_ = fingerprint.gpu;
    if (!options_.verify_only) peaks_ = execution_->Measure();
    if (gpu_) datasheet_ = DatasheetOf(gpu_->name);
    if (peaks_) PrintPeaks();
    if (writer_) {
      writer_->Append(ToJson(RunHeader{.run_id = run_id_,
                                       .program = Program(),
                                       .fingerprint = std::move(fingerprint),
                                       .peaks = peaks_,
                                       .datasheet = datasheet_}));
    }
    started_ = true;
  }

  void PrintPeaks() const {
    const auto beside = [this](double datasheet, const char* unit) {
      return datasheet_ ? StrCat(" (datasheet ", datasheet, " ", unit, ")") : std::string();
    };
    const Datasheet sheet = datasheet_.value_or(Datasheet{});
    std::fprintf(stderr,
                 "measured peaks of %s: read %.0f GB/s%s, copy %.0f GB/s, bf16 matmul %.0f "
                 "TFLOP/s%s, launch %.2f us, graph node %.2f us\n",
                 gpu_->name.c_str(), peaks_->read_gbps, beside(sheet.memory_gbps, "GB/s").c_str(),
                 peaks_->copy_gbps, peaks_->matmul_tflops,
                 beside(sheet.bf16_tflops, "TFLOP/s").c_str(), peaks_->launch_us,
                 peaks_->graph_node_us);
  }

  // The plain and the dependent row of a case share its buffers.
  Prepared& Prepare(const CaseSpec& spec) {
    if (prepared_ && prepared_->spec == &spec) return *prepared_;
    prepared_.reset();  // frees its memory first
    Prepared prepared{
        .spec = &spec, .bench_case = spec.make(context_), .cost = {}, .placement = {}, .store = {}};
    prepared.cost = prepared.bench_case->GetCost();
    prepared.placement = execution_->Place(prepared.cost, prepared.bench_case->tensors());
    prepared.store = std::make_unique<TensorStore>(
        prepared.bench_case->tensors(), prepared.placement.buffer_sets, execution_->MakeMemory());
    return prepared_.emplace(std::move(prepared));
  }

  // Returns the first failed comparison, or "".
  std::string Measure(const Row& row, KernelMeasurement& m) {
    Prepared& prepared = Prepare(*row.spec);
    TensorStore& store = *prepared.store;
    const bool dependent = row.chain == "dependent";
    m.cost = prepared.cost;
    m.cache = prepared.placement.cache;
    m.buffer_sets = prepared.placement.buffer_sets;

    const uint64_t first_seed = rng_();
    store.FillRandom(first_seed);
    store.Poison();
    execution_->Run(*prepared.bench_case, store, std::min(store.copies(), 2), dependent);
    const Comparison before =
        CompareWithReference(*prepared.bench_case, store, 0, first_seed, rng_());
    m.verified = {.before = before.first_failure.empty(),
                  .max_error_over_bound = before.max_error_over_bound};
    if (!m.verified.before || options_.verify_only) return before.first_failure;

    const uint64_t second_seed = rng_();
    store.FillRandom(second_seed);
    store.Poison();
    const TimedSamples timed =
        execution_->Time(*prepared.bench_case, store, options_.samples, dependent);
    m.samples_us = timed.us;
    m.launches_per_sample = timed.launches_per_sample;
    m.interrupted = timed.interrupted;
    const Comparison after =
        CompareWithReference(*prepared.bench_case, store, store.copies() - 1, second_seed, rng_());
    m.verified.after = after.first_failure.empty();
    m.verified.max_error_over_bound =
        std::max(m.verified.max_error_over_bound, after.max_error_over_bound);
    return after.first_failure;
  }

  void Finish(const Json& row, const std::string& failure, benchmark::State& state) {
    ++rows_;
    if (writer_) writer_->Append(row);
    if (row["status"] != "ok") {
      ++refused_;
      std::string reason = row["reason"];
      if (!failure.empty() && failure != reason) reason += "; " + failure;
      state.SkipWithError(reason.c_str());
      return;
    }
    const double median_us = row["median_us"];
    for ([[maybe_unused]] auto _ : state) state.SetIterationTime(median_us * 1e-6);
    state.counters["GB/s"] = row["gbps"].get<double>();
    state.counters["TFLOP/s"] = row["tflops"].get<double>();
    state.counters["mad_us"] = row["mad_us"].get<double>();
    std::string label = row["cache"].get<std::string>() + " verified";
    if (!row["limit"].is_null()) {
      state.counters["%limit"] = row["percent_of_measured_peak"].get<double>();
      label = "limit:" + row["limit"].get<std::string>() + " " + label;
    }
    state.SetLabel(label);
  }

  void FinishVerifyOnly(const KernelMeasurement& m, const std::string& failure,
                        benchmark::State& state) {
    ++rows_;
    if (!failure.empty() || !m.verified.before) {
      ++refused_;
      state.SkipWithError(failure.c_str());
      return;
    }
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
  std::optional<Prepared> prepared_;
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
  const bool cuda = session.context().device.has_value();
  const std::vector<std::string> chains =
      cuda ? std::vector<std::string>{"plain", "dependent"} : std::vector<std::string>{"none"};
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

int RunProgram(int argc, char** argv, const BenchProgram& program) {
  const Options options = ParseOptions({argv + 1, argv + argc});
  if (options.help) {
    std::printf("%s", OptionsHelp("bench_" + program.kernel).c_str());
    benchmark::PrintDefaultHelp();
    return 0;
  }
  std::vector<std::string> rest{argv[0]};
  rest.insert(rest.end(), options.rest.begin(), options.rest.end());
  std::vector<char*> rest_pointers;
  for (std::string& arg : rest) rest_pointers.push_back(arg.data());
  int rest_count = static_cast<int>(rest_pointers.size());
  rest_pointers.push_back(nullptr);
  benchmark::Initialize(&rest_count, rest_pointers.data());
  Require(rest_count <= 1, "unknown argument '", rest_pointers[1], "'; --help lists what is known");

  CatchInterrupts();
  std::unique_ptr<Execution> execution = ChooseExecution(options);
  const bool cuda = execution->Context(options.dtype).device.has_value();
  const ShapeFile shapes =
      options.shapes.empty() ? DefaultShapes(program.kernel, cuda) : ReadShapeFile(options.shapes);
  Session session(program, options, std::move(execution), argc, argv);
  const std::vector<CaseSpec> cases = MakeCases(program, shapes, session.context());
  Register(program, cases, session);
  const size_t matched = benchmark::RunSpecifiedBenchmarks();
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
    std::fprintf(stderr, "bench_%s: %s\n", program.kernel.c_str(), error.what());
    return code;
  };
  try {
    return RunProgram(argc, argv, program);
  } catch (const InvalidArgument& error) {
    return fail(error, kUsageExit);
  } catch (const std::exception& error) {
    return fail(error, kFailureExit);
  }
}

}  // namespace tokline::bench
