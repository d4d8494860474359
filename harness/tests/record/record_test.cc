#include "harness/record/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "harness/core/timing.h"
#include "harness/record/record_file.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;

// 1 GB read in 250 us, the peak being 4,500 GB/s: 89 % of it.
KernelMeasurement ColdRow() {
  return {.run_id = "run",
          .kernel = "chunk_decode",
          .implementation = "cuda",
          .shape = {{"name", "b1"}, {"batch", 1}},
          .dtype = "bf16",
          .device = "GPU",
          .cache = "cold",
          .chain = "plain",
          .launches_per_sample = 8,
          .buffer_sets = 4,
          .samples_us = std::vector<double>(kMinSamples, 250.0),
          .cost = {.read_bytes = 1e9, .write_bytes = 1e6, .flops = 1e9},
          .verified = {.before = true, .after = true, .max_error_over_bound = 0.4},
          .interrupted = false,
          .failure = "",
          .peaks = Peaks{.read_gbps = 4500, .copy_gbps = 4300, .matmul_tflops = 780},
          .datasheet = Datasheet{4800, 989}};
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
  EXPECT_DOUBLE_EQ(row["median_us"], 250);
  EXPECT_DOUBLE_EQ(row["mad_us"], 0);
  EXPECT_DOUBLE_EQ(row["gbps"], 4004);
  EXPECT_DOUBLE_EQ(row["tflops"], 4);
  EXPECT_EQ(row["limit"], "read");
  EXPECT_NEAR(row["percent_of_measured_peak"], 100 * 4004.0 / 4500, 1e-9);
  EXPECT_NEAR(row["percent_of_datasheet_peak"], 100 * 4004.0 / 4800, 1e-9);
  EXPECT_NO_THROW(ValidateRecord(row));
}

TEST(KernelRowTest, AboveTheRooflineIsRefusedWhenCold) {
  KernelMeasurement m = ColdRow();
  m.samples_us.assign(kMinSamples, 1001e6 / 4500e3 / 1.021);
  ExpectRefused(KernelRow(m), "above the roofline");
  m.samples_us.assign(kMinSamples, 1001e6 / 4500e3 / 1.019);
  EXPECT_EQ(KernelRow(m)["status"], "ok");
}

TEST(KernelRowTest, WarmRowsMayBeatTheMemoryPeak) {
  KernelMeasurement m = ColdRow();
  m.cache = "warm";
  m.samples_us.assign(kMinSamples, 100.0);
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
  ExpectRefused(KernelRow(m), "matmul peak");
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
  m.samples_us.pop_back();
  ExpectRefused(KernelRow(m), "14 samples");
  m = ColdRow();
  m.interrupted = true;
  ExpectRefused(KernelRow(m), "interrupted");
  EXPECT_TRUE(KernelRow(m)["interrupted"]);
  m = ColdRow();
  m.failure = "device memory does not suffice";
  ExpectRefused(KernelRow(m), "memory does not suffice");
}

