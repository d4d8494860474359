// Times all_reduce_norm on several GPUs beside NCCL, one thread per GPU, and checks the sums.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "benches/barrier_all_reduce.h"
#include "benches/peer_ranks.h"
#include "harness/measure/peaks.h"
#include "harness/platform/cuda_handles.h"
#include "harness/platform/device.h"
#include "harness/platform/device_buffer.h"
#include "harness/platform/peer_access.h"
#include "harness/platform/random_values.h"
#include "harness/record/run_record.h"
#include "kernels/all_reduce_norm/all_reduce_norm.h"
#include "kernels/device/nccl_library.h"
#include "kernels/norm/norm.h"
#include "reference/all_reduce_norm.h"
#include "reference/elements.h"

namespace tokline::bench {
namespace {

constexpr DType kDType = DType::kBf16;
constexpr float kNormEps = 1e-6f;
constexpr int kDefaultReplays = 25;

struct Shape {
  int64_t tokens, hidden;
  int64_t Elements() const { return tokens * hidden; }
  int64_t Bytes() const { return Elements() * SizeOf(kDType); }
  // In a graph.
  int Launches() const { return Bytes() < (4 << 20) ? 200 : 20; }
  // An idle GPU takes a while to raise its clock.
  int WarmUpReplays() const { return 40'000 / Launches() / (Bytes() < (4 << 20) ? 1 : 20); }
};
constexpr Shape kShapes[] = {{1, 2560},   {1, 4096},   {8, 4096},    {64, 4096},
                             {256, 4096}, {512, 2560}, {1024, 2560}, {8192, 2560}};

enum class Way { kOneShotPlain, kOneShot, kTwoShot, kSlabs, kBarrier, kNccl };
constexpr Way kWays[] = {Way::kOneShotPlain, Way::kOneShot, Way::kTwoShot, Way::kSlabs,
                         Way::kBarrier};

bool IsOurs(Way way) { return way < Way::kBarrier; }

// As rows name it.
const char* ImplementationOf(Way way) {
  switch (way) {
    case Way::kOneShotPlain:
    case Way::kOneShot:
      return "one_shot";
    case Way::kTwoShot:
      return "two_shot";
    case Way::kSlabs:
      return "slabs";
    case Way::kBarrier:
      return "barrier_all_reduce";
    case Way::kNccl:
      return "nccl";
  }
  return "?";
}

AllReduceNormVariant VariantOf(Way way) {
  switch (way) {
    case Way::kTwoShot:
      return AllReduceNormVariant::kTwoShot;
    case Way::kSlabs:
      return AllReduceNormVariant::kSlabs;
    default:
      return AllReduceNormVariant::kOneShot;
  }
}

// Each rank owns a row, or a slab of rows.
bool Takes(Way way, const Shape& shape, int32_t ranks) {
  if (way == Way::kBarrier) return ranks == 2 || ranks == 4 || ranks == 8;
  return shape.tokens >= ranks * (way == Way::kTwoShot ? 1 : way == Way::kSlabs ? 16 : 0);
}

const char* NameOf(Way way) {
  switch (way) {
    case Way::kOneShotPlain:
      return "one_shot, plain launches";
    case Way::kOneShot:
      return "one_shot, dependent launches";
    case Way::kTwoShot:
      return "two_shot, dependent launches";
    case Way::kSlabs:
      return "slabs, dependent launches";
    case Way::kBarrier:
      return "barrier and reads, then norm";
    case Way::kNccl:
      return "ncclAllReduce, then norm";
  }
  return "?";
}

using Bytes = std::vector<unsigned char>;

Bytes Random(int64_t elements, uint64_t seed) {
  Bytes bytes(static_cast<size_t>(elements * SizeOf(kDType)));
  FillRandom(kDType, bytes.data(), 0, elements, seed, 0);
  return bytes;
}

// The launches of a graph take two sets of partials in turn, two launches each, and each set has
// outputs of its own. So a packet that was left in an inbox, which is that of the launch before the
// last, has other data than the one that is waited for.
constexpr int kSets = 2, kLaunchesOfASet = 2;
static_assert(20 % (kSets * kLaunchesOfASet) == 0);

// The partials of all ranks, and what each rank must get.
struct Set {
  std::vector<Bytes> partials;
  Bytes sum, out;
};

struct Problem {
  Problem(const Shape& of, int32_t ranks)
      : shape(of), residual(Random(of.Elements(), 1)), weight(Random(of.hidden, 2)) {
    uint64_t seed = 3;
    for (Set& set : sets) {
      set.sum = set.out = Bytes(residual.size());
      AllReduceNormParams params{.dtype = kDType,
                                 .num_tokens = of.tokens,
                                 .hidden_size = of.hidden,
                                 .eps = kNormEps,
                                 .partial_stride = of.hidden,
                                 .residual = residual.data(),
                                 .residual_stride = of.hidden,
                                 .weight = weight.data(),
                                 .residual_out = set.sum.data(),
                                 .residual_out_stride = of.hidden,
                                 .out = set.out.data(),
                                 .out_stride = of.hidden,
                                 .peers = {.world_size = ranks}};
      for (int32_t r = 0; r < ranks; ++r) set.partials.push_back(Random(of.Elements(), seed++));
      for (int32_t r = 0; r < ranks; ++r) params.partials[r] = set.partials[r].data();
      AllReduceNormReference(params);
    }
  }

