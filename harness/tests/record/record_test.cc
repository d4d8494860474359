// Tests the rows of records: their figures, the reasons to refuse them, and their validation.
#include "harness/record/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "harness/measure/timing.h"
#include "harness/record/record_file.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;

const RowOrigin kOrigin{
    .run_id = "run", .implementation = "cuda", .dtype = "bf16", .device = "GPU"};

// Reads 1 GB in 250 us, which is 89 % of a peak of 4,500 GB/s.
KernelMeasurement ColdRow() {
  return {.origin = kOrigin,
          .kernel = "chunk_decode",
          .shape = {{"name", "b1"}, {"batch", 1}},
          .cache = "cold",
          .chain = "plain",
          .cost = {.read_bytes = 1e9, .write_bytes = 1e6, .flops = 1e9},
          .samples = {.us = std::vector<double>(kMinSamples, 250.0),
                      .launches_per_sample = 8,
                      .buffer_sets = 4},
          .verified = {.before = true, .after = true, .max_error_over_bound = 0.4},
          .limits = {.peaks = Peaks{.read_gbps = 4500, .copy_gbps = 4300, .matmul_tflops = 780},
                     .datasheet = Datasheet{4800, 989}}};
}

void ExpectRefused(const Json& row, const std::string& reason) {
  EXPECT_EQ(row["status"], "refused");
  EXPECT_THAT(row["reason"].get<std::string>(), HasSubstr(reason));
  EXPECT_FALSE(row.contains("median_us"));
  EXPECT_FALSE(row.contains("samples_us"));
  EXPECT_NO_THROW(ValidateRecord(row));
}

TEST(KernelRowTest, FiguresFollowFromSamplesAndCost) {
  const Json row = KernelRow(ColdRow());
  ASSERT_EQ(row["status"], "ok");
  EXPECT_EQ(row["chosen"], true);
  EXPECT_DOUBLE_EQ(row["median_us"], 250);
  EXPECT_DOUBLE_EQ(row["mad_us"], 0);
  EXPECT_DOUBLE_EQ(row["gbps"], 4004);
  EXPECT_DOUBLE_EQ(row["tflops"], 4);
  EXPECT_EQ(row["limit"], "read");
  EXPECT_NEAR(row["percent_of_measured_peak"], 100 * 4004.0 / 4500, 1e-9);
  EXPECT_NEAR(row["percent_of_datasheet_peak"], 100 * 4004.0 / 4800, 1e-9);
  EXPECT_NO_THROW(ValidateRecord(row));
}

TEST(KernelRowTest, AColdRowAboveTheMeasuredPeakStandsAndTheLimitIsWrong) {
  KernelMeasurement m = ColdRow();
  m.samples.us.assign(kMinSamples, 1001e6 / 4500e3 / 1.019);
  EXPECT_EQ(KernelRow(m)["limit_is_wrong"], false);
  m.samples.us.assign(kMinSamples, 1001e6 / 4500e3 / 1.021);
  Json row = KernelRow(m);
  EXPECT_EQ(row["status"], "ok");
  EXPECT_EQ(row["limit_is_wrong"], true);
  EXPECT_NO_THROW(ValidateRecord(row));
  row["limit_is_wrong"] = false;
  EXPECT_THROW(ValidateRecord(row), InvalidArgument);
}

TEST(KernelRowTest, AColdRowAboveTheDatasheetIsRefused) {
  KernelMeasurement m = ColdRow();
  m.samples.us.assign(kMinSamples, 1001e6 / 4800e3 / 1.021);
  ExpectRefused(KernelRow(m), "% of the datasheet's memory peak");
  m.samples.us.assign(kMinSamples, 1001e6 / 4800e3 / 1.019);
  EXPECT_EQ(KernelRow(m)["status"], "ok");
}

TEST(KernelRowTest, WarmRowsMayBeatTheMemoryPeak) {
  KernelMeasurement m = ColdRow();
  m.cache = "warm";
  m.samples.us.assign(kMinSamples, 100.0);
  const Json row = KernelRow(m);
  EXPECT_EQ(row["status"], "ok");
  EXPECT_GT(row["percent_of_measured_peak"].get<double>(), 200);
  EXPECT_NO_THROW(ValidateRecord(row));
}

