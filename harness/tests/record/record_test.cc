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

TEST(DecoderRowTest, IsValidAndMarksInterruption) {
  DecoderMeasurement m{.run_id = "run",
                       .implementation = "cuda",
                       .model = "qwen3",
                       .dtype = "bf16",
                       .device = "GPU",
                       .batch = 8,
                       .prompt_tokens = 128,
                       .new_tokens = 64,
                       .prefill_tok_s = 1e5,
                       .decode_tok_s = 8e3,
                       .ms_per_token = 1,
                       .host_share = 0.05};
  EXPECT_NO_THROW(ValidateRecord(DecoderRow(m)));
  EXPECT_EQ(DecoderRow(m)["status"], "ok");
  m.interrupted = true;
  EXPECT_EQ(DecoderRow(m)["status"], "refused");
  m.decode_tok_s = std::nan("");
  EXPECT_THROW(ValidateRecord(DecoderRow(m)), InvalidArgument);
}

}  // namespace
}  // namespace tokline
