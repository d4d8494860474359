// Measures the device's peaks with kernels that do nothing else. They read buffers far larger than
// the L2 in 16-byte loads: reads alone, from two buffers into a third, and from one into another.
// An empty kernel gives the launch times. Each block walks its own part of the buffers, and each
// thread keeps several loads in flight.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "harness/measure/launch_timer.h"
#include "harness/measure/peaks.h"
#include "harness/platform/cuda_handles.h"
#include "harness/platform/device_buffer.h"
#include "harness/platform/random_values.h"
#include "kernels/device/launch.cuh"

namespace tokline {
namespace {

constexpr int kThreads = 512;
constexpr int kLoadsInFlight = 8;
constexpr int64_t kBlockVectors = int64_t{kThreads} * kLoadsInFlight;

// Reads all sources, and writes the number of bytes of one of them, or nothing. If nothing is to be
// written, the sum is written only if it equals a value that random data does not produce; the
// compiler cannot know this and keeps the loads.
template <int kSources, bool kWrites>
__global__ void __launch_bounds__(kThreads)
    TrafficKernel(const uint4* first, const uint4* second, uint4* out, int64_t vectors) {
  uint32_t sum = 0;
  const int64_t stride = gridDim.x * kBlockVectors;
  for (int64_t base = blockIdx.x * kBlockVectors; base < vectors; base += stride) {
    uint4 loaded[kSources][kLoadsInFlight];
#pragma unroll
    for (int i = 0; i < kLoadsInFlight; ++i) {
      const int64_t at = base + i * kThreads + threadIdx.x;
      loaded[0][i] = at < vectors ? __ldcs(first + at) : uint4{};
      if constexpr (kSources == 2) loaded[1][i] = at < vectors ? __ldcs(second + at) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kLoadsInFlight; ++i) {
      uint4 value = loaded[0][i];
      if constexpr (kSources == 2) {
        const uint4 other = loaded[1][i];
        // With equal values this gives no zeros, and many writes do not lose more and more bits.
        value = {value.x + 2 * other.x, value.y + 2 * other.y, value.z + 2 * other.z,
                 value.w + 2 * other.w};
      }
      const int64_t at = base + i * kThreads + threadIdx.x;
      if constexpr (kWrites) {
        if (at < vectors) __stcs(out + at, value);
      } else {
        sum |= value.x ^ value.y ^ value.z ^ value.w;
      }
    }
  }
  if (!kWrites && sum == 0x12345678u) *out = {sum, 0, 0, 0};
}

__global__ void EmptyKernel() {}

// Returns the fastest of several samples, because a peak is what can be reached.
double Best(LaunchTimer& timer) {
  const std::vector<double> samples = timer.Sample(/*count=*/9, /*meanwhile=*/{});
  return *std::min_element(samples.begin(), samples.end());
}

using LaunchFunction = std::function<void(int, const LaunchOptions&)>;

std::unique_ptr<LaunchTimer> TimerOf(const LaunchFunction& launch) {
  launch(0, {.stream = WorkStream()});
  TOKLINE_CUDA(cudaDeviceSynchronize());
  return MakeGraphTimer(launch, {.min_sample_us = 2000});
}

double BestUs(const LaunchFunction& launch) { return Best(*TimerOf(launch)); }

// Takes single samples, each after a rest: matrix products reach the power cap of most GPUs after a
// tenth of a second, and a kernel that is timed in short bursts would otherwise exceed this peak.
double BestRestedUs(const LaunchFunction& launch) {
  constexpr auto kRest = std::chrono::milliseconds(50);
  const std::unique_ptr<LaunchTimer> timer = TimerOf(launch);
  double best = INFINITY;
  for (int i = 0; i < 9; ++i) {
    std::this_thread::sleep_for(kRest);
    best = std::min(best, timer->Sample(/*count=*/1, /*meanwhile=*/{}).front());
  }
  return best;
}

int64_t BlocksOf(int64_t vectors, int64_t blocks) {
  return std::min(blocks, (vectors + kBlockVectors - 1) / kBlockVectors);
}

double LaunchUs() {
  constexpr int kLaunches = 2000;
  const UniqueEvent begin = MakeTimingEvent();
  const UniqueEvent end = MakeTimingEvent();
  double best = 0;
  for (int repetition = 0; repetition < 5; ++repetition) {
    TOKLINE_CUDA(cudaEventRecord(begin.get(), WorkStream()));
    for (int i = 0; i < kLaunches; ++i) {
      LaunchKernel(EmptyKernel, {.grid = dim3(1), .block = dim3(32)}, {.stream = WorkStream()});
    }
    TOKLINE_CUDA(cudaEventRecord(end.get(), WorkStream()));
    TOKLINE_CUDA(cudaEventSynchronize(end.get()));
    const double us = ElapsedUs(begin, end) / kLaunches;
    best = repetition == 0 ? us : std::min(best, us);
  }
  return best;
}

double GraphNodeUs() {
  const auto launch = [](int, const LaunchOptions& options) {
    LaunchKernel(EmptyKernel, {.grid = dim3(1), .block = dim3(32)}, options);
  };
  return Best(*MakeGraphTimer(launch, {.buffer_sets = 1000, .min_sample_us = 1}));
}

}  // namespace

Peaks MeasurePeaks(const std::optional<MatmulWork>& matmul) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  TOKLINE_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  const int64_t bytes =
      std::min<int64_t>(int64_t{1} << 30, static_cast<int64_t>(free_bytes) / 32) / 4096 * 4096;
  const int64_t vectors = bytes / static_cast<int64_t>(sizeof(uint4));
  const std::array<DeviceBuffer, 3> buffers{DeviceBuffer(bytes), DeviceBuffer(bytes),
                                            DeviceBuffer(bytes)};
  for (uint64_t seed = 1; const DeviceBuffer& buffer : buffers) {
    FillRandomOnDevice(DType::kBf16, buffer.data(), bytes / 2, seed++, /*log2_scale=*/0);
  }