  Shape shape;
  Bytes residual, weight;
  Set sets[kSets];
};

// What a GPU keeps from shape to shape. Members are made while it is the current device.
struct Gpu {
  PeerBuffers peers;
  DeviceBuffer buffer, barrier;
  void* barriers[kMaxRanks] = {};  // of all GPUs
  UniqueStream stream;
  UniqueNcclComm communicator;
};

// Throws RuntimeFailure unless every element is within `units` of 2^-7 of itself, or of the root
// mean square of all where it is smaller. NCCL rounds the sum before the residual is added, and its
// norm follows.
void Compare(const Bytes& expected, const DeviceBuffer& device, double units, const char* what) {
  const Bytes actual = device.ToHost<unsigned char>();
  const int64_t count = std::ssize(expected) / SizeOf(kDType);
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double e = LoadElement(kDType, expected.data(), i);
    squares += e * e;
  }
  const double rms = std::sqrt(squares / static_cast<double>(count));
  for (int64_t i = 0; i < count; ++i) {
    const double e = LoadElement(kDType, expected.data(), i);
    const double a = LoadElement(kDType, actual.data(), i);
    if (std::abs(a - e) <= units * Epsilon(kDType) * std::max(std::abs(e), rms)) continue;
    throw RuntimeFailure(
        StrCat(what, " is wrong: element ", i, " is ", a, "; ", e, " was expected"));
  }
}

// One GPU's part of a problem. Made and used by the GPU's thread.
class Rank {
 public:
  Rank(const Problem& problem, const Gpu& gpu)
      : problem_(problem), gpu_(gpu), residual_(problem.residual), weight_(problem.weight) {
    for (const Set& set : problem.sets) {
      partials_.emplace_back(set.partials[static_cast<size_t>(gpu.peers.rank)]);
      sums_.emplace_back(problem.shape.Bytes());
      outs_.emplace_back(problem.shape.Bytes());
    }
  }

  // The partials of a set, for the others to read.
  const void* Partial(size_t set) const { return partials_[set].data(); }
  void SetPeers(const std::vector<const Rank*>& ranks) { ranks_ = ranks; }

  void Launch(Way way, int launches) const {
    const Shape& shape = problem_.shape;
    for (int i = 0; i < launches; ++i) {
      const auto set = static_cast<size_t>(i / kLaunchesOfASet % kSets);
      AllReduceNormParams params{.dtype = kDType,
                                 .variant = VariantOf(way),
                                 .num_tokens = shape.tokens,
                                 .hidden_size = shape.hidden,
                                 .eps = kNormEps,
                                 .partial_stride = shape.hidden,
                                 .residual = residual_.data(),
                                 .residual_stride = shape.hidden,
                                 .weight = weight_.data(),
                                 .residual_out = sums_[set].data(),
                                 .residual_out_stride = shape.hidden,
                                 .out = outs_[set].data(),
                                 .out_stride = shape.hidden,
                                 .peers = gpu_.peers};
      params.partials[gpu_.peers.rank] = partials_[set].data();
      const LaunchOptions options{.stream = gpu_.stream.get(),
                                  .dependent = way != Way::kOneShotPlain && i > 0};
      if (way == Way::kBarrier) {
        LaunchBarrier(params, set);
      } else if (way == Way::kNccl) {
        LaunchOverNccl(params, gpu_.communicator.get(), options);
      } else {
        tokline::Launch(params, options);
      }
    }
  }

