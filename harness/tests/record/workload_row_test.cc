// Tests rows of workloads: their figures follow from the samples, and invalid rows are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "harness/record/record.h"
#include "harness/record/record_file.h"
#include "harness/tests/message_of.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;

WorkloadMeasurement WorkloadOf3Repeats() {
  WorkloadMeasurement m{
      .origin = {.run_id = "run", .implementation = "cuda", .dtype = "bf16", .device = "GPU"},
      .model = "qwen3",
      .requests = 4,
      .prompt_tokens = 600,
      .shape = {{"name", "nano-vllm"},
                {"hash", "0123"},
                {"new_tokens", 400},
                {"max_batch", 4},
                {"token_budget", 64},
                {"page_size", 16},
                {"reuse", false},
                {"kv_limit", {{"pages", 9}}},
                {"sharing", "never"}},
      .memory = {.weight_bytes = 100,
                 .kv_bytes = 50,
                 .activation_bytes = 20,
                 .workspace_bytes = 5,
                 .table_bytes = 1},
      .memory_points = {MemoryPoint{}, MemoryPoint{.requests = 4, .host = {}, .device_free = 7}},
      .judged = {.tokens = 256, .mean_regret = 0.001, .drawn = true}};
  for (const double seconds : {2.0, 1.0, 4.0}) {
    m.samples.push_back({.total_s = seconds, .prompt_tokens = 600, .new_tokens = 400});
  }
  m.serving.latencies = {
      .first_token_s = Percentiles{.count = 12, .median = 0.1, .p90 = 0.2},
      .between_tokens_s = Percentiles{.count = 388, .median = 0.01, .p90 = 0.02, .p99 = 0.03}};
  m.serving.host.share = 0.1;
  m.serving.steps.all = 500;
  m.serving.kv_pages = {.all = 9, .mean = 4.5, .most = 8};
  return m;
}

TEST(WorkloadRowTest, FiguresFollowFromTheRepeats) {
  const Json row = WorkloadRow(WorkloadOf3Repeats());
  ASSERT_EQ(row["status"], "ok") << row;
  EXPECT_NO_THROW(ValidateRecord(row));
  EXPECT_EQ(row["kernel"], "workload");
  EXPECT_EQ(row["shape"]["requests"], 4);
  EXPECT_EQ(row["shape"]["prompt_tokens"], 600);
  EXPECT_EQ(row["samples_s"], Json({2.0, 1.0, 4.0}));
  EXPECT_DOUBLE_EQ(row["total_s"], 2.0);
  EXPECT_DOUBLE_EQ(row["median_us"], 5000);
  EXPECT_DOUBLE_EQ(row["output_tok_s"], 200);
  EXPECT_DOUBLE_EQ(row["total_tok_s"], 500);
  EXPECT_DOUBLE_EQ(row["mad_us"], 2500);
  EXPECT_EQ(row["ci95_us"], Json({2500.0, 10000.0}));
  EXPECT_DOUBLE_EQ(row["first_token_ms"]["p90"], 200);
  EXPECT_TRUE(row["first_token_ms"]["p99"].is_null());
  EXPECT_DOUBLE_EQ(row["between_tokens_ms"]["p99"], 30);
  EXPECT_TRUE(row["end_to_end_ms"].is_null());
  EXPECT_EQ(row["memory_bytes"], 176);
  EXPECT_TRUE(row["memory_points"][0]["device_free"].is_null());
  EXPECT_EQ(row["memory_points"][1]["device_free"], 7);
}

TEST(WorkloadRowTest, GoodputFollowsFromTheRequestsThatMetTheBound) {
  WorkloadMeasurement m = WorkloadOf3Repeats();
  EXPECT_FALSE(WorkloadRow(m).contains("slo"));
  m.promise = {.bound = {.first_token_s = 0.2}, .good_requests = 3};
  Json row = WorkloadRow(m);
  EXPECT_NO_THROW(ValidateRecord(row));
  EXPECT_EQ(row["slo"], Json({{"first_token_ms", 200.0}, {"mean_between_ms", nullptr}}));
  EXPECT_DOUBLE_EQ(row["goodput_req_s"], 3 / 2.0);
  const auto expect_invalid = [&](const char* name, const Json& value) {
    Json other = row;
    other[name] = value;
    EXPECT_THROW(ValidateRecord(other), InvalidArgument) << name;
  };
  expect_invalid("goodput_req_s", 2.0);
  expect_invalid("good_requests", 13);
  row.erase("good_requests");
  EXPECT_THROW(ValidateRecord(row), InvalidArgument);
  row = WorkloadRow(m);
  for (const Json& rate : {Json(0.5), Json("inf")}) {
    row["shape"]["rate"] = rate;
    EXPECT_NO_THROW(ValidateRecord(row)) << rate;
  }
  for (const Json& rate : {Json(0), Json("fast"), Json(nullptr)}) {
    row["shape"]["rate"] = rate;
    EXPECT_THROW(ValidateRecord(row), InvalidArgument) << rate;
  }
}

