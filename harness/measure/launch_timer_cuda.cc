// Implements the graph timer: captures rotating launches into a CUDA graph, times its replays with
// events, and calibrates the spin that a slowdown test asks for.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "harness/measure/launch_timer.h"
#include "harness/measure/lead_in.h"
#include "harness/measure/spin_search.h"
#include "harness/measure/timing.h"
#include "harness/platform/cuda_handles.h"
#include "harness/platform/device_buffer.h"
#include "harness/platform/interrupt.h"

namespace tokline {
namespace {

class GraphTimer : public LaunchTimer {
 public:
  GraphTimer(std::function<void(int, const LaunchOptions&)> launch,
             const GraphTimerOptions& options)
      : launch_(std::move(launch)), options_(options), evicted_(options.evict_bytes / 16 * 16) {
    Require(options.buffer_sets >= 1 && options.slowdown_percent >= 0, "buffer_sets is ",
            options.buffer_sets, ", slowdown_percent is ", options.slowdown_percent,
            "; the first must be >= 1, the second >= 0");
    evicted_.Fill(0);
    rotation_ = Capture(options.buffer_sets, {});
    double sample_us = SampleGraph(rotation_, 1, {}).front();
    constexpr int kMaxLaunches = 4096;
    const int most = kMaxLaunches / options.buffer_sets;
    int rotations = 1;
    // A single rotation takes longer than one in a long graph, because it includes the graph's
    // start and the clocks are still rising. A graph that should be long enough may therefore be
    // several times too short.
    do {
      const double rotation_us = sample_us / rotations;
      rotations =
          RotationsToSlow(RotationsOf(options.min_sample_us, rotation_us, most), rotation_us);
      graph_ = Capture(rotations * options.buffer_sets, {});
      sample_us = SampleGraph(graph_, 1, {}).front();
    } while (sample_us < options.min_sample_us / 2 && rotations < most);
    launches_ = rotations * options.buffer_sets;
    leads_with_spin_ = sample_us > kLongReplayUs;
    // Lets clocks and caches settle.
    constexpr double kWarmUpUs = 20e3;
    const int warm_up = std::clamp(static_cast<int>(kWarmUpUs / std::max(sample_us, 1.0)), 1, 20);
    SampleGraph(graph_, warm_up, {});
    if (options.slowdown_percent > 0) SlowDown();
  }

  int launches_per_sample() const override { return launches_; }

  std::vector<double> Sample(int count, const std::function<void()>& meanwhile) override {
    std::vector<double> samples = SampleGraph(graph_, count, meanwhile);
    for (double& us : samples) us /= launches_;
    return samples;
  }

  Rotation RotateOnce() override {
    // The spin must last until the host has queued the whole graph behind it.
    const double hold_us = 200 + 2.0 * options_.buffer_sets;
    const UniqueEvent begin = MakeTimingEvent();
    const UniqueEvent end = MakeTimingEvent();
    TOKLINE_CUDA(cudaDeviceSynchronize());  // late_us must not include earlier work
    TOKLINE_CUDA(cudaGraphUpload(rotation_.get(), stream_));
    if (evicted_.bytes() > 0) Sweep(evicted_.data(), evicted_.bytes(), stream_);
    Spin(hold_us, stream_);
    TOKLINE_CUDA(cudaEventRecord(begin.get(), stream_));
    TOKLINE_CUDA(cudaGraphLaunch(rotation_.get(), stream_));
    TOKLINE_CUDA(cudaEventRecord(end.get(), stream_));
    TOKLINE_CUDA(cudaEventSynchronize(end.get()));
    const auto ended = std::chrono::steady_clock::now();
    TOKLINE_CUDA(cudaDeviceSynchronize());
    const std::chrono::duration<double, std::micro> late = std::chrono::steady_clock::now() - ended;
    return {.us = ElapsedUs(begin, end) / options_.buffer_sets, .late_us = late.count()};
  }

 private:
  static constexpr double kLongReplayUs = 5000;
  static constexpr double kLeadUs = 200;  // the host queues the first replay meanwhile

  // The additions to a graph that make it slower.
  struct Added {
    int launches = 0;     // after all others
    int spin_after = -1;  // a launch; -1: no spin
    double spin_us = 0;
  };

  // Captures `count` launches that rotate over the buffer sets, and the additions. Added launches
  // begin half a rotation further, so that no set is used soon after it was.
  UniqueGraphExec Capture(int count, const Added& added) const {
    const auto record = [&] {
      for (int i = 0; i < count + added.launches; ++i) {
        const int place = i < count ? i : i - count + options_.buffer_sets / 2;
        launch_(place % options_.buffer_sets,
                {.stream = stream_, .dependent = options_.dependent && i > 0});
        if (i == added.spin_after) Spin(added.spin_us, stream_);
      }
    };
    return CaptureGraph(stream_, record, count + added.launches + (added.spin_after < 0 ? 0 : 1));
  }