  void Poison() const {
    for (const std::vector<DeviceBuffer>* buffers : {&sums_, &outs_}) {
      for (const DeviceBuffer& buffer : *buffers) {
        TOKLINE_CUDA(cudaMemsetAsync(buffer.data(), 0xff, static_cast<size_t>(buffer.bytes()),
                                     gpu_.stream.get()));
      }
    }
    TOKLINE_CUDA(cudaDeviceSynchronize());  // the uploads of the inputs too
  }

  void Check(Way way) const {
    TOKLINE_CUDA(cudaStreamSynchronize(gpu_.stream.get()));
    if (IsOurs(way)) RequireAllReduced(gpu_.peers, gpu_.stream.get());
    for (size_t set = 0; set < kSets; ++set) {
      Compare(problem_.sets[set].sum, sums_[set], IsOurs(way) ? 1 : 2, "residual_out");
      Compare(problem_.sets[set].out, outs_[set], IsOurs(way) ? 4 : 8, "out");
    }
  }

  UniqueGraphExec Capture(Way way) const {
    UniqueGraphExec graph = CaptureGraph(
        gpu_.stream.get(), [&] { Launch(way, problem_.shape.Launches()); },
        problem_.shape.Launches());
    TOKLINE_CUDA(cudaGraphUpload(graph.get(), gpu_.stream.get()));
    TOKLINE_CUDA(cudaStreamSynchronize(gpu_.stream.get()));
    return graph;
  }

  // Microseconds per launch of one replay, which is queued behind another: otherwise the time that
  // the host takes to queue it would count.
  double Replay(const UniqueGraphExec& graph) const {
    TOKLINE_CUDA(cudaGraphLaunch(graph.get(), gpu_.stream.get()));
    TOKLINE_CUDA(cudaEventRecord(begin_.get(), gpu_.stream.get()));
    TOKLINE_CUDA(cudaGraphLaunch(graph.get(), gpu_.stream.get()));
    TOKLINE_CUDA(cudaEventRecord(end_.get(), gpu_.stream.get()));
    TOKLINE_CUDA(cudaStreamSynchronize(gpu_.stream.get()));
    return ElapsedUs(begin_, end_) / problem_.shape.Launches();
  }

 private:
  // The sum goes where NCCL would put it, and the norm follows.
  void LaunchBarrier(const AllReduceNormParams& params, size_t set) const {
    const void* partials[kMaxRanks] = {};
    for (size_t r = 0; r < ranks_.size(); ++r) partials[r] = ranks_[r]->Partial(set);
    LaunchBarrierAllReduce(params.peers.world_size, params.peers.rank, partials, gpu_.barriers,
                           problem_.shape.Elements(), params.residual_out, gpu_.stream.get());
    tokline::Launch(NormParams{.dtype = params.dtype,
                               .num_tokens = params.num_tokens,
                               .hidden_size = params.hidden_size,
                               .eps = params.eps,
                               .x = params.residual_out,
                               .x_stride = params.hidden_size,
                               .add = params.residual,
                               .add_stride = params.residual_stride,
                               .weight = params.weight,
                               .residual_out = params.residual_out,
                               .residual_out_stride = params.residual_out_stride,
                               .out = params.out,
                               .out_stride = params.out_stride},
                    {.stream = gpu_.stream.get(), .dependent = true});
  }

  const Problem& problem_;
  const Gpu& gpu_;
  DeviceBuffer residual_, weight_;
  std::vector<DeviceBuffer> partials_, sums_, outs_;
  std::vector<const Rank*> ranks_;
  UniqueEvent begin_ = MakeTimingEvent(), end_ = MakeTimingEvent();
};

// A thread for each GPU. An exception in one of them ends all.
class Group {
 public:
  using Barrier = std::barrier<>;

  explicit Group(int32_t ranks) : ranks_(ranks), barrier_(ranks) {}

  void Run(const std::function<void(int32_t rank, const std::function<void()>& meet)>& work) {
    std::vector<std::jthread> threads;
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([this, rank, &work] {
        try {
          TOKLINE_CUDA(cudaSetDevice(rank));
          work(rank, [this] {
            barrier_.arrive_and_wait();
            if (failed_) throw Ended();
          });
        } catch (const Ended&) {
          barrier_.arrive_and_drop();
        } catch (...) {
          {
            const std::lock_guard lock(mutex_);
            if (!error_) error_ = std::current_exception();
            failed_ = true;
          }
          barrier_.arrive_and_drop();
        }
      });
    }
    threads.clear();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Ended {};

