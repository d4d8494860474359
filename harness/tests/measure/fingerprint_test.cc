// What a record says of its machine without naming the host, and which states of a GPU count as
// disturbances.
#include "harness/measure/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "harness/measure/peaks.h"
#include "harness/record/record.h"

namespace tokline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST(FingerprintTest, WithoutGpuSaysWhatIsKnown) {
  char program[] = "bench_x";
  char flag[] = "--device=cpu";
  char* argv[] = {program, flag, nullptr};
  const Fingerprint print = TakeFingerprint(2, argv, /*cuda=*/false);
  EXPECT_THAT(print.command_line, ElementsAre("bench_x", "--device=cpu"));
  EXPECT_FALSE(print.gpu.has_value());
  EXPECT_THAT(print.time_utc, MatchesRegex("[0-9-]+T[0-9:]+Z"));
  EXPECT_GE(print.cpu_threads, 1);
  EXPECT_FALSE(print.build.commit.empty());
  EXPECT_THAT(print.build.compiler, HasSubstr("1"));
}

TEST(FingerprintTest, TheCommandLineNamesNoFolders) {
  const char* const words[] = {"/home/me/build/cuda/bin/bench_y",
                               "/models/x/",
                               "/tmp/b/bench_x",
                               "--record=/home/me/out.jsonl",
                               "--shapes",
                               "/a/b.json",
                               "benches/shapes.json",
                               "--x=1/2"};
  EXPECT_THAT(WithoutFolders(words),
              ElementsAre("build/cuda/bin/bench_y", "x/", "bench_x", "--record=out.jsonl",
                          "--shapes", "b.json", "benches/shapes.json", "--x=1/2"));
}

TEST(FingerprintTest, TheRecordNamesNoHost) {
  char program[] = "bench_x";
  char* argv[] = {program, nullptr};
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  const RunHeader header{.run_id = "r",
                         .program = "p",
                         .fingerprint = TakeFingerprint(1, argv, false),
                         .peaks = {},
                         .datasheet = {}};
  const Json flat = ToJson(header).flatten();
  for (const auto& [key, value] : flat.items()) {
    EXPECT_NE(value, host) << key;
    EXPECT_THAT(key, Not(HasSubstr("host")));
  }
}

TEST(FingerprintTest, HashesAreStableAndDiffer) {
  EXPECT_EQ(HashText(""), "cbf29ce484222325");   // FNV-1a's offset basis
  EXPECT_EQ(HashText("a"), "af63dc4c8601ec8c");  // of its published test vectors
  EXPECT_NE(HashText(std::string("\0a", 2)), HashText("a"));
}

TEST(GpuStateTest, UnknownDeviceGivesAbsentValues) {
  const GpuState state = ReadGpuState("ffff:ff:1f.7");
  EXPECT_FALSE(state.sm_clock_mhz.has_value());
  EXPECT_FALSE(state.throttle_reasons.has_value());
  EXPECT_FALSE(state.other_processes.has_value());
  const GpuSetup setup = ReadGpuSetup("ffff:ff:1f.7");
  EXPECT_FALSE(setup.max_sm_clock_mhz.has_value());
  EXPECT_FALSE(setup.mig.has_value());
}

TEST(ThrottleTest, NamesEachReason) {
  EXPECT_EQ(ThrottleText(0), "none");
  EXPECT_EQ(ThrottleText(0x4 | 0x20), "power cap, thermal");
  EXPECT_EQ(ThrottleText(uint64_t{1} << 40), "unknown reason");
}

TEST(ThrottleTest, IdleIsNoDisturbance) {
  EXPECT_FALSE(IsThrottled(0x1));
  EXPECT_FALSE(IsThrottled(0x2));
  EXPECT_TRUE(IsThrottled(0x1 | 0x4));
  EXPECT_TRUE(IsThrottled(0x40));
}

TEST(DisturbanceTest, IsSaidWhetherItWasThereBeforeOrAfter) {
  GpuState quiet;
  quiet.throttle_reasons = 0x1;  // idle
  quiet.other_processes = 0;
  GpuState capped = quiet;
  capped.throttle_reasons = 0x1 | 0x4;
  EXPECT_EQ(Disturbance(quiet, quiet), "");
  EXPECT_EQ(Disturbance(quiet, capped), "throttled: power cap");
  EXPECT_EQ(Disturbance(capped, quiet), "throttled: power cap");
}

TEST(DisturbanceTest, NamesEveryReasonOnceAndTheMostProcesses) {
  GpuState before;
  before.throttle_reasons = 0x4;
  before.other_processes = 1;
  GpuState after;
  after.throttle_reasons = 0x4 | 0x20 | 0x2;
  EXPECT_EQ(Disturbance(before, after),
            "throttled: power cap, thermal; 1 other process on the GPU");
  after.other_processes = 2;
  EXPECT_EQ(Disturbance({}, after), "throttled: power cap, thermal; 2 other processes on the GPU");
}

TEST(DisturbanceTest, WhatCouldNotBeReadDisturbsNothing) { EXPECT_EQ(Disturbance({}, {}), ""); }

TEST(DatasheetTest, KnownByWholeWordsOnly) {
  ASSERT_TRUE(DatasheetOf("NVIDIA H200").has_value());
  EXPECT_EQ(DatasheetOf("NVIDIA H200")->memory_gbps, 4800);
  EXPECT_EQ(DatasheetOf("NVIDIA H200 NVL")->bf16_tflops, 835);
  EXPECT_FALSE(DatasheetOf("NVIDIA L40").has_value());
  EXPECT_FALSE(DatasheetOf("NVIDIA GH200 480GB").has_value());
  EXPECT_FALSE(DatasheetOf("NVIDIA H100 80GB HBM3 MIG 1g.10gb").has_value());
  EXPECT_FALSE(DatasheetOf("Some GPU").has_value());
}

}  // namespace
}  // namespace tokline
