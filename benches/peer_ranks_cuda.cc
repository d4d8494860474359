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
#include <string>
#include <thread>
#include <vector>

#include "benches/peer_ranks.h"
#include "harness/platform/cuda_handles.h"
#include "harness/platform/device.h"
#include "harness/platform/device_buffer.h"
#include "harness/platform/peer_access.h"
#include "harness/platform/random_values.h"
#include "kernels/all_reduce_norm/all_reduce_norm.h"
#include "kernels/device/nccl_library.h"
#include "reference/all_reduce_norm.h"
#include "reference/elements.h"

namespace tokline::bench {
namespace {

constexpr DType kDType = DType::kBf16;
constexpr float kNormEps = 1e-6f;
constexpr int kLaunches = 200;  // in a graph
constexpr int kDefaultReplays = 25;

struct Shape {
  int64_t tokens, hidden;
  int64_t Elements() const { return tokens * hidden; }
  int64_t Bytes() const { return Elements() * SizeOf(kDType); }
};
constexpr Shape kShapes[] = {{1, 2560}, {1, 4096}, {8, 4096}, {64, 4096}, {256, 4096}};

enum class Way { kOneShotPlain, kOneShot, kTwoShot, kNccl };
constexpr Way kWays[] = {Way::kOneShotPlain, Way::kOneShot, Way::kTwoShot, Way::kNccl};

const char* NameOf(Way way) {
  switch (way) {
    case Way::kOneShotPlain:
      return "one_shot, plain launches";
    case Way::kOneShot:
      return "one_shot, dependent launches";
    case Way::kTwoShot:
      return "two_shot, dependent launches";
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

// The inputs of all ranks, and what each of them must get.
struct Problem {
  Problem(const Shape& of, int32_t ranks)
      : shape(of),
        residual(Random(of.Elements(), 1)),
        weight(Random(of.hidden, 2)),
        sum(residual.size()),
        out(residual.size()) {
    AllReduceNormParams params{.dtype = kDType,
                               .num_tokens = of.tokens,
                               .hidden_size = of.hidden,
                               .eps = kNormEps,
                               .partial_stride = of.hidden,
                               .residual = residual.data(),
                               .residual_stride = of.hidden,
                               .weight = weight.data(),
                               .residual_out = sum.data(),
                               .residual_out_stride = of.hidden,
                               .out = out.data(),
                               .out_stride = of.hidden,
                               .peers = {.world_size = ranks}};
    for (int32_t r = 0; r < ranks; ++r) partials.push_back(Random(of.Elements(), 3 + r));
    for (int32_t r = 0; r < ranks; ++r) params.partials[r] = partials[r].data();
    AllReduceNormReference(params);
  }

  Shape shape;
  std::vector<Bytes> partials;
  Bytes residual, weight, sum, out;
};

// Throws RuntimeFailure unless every element is within `units` of 2^-7 of itself, or of the root
// mean square of all where it is smaller. NCCL rounds the sum before the residual is added, and its
// norm follows.
void Compare(const Bytes& expected, const DeviceBuffer& device, double units, const char* what) {
  const Bytes actual = device.ToHost<unsigned char>();
  const int64_t count = std::ssize(expected) / SizeOf(kDType);
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    squares += std::pow(LoadElement(kDType, expected.data(), i), 2);
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
  Rank(const Problem& problem, const PeerBuffers& peers, ncclComm* communicator)
      : problem_(problem),
        peers_(peers),
        communicator_(communicator),
        partial_(problem.partials[static_cast<size_t>(peers.rank)]),
        residual_(problem.residual),
        weight_(problem.weight),
        sum_(problem.shape.Bytes()),
        out_(problem.shape.Bytes()) {}

  bool Takes(Way way) const {
    if (way == Way::kNccl) return communicator_ != nullptr;
    return way != Way::kTwoShot || problem_.shape.tokens >= peers_.world_size;
  }

  void Launch(Way way, bool first) const {
    const Shape& shape = problem_.shape;
    AllReduceNormParams params{.dtype = kDType,
                               .variant = way == Way::kTwoShot ? AllReduceNormVariant::kTwoShot
                                                               : AllReduceNormVariant::kOneShot,
                               .num_tokens = shape.tokens,
                               .hidden_size = shape.hidden,
                               .eps = kNormEps,
                               .partial_stride = shape.hidden,
                               .residual = residual_.data(),
                               .residual_stride = shape.hidden,
                               .weight = weight_.data(),
                               .residual_out = sum_.data(),
                               .residual_out_stride = shape.hidden,
                               .out = out_.data(),
                               .out_stride = shape.hidden,
                               .peers = peers_};
    params.partials[peers_.rank] = partial_.data();
    const LaunchOptions options{.stream = stream_.get(),
                                .dependent = way != Way::kOneShotPlain && !first};
    if (way == Way::kNccl) {
      LaunchOverNccl(params, communicator_, options);
    } else {
      tokline::Launch(params, options);
    }
  }

  void Poison() const {
    for (const DeviceBuffer* buffer : {&sum_, &out_}) {
      TOKLINE_CUDA(cudaMemsetAsync(buffer->data(), 0xff, static_cast<size_t>(buffer->bytes()),
                                   stream_.get()));
    }
    TOKLINE_CUDA(cudaStreamSynchronize(stream_.get()));
  }

  void Check(Way way) const {
    TOKLINE_CUDA(cudaStreamSynchronize(stream_.get()));
    if (way != Way::kNccl) RequireAllReduced(peers_, stream_.get());
    Compare(problem_.sum, sum_, way == Way::kNccl ? 2 : 1, "residual_out");
    Compare(problem_.out, out_, way == Way::kNccl ? 8 : 4, "out");
  }

  UniqueGraphExec Capture(Way way) const {
    return CaptureGraph(stream_.get(), [&] {
      for (int i = 0; i < kLaunches; ++i) Launch(way, i == 0);
    });
  }

  // Microseconds per launch of one replay.
  double Replay(const UniqueGraphExec& graph) const {
    TOKLINE_CUDA(cudaEventRecord(begin_.get(), stream_.get()));
    TOKLINE_CUDA(cudaGraphLaunch(graph.get(), stream_.get()));
    TOKLINE_CUDA(cudaEventRecord(end_.get(), stream_.get()));
    TOKLINE_CUDA(cudaStreamSynchronize(stream_.get()));
    return ElapsedUs(begin_, end_) / kLaunches;
  }

 private:
  const Problem& problem_;
  PeerBuffers peers_;
  ncclComm* communicator_;
  DeviceBuffer partial_, residual_, weight_, sum_, out_;
  UniqueStream stream_ = MakeStream();
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

// Prints a row for each way.
void MeasureShape(const Shape& shape, int32_t ranks, int replays,
                  const std::vector<PeerBuffers>& peers,
                  const std::vector<UniqueNcclComm>& communicators) {
  const Problem problem(shape, ranks);
  std::vector<std::vector<std::vector<double>>> us(
      std::size(kWays), std::vector<std::vector<double>>(static_cast<size_t>(ranks)));
  Group(ranks).Run([&](int32_t r, const std::function<void()>& meet) {
    const Rank rank(problem, peers[static_cast<size_t>(r)],
                    communicators.empty() ? nullptr : communicators[static_cast<size_t>(r)].get());
    for (size_t w = 0; w < std::size(kWays); ++w) {
      const Way way = kWays[w];
      if (!rank.Takes(way)) continue;
      rank.Poison();
      meet();  // nobody allocates or waits for a device any more
      rank.Launch(way, true);
      rank.Check(way);
      const UniqueGraphExec graph = rank.Capture(way);
      for (int i = -2; i < replays; ++i) {
        if (i == 0) rank.Poison();
        meet();
        const double sample = rank.Replay(graph);
        if (i >= 0) us[w][static_cast<size_t>(r)].push_back(sample);
      }
      rank.Check(way);
      meet();
    }
  });
  std::optional<double> best;
  for (size_t w = 0; w < std::size(kWays); ++w) {
    if (us[w][0].empty()) continue;
    std::vector<double> samples;
    for (size_t i = 0; i < us[w][0].size(); ++i) {
      double sample = us[w][0][i];
      for (const std::vector<double>& rank : us[w]) sample = std::min(sample, rank[i]);
      samples.push_back(sample);
    }
    const double median = Median(samples);
    std::printf("%4lld x %-6lld %-30s %8.2f %8.2f", static_cast<long long>(shape.tokens),
                static_cast<long long>(shape.hidden), NameOf(kWays[w]), median,
                std::ranges::min(samples));
    if (kWays[w] != Way::kNccl) {
      best = std::min(best.value_or(median), median);
    } else if (best) {
      std::printf("   %.2f times ours", median / *best);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

int Measure(int32_t ranks, int replays) {
  EnablePeerAccess(ranks);
  std::string nccl;
  std::vector<UniqueNcclComm> communicators;
  try {
    // Sums inside the switches (NVLink multicast) are another way, which is not compared.
    ::setenv("NCCL_NVLS_ENABLE", "0", 1);
    nccl = "NCCL " + NcclVersion() + " without NVLink multicast";
    communicators = MakeNcclComms(ranks);
  } catch (const RuntimeFailure& error) {
    nccl = std::string("no NCCL: ") + error.what();
  }
  std::vector<DeviceBuffer> buffers;
  PeerBuffers group{.world_size = ranks};
  for (const Shape& shape : kShapes) {
    group.bytes =
        std::max(group.bytes, AllReduceNormBufferBytes(ranks, shape.tokens, shape.hidden));
  }
  for (int32_t r = 0; r < ranks; ++r) {
    TOKLINE_CUDA(cudaSetDevice(r));
    buffers.emplace_back(group.bytes);
    TOKLINE_CUDA(cudaMemset(buffers.back().data(), 0, static_cast<size_t>(group.bytes)));
    TOKLINE_CUDA(cudaDeviceSynchronize());
    group.buffers[r] = buffers.back().data();
  }
  TOKLINE_CUDA(cudaSetDevice(0));
  std::vector<PeerBuffers> peers(static_cast<size_t>(ranks), group);
  for (int32_t r = 0; r < ranks; ++r) peers[static_cast<size_t>(r)].rank = r;
  std::printf("all_reduce_norm on %d x %s, %s, bf16, warm; %s\n", ranks, CudaDeviceName().c_str(),
              "one process with peer access", nccl.c_str());
  std::printf("us per launch in a graph of %d, over %d replays; outputs verified\n\n", kLaunches,
              replays);
  std::printf("%-13s %-30s %8s %8s\n", "shape", "way", "median", "least");
  for (const Shape& shape : kShapes) MeasureShape(shape, ranks, replays, peers, communicators);
  return 0;
}

}  // namespace

int PeerRanksMain(int argc, char** argv) {
  const auto number = [](const char* text) {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    return *text != '\0' && *end == '\0' ? value : -1;
  };
  const long ranks = argc >= 3 ? number(argv[2]) : -1;
  const bool has_replays = argc == 5 && std::string_view(argv[3]) == "--replays";
  const long replays = has_replays ? number(argv[4]) : kDefaultReplays;
  if (ranks < 2 || ranks > kMaxRanks || (argc != 3 && !has_replays) || replays < 1 ||
      replays > 10'000) {
    std::fprintf(stderr,
                 "%s: usage: --gpus N [--replays R], with N from 2 to %d and R from 1 to 10000; "
                 "without --gpus, all ranks run on one GPU\n",
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
    return Measure(static_cast<int32_t>(ranks), static_cast<int>(replays));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
}

}  // namespace tokline::bench