TEST(KernelRowTest, ASampleThatIsNoTimeIsAnError) {
  KernelMeasurement m = ColdRow();
  m.samples_us[3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(KernelRow(m), InvalidArgument);
}

TEST(FloorTest, TheSlowerOfMemoryAndMatmulLimits) {
  EXPECT_EQ(FloorOf({.read_bytes = 9e6, .write_bytes = 1e6}, 4000, 2000, 100).limit, "read");
  EXPECT_DOUBLE_EQ(FloorOf({.read_bytes = 9e6, .write_bytes = 1e6}, 4000, 2000, 100).us, 2.5);
  EXPECT_EQ(FloorOf({.read_bytes = 5e6, .write_bytes = 5e6}, 4000, 2000, 100).limit, "copy");
  EXPECT_DOUBLE_EQ(FloorOf({.read_bytes = 5e6, .write_bytes = 5e6}, 4000, 2000, 100).us, 5);
  const Floor matmul = FloorOf({.read_bytes = 1e6, .flops = 1e9}, 4000, 2000, 100);
  EXPECT_EQ(matmul.limit, "matmul");
  EXPECT_DOUBLE_EQ(matmul.us, 10);
  EXPECT_EQ(FloorOf({.read_bytes = 1e6, .flops = 1e9}, 4000, 2000, 0).limit, "read");
}

// A valid row with one field changed must not pass.
TEST(ValidateRecordTest, NamesTheFieldThatIsWrong) {
  const auto expect_error = [](const std::string& pointer, const Json& value,
                               const std::string& message) {
    Json row = KernelRow(ColdRow());
    row[Json::json_pointer(pointer)] = value;
    try {
      ValidateRecord(row);
      ADD_FAILURE() << pointer << " = " << value << " passed";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(message)) << pointer;
    }
  };
  expect_error("/schema", 2, "schema is 2; this program reads schema 1");
  expect_error("/kind", "column", "run, row, end");
  expect_error("/kernel", "", "row.kernel");
  expect_error("/cache", "tepid", "cold, warm, cpu");
  expect_error("/median_us", 200.0, "row.median_us is 200");
  expect_error("/gbps", 5000.0, "row.gbps");
  expect_error("/verified/after", false, "must be verified");
  expect_error("/samples_us/2", nullptr, "samples_us");
  expect_error("/percent_of_measured_peak", 50.0, "percent_of_measured_peak");
  expect_error("/shape", Json::array(), "shape must be an object");
  expect_error("/launches_per_sample", 0, "launches_per_sample");
  expect_error("/status", "fine", "ok, refused");
}

TEST(ValidateRecordTest, AMissingFieldIsNamed) {
  for (const char* key : {"run_id", "kernel", "dtype", "chain", "samples_us", "cost", "verified"}) {
    Json row = KernelRow(ColdRow());
    row.erase(key);
    try {
      ValidateRecord(row);
      ADD_FAILURE() << key << " is missing, and passed";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(key));
    }
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
  m.samples_us.assign(kMinSamples, 100.0);
  Json row = KernelRow(m);
  row["cache"] = "cold";
  EXPECT_THROW(ValidateRecord(row), InvalidArgument);
}

DecoderMeasurement DecoderOf8() {
  return {.run_id = "run",
          .implementation = "cuda",
          .model = "qwen3",
          .dtype = "bf16",
          .device = "GPU",
          .cache = "cold",
          .batch = 8,
          .prompt_tokens = 128,
          .new_tokens = 64,
          .samples_prefill_s = {0.02, 0.01, 0.04},
          .samples_ms = {1.0, 1.5, 1.25},
          .host_share = 0.05,
          .cost = {.read_bytes = 1e9, .write_bytes = 1e6, .flops = 1e10},
          .judged_tokens = 64,
          .mean_regret = 0.01,
          .peaks = Peaks{.read_gbps = 2000, .copy_gbps = 1800},
          .datasheet = Datasheet{.memory_gbps = 4000, .bf16_tflops = 1000}};
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

TEST(DecoderRowTest, WithoutADeviceThereIsNoLimit) {
  DecoderMeasurement m = DecoderOf8();
  m.cache = "cpu";
  m.peaks.reset();
  m.datasheet.reset();
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
  expect_refused([](Row m) { m.interrupted = true; }, "interrupted");
  expect_refused([](Row m) { m.judged_tokens = 0; }, "unverified");
  expect_refused([](Row m) { m.mean_regret = 0.2; }, "regret of 64 tokens is 0.2; at most 0.02");
  expect_refused([](Row m) { m.mean_regret = std::nan(""); }, "unverified");
  expect_refused([](Row m) { m.samples_ms.clear(); }, "no samples");
  expect_refused([](Row m) { m.samples_ms = {0.4, 0.4, 0.4}; }, "above the roofline");
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
  expect_invalid([](Json& row) { row["verified"]["mean_regret"] = 0.5; });
  expect_invalid([](Json& row) { row.erase("verified"); });
  expect_invalid([](Json& row) { row["cache"] = "lukewarm"; });
  expect_invalid([](Json& row) { row["status"] = "refused", row["reason"] = "because"; });
}

}  // namespace
}  // namespace tokline