TEST(KernelRowTest, MatmulBoundRowsAreHeldAgainstTheMatmulPeak) {
  KernelMeasurement m = ColdRow();
  m.cost.flops = 250e-6 * 790e12;
  ASSERT_EQ(KernelRow(m)["status"], "ok");
  EXPECT_EQ(KernelRow(m)["limit"], "matmul");
  m.cost.flops *= 1.02;
  EXPECT_EQ(KernelRow(m)["limit_is_wrong"], true);
  m.cost.flops = 250e-6 * 989e12 * 1.021;
  ExpectRefused(KernelRow(m), "datasheet's matmul peak");
}

TEST(KernelRowTest, UnverifiedIsRefused) {
  KernelMeasurement m = ColdRow();
  m.verified.before = false;
  ExpectRefused(KernelRow(m), "unverified");
  m = ColdRow();
  m.verified.after = false;
  ExpectRefused(KernelRow(m), "unverified");
  m = ColdRow();
  m.verified.max_error_over_bound = 1.5;
  ExpectRefused(KernelRow(m), "1.5");
  m.verified.max_error_over_bound = std::nan("");
  ExpectRefused(KernelRow(m), "unverified");
}

TEST(KernelRowTest, TooFewSamplesInterruptionAndFailureAreRefused) {
  KernelMeasurement m = ColdRow();
  m.samples.us.pop_back();
  ExpectRefused(KernelRow(m), "14 samples");
  m = ColdRow();
  m.trouble.interrupted = true;
  ExpectRefused(KernelRow(m), "interrupted");
  EXPECT_TRUE(KernelRow(m)["interrupted"]);
  m = ColdRow();
  m.trouble.failure = "device memory does not suffice";
  ExpectRefused(KernelRow(m), "memory does not suffice");
}

