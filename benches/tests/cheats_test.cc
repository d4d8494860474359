// Tries ways to get a false figure on a simulated device. Each must be refused with the right
// message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "benches/tests/simulated_case.h"
#include "kernels/common/error.h"
#include "reference/elements.h"

namespace tokline::bench {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Buffers = SimulatedCase::Buffers;
using KernelRun = SimulatedDevice::KernelRun;

class CheatsTest : public ::testing::Test {
 protected:
  // Returns a launcher of this kernel.
  SimulatedCase::Launcher Launching(std::function<void(const Buffers&, KernelRun&)> kernel) {
    return LauncherOf(device_, std::move(kernel));
  }
  Json Row(const SimulatedCase::Launcher& launcher, const SimulatedCase::Options& options = {},
           uint64_t seed = 1) {
    return KernelRow(Measure(launcher, options, SimulatedExecution(device_), seed));
  }
  // Returns why the row is refused. Every cheat is tried with several seeds, so that it cannot
  // succeed by luck. All must be refused; the returned reason is that of the first.
  std::string Reason(const std::function<SimulatedCase::Launcher()>& make_launcher,
                     const SimulatedCase::Options& options = {}) {
    std::string reason;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const Json row = Row(make_launcher(), options, seed);
      if (row["reason"].is_null()) return StrCat("stands with seed ", seed, ": ", row.dump());
      if (seed == 1) reason = row["reason"];
    }
    return reason;
  }

  SimulatedDevice device_;
};

constexpr SimulatedCase::Options kWarmShape{.rows = 1};

TEST_F(CheatsTest, AnHonestColdRowStands) {
  const Json row = Row(HonestLauncher(device_));
  EXPECT_EQ(row["status"], "ok") << row.dump();
  EXPECT_EQ(row["cache"], "cold");
  EXPECT_EQ(row["verified"]["audits"], 3);
  EXPECT_NEAR(row["fresh_us"].get<double>() / row["median_us"].get<double>(), 1, 0.05);
  EXPECT_LT(row["percent_of_measured_peak"], 100);
}

TEST_F(CheatsTest, AnHonestWarmRowStandsAndRotatesOverItsBuffers) {
  const Json row = Row(HonestLauncher(device_), kWarmShape);
  EXPECT_EQ(row["status"], "ok") << row.dump();
  EXPECT_EQ(row["cache"], "warm");
  EXPECT_EQ(row["buffer_sets"], kMaxWarmSets);
}

TEST_F(CheatsTest, OutputNotWritten) {
  const auto cheat = [&] {
    return Launching([](const Buffers& b, KernelRun& run) {
      run.Touch(b.x, b.bytes());
      run.Touch(b.out, b.bytes());
    });
  };
  EXPECT_THAT(Reason(cheat), AllOf(StartsWith("unverified before timing"),
                                   HasSubstr("nan (not written) instead of")));
}

TEST_F(CheatsTest, WorkSkippedAfterTheFirstCall) {
  const auto cheat = [&] {
    auto called = std::make_shared<std::set<float*>>();
    return Launching([called](const Buffers& b, KernelRun& run) {
      if (called->insert(b.out).second) Triple(b, run);
    });
  };
  EXPECT_THAT(Reason(cheat),
              AllOf(StartsWith("unverified after"), HasSubstr("nan (not written) instead of")));
}

TEST_F(CheatsTest, WorkSkippedOnceInputsWereRefilled) {
  // The kernel is honest while a row has its first inputs. After a refill, only the first launch on
  // each buffer set works.
  const auto cheat = [&] {
    auto inputs = std::make_shared<std::map<const float*, std::set<float>>>();
    return Launching([inputs](const Buffers& b, KernelRun& run) {
      std::set<float>& seen = (*inputs)[b.x];
      if (seen.insert(b.x[0]).second || seen.size() == 1) {
        Triple(b, run);
      } else {
        run.Touch(b.x, b.bytes());
        run.Touch(b.out, b.bytes());
      }
    });
  };
  EXPECT_THAT(Reason(cheat),
              AllOf(StartsWith("unverified after"), HasSubstr("nan (not written) instead of")));
}

TEST_F(CheatsTest, CachedResult) {
  const auto cheat = [&] {
    auto results = std::make_shared<std::map<float*, std::vector<float>>>();
    return Launching([results](const Buffers& b, KernelRun& run) {
      std::vector<float>& result = (*results)[b.out];
      if (result.empty()) {
        Triple(b, run);
        result.assign(b.out, b.out + b.size);
      }
      std::copy(result.begin(), result.end(), b.out);
    });
  };
  EXPECT_THAT(Reason(cheat), StartsWith("unverified on fresh inputs"));
}

