// Kernels start as soon after one another at the end of a process as at its beginning: all that the
// suite does launches on WorkStream(). A program of its own: nothing undoes what a second stream
// does.
#include <gtest/gtest.h>

#include <iostream>

#include "harness/engine/generate.h"
#include "harness/measure/launch_timer.h"
#include "harness/measure/lead_in.h"
#include "harness/measure/peaks.h"
#include "harness/measure/timing.h"
#include "harness/platform/clock.h"
#include "harness/platform/cuda_handles.h"
#include "harness/platform/random_values.h"
#include "harness/tests/engine/golden.h"
#include "harness/tests/kernels/cuda_test.h"

namespace tokline {
namespace {

class WorkStreamTest : public testing::CudaTest {
 protected:
  std::unique_ptr<LaunchTimer> MakeTimer(int64_t evict_bytes = 0) const {
    return MakeGraphTimer(
        [this](int, const LaunchOptions& options) {
          Sweep(small_.data(), small_.bytes(), options.stream);
        },
        {.buffer_sets = 500, .min_sample_us = 1, .evict_bytes = evict_bytes});
  }
  // The time per launch of one small kernel after another.
  double NodeUs() const { return Median(MakeTimer()->Sample(15, {})); }

  static DecoderOptions Options(bool graphs) {
    DecoderOptions options{.device = Device::kCuda, .dtype = DType::kBf16, .page_size = 16};
    if (!graphs) options.ablate.Add(Ablation::kGraphs);
    return options;
  }

  void LaunchOn(cudaStream_t stream) const {
    for (int i = 0; i < kTimes; ++i) Sweep(small_.data(), small_.bytes(), stream);
    TOKLINE_CUDA(cudaStreamSynchronize(stream));
  }

  static constexpr int kTimes = 40;
  DeviceBuffer small_{CudaDeviceCount() == 0 ? 0 : 512};
};

TEST_F(WorkStreamTest, NothingThatTheSuiteDoesMakesKernelsStartLater) {
  LaunchOn(WorkStream());
  const double before = NodeUs();
  for (int i = 0; i < kTimes; ++i) {
    FillRandomOnDevice(DType::kBf16, small_.data(), small_.bytes() / 2, /*seed=*/1, 0);
  }
  for (int timers = 0; timers < 8; ++timers) {
    const auto timer = MakeTimer(/*evict_bytes=*/64 << 20);
    for (int i = 0; i < kTimes; ++i) timer->RotateOnce();
  }
  for (int i = 0; i < kTimes; ++i) DeviceBuffer(64 << 20).Fill(1);
  MeasurePeaks(std::nullopt);
  const testing::LoadedModel model = testing::LoadTinyModel();
  for (const bool graphs : {true, false}) {
    Decoder decoder(model.spec, model.weights, Options(graphs));
    decoder.WarmUp();
    Generate(decoder, std::vector<int32_t>{1, 2, 3}, {.max_new_tokens = kTimes});
  }
  const double after = NodeUs();
  std::cout << "us from kernel to kernel: " << before << " at first, " << after << " in the end\n";
  EXPECT_LT(after, 1.05 * before);
}

// Expects that `work`, which takes less than a third of a second, takes as long behind a kernel of
// a third of a second on WorkStream().
template <typename Work>
void ExpectToWait(const Work& work) {
  const auto seconds = [&](double spin_us) {
    TOKLINE_CUDA(cudaDeviceSynchronize());
    if (spin_us > 0) Spin(spin_us, WorkStream());
    const auto begin = Clock::now();
    work();
    return SecondsSince(begin);
  };
  EXPECT_LT(seconds(0), 0.1);
  EXPECT_GT(seconds(333e3), 0.3);
}

// Work on another stream would not wait. This shows it on every host, whether it slows there or
// not.
TEST_F(WorkStreamTest, RowsAndStepsWaitForWhatIsOnTheWorkStream) {
  const auto timer = MakeTimer();
  ExpectToWait([&] { timer->Sample(1, {}); });
  const testing::LoadedModel model = testing::LoadTinyModel();
  for (const bool graphs : {true, false}) {
    Decoder decoder(model.spec, model.weights, Options(graphs));
    decoder.WarmUp();
    decoder.AddSequence(std::vector<int32_t>{1, 2, 3}, {}, 20);
    for (int step = 0; step < 3; ++step) decoder.Step();
    decoder.Flush();
    const auto step = [&] {
      decoder.Step();
      decoder.Flush();
    };
    SCOPED_TRACE(graphs ? "graphs" : "plain launches");
    ExpectToWait(step);
  }
}

// What the one stream is for, and whether NothingThatTheSuiteDoes... could have failed. Not every
// host of H200s shows it.
TEST_F(WorkStreamTest, LaunchesOnOtherStreamsMakeKernelsStartLater) {
  const double before = NodeUs();
  std::vector<UniqueStream> others;  // the driver maps eight streams to as many queues
  for (int i = 0; i < 8; ++i) LaunchOn(others.emplace_back(MakeStream()).get());
  const double slowed = NodeUs();
  std::cout << "us from kernel to kernel: " << before << " at first, " << slowed
            << " after launches on other streams\n";
  if (slowed < 1.05 * before) GTEST_SKIP() << "here launches on other streams slow nothing down";
}

}  // namespace
}  // namespace tokline