TEST(KernelRowTest, ASampleThatIsNoTimeIsAnError) {
  KernelMeasurement m = ColdRow();
  m.samples.us[3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(KernelRow(m), InvalidArgument);
}

TEST(KernelRowTest, SaysWhatHappenedBesideItsFigures) {
  KernelMeasurement m = ColdRow();
  Json row = KernelRow(m);
  for (const char* key : {"disturbed", "library", "memory_bytes", "stopped", "fresh_us"}) {
    EXPECT_TRUE(row.at(key).is_null()) << key;
  }
  m.trouble.disturbed = "throttled: power cap";
  m.memory_bytes = 4096;
  m.samples.stopped = "time";
  m.samples.fresh_us = 251;
  m.verified.audits = 3;
  row = KernelRow(m);
  EXPECT_NO_THROW(ValidateRecord(row));
  EXPECT_EQ(row["disturbed"], "throttled: power cap");
  EXPECT_EQ(row["memory_bytes"], 4096);
  EXPECT_EQ(row["stopped"], "time");
  EXPECT_EQ(row["fresh_us"], 251.0);
  EXPECT_EQ(row["verified"]["audits"], 3);
}

TEST(KernelRowTest, TheIntervalIsMadeOfSamples) {
  KernelMeasurement m = ColdRow();
  for (size_t i = 0; i < m.samples.us.size(); ++i) m.samples.us[i] = 250 + static_cast<double>(i);
  EXPECT_EQ(KernelRow(m)["ci95_us"], Json({253.0, 261.0}));  // ranks 4 and 12 of 15
}

constexpr Cost Traffic(double read_bytes, double write_bytes) {
  return {.read_bytes = read_bytes, .write_bytes = write_bytes};
}

TEST(FloorTest, TheTrafficThatTheCostResemblesLimits) {
  const Peaks peaks{.read_gbps = 4000, .two_to_one_gbps = 2500, .copy_gbps = 2000};
  const auto expect = [&](const Cost& cost, const std::string& limit, double us) {
    const Floor floor = FloorOf(cost, peaks);
    EXPECT_EQ(floor.limit, limit) << cost.write_bytes << " of " << cost.Bytes() << " written";
    EXPECT_DOUBLE_EQ(floor.us, us) << cost.write_bytes << " of " << cost.Bytes() << " written";
  };
  expect(Traffic(9e6, 1e6), "read", 2.5);
  expect(Traffic(7.1e6, 2.9e6), "read", 2.5);
  expect(Traffic(20e6, 10e6), "2:1", 12);  // as of a gated activation
  expect(Traffic(5.6e6, 4.4e6), "2:1", 4);
  expect(Traffic(5e6, 5e6), "copy", 5);
  expect(Traffic(1e6, 9e6), "copy", 5);
}

TEST(FloorTest, WithoutATwoToOnePeakNoSlowerOneStandsForIt) {
  const Peaks peaks{.read_gbps = 4000, .copy_gbps = 2000};
  EXPECT_EQ(FloorOf(Traffic(20e6, 10e6), peaks).limit, "read");
}

TEST(FloorTest, TheSlowerOfMemoryAndMatmulLimits) {
  Peaks peaks{.read_gbps = 4000, .copy_gbps = 2000, .matmul_tflops = 100};
  const Floor matmul = FloorOf({.read_bytes = 1e6, .flops = 1e9}, peaks);
  EXPECT_EQ(matmul.limit, "matmul");
  EXPECT_DOUBLE_EQ(matmul.us, 10);
  peaks.matmul_tflops = 0;
  EXPECT_EQ(FloorOf({.read_bytes = 1e6, .flops = 1e9}, peaks).limit, "read");
}

// A valid row with one field changed must not pass.
TEST(ValidateRecordTest, NamesTheFieldThatIsWrong) {
  const auto expect_error = [](const std::string& pointer, const Json& value,
                               const std::string& message) {
    Json row = KernelRow(ColdRow());
    row[Json::json_pointer(pointer)] = value;
    EXPECT_THAT([&] { ValidateRecord(row); },
                ::testing::ThrowsMessage<InvalidArgument>(HasSubstr(message)))
        << pointer;
  };
  expect_error("/schema", 1, "row.schema is 1; it must be 2");
  expect_error("/kind", "column", "run, row, ablation, end");
  expect_error("/kernel", "", "row.kernel");
  expect_error("/cache", "tepid", "cold, warm, cpu");
  expect_error("/median_us", 200.0, "row.median_us is 200");
  expect_error("/gbps", 5000.0, "row.gbps");
  expect_error("/verified/after", false, "row.verified.after is false; it must be true");
  expect_error("/verified/audits", -1, "verified.audits");
  expect_error("/ci95_us", {249, 250}, "row.ci95_us is [249,250], but from the samples follows");
  expect_error("/ci95_us", 250, "row.ci95_us");
  expect_error("/stopped", "tired", "precise, time");
  expect_error("/fresh_us", "250", "row.fresh_us");
  expect_error("/memory_bytes", 1.5, "row.memory_bytes");
  expect_error("/disturbed", "", "row.disturbed");
  expect_error("/library", {{"name", "flashinfer"}}, "no field 'version'");
  expect_error("/samples_us/2", nullptr, "samples_us");
  expect_error("/percent_of_measured_peak", 50.0, "percent_of_measured_peak");
  expect_error("/shape", Json::array(), "row.shape is []; it must be an object");
  expect_error("/launches_per_sample", 0, "launches_per_sample");
  expect_error("/chosen", "yes", "chosen");
  expect_error("/status", "fine", "ok, refused");
}

TEST(ValidateRecordTest, AMissingFieldIsNamed) {
  for (const char* key : {"run_id", "kernel", "dtype", "chain", "samples_us", "cost", "verified"}) {
    Json row = KernelRow(ColdRow());
    row.erase(key);
    EXPECT_THAT([&] { ValidateRecord(row); },
                ::testing::ThrowsMessage<InvalidArgument>(HasSubstr(key)));
  }
}

TEST(ValidateRecordTest, ARefusedRowMustHaveNoFigures) {
  Json row = KernelRow(ColdRow());
  row["status"] = "refused";
  row["reason"] = "by hand";
  EXPECT_THROW(ValidateRecord(row), InvalidArgument);
}

TEST(ValidateRecordTest, ARowAboveTheRooflineIsRefusedOnReadingToo) {
  KernelMeasurement m = ColdRow();
  m.cache = "warm";
  m.samples.us.assign(kMinSamples, 100.0);
  Json row = KernelRow(m);
  row["cache"] = "cold";
  EXPECT_THROW(ValidateRecord(row), InvalidArgument);
}

DecoderMeasurement DecoderOf8() {
  return {
      .origin = kOrigin,
      .model = "qwen3",
      .cache = "cold",
      .shape = {.batch = 8, .prompt_tokens = 128, .new_tokens = 64},
      .page_size = 64,
      .cost = {.read_bytes = 1e9, .write_bytes = 1e6, .flops = 1e10},
      .samples = {.prefill_s = {0.02, 0.01, 0.04}, .step_ms = {1.0, 1.5, 1.25}, .host_share = 0.05},
      .judged = {.tokens = 64, .mean_regret = 0.01},
      .limits = {.peaks = Peaks{.read_gbps = 2000, .copy_gbps = 1800},
                 .datasheet = Datasheet{.memory_gbps = 4000, .bf16_tflops = 1000}}};
}

TEST(DecoderRowTest, FiguresFollowFromSamplesAndCost) {
  const Json row = DecoderRow(DecoderOf8());
  EXPECT_NO_THROW(ValidateRecord(row));
  EXPECT_EQ(row["status"], "ok");
  EXPECT_EQ(row["samples_ms"], Json({1.0, 1.5, 1.25}));
  EXPECT_DOUBLE_EQ(row["ms_per_token"], 1.25);
  EXPECT_DOUBLE_EQ(row["mad_ms"], 0.25);
  EXPECT_DOUBLE_EQ(row["decode_tok_s"], 8 / 1.25e-3);
  EXPECT_DOUBLE_EQ(row["prefill_tok_s"], 8 * 128 / 0.02);
  EXPECT_EQ(row["limit"], "read");
  EXPECT_DOUBLE_EQ(row["floor_us"], 1.001e9 / 2000e3);
  EXPECT_DOUBLE_EQ(row["percent_of_measured_peak"], 100 * 500.5 / 1250);
  EXPECT_DOUBLE_EQ(row["percent_of_datasheet_peak"], 100 * 250.25 / 1250);
  EXPECT_EQ(row["verified"]["tokens"], 64);
}

TEST(DecoderRowTest, TheIntervalOfFewSamplesIsTheirRange) {
  EXPECT_EQ(DecoderRow(DecoderOf8())["ci95_ms"], Json({1.0, 1.5}));
}

StepProfile ProfileOf100Us() {
  return {.method = "cupti",
          .steps = 63,
          .step_us = 100,
          .ops = {{.op = "down", .kernel = "linear", .launches = 28, .us = 60},
                  {.op = "sampling", .kernel = "sampling", .launches = 1, .us = 10}},
          .device_gap_us = 5,
          .host_gap_us = 27,
          .tracing_us = -4,
          .unexplained_us = 2};
}

TEST(DecoderRowTest, CarriesTheProfileOfAStep) {
  DecoderMeasurement m = DecoderOf8();
  EXPECT_TRUE(DecoderRow(m)["profile"].is_null());
  m.profile = ProfileOf100Us();
  const Json row = DecoderRow(m);
  EXPECT_NO_THROW(ValidateRecord(row));
  EXPECT_EQ(row["profile"]["ops"][0]["op"], "down");
  EXPECT_EQ(row["profile"]["host_gap_us"], 27.0);
  EXPECT_EQ(row["profile"]["tracing_us"], -4.0);
  EXPECT_EQ(row["profile"]["unexplained_us"], 2.0);
  EXPECT_FALSE(row["profile"]["ops"][0].contains("in_place_us"));
  m.profile->ops[0].in_place = InPlaceTime{.us = 57, .ci95_us = {56, 58}};
  const Json timed = DecoderRow(m);
  EXPECT_NO_THROW(ValidateRecord(timed));
  EXPECT_EQ(timed["profile"]["ops"][0]["in_place_us"], 57.0);
  EXPECT_EQ(timed["profile"]["ops"][0]["in_place_ci95_us"], Json({56.0, 58.0}));
  EXPECT_FALSE(timed["profile"]["ops"][0].contains("in_place_traced_us"));
  m.profile->ops[0].in_place->traced = TracedTime{.us = 59, .stamps_us = -2};
  const Json traced = DecoderRow(m);
  EXPECT_NO_THROW(ValidateRecord(traced));
  EXPECT_EQ(traced["profile"]["ops"][0]["in_place_traced_us"], 59.0);
  EXPECT_EQ(traced["profile"]["ops"][0]["in_place_stamps_us"], -2.0);
}

TEST(DecoderRowTest, AProfileMustAddUp) {
  DecoderMeasurement m = DecoderOf8();
  m.profile = ProfileOf100Us();
  m.profile->unexplained_us = 1;
  EXPECT_THAT([&] { ValidateRecord(DecoderRow(m)); },
              ::testing::ThrowsMessage<InvalidArgument>(
                  HasSubstr("step_us is 100, but its parts add up to 99")));
  m.profile->tracing_us.reset();  // as of events and older records
  m.profile->unexplained_us = -2;
  EXPECT_NO_THROW(ValidateRecord(DecoderRow(m)));
}

TEST(DecoderRowTest, PhasesOfAnOpMustAddUpToIt) {
  DecoderMeasurement m = DecoderOf8();
  m.profile = ProfileOf100Us();
  EXPECT_FALSE(DecoderRow(m)["profile"]["ops"][0].contains("phases"));
  m.profile->ops[0].phases = {{.phase = "gate_up", .us = 45}, {.phase = "lm_head", .us = 15}};
  const Json row = DecoderRow(m);
  EXPECT_NO_THROW(ValidateRecord(row));
  EXPECT_EQ(row["profile"]["ops"][0]["phases"],
            Json::parse(R"([{"phase": "gate_up", "us": 45.0}, {"phase": "lm_head", "us": 15.0}])"));
  EXPECT_FALSE(row["profile"]["ops"][1].contains("phases"));
  m.profile->ops[0].phases.pop_back();
  EXPECT_THAT([&] { ValidateRecord(DecoderRow(m)); },
              ::testing::ThrowsMessage<InvalidArgument>(
                  HasSubstr("us of op down is 60, but its phases add up to 45")));
}

TEST(DecoderRowTest, WithoutADeviceThereIsNoLimit) {
  DecoderMeasurement m = DecoderOf8();
  m.cache = "cpu";
  m.limits.peaks.reset();
  m.limits.datasheet.reset();
  const Json row = DecoderRow(m);
  EXPECT_NO_THROW(ValidateRecord(row));
  EXPECT_TRUE(row["limit"].is_null());
  EXPECT_TRUE(row["percent_of_measured_peak"].is_null());
}

TEST(DecoderRowTest, WhatDoesNotStandIsRefusedWithoutFigures) {
  const auto expect_refused = [](auto&& spoil, const char* why) {
    DecoderMeasurement m = DecoderOf8();
    spoil(m);
    const Json row = DecoderRow(m);
    EXPECT_EQ(row["status"], "refused");
    EXPECT_NE(row["reason"].get<std::string>().find(why), std::string::npos) << row["reason"];
    EXPECT_FALSE(row.contains("ms_per_token"));
    EXPECT_NO_THROW(ValidateRecord(row));
  };
  using Row = DecoderMeasurement&;
  expect_refused([](Row m) { m.trouble.interrupted = true; }, "interrupted");
  expect_refused([](Row m) { m.judged.tokens = 0; }, "unverified");
  expect_refused([](Row m) { m.judged.mean_regret = 0.2; },
                 "regret of 64 tokens is 0.2; at most 0.02");
  expect_refused([](Row m) { m.judged.mean_regret = std::nan(""); }, "unverified");
  expect_refused([](Row m) { m.samples.step_ms.clear(); }, "no samples");
  expect_refused([](Row m) { m.samples.step_ms = {0.2, 0.2, 0.2}; }, "above the roofline");
}

TEST(DecoderRowTest, RowsThatDoNotFollowFromTheirSamplesAreRefusedOnReading) {
  const auto expect_invalid = [](auto&& spoil) {
    Json row = DecoderRow(DecoderOf8());
    spoil(row);
    EXPECT_THROW(ValidateRecord(row), InvalidArgument) << row;
  };
  expect_invalid([](Json& row) { row["ms_per_token"] = 1.0; });
  expect_invalid([](Json& row) { row["decode_tok_s"] = 1e4; });
  expect_invalid([](Json& row) { row["prefill_tok_s"] = 1e9; });
  expect_invalid([](Json& row) { row["percent_of_measured_peak"] = 99; });
  expect_invalid([](Json& row) { row["samples_ms"] = Json::array(); });
  expect_invalid([](Json& row) { row["ci95_ms"] = {1.0, 1.25}; });
  expect_invalid([](Json& row) { row["profile"] = "fast"; });
  expect_invalid([](Json& row) { row["verified"]["mean_regret"] = 0.5; });
  expect_invalid([](Json& row) { row.erase("verified"); });
  expect_invalid([](Json& row) { row["cache"] = "lukewarm"; });
  expect_invalid([](Json& row) { row["status"] = "refused", row["reason"] = "because"; });
}

AblationMeasurement AblationOf3Rounds() {
  return {.origin = kOrigin,
          .model = "qwen3",
          .shape = {.batch = 1, .prompt_tokens = 128, .new_tokens = 64},
          .name = "rmsnorm_qkv",
          .instead = "rmsnorm, linear, rope",
          .end_to_end_ms = {.with = {1.0, 1.1, 1.2}, .without = {1.3, 1.2, 1.4}}};
}

TEST(AblationRowTest, HasBothSamplesOfEachRound) {
  AblationMeasurement m = AblationOf3Rounds();
  Json row = AblationRow(m);
  EXPECT_NO_THROW(ValidateRecord(row));
  EXPECT_EQ(row["kind"], "ablation");
  EXPECT_EQ(row["end_to_end"]["without_ms"], Json({1.3, 1.2, 1.4}));
  EXPECT_TRUE(row["isolated"].is_null());
  m.isolated_us = PairedSamples{.with = {10}, .without = {20}};
  row = AblationRow(m);
  EXPECT_NO_THROW(ValidateRecord(row));
  EXPECT_EQ(row["isolated"]["with_us"], Json::array({10.0}));
}

TEST(AblationRowTest, RoundsWithOneSampleOnlyAreNoPairs) {
  AblationMeasurement m = AblationOf3Rounds();
  m.end_to_end_ms.without.pop_back();
  EXPECT_THROW(ValidateRecord(AblationRow(m)), InvalidArgument);
  m = AblationOf3Rounds();
  m.isolated_us = PairedSamples{.with = {10, 11}, .without = {20}};
  EXPECT_THROW(ValidateRecord(AblationRow(m)), InvalidArgument);
  m = AblationOf3Rounds();
  m.end_to_end_ms.with[1] = std::nan("");
  EXPECT_THROW(ValidateRecord(AblationRow(m)), InvalidArgument);
}

TEST(AblationRowTest, WhatFailedHasNoSamples) {
  AblationMeasurement m = AblationOf3Rounds();
  m.trouble.failure = "out of memory";
  Json row = AblationRow(m);
  EXPECT_EQ(row["reason"], "out of memory");
  EXPECT_FALSE(row.contains("end_to_end"));
  EXPECT_NO_THROW(ValidateRecord(row));
  row["end_to_end"] = nullptr;
  EXPECT_THROW(ValidateRecord(row), InvalidArgument);
  m = AblationOf3Rounds();
  m.trouble.interrupted = true;
  EXPECT_EQ(AblationRow(m)["reason"], "interrupted");
}

RunHeader HeaderOfAGpu() {
  RunHeader header{.run_id = "run",
                   .program = "bench_linear",
                   .fingerprint = {},
                   .peaks = Peaks{.read_gbps = 4500, .copy_gbps = 4300},
                   .datasheet = {}};
  header.fingerprint.time_utc = "2026-01-01T00:00:00Z";
  header.fingerprint.build = GetBuildInfo();
  header.fingerprint.cpu = "CPU";
  header.fingerprint.os = "Linux";
  header.fingerprint.gpu =
      GpuIdentity{.name = "GPU", .uuid_hash = "0123", .compute_capability = "9.0"};
  return header;
}

TEST(RunHeaderTest, SaysWhatWasInjectedAndWhosePeaksItUses) {
  RunHeader header = HeaderOfAGpu();
  Json run = ToJson(header);
  EXPECT_NO_THROW(ValidateRecord(run));
  EXPECT_TRUE(run["injected"].is_null());
  EXPECT_TRUE(run["peaks"]["from_run"].is_null());
  EXPECT_TRUE(run["fingerprint"]["gpu"]["mig"].is_null());
  header.injected = {{"op", "down"}, {"op_delay_us", 20}};
  header.peaks->from_run = "other";
  header.fingerprint.gpu->mig = false;
  header.fingerprint.gpu->max_sm_clock_mhz = 1980;
  run = ToJson(header);
  EXPECT_NO_THROW(ValidateRecord(run));
  EXPECT_EQ(run["injected"]["op_delay_us"], 20);
  EXPECT_EQ(run["peaks"]["from_run"], "other");
  EXPECT_EQ(run["fingerprint"]["gpu"]["mig"], false);
  EXPECT_EQ(run["fingerprint"]["gpu"]["max_sm_clock_mhz"], 1980);
}

TEST(RunHeaderTest, NamesTheGpusOfAllRanks) {
  RunHeader header = HeaderOfAGpu();
  EXPECT_FALSE(ToJson(header)["fingerprint"].contains("group"));
  GpuIdentity other = *header.fingerprint.gpu;
  other.uuid_hash = "4567";
  other.nvlinks = 18;
  header.fingerprint.group = GpuGroup{
      .gpus = {*header.fingerprint.gpu, other}, .without_peer_access = {"0-1"}, .nccl = "2.28.9"};
  const Json run = ToJson(header);
  EXPECT_NO_THROW(ValidateRecord(run));
  const Json& group = run["fingerprint"]["group"];
  EXPECT_TRUE(group["gpus"][0]["nvlinks"].is_null());
  EXPECT_EQ(group["gpus"][1]["uuid_hash"], "4567");
  EXPECT_EQ(group["gpus"][1]["nvlinks"], 18);
  EXPECT_EQ(group["without_peer_access"][0], "0-1");
  EXPECT_EQ(group["nccl"], "2.28.9");
  EXPECT_FALSE(run["fingerprint"].contains("hosts"));
  header.fingerprint.hosts = {"89ab", "cdef"};
  const Json of_hosts = ToJson(header);
  EXPECT_NO_THROW(ValidateRecord(of_hosts));
  EXPECT_EQ(of_hosts["fingerprint"]["hosts"], Json({"89ab", "cdef"}));
}

// The schema describes every key of the records.
TEST(RecordDocumentationTest, DescribesEveryField) {
  std::set<std::string> described;
  const std::function<void(const Json&)> collect = [&](const Json& schema) {
    if (!schema.is_structured()) return;
    if (schema.is_object() && schema.contains("properties")) {
      for (const auto& [name, property] : schema["properties"].items()) {
        if (property.is_object() && property.contains("description")) described.insert(name);
      }
    }
    for (const Json& part : schema) collect(part);
  };
  collect(RecordSchema().Root());

  DecoderMeasurement decoder = DecoderOf8();
  decoder.ranks = 2;
  decoder.profile = ProfileOf100Us();
  decoder.profile->ops[0].in_place = InPlaceTime{.us = 57, .ci95_us = {56, 58}};
  AblationMeasurement ablation = AblationOf3Rounds();
  ablation.isolated_us = PairedSamples{.with = {10}, .without = {20}};
  WorkloadMeasurement workload{.origin = kOrigin,
                               .shape = {{"name", "w"}},
                               .samples = {{.total_s = 1, .prompt_tokens = 1, .new_tokens = 1}},
                               .memory_points = {MemoryPoint{}},
                               .judged = {.tokens = 1}};
  RunHeader header = HeaderOfAGpu();
  header.datasheet = Datasheet{4800, 989};
  header.fingerprint.group = GpuGroup{.gpus = {*header.fingerprint.gpu}};
  const std::function<void(const Json&)> expect_described = [&](const Json& value) {
    if (value.is_array() && !value.empty()) return expect_described(value[0]);
    if (!value.is_object()) return;
    for (const auto& [key, part] : value.items()) {
      EXPECT_TRUE(described.contains(key)) << key << " is not described";
      if (key != "shape") expect_described(part);
    }
  };
  expect_described(KernelRow(ColdRow()));
  expect_described(DecoderRow(decoder));
  expect_described(WorkloadRow(workload));
  expect_described(AblationRow(ablation));
  expect_described(ToJson(header));
  expect_described(ToJson(RunEnd{.run_id = "run", .gpu_after = {}}));
}

TEST(RunHeaderTest, AnythingElseIsInvalid) {
  const auto expect_invalid = [](const std::string& pointer, const Json& value) {
    Json run = ToJson(HeaderOfAGpu());
    run[Json::json_pointer(pointer)] = value;
    EXPECT_THROW(ValidateRecord(run), InvalidArgument) << pointer;
  };
  expect_invalid("/injected", 3);
  expect_invalid("/injected", Json::object());
  expect_invalid("/injected", {{"slowdown_percent", nullptr}});
  expect_invalid("/peaks/from_run", 7);
  expect_invalid("/fingerprint/gpu/mps", "yes");
  expect_invalid("/fingerprint/gpu/name", "");
}

}  // namespace
}  // namespace tokline
