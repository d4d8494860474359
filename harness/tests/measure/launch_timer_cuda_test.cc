// Times of captured launches on the device: the launches of a sample and of a rotation, slowdowns
// and spins of a known size, and peaks within the datasheet.
#include <chrono>
#include <vector>

#include "harness/measure/launch_timer.h"
#include "harness/measure/lead_in.h"
#include "harness/measure/peaks.h"
#include "harness/measure/timing.h"
#include "harness/platform/cuda_handles.h"
#include "harness/tests/kernels/cuda_test.h"

namespace tokline {
namespace {

class GraphTimerTest : public testing::CudaTest {
 protected:
  // Sets all bytes of the buffer, which takes several microseconds.
  void Write(int byte, cudaStream_t stream) const {
    TOKLINE_CUDA(
        cudaMemsetAsync(buffer_.data(), byte, static_cast<size_t>(buffer_.bytes()), stream));
  }

  DeviceBuffer buffer_{CudaDeviceCount() == 0 ? 0 : 8 << 20};
};

TEST_F(GraphTimerTest, RotatesOverBufferSetsAndMarksAllButTheFirstDependent) {
  std::vector<int> sets;
  std::vector<bool> dependent;
  const auto launch = [&](int set, const LaunchOptions& options) {
    sets.push_back(set);
    dependent.push_back(options.dependent);
    Write(set, options.stream);
  };
  const auto timer = MakeGraphTimer(launch, {.buffer_sets = 3, .dependent = true});
  EXPECT_EQ(timer->launches_per_sample() % 3, 0);
  const auto launches = static_cast<size_t>(timer->launches_per_sample());
  const size_t captured = sets.size();
  ASSERT_GE(captured, 3 + launches);  // the graph of one rotation, and last that of a sample
  const size_t first = captured - launches;
  for (size_t i = first; i < captured; ++i) {
    EXPECT_EQ(sets[i], static_cast<int>((i - first) % 3));
    EXPECT_EQ(dependent[i], i != first);
  }
  EXPECT_EQ(timer->Sample(15, {}).size(), 15u);
  EXPECT_EQ(sets.size(), captured) << "a sample only replays";
}

TEST_F(GraphTimerTest, AGraphOfShortLaunchesTakesItsTime) {
  const DeviceBuffer little(4);
  const auto launch = [&](int, const LaunchOptions& options) {
    TOKLINE_CUDA(cudaMemsetAsync(little.data(), 1, 4, options.stream));
  };
  for (int i = 0; i < 5; ++i) {
    const auto timer = MakeGraphTimer(launch, {});
    const double sample_us = Median(timer->Sample(15, {})) * timer->launches_per_sample();
    EXPECT_GE(sample_us, 1000 / 2 * 0.9) << timer->launches_per_sample() << " launches";
  }
}

TEST_F(GraphTimerTest, ARotationIsOneLaunchOnEachSet) {
  const DeviceBuffer counts(3);
  std::vector<int> captured;
  const auto launch = [&](int set, const LaunchOptions& options) {
    captured.push_back(set);
    TOKLINE_CUDA(cudaMemsetAsync(counts.as<char>() + set, set + 1, 1, options.stream));
  };
  const auto timer =
      MakeGraphTimer(launch, {.buffer_sets = 3, .min_sample_us = 1, .evict_bytes = 1 << 20});
  TOKLINE_CUDA(cudaMemset(counts.data(), 0, 3));
  const Rotation rotation = timer->RotateOnce();
  EXPECT_GT(rotation.us, 0);
  EXPECT_LT(rotation.late_us, 1e5);
  EXPECT_EQ(counts.ToHost<char>(), (std::vector<char>{1, 2, 3}));
  EXPECT_EQ(std::vector<int>(captured.begin(), captured.begin() + 3), (std::vector<int>{0, 1, 2}));
}

TEST_F(GraphTimerTest, ARotationTakesPerLaunchWhatSamplesTake) {
  const DeviceBuffer large(256 << 20);
  const auto launch = [&](int, const LaunchOptions& options) {
    TOKLINE_CUDA(
        cudaMemsetAsync(large.data(), 1, static_cast<size_t>(large.bytes()), options.stream));
  };
  const auto timer = MakeGraphTimer(launch, {.buffer_sets = 8});
  const double repeated = Median(timer->Sample(15, {}));
  std::vector<double> once;
  for (int i = 0; i < 5; ++i) once.push_back(timer->RotateOnce().us);
  EXPECT_NEAR(Median(once) / repeated, 1, 0.1);
}

TEST_F(GraphTimerTest, ASlowdownOfManyLaunchesIsMadeOfLaunches) {
  int captured = 0;  // launches of the last graph, of which only the first is not dependent
  const auto launch = [&](int, const LaunchOptions& options) {
    captured = options.dependent ? captured + 1 : 1;
    Write(1, options.stream);
  };
  const auto plain = MakeGraphTimer(launch, {.buffer_sets = 4, .dependent = true});
  const auto slowed =
      MakeGraphTimer(launch, {.buffer_sets = 4, .dependent = true, .slowdown_percent = 10});
  const int more = MoreLaunches(slowed->launches_per_sample(), 10);
  ASSERT_GT(more, 0);
  EXPECT_EQ(captured, slowed->launches_per_sample() + more);
  EXPECT_NEAR(Median(slowed->Sample(15, {})) / Median(plain->Sample(15, {})), 1.10, 0.02);
}

TEST_F(GraphTimerTest, ASlowedGraphHasAsManyLaunchesAsAWholeNumberNeeds) {
  const DeviceBuffer large(192 << 20);  // about 50 us, of which 1 ms has too few launches for 3 %
  const auto launch = [&](int, const LaunchOptions& options) {
    TOKLINE_CUDA(
        cudaMemsetAsync(large.data(), 1, static_cast<size_t>(large.bytes()), options.stream));
  };
  const auto plain = MakeGraphTimer(launch, {.buffer_sets = 2});
  ASSERT_LT(plain->launches_per_sample(), 32);
  const auto slowed = MakeGraphTimer(launch, {.buffer_sets = 2, .slowdown_percent = 3});
  EXPECT_EQ(slowed->launches_per_sample(), 32);
  EXPECT_NEAR(Median(slowed->Sample(15, {})) / Median(plain->Sample(15, {})), 1 + 1 / 32.0, 0.01);
}

TEST_F(GraphTimerTest, AnInjectedSlowdownOfFewLaunchesIsInEverySample) {
  const DeviceBuffer large(int64_t{4} << 30);  // ten launches would take more than 5 ms
  const auto launch = [&](int, const LaunchOptions& options) {
    TOKLINE_CUDA(
        cudaMemsetAsync(large.data(), 1, static_cast<size_t>(large.bytes()), options.stream));
  };
  const auto plain_timer = MakeGraphTimer(launch, {});
  ASSERT_EQ(MoreLaunches(plain_timer->launches_per_sample(), 10), 0);
  const double plain = Median(plain_timer->Sample(15, {}));
  const double slowed = Median(MakeGraphTimer(launch, {.slowdown_percent = 10})->Sample(15, {}));
  EXPECT_NEAR(slowed / plain, 1.10, 0.02);
  const auto begin = std::chrono::steady_clock::now();
  const auto timer = MakeGraphTimer(launch, {.slowdown_percent = 10, .rest_share = 8});
  const std::chrono::duration<double, std::micro> made = std::chrono::steady_clock::now() - begin;
  EXPECT_NEAR(Median(timer->Sample(15, {})) / plain, 1.10, 0.02);
  EXPECT_GT(made.count(), 13 * 8 * plain * timer->launches_per_sample()) << "no rests";
}

TEST_F(GraphTimerTest, CallsBackWhileTheBlockRuns) {
  const auto launch = [&](int, const LaunchOptions& options) { Write(1, options.stream); };
  int calls = 0;
  MakeGraphTimer(launch, {})->Sample(5, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST_F(GraphTimerTest, WorkOnAnotherStreamIsRefused) {
  const UniqueStream side = MakeStream();
  const auto launch = [&](int, const LaunchOptions&) { Write(0, side.get()); };
  EXPECT_THROW(MakeGraphTimer(launch, {.buffer_sets = 2}), RuntimeFailure);
}

TEST_F(GraphTimerTest, ALaunchThatThrowsLeavesNoCaptureBehind) {
  EXPECT_THROW(MakeGraphTimer([](int, const LaunchOptions&) { throw InvalidArgument("no"); }, {}),
               InvalidArgument);
  const DeviceBuffer buffer(256);  // allocating is not allowed while a capture is open
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(GraphTimerTest, ASpinTakesItsTime) {
  const UniqueStream stream = MakeStream();
  const UniqueEvent begin = MakeTimingEvent();
  const UniqueEvent end = MakeTimingEvent();
  Spin(1, stream.get());
  TOKLINE_CUDA(cudaEventRecord(begin.get(), stream.get()));
  Spin(1000, stream.get());
  TOKLINE_CUDA(cudaEventRecord(end.get(), stream.get()));
  TOKLINE_CUDA(cudaEventSynchronize(end.get()));
  EXPECT_NEAR(ElapsedUs(begin, end), 1000, 20);
  EXPECT_THROW(Spin(-1, stream.get()), InvalidArgument);
}

TEST_F(GraphTimerTest, PeaksStayWithinTheDatasheet) {
  const Peaks peaks = MeasurePeaks(std::nullopt);
  EXPECT_TRUE(peaks.Measured());
  EXPECT_GT(peaks.copy_gbps, 0);
  EXPECT_GT(peaks.two_to_one_gbps, 0);
  EXPECT_GT(peaks.launch_us, peaks.graph_node_us);
  EXPECT_GT(peaks.graph_node_us, 0);
  if (const auto datasheet = DatasheetOf(CudaDeviceName())) {
    EXPECT_LE(peaks.read_gbps, datasheet->memory_gbps);
    EXPECT_LE(peaks.copy_gbps, datasheet->memory_gbps);
    EXPECT_LE(peaks.two_to_one_gbps, datasheet->memory_gbps);
    EXPECT_GE(peaks.read_gbps, 0.7 * datasheet->memory_gbps);
  }
}

}  // namespace
}  // namespace tokline