  int device = 0;
  int sm_count = 0;
  TOKLINE_CUDA(cudaGetDevice(&device));
  TOKLINE_CUDA(cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device));
  Peaks peaks;
  for (const int64_t blocks_per_sm : {2, 4, 1 << 16}) {  // persistent blocks, or one block per part
    const LaunchShape shape{
        .grid = dim3(static_cast<unsigned>(BlocksOf(vectors, blocks_per_sm * sm_count))),
        .block = dim3(kThreads),
        .bytes = static_cast<double>(bytes)};
    // The speed of reads depends on the place of the memory, so each buffer takes each part once.
    for (size_t placement = 0; placement < buffers.size(); ++placement) {
      const auto* first = buffers[placement].as<const uint4>();
      const auto* second = buffers[(placement + 1) % buffers.size()].as<const uint4>();
      auto* out = buffers[(placement + 2) % buffers.size()].as<uint4>();
      const auto gbps = [&](auto* kernel, int64_t moved) {
        const double us = BestUs([&](int, const LaunchOptions& options) {
          LaunchKernel(kernel, shape, options, first, second, out, vectors);
        });
        return static_cast<double>(moved) / us / 1e3;
      };
      peaks = BestOf(peaks, {.read_gbps = gbps(TrafficKernel<1, false>, bytes),
                             .two_to_one_gbps = gbps(TrafficKernel<2, true>, 3 * bytes),
                             .copy_gbps = gbps(TrafficKernel<1, true>, 2 * bytes)});
    }
  }
  if (matmul) {
    const double us =
        BestRestedUs([&](int, const LaunchOptions& options) { matmul->launch(options); });
    peaks.matmul_tflops = matmul->flops / us / 1e6;
  }
  peaks.launch_us = LaunchUs();
  peaks.graph_node_us = GraphNodeUs();
  return peaks;
}

}  // namespace tokline