  // Returns the microseconds of `count` replays, run back to back after one replay that is not
  // counted, or after a spin if such a replay would take long and heat the device. Returns at least
  // one, even if interrupted.
  std::vector<double> SampleGraph(const UniqueGraphExec& graph, int count,
                                  const std::function<void()>& meanwhile) {
    while (static_cast<int>(events_.size()) <= count) events_.push_back(MakeTimingEvent());
    if (leads_with_spin_) {
      Spin(kLeadUs, stream_);
    } else {
      TOKLINE_CUDA(cudaGraphLaunch(graph.get(), stream_));
    }
    TOKLINE_CUDA(cudaEventRecord(events_[0].get(), stream_));
    size_t queued = 0;
    while (static_cast<int>(queued) < count && (queued == 0 || !InterruptRequested())) {
      TOKLINE_CUDA(cudaGraphLaunch(graph.get(), stream_));
      TOKLINE_CUDA(cudaEventRecord(events_[++queued].get(), stream_));
    }
    if (meanwhile) meanwhile();
    TOKLINE_CUDA(cudaStreamSynchronize(stream_));
    std::vector<double> samples;
    for (size_t i = 0; i < queued; ++i) samples.push_back(ElapsedUs(events_[i], events_[i + 1]));
    return samples;
  }

  // Like SampleGraph, but with single replays, each after a rest, when the options ask for rests.
  std::vector<double> SampleRested(const UniqueGraphExec& graph, int count) {
    if (options_.rest_share == 0) return SampleGraph(graph, count, {});
    std::vector<double> samples;
    double last_us = options_.min_sample_us;
    while (samples.empty() || (static_cast<int>(samples.size()) < count && !InterruptRequested())) {
      std::this_thread::sleep_for(
          std::chrono::duration<double, std::micro>(options_.rest_share * last_us));
      last_us = SampleGraph(graph, 1, {}).front();
      samples.push_back(last_us);
    }
    return samples;
  }

  // Alternates plain and slowed replays, so that a drift of the clocks affects both.
  double AddedUs(const UniqueGraphExec& slowed) {
    const bool rests = options_.rest_share > 0;
    const int turns = rests ? 5 : 3;
    const int replays = rests ? 1 : 5;
    std::vector<double> added;
    for (int turn = 0; turn < turns; ++turn) {
      const double plain_us = Median(SampleRested(graph_, replays));
      added.push_back(Median(SampleRested(slowed, replays)) - plain_us);
    }
    return Median(std::move(added));
  }

  // Returns the smallest number of rotations, from `rotations` on, with which a whole number of
  // additional launches gives the slowdown, or `rotations` if a replay would then be too long.
  int RotationsToSlow(int rotations, double rotation_us) const {
    if (options_.slowdown_percent == 0) return rotations;
    for (int more = rotations; more == rotations || more * rotation_us <= kLongReplayUs; ++more) {
      if (MoreLaunches(more * options_.buffer_sets, options_.slowdown_percent) > 0) return more;
    }
    return rotations;
  }

  void SlowDown() {
    if (const int more = MoreLaunches(launches_, options_.slowdown_percent); more > 0) {
      graph_ = Capture(launches_, {.launches = more});
      SampleGraph(graph_, 1, {});
      return;
    }
    const double sample_us = Median(SampleRested(graph_, options_.rest_share > 0 ? 3 : 9));
    std::mt19937 rng(std::random_device{}());
    const int after = std::uniform_int_distribution<int>(0, launches_ - 1)(rng);
    const auto added_us = [&](double spin_us) {
      return AddedUs(Capture(launches_, {.spin_after = after, .spin_us = spin_us}));
    };
    const double spin_us = FindSpinUs(sample_us * options_.slowdown_percent / 100, added_us);
    graph_ = Capture(launches_, {.spin_after = after, .spin_us = spin_us});
    SampleGraph(graph_, 1, {});
  }

  std::function<void(int, const LaunchOptions&)> launch_;
  GraphTimerOptions options_;
  cudaStream_t stream_ = WorkStream();
  DeviceBuffer evicted_;
  std::vector<UniqueEvent> events_;
  UniqueGraphExec rotation_;
  UniqueGraphExec graph_;
  int launches_ = 0;
  bool leads_with_spin_ = false;
};

}  // namespace

std::unique_ptr<LaunchTimer> MakeGraphTimer(
    std::function<void(int buffer_set, const LaunchOptions&)> launch,
    const GraphTimerOptions& options) {
  return std::make_unique<GraphTimer>(std::move(launch), options);
}

}  // namespace tokline