TEST_F(CheatsTest, ZerosAsInput) {
  const auto honest = [&] { return HonestLauncher(device_); };
  EXPECT_THAT(Reason(honest, {.input_is_table = true}),
              HasSubstr("of its inputs are random; at least half must be"));
  // The launch sets its input to zero after the work, so that later launches read zeros.
  const auto cheat = [&] {
    return Launching([](const Buffers& b, KernelRun& run) {
      Triple(b, run);
      std::fill_n(const_cast<float*>(b.x), b.size, 0.f);
    });
  };
  EXPECT_THAT(Reason(cheat), Not(StartsWith("stands")));
  // The check of random input elements finds this, unless a wrong output is found first.
  int seen = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::string reason = Row(cheat(), {}, seed)["reason"];
    seen += reason.find("is 0 instead of the random value") != std::string::npos;
  }
  EXPECT_GE(seen, 5);
}

TEST_F(CheatsTest, TimingOnAnotherStream) {
  const auto cheat = [&]() -> SimulatedCase::Launcher {
    return [this](const Buffers& b, CUstream_st* stream) {
      device_.Launch(device_.side_stream(), [b](KernelRun& run) { Triple(b, run); });
      device_.Launch(stream, [](KernelRun&) {});
    };
  };
  EXPECT_THAT(Reason(cheat),
              AllOf(StartsWith("unverified"), HasSubstr("nan (not written) instead of")));
}

TEST_F(CheatsTest, SmallerShapeThanStated) {
  const auto honest = [&] { return HonestLauncher(device_); };
  EXPECT_THAT(Reason(honest, {.rows = 64, .cost = Cost{.read_bytes = 16384, .write_bytes = 8192}}),
              HasSubstr("is said to read 16384 bytes, but its inputs have only 8192"));
  EXPECT_THAT(Reason(honest, {.rows = 64, .cost = Cost{.read_bytes = 8192, .write_bytes = 16384}}),
              HasSubstr("is said to write 16384 bytes, but its outputs have only 8192"));
  const auto cheat = [&] {
    return Launching([](Buffers b, KernelRun& run) {
      b.size /= 2;
      Triple(b, run);
    });
  };
  EXPECT_THAT(Reason(cheat), HasSubstr("sampled row 32, column 0: nan (not written)"));
}

TEST_F(CheatsTest, CacheLeftWarm) {
  const auto same_input = [&] {
    auto first = std::make_shared<const float*>(nullptr);
    return Launching([first](Buffers b, KernelRun& run) {
      if (*first == nullptr) *first = b.x;
      b.x = *first;
      Triple(b, run);
    });
  };
  EXPECT_THAT(Reason(same_input), StartsWith("unverified on fresh inputs"));
  // The bytes are stated and exist, but are not read.
  const auto honest = [&] { return HonestLauncher(device_); };
  EXPECT_THAT(
      Reason(honest, {.rows = 64,
                      .cost = Cost{.read_bytes = 9 * 8192, .write_bytes = 8192},
                      .decoy_rows = 8 * 64}),
      AllOf(StartsWith("above the roofline"), HasSubstr("% of the datasheet's memory peak")));
}

TEST_F(CheatsTest, WrongResultInOneElement) {
  const auto cheat = [&] {
    return Launching([](const Buffers& b, KernelRun& run) {
      Triple(b, run);
      b.out[777] *= 1.0001f;
    });
  };
  EXPECT_THAT(Reason(cheat),
              AllOf(StartsWith("unverified before timing"), HasSubstr("sampled row 24, column 9")));
}

TEST_F(CheatsTest, ClockDependentPath) {
  // Works only when it is launched alone, as in a verification.
  const auto alone = [&] {
    auto last_us = std::make_shared<double>(-1e9);
    return Launching([last_us](const Buffers& b, KernelRun& run) {
      const bool idle_before = run.NowUs() - *last_us > 5;
      if (idle_before) Triple(b, run);
      *last_us = run.NowUs();
    });
  };
  EXPECT_THAT(Reason(alone), HasSubstr("nan (not written) instead of"));
  // Works only for the first milliseconds.
  const auto early = [&] {
    const double until_us = device_.now_us() + 2000;
    return Launching([until_us](const Buffers& b, KernelRun& run) {
      if (run.NowUs() < until_us) Triple(b, run);
    });
  };
  EXPECT_THAT(Reason(early), HasSubstr("nan (not written) instead of"));
}