TEST(WorkloadRowTest, OfAnotherProgramOnlyTheThroughputIsKnown) {
  Json row = WorkloadRow(WorkloadOf3Repeats());
  row["library"] = {{"name", "other"}, {"version", "1"}};
  row["verified"] = {{"new_tokens", true}};
  row["memory_bytes"] = nullptr;
  for (const char* name : {"memory", "first_token_ms", "between_tokens_ms", "kv_pages", "steps",
                           "mean_kv_pages", "decode_read_bytes", "memory_points"}) {
    row.erase(name);
  }
  EXPECT_NO_THROW(ValidateRecord(row));
  const auto expect_invalid = [&](const char* name, const Json& value) {
    Json other = row;
    other[name] = value;
    EXPECT_THROW(ValidateRecord(other), InvalidArgument) << name;
  };
  expect_invalid("output_tok_s", 300.0);
  expect_invalid("total_s", 1.0);
  expect_invalid("library", nullptr);  // our own rows have all figures
  expect_invalid("verified", {{"new_tokens", false}});
  row.erase("samples_s");
  EXPECT_THROW(ValidateRecord(row), InvalidArgument);
}

TEST(WorkloadRowTest, WhatDoesNotStandIsRefusedWithoutFigures) {
  const auto reason_of = [](const std::function<void(WorkloadMeasurement&)>& change) {
    WorkloadMeasurement m = WorkloadOf3Repeats();
    change(m);
    const Json row = WorkloadRow(m);
    EXPECT_EQ(row["status"], "refused");
    EXPECT_FALSE(row.contains("samples_s"));
    EXPECT_FALSE(row.contains("output_tok_s"));
    EXPECT_NO_THROW(ValidateRecord(row));
    return row["reason"].get<std::string>();
  };
  using Row = WorkloadMeasurement&;
  EXPECT_EQ(reason_of([](Row m) { m.trouble.interrupted = true; }), "interrupted");
  EXPECT_EQ(reason_of([](Row m) { m.samples.clear(); }), "no samples");
  EXPECT_THAT(reason_of([](Row m) { m.judged.tokens = 0; }), HasSubstr("unverified"));
  EXPECT_THAT(reason_of([](Row m) { m.judged.mean_regret = 0.0131; }),
              HasSubstr("is 0.0131; at most 0.013 is allowed"));
  EXPECT_THAT(reason_of([](Row m) { m.judged.drawn = false, m.judged.mean_regret = 0.021; }),
              HasSubstr("is 0.021; at most 0.02 is allowed"));
  EXPECT_THAT(
      reason_of([](Row m) { m.judged.mean_regret = std::numeric_limits<double>::quiet_NaN(); }),
      HasSubstr("unverified"));
}

TEST(WorkloadRowTest, RowsThatDoNotFollowAreRefusedOnReading) {
  const auto message = [](const std::function<void(Json&)>& change) -> std::string {
    Json row = WorkloadRow(WorkloadOf3Repeats());
    change(row);
    return testing::MessageOf([&] { ValidateRecord(row); });
  };
  const auto set = [&](const char* key, const Json& value) {
    return message([&](Json& row) { row[key] = value; });
  };
  EXPECT_THAT(set("output_tok_s", 201), HasSubstr("row.output_tok_s is 201"));
  EXPECT_THAT(set("total_tok_s", 1), HasSubstr("row.total_tok_s"));
  EXPECT_THAT(set("total_s", 1), HasSubstr("row.total_s"));
  EXPECT_THAT(set("mad_us", 1), HasSubstr("row.mad_us"));
  EXPECT_THAT(set("ci95_us", {1, 2}), HasSubstr("row.ci95_us"));
  EXPECT_THAT(set("samples_new_tokens", {400}), HasSubstr("repeat gives one of each"));
  EXPECT_THAT(set("samples_s", {1.0, -1.0, 2.0}), HasSubstr("-1"));
  EXPECT_THAT(set("memory_bytes", 5), HasSubstr("its uses add up to 176"));
  EXPECT_THAT(set("max_kv_pages", 10), HasSubstr("must ascend"));
  EXPECT_THAT(set("preemptions", -1), HasSubstr("row.preemptions"));
  EXPECT_THAT(set("memory_points", {{{"requests", 1}}}), HasSubstr("host_resident"));
  EXPECT_THAT(message([](Json& row) { row["between_tokens_ms"]["p90"] = 900; }),
              HasSubstr("must ascend"));
  EXPECT_THAT(message([](Json& row) { row["first_token_ms"]["p99"] = 900; }),
              HasSubstr("row.first_token_ms.p99 is 900 of 12 latencies; it is stated of 100"));
  EXPECT_THAT(message([](Json& row) { row["first_token_ms"]["p90"] = nullptr; }),
              HasSubstr("row.first_token_ms.p90 is null of 12 latencies; it is stated of 10"));
  EXPECT_THAT(message([](Json& row) { row["shape"].erase("hash"); }), HasSubstr("'hash'"));
  EXPECT_THAT(message([](Json& row) { row["shape"]["max_batch"] = 0; }), HasSubstr("max_batch"));
  EXPECT_THAT(message([](Json& row) { row["shape"]["sharing"] = "auto"; }), HasSubstr("sharing"));
  EXPECT_THAT(message([](Json& row) { row["verified"]["mean_regret"] = 0.021; }),
              HasSubstr("row.verified.mean_regret is 0.021; it must be at most 0.02"));
  EXPECT_THAT(message([](Json& row) { row["status"] = "refused", row["reason"] = "because"; }),
              HasSubstr("row.median_us is 5000.0; it must be absent"));
}

}  // namespace
}  // namespace tokline
