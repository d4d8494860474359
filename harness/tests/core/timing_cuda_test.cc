#include <vector>

#include "harness/core/cuda_handles.h"
#include "harness/core/peaks.h"
#include "harness/core/timing.h"
#include "harness/tests/kernels/cuda_test.h"

namespace tokline {
namespace {

class GraphTimingTest : public testing::CudaTest {};

TEST_F(GraphTimingTest, RotatesOverBufferSetsAndMarksAllButTheFirstDependent) {
  const DeviceBuffer buffer(1 << 20);
  std::vector<int> sets;
  std::vector<bool> dependent;
  const auto launch = [&](int set, const LaunchOptions& options) {
    sets.push_back(set);
    dependent.push_back(options.dependent);
    TOKLINE_CUDA(
        cudaMemsetAsync(buffer.data(), set, static_cast<size_t>(buffer.bytes()), options.stream));
  };
  const TimedSamples timed =
      TimeInGraph(launch, {.samples = 15, .buffer_sets = 3, .dependent = true});
  ASSERT_EQ(timed.us.size(), 15u);
  EXPECT_EQ(timed.launches_per_sample % 3, 0);
  ASSERT_GE(static_cast<int>(sets.size()), timed.launches_per_sample);
  const size_t last_graph = sets.size() - static_cast<size_t>(timed.launches_per_sample);
  for (size_t i = last_graph; i < sets.size(); ++i) {
    EXPECT_EQ(sets[i], static_cast<int>((i - last_graph) % 3));
    EXPECT_EQ(dependent[i], i != last_graph);
  }
}

TEST_F(GraphTimingTest, WorkOnAnotherStreamIsRefused) {
  const DeviceBuffer buffer(1 << 20);
  const UniqueStream side = MakeStream();
  const auto launch = [&](int, const LaunchOptions&) {
    TOKLINE_CUDA(
        cudaMemsetAsync(buffer.data(), 0, static_cast<size_t>(buffer.bytes()), side.get()));
  };
  EXPECT_THROW(TimeInGraph(launch, {.buffer_sets = 2}), RuntimeFailure);
}

TEST_F(GraphTimingTest, ALaunchThatThrowsLeavesNoCaptureBehind) {
  EXPECT_THROW(TimeInGraph([](int, const LaunchOptions&) { throw InvalidArgument("no"); }, {}),
               InvalidArgument);
  const DeviceBuffer buffer(256);  // allocating is not allowed while a capture is open
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(GraphTimingTest, PeaksStayWithinTheDatasheet) {
  const Peaks peaks = MeasurePeaks(std::nullopt);
  EXPECT_TRUE(peaks.Measured());
  EXPECT_GT(peaks.copy_gbps, 0);
  EXPECT_GT(peaks.launch_us, peaks.graph_node_us);
  EXPECT_GT(peaks.graph_node_us, 0);
  if (const auto datasheet = DatasheetOf(CudaDeviceName())) {
    EXPECT_LE(peaks.read_gbps, datasheet->memory_gbps);
    EXPECT_LE(peaks.copy_gbps, datasheet->memory_gbps);
    EXPECT_GE(peaks.read_gbps, 0.7 * datasheet->memory_gbps);
  }
}

}  // namespace
}  // namespace tokline