TEST_F(CheatsTest, ReadingTheSampleCount) {
  // Counts the launches in a sample's graph. Works while a row is verified, and again after a given
  // number of samples.
  const auto cheat = [&](int samples) -> SimulatedCase::Launcher {
    auto captured = std::make_shared<int>(0);
    auto runs = std::make_shared<int>(0);
    return [this, captured, runs, samples](const Buffers& b, CUstream_st* stream) {
      ++*captured;
      device_.Launch(stream, [b, captured, runs, samples](KernelRun& run) {
        constexpr int kVerified = 2;
        constexpr int kRotation = 21;
        const int graph = *captured - kVerified - kRotation;
        if (++*runs <= kVerified || *runs > kVerified + 2 * kRotation + samples * graph) {
          run.Compute(10);
          Triple(b, run);
        }
      });
    };
  };
  for (const int samples : {kMinSamples / 2 + 2, kMinSamples - 1, kMinSamples}) {
    const auto refused =
        AnyOf(HasSubstr("nan (not written) instead of"), HasSubstr("launches on fresh inputs"));
    EXPECT_THAT(Reason([&] { return cheat(samples); }), refused) << samples;
  }
}

TEST_F(CheatsTest, EarlyExitOnRepeatedInput) {
  // The outputs are always right, because poisoned ones are written again.
  const auto cheat = [&](double work_us) {
    auto seen = std::make_shared<std::map<const float*, float>>();
    return Launching([seen, work_us](const Buffers& b, KernelRun& run) {
      run.Touch(b.x, 4);
      run.Touch(b.out, 4);
      const auto [entry, is_new] = seen->try_emplace(b.x, b.x[0]);
      if (!is_new && entry->second == b.x[0] && !std::isnan(b.out[0])) return;
      entry->second = b.x[0];
      run.Compute(work_us);
      Triple(b, run);
    });
  };
  const auto refused = AllOf(StartsWith("launches on fresh inputs take"),
                             HasSubstr("work is left out when inputs repeat"));
  for (const double work_us : {10, 40}) {
    const auto launcher = [&] { return cheat(work_us); };
    EXPECT_THAT(Reason(launcher), refused) << work_us;
    EXPECT_THAT(Reason(launcher, kWarmShape), refused) << work_us;
  }
}

TEST_F(CheatsTest, HalfPrecisionInsteadOfTheStatedOne) {
  const auto cheat = [&] {
    return Launching([](const Buffers& b, KernelRun& run) {
      run.Touch(b.x, b.bytes() / 2);
      run.Touch(b.out, b.bytes());
      for (int64_t i = 0; i < b.size; ++i) {
        uint16_t half = 0;
        StoreElement(DType::kF16, &half, 0, b.x[i]);
        b.out[i] = static_cast<float>(3 * LoadElement(DType::kF16, &half, 0));
      }
    });
  };
  EXPECT_THAT(Reason(cheat), AllOf(StartsWith("unverified before timing"), HasSubstr("bound")));
}

TEST_F(CheatsTest, UninitialisedMemoryReuse) {
  // Takes the result of an earlier launch from the workspace.
  const auto workspace = [&] {
    return Launching([](const Buffers& b, KernelRun& run) {
      if (b.workspace[0] == 0) {
        Triple(b, run);
        std::copy_n(b.out, b.size, b.workspace);
      }
      std::copy_n(b.workspace, b.size, b.out);
    });
  };
  EXPECT_THAT(Reason(workspace), StartsWith("unverified"));
  // Uses what the first launch left in the workspace for all later ones.
  const auto prepared_once = [&] {
    return Launching([](const Buffers& b, KernelRun& run) {
      if (b.workspace[0] == 0) run.Compute(1000);
      b.workspace[0] = 1;
      Triple(b, run);
    });
  };
  EXPECT_THAT(Reason(prepared_once), StartsWith("launches on fresh inputs take"));
  // Assumes that memory is zero.
  const auto accumulate = [&] {
    return Launching([](const Buffers& b, KernelRun& run) {
      run.Touch(b.x, b.bytes());
      run.Touch(b.out, b.bytes());
      for (int64_t i = 0; i < b.size; ++i) b.out[i] += 3 * b.x[i];
    });
  };
  EXPECT_THAT(Reason(accumulate), AllOf(StartsWith("unverified before timing"), HasSubstr("nan")));
}

TEST_F(CheatsTest, WorkMovedOutsideTheEvents) {
  // The timed kernel starts another one, which nothing waits for.
  const auto cheat = [&]() -> SimulatedCase::Launcher {
    return [this](const Buffers& b, CUstream_st* stream) {
      device_.Launch(stream, [this, b](KernelRun&) {
        device_.Launch(device_.side_stream(), [b](KernelRun& run) {
          run.Compute(40);
          Triple(b, run);
        });
      });
    };
  };
  const auto refused =
      AllOf(StartsWith("the device was busy for"), HasSubstr("outside of what is timed"));
  EXPECT_THAT(Reason(cheat), refused);
  EXPECT_THAT(Reason(cheat, kWarmShape), refused);
}

}  // namespace
}  // namespace tokline::bench