  int32_t ranks_;
  Barrier barrier_;
  std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> failed_ = false;
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Null for ours.
Json LibraryOf(Way way) {
  if (way == Way::kNccl) return {{"name", "nccl"}, {"version", NcclVersion()}};
  if (way == Way::kBarrier) return {{"name", "custom all-reduce"}, {"version", "as in vLLM"}};
  return nullptr;
}

Json RowOf(const Shape& shape, Way way, int32_t ranks, std::vector<double> us,
           const RunHeader& header) {
  AllReduceNormParams params{.dtype = kDType,
                             .num_tokens = shape.tokens,
                             .hidden_size = shape.hidden,
                             .residual = &params,
                             .weight = &params,
                             .peers = {.world_size = ranks}};
  const bool dependent = IsOurs(way) && way != Way::kOneShotPlain;
  const KernelMeasurement measured{
      .origin = {.run_id = header.run_id,
                 .implementation = ImplementationOf(way),
                 .dtype = std::string(Name(kDType)),
                 .device = DeviceName(Device::kCuda, header.fingerprint)},
      .kernel = "all_reduce_norm",
      .shape = {{"name", StrCat(ranks, "_gpus")},
                {"ranks", ranks},
                {"tokens", shape.tokens},
                {"hidden", shape.hidden}},
      .cache = "warm",
      .chain = dependent ? "dependent" : "plain",
      .cost = CostOf(params),
      .samples = {.us = std::move(us),
                  .launches_per_sample = shape.Launches(),
                  .buffer_sets = kSets},
      .verified = {.before = true, .after = true}};
  Json row = KernelRow(measured);
  row["library"] = LibraryOf(way);
  return row;
}

// Prints and records a row for each way. `best` is the least median of all ways so far, or 0.
void MeasureShape(const Shape& shape, std::span<const Way> ways, int replays,
                  const std::vector<Gpu>& gpus, const RunHeader& header, RunRecord& record,
                  double& best) {
  const auto ranks = static_cast<int32_t>(gpus.size());
  const Problem problem(shape, ranks);
  for (const Way way : ways) {
    if (!Takes(way, shape, ranks)) continue;
    std::vector<std::vector<double>> us(gpus.size());
    std::vector<const Rank*> all(gpus.size());
    Group(ranks).Run([&](int32_t r, const std::function<void()>& meet) {
      Rank rank(problem, gpus[static_cast<size_t>(r)]);
      all[static_cast<size_t>(r)] = &rank;
      rank.Poison();
      meet();  // nobody allocates or waits for a device any more
      rank.SetPeers(all);
      rank.Launch(way, kSets * kLaunchesOfASet);
      rank.Check(way);
      const UniqueGraphExec graph = rank.Capture(way);
      for (int i = -shape.WarmUpReplays(); i < replays; ++i) {
        if (i == 0) rank.Poison();
        meet();
        const double sample = rank.Replay(graph);
        if (i >= 0) us[static_cast<size_t>(r)].push_back(sample);
      }
      rank.Check(way);
      meet();
    });
    std::vector<double> samples = us[0];
    for (const std::vector<double>& rank : us) {
      for (size_t i = 0; i < samples.size(); ++i) samples[i] = std::min(samples[i], rank[i]);
    }
    const double median = Median(samples);
    std::printf("%4lld x %-6lld %-30s %8.2f %8.2f", static_cast<long long>(shape.tokens),
                static_cast<long long>(shape.hidden), NameOf(way), median,
                std::ranges::min(samples));
    if (!IsOurs(way)) {
      std::printf("   %.2f times ours", median / best);
    } else {
      best = best == 0 ? median : std::min(best, median);
    }
    std::printf("\n");
    std::fflush(stdout);
    record.Add(RowOf(shape, way, ranks, std::move(samples), header), /*stands=*/true);
  }
}

// NCCL's version, or nothing, with a warning, where it cannot be loaded.
std::optional<std::string> FindNccl() {
  // Sums inside the switches (NVLink multicast) are another way, which is not compared.
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  try {
    return NcclVersion();
  } catch (const CudaError&) {
    throw;
  } catch (const RuntimeFailure& error) {
    std::fprintf(stderr, "warning: NOT COMPARED WITH NCCL: %s\n", error.what());
    return std::nullopt;
  }
}

int Measure(int32_t ranks, int replays, RunHeader header, RunRecord& record) {
  EnablePeerAccess(ranks);
  record.Start(header);
  PeerBuffers group{.world_size = ranks};
  for (const Shape& shape : kShapes) {
    group.bytes =
        std::max(group.bytes, AllReduceNormBufferBytes(ranks, shape.tokens, shape.hidden));
    group.slab_bytes =
        std::max(group.slab_bytes, AllReduceNormSlabBytes(ranks, shape.tokens, shape.hidden));
  }
  group.bytes += group.slab_bytes;
  std::vector<Gpu> gpus(static_cast<size_t>(ranks));
  for (int32_t r = 0; r < ranks; ++r) {
    TOKLINE_CUDA(cudaSetDevice(r));
    Gpu& gpu = gpus[static_cast<size_t>(r)];
    gpu.buffer = DeviceBuffer(group.bytes);
    gpu.barrier = DeviceBuffer(kBarrierBytes);
    gpu.stream = MakeStream();
    TOKLINE_CUDA(cudaMemset(gpu.buffer.data(), 0, static_cast<size_t>(group.bytes)));
    TOKLINE_CUDA(cudaMemset(gpu.barrier.data(), 0, static_cast<size_t>(kBarrierBytes)));
    TOKLINE_CUDA(cudaDeviceSynchronize());
    group.buffers[r] = gpu.buffer.data();
  }
  TOKLINE_CUDA(cudaSetDevice(0));
  for (int32_t r = 0; r < ranks; ++r) {
    gpus[static_cast<size_t>(r)].peers = group;
    gpus[static_cast<size_t>(r)].peers.rank = r;
    for (int32_t of = 0; of < ranks; ++of) {
      gpus[static_cast<size_t>(r)].barriers[of] = gpus[static_cast<size_t>(of)].barrier.data();
    }
  }
  std::printf("all_reduce_norm on %d x %s, one process with peer access, bf16, warm\n", ranks,
              CudaDeviceName().c_str());
  std::printf("us per launch in a graph of 200 or 20, over %d replays; outputs verified\n\n",
              replays);
  std::printf("%-13s %-30s %8s %8s\n", "shape", "way", "median", "least");
  double best[std::size(kShapes)] = {};
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    MeasureShape(kShapes[i], kWays, replays, gpus, header, record, best[i]);
  }
  // NCCL comes last: whatever happens to it, our rows are there.
  const std::optional<std::string> nccl = FindNccl();
  if (!nccl) {
    record.Finish(/*interrupted=*/false);
    return 0;
  }
  std::printf("\nNCCL %s without NVLink multicast\n", nccl->c_str());
  std::vector<UniqueNcclComm> communicators = MakeNcclComms(ranks);
  for (size_t r = 0; r < gpus.size(); ++r) gpus[r].communicator = std::move(communicators[r]);
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    MeasureShape(kShapes[i], {{Way::kNccl}}, replays, gpus, header, record, best[i]);
  }
  record.Finish(/*interrupted=*/false);
  return 0;
}

}  // namespace

