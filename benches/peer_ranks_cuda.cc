// Times all_reduce_norm and NCCL on several GPUs, with one thread per GPU, and checks the sums.
#include "benches/peer_ranks.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <barrier>
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
#include "benches/peer_rank.h"
#include "harness/measure/nvml.h"
#include "harness/measure/peaks.h"
#include "harness/measure/timing.h"
#include "harness/platform/device.h"
#include "harness/platform/peer_access.h"
#include "harness/record/run_record.h"
#include "kernels/common/error.h"

namespace tokline::bench {
namespace {

constexpr int kDefaultReplays = 25, kMaxReplays = 10'000;

constexpr PeerShape kShapes[] = {{1, 2560},   {1, 4096},   {8, 4096},    {64, 4096},
                                 {256, 4096}, {512, 2560}, {1024, 2560}, {8192, 2560}};

constexpr Way kWays[] = {Way::kOneShotPlain, Way::kOneShot, Way::kTwoShot, Way::kSlabs,
                         Way::kBarrier};

// The name of the way in rows.
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

// Whether the way can run the shape: each rank must own a row, or a slab of 4 rows.
bool Takes(Way way, const PeerShape& shape, int32_t ranks) {
  if (way == Way::kBarrier) return ranks == 2 || ranks == 4 || ranks == 8;
  if (way == Way::kSlabs) return shape.tokens > 4 * (ranks - 1);
  return way != Way::kTwoShot || shape.tokens >= ranks;
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

// One thread per GPU. An exception in one of them ends all.
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

// Null for ours.
Json LibraryOf(Way way) {
  if (way == Way::kNccl) return {{"name", "nccl"}, {"version", NcclVersion()}};
  if (way == Way::kBarrier) return {{"name", "custom all-reduce"}, {"version", "as in vLLM"}};
  return nullptr;
}

std::vector<GpuState> StatesOf(const GpuGroup& group) {
  std::vector<GpuState> states;
  for (const GpuIdentity& gpu : group.gpus) states.push_back(ReadGpuState(gpu.pci_bus_id));
  return states;
}

// Says what slowed down a GPU between its two states, for the first such GPU; "" if none was
// slowed.
std::string DisturbanceOf(const std::vector<GpuState>& before,
                          const std::vector<GpuState>& during) {
  for (size_t r = 0; r < before.size(); ++r) {
    const std::string disturbed = Disturbance(before[r], during[r]);
    if (!disturbed.empty()) return StrCat("GPU ", r, ": ", disturbed);
  }
  return "";
}

KernelMeasurement MeasurementOf(const PeerShape& shape, Way way, int32_t ranks,
                                std::vector<double> us, std::string disturbed,
                                const RunHeader& header) {
  AllReduceNormParams params{
      .dtype = kPeerDType,
      .num_tokens = shape.tokens,
      .hidden_size = shape.hidden,
      .residual = &params,
      .weight = &params,
      .peers = {.world_size = ranks,
                .slab_bytes = AllReduceNormSlabBytes(ranks, shape.tokens, shape.hidden)}};
  const bool dependent = IsOurs(way) && way != Way::kOneShotPlain;
  return {
      .origin = {.run_id = header.run_id,
                 .implementation = ImplementationOf(way),
                 .dtype = std::string(Name(kPeerDType)),
                 .device = DeviceName(Device::kCuda, header.fingerprint)},
      .kernel = "all_reduce_norm",
      .shape = {{"name", StrCat(ranks, "_gpus")},
                {"ranks", ranks},
                {"tokens", shape.tokens},
                {"hidden", shape.hidden}},
      .cache = "warm",
      .chain = dependent ? "dependent" : "plain",
      .chosen = !IsOurs(way) || Name(ChooseAllReduceNormVariant(params)) == ImplementationOf(way),
      .cost = CostOf(params),
      .samples = {.us = std::move(us),
                  .launches_per_sample = shape.Launches(),
                  .buffer_sets = kPeerSets},
      .verified = {.before = true, .after = true},
      .trouble = {.disturbed = std::move(disturbed)}};
}

// Prints and records a row for each way. `best` is the smallest median of all ways so far, or 0.
void MeasureShape(const PeerShape& shape, std::span<const Way> ways, int replays,
                  const std::vector<PeerGpu>& gpus, const RunHeader& header, RunRecord& record,
                  double& best) {
  const auto ranks = static_cast<int32_t>(gpus.size());
  const PeerProblem problem(shape, ranks);
  const GpuGroup& group = header.fingerprint.group.value();
  for (const Way way : ways) {
    if (!Takes(way, shape, ranks)) continue;
    std::vector<std::vector<double>> us(gpus.size());
    std::vector<const PeerRank*> all(gpus.size());
    const std::vector<GpuState> before = StatesOf(group);
    std::vector<GpuState> during(gpus.size());
    Group(ranks).Run([&](int32_t r, const std::function<void()>& meet) {
      PeerRank rank(problem, gpus[static_cast<size_t>(r)]);
      all[static_cast<size_t>(r)] = &rank;
      rank.Poison();
      meet();  // from here on no rank allocates or waits for a device
      rank.SetPeers(all);
      rank.Launch(way, kPeerSets * kLaunchesOfASet);
      rank.Check(way);
      const UniqueGraphExec graph = rank.Capture(way);
      for (int i = -shape.WarmUpReplays(); i < replays; ++i) {
        if (i == 0) rank.Poison();
        meet();
        // The state is read during the last replay: soon after it the power cap no longer shows.
        const double sample = rank.Replay(graph, [&, last = i == replays - 1] {
          const auto at = static_cast<size_t>(r);
          if (last) during[at] = ReadGpuState(group.gpus[at].pci_bus_id);
        });
        if (i >= 0) us[static_cast<size_t>(r)].push_back(sample);
      }
      rank.Check(way);
      meet();
    });
    const std::string disturbed = DisturbanceOf(before, during);
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
    if (!disturbed.empty()) std::printf("   %s", disturbed.c_str());
    std::printf("\n");
    std::fflush(stdout);
    const KernelMeasurement measured =
        MeasurementOf(shape, way, ranks, std::move(samples), disturbed, header);
    Json row = KernelRow(measured);
    row["library"] = LibraryOf(way);
    record.Add(row, /*stands=*/FiguresOf(measured).refusal.empty());
  }
}

// Returns NCCL's version, or prints a warning and returns nothing if it cannot be loaded.
std::optional<std::string> FindNccl() {
  // Sums inside the switches (NVLink multicast) are a different method, which is not compared.
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

// Ends the record. Returns the exit code.
int FinishRecord(RunRecord& record) {
  record.Finish(/*interrupted=*/false);
  if (record.Refused() == 0) return 0;
  std::fprintf(stderr, "%lld rows were refused\n", static_cast<long long>(record.Refused()));
  return 1;
}

int Measure(int32_t ranks, int replays, RunHeader header, RunRecord& record) {
  EnablePeerAccess(ranks);
  record.Start(header);
  PeerBuffers group{.world_size = ranks};
  for (const PeerShape& shape : kShapes) {
    group.bytes =
        std::max(group.bytes, AllReduceNormBufferBytes(ranks, shape.tokens, shape.hidden));
    group.slab_bytes =
        std::max(group.slab_bytes, AllReduceNormSlabBytes(ranks, shape.tokens, shape.hidden));
  }
  group.bytes += group.slab_bytes;
  std::vector<PeerGpu> gpus(static_cast<size_t>(ranks));
  for (int32_t r = 0; r < ranks; ++r) {
    TOKLINE_CUDA(cudaSetDevice(r));
    PeerGpu& gpu = gpus[static_cast<size_t>(r)];
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
  // NCCL comes last, so our rows are complete whatever happens to it.
  const std::optional<std::string> nccl = FindNccl();
  if (!nccl) return FinishRecord(record);
  std::printf("\nNCCL %s without NVLink multicast\n", nccl->c_str());
  std::vector<UniqueNcclComm> communicators = MakeNcclComms(ranks);
  for (size_t r = 0; r < gpus.size(); ++r) gpus[r].communicator = std::move(communicators[r]);
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    MeasureShape(kShapes[i], {{Way::kNccl}}, replays, gpus, header, record, best[i]);
  }
  return FinishRecord(record);
}

}  // namespace

int PeerRanksMain(int argc, char** argv) {
  // Loading a kernel at its first launch may wait for running kernels, which wait for that kernel.
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
  if (!known || ranks < 2 || ranks > kMaxRanks || replays < kMinSamples || replays > kMaxReplays) {
    std::fprintf(
        stderr,
        "%s: usage: --gpus N [--replays R] [--record FILE], with N from 2 to %d and R from "
        "%d to %d; without --gpus, all ranks run on one GPU\n",
        argv[0], kMaxRanks, kMinSamples, kMaxReplays);
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