int PeerRanksMain(int argc, char** argv) {
  // A kernel that is loaded when it is first launched may wait for those that run, which wait for
  // it.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  const auto number = [](const char* text) {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    return *text != '\0' && *end == '\0' ? value : -1;
  };
  const long ranks = argc >= 3 ? number(argv[2]) : -1;
  long replays = kDefaultReplays;
  std::string file;
  bool known = argc % 2 == 1;
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--replays") {
      replays = number(argv[i + 1]);
    } else if (flag == "--record") {
      file = argv[i + 1];
    } else {
      known = false;
    }
  }
  if (!known || ranks < 2 || ranks > kMaxRanks || replays < 1 || replays > 10'000) {
    std::fprintf(
        stderr,
        "%s: usage: --gpus N [--replays R] [--record FILE], with N from 2 to %d and R from "
        "1 to 10000; without --gpus, all ranks run on one GPU\n",
        argv[0], kMaxRanks);
    return 2;
  }
  const int there = CudaDeviceCount();
  if (ranks > there) {
    std::fprintf(
        stderr, "%s: --gpus %ld: this process sees %d GPUs; without --gpus, all ranks run on one\n",
        argv[0], ranks, there);
    return 2;
  }
  try {
    RunRecord record(file);
    const auto count = static_cast<int32_t>(ranks);
    RunHeader header{.run_id = NewRunId(),
                     .program = "bench_all_reduce_norm",
                     .fingerprint = TakeFingerprint(argc, argv, /*cuda=*/true, count),
                     .peaks = std::nullopt,
                     .datasheet = std::nullopt};
    if (header.fingerprint.gpu) header.datasheet = DatasheetOf(header.fingerprint.gpu->name);
    return Measure(count, static_cast<int>(replays), std::move(header), record);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
}

}  // namespace tokline::bench
