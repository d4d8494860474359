// Workloads: nano-vllm's number by number, drawn ones, files and what is wrong in them, arrivals;
// and what their runs on the CPU count and leave behind.
#include "harness/measure/workload_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "harness/tests/engine/golden.h"
#include "harness/tests/message_of.h"

namespace tokline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using testing::LoadedModel;
using testing::MessageOf;

class WorkloadTest : public ::testing::Test {
 protected:
  std::filesystem::path Write(const std::string& text) {
    const std::filesystem::path path =
        std::filesystem::path(::testing::TempDir()) / "workload_test.jsonl";
    std::ofstream(path) << text;
    return path;
  }
  const LoadedModel model_ = testing::LoadTinyModel();
};

// The figures are those that Python's random module gives, and the sum of new tokens is the one
// that nano-vllm reports.
TEST_F(WorkloadTest, NanoVllmIsTheSameWorkloadNumberByNumber) {
  const Workload workload = NanoVllmWorkload();
  ASSERT_EQ(workload.requests.size(), 256u);
  EXPECT_EQ(workload.NewTokens(), 133966);
  EXPECT_EQ(workload.PromptTokens(), 142827);
  const Request& first = workload.requests[0].request;
  EXPECT_EQ(first.prompt.size(), 964u);
  EXPECT_THAT(std::vector<int32_t>(first.prompt.begin(), first.prompt.begin() + 5),
              ElementsAre(6311, 6890, 663, 4242, 8376));
  EXPECT_EQ(first.max_new_tokens, 845);
  EXPECT_EQ(workload.requests[1].request.max_new_tokens, 312);
  EXPECT_FLOAT_EQ(first.rule.temperature, 0.6f);
}

TEST_F(WorkloadTest, SyntheticPromptsShareTheirBegin) {
  const Workload workload = SyntheticWorkload("requests=9,prompt=3-5,new=7,shared=6,ids=500");
  std::set<std::vector<int32_t>> rests;
  for (const WorkloadRequest& one : workload.requests) {
    const std::vector<int32_t>& prompt = one.request.prompt;
    EXPECT_THAT(prompt.size(), AllOf(Ge(9u), Le(11u)));
    EXPECT_TRUE(std::equal(prompt.begin(), prompt.begin() + 6,
                           workload.requests[0].request.prompt.begin()));
    EXPECT_THAT(one.request.cuts, ElementsAre(6));
    rests.insert({prompt.begin() + 6, prompt.end()});
  }
  EXPECT_EQ(rests.size(), 9u);
  EXPECT_THAT(SyntheticWorkload("requests=1").requests[0].request.cuts, IsEmpty());
  EXPECT_THAT(MessageOf<std::exception>([] { SyntheticWorkload("shared=-1"); }),
              HasSubstr("shared"));
}

TEST_F(WorkloadTest, SyntheticPartsAreTakenAndBadOnesNamed) {
  const Workload workload =
      SyntheticWorkload("requests=9,prompt=3-5,new=7,ids=20,seed=4,temperature=0,rate=10");
  ASSERT_EQ(workload.requests.size(), 9u);
  for (const WorkloadRequest& one : workload.requests) {
    EXPECT_GE(one.request.prompt.size(), 3u);
    EXPECT_LE(one.request.prompt.size(), 5u);
    EXPECT_EQ(one.request.max_new_tokens, 7);
    for (const int32_t id : one.request.prompt) EXPECT_LT(id, 20);
  }
  EXPECT_EQ(workload.requests[0].arrival_s, 0);
  EXPECT_GT(workload.requests[8].arrival_s, 0);
  const auto message = [](const char* parts) {
    return MessageOf<std::exception>([&] { SyntheticWorkload(parts); });
  };
  EXPECT_THAT(message("requests=0"), AllOf(HasSubstr("requests"), HasSubstr("from 1")));
  EXPECT_THAT(message("new"), HasSubstr("lacks a value"));
  EXPECT_THAT(message("prompt=9-3"), HasSubstr("9-3"));
  EXPECT_THAT(message("speed=3"), HasSubstr("unknown part \"speed\""));
}

TEST_F(WorkloadTest, FileGivesItsRequestsByArrival) {
  const Workload workload = ReadWorkload(
      Write("{\"prompt_tokens\": 4, \"new_tokens\": 2, \"ids\": 50, \"arrival_s\": 0.5}\n\n"
            "{\"prompt_ids\": [1, 2, 3], \"new_tokens\": 5, \"temperature\": 0.7, \"seed\": 8, "
            "\"stop_ids\": [9]}\n"));
  ASSERT_EQ(workload.requests.size(), 2u);
  EXPECT_THAT(workload.requests[0].request.prompt, ElementsAre(1, 2, 3));
  EXPECT_THAT(workload.requests[0].request.stop_ids, ElementsAre(9));
  EXPECT_EQ(workload.requests[0].request.rule.seed, 8u);
  EXPECT_EQ(workload.requests[1].request.prompt.size(), 4u);
  EXPECT_EQ(workload.MaxContext(), 8);
  EXPECT_EQ(workload.Where(0), workload.name + ":3");  // by its line, not by its arrival
  EXPECT_EQ(workload.Where(1), workload.name + ":1");
  EXPECT_EQ(SyntheticWorkload("requests=2").Where(1), "request 2 of synthetic:requests=2");
  EXPECT_FALSE(workload.HasStopStrings());
}

TEST_F(WorkloadTest, StopStringsAreATextOrAListOfThem) {
  const auto read = [&](const std::string& stop) {
    return ReadWorkload(
        Write("{\"prompt_tokens\": 4, \"new_tokens\": 2, \"seed\": 1" + stop + "}\n"));
  };
  const auto stops = [&](const std::string& stop) { return read(stop).requests.at(0).stop; };
  EXPECT_THAT(stops(R"(, "stop": "\n")"), ElementsAre("\n"));
  EXPECT_THAT(stops(R"(, "stop": ["a", "b c"])"), ElementsAre("a", "b c"));
  EXPECT_THAT(stops(R"(, "stop": [])"), ElementsAre());
  EXPECT_TRUE(read(R"(, "stop": "x")").HasStopStrings());
  // Other stop strings make another workload, and none the one that it was without them.
  EXPECT_EQ(HashOf(read("")), HashOf(read(R"(, "stop": [])")));
  EXPECT_NE(HashOf(read("")), HashOf(read(R"(, "stop": "ab")")));
  EXPECT_NE(HashOf(read(R"(, "stop": "ab")")), HashOf(read(R"(, "stop": ["a", "b"])")));
}

TEST_F(WorkloadTest, BadLinesAreNamedWithTheirNumberAndReason) {
  const std::string good = "{\"prompt_tokens\": 4, \"new_tokens\": 2}\n";
  const auto message = [&](const std::string& line) {
    return MessageOf<std::exception>([&] { ReadWorkload(Write(good + line + "\n")); });
  };
  EXPECT_THAT(message("{"), AllOf(HasSubstr("jsonl:2:"), HasSubstr("not a JSON object")));
  EXPECT_THAT(message("{\"new_tokens\": 2}"), HasSubstr(":2: it takes either prompt_ids"));
  EXPECT_THAT(message("{\"prompt_tokens\": 4}"), HasSubstr("new_tokens is missing"));
  EXPECT_THAT(message("{\"prompt_tokens\": 4.5, \"new_tokens\": 2}"), HasSubstr("4.5"));
  EXPECT_THAT(message("{\"prompt_tokens\": 4, \"new_tokens\": -2}"), HasSubstr("-2"));
  EXPECT_THAT(message("{\"prompt_ids\": [1, -1], \"new_tokens\": 2}"), HasSubstr("-1"));
  EXPECT_THAT(message("{\"prompt_tokens\": 4, \"new_tokens\": 2, \"n\": 1}"),
              HasSubstr("unknown name \"n\""));
  EXPECT_THAT(message("{\"prompt_tokens\": 4, \"new_tokens\": 2, \"top_p\": 0}"),
              HasSubstr("top_p"));
  const std::string stop = "{\"prompt_tokens\": 4, \"new_tokens\": 2, \"stop\": ";
  for (const std::string bad : {"\"\"", "[\"a\",\"\"]", "7", "[\"a\",null]", "{\"a\":1}", "null"}) {
    EXPECT_THAT(message(stop + bad + "}"),
                HasSubstr("jsonl:2: stop is " + bad + "; it takes a text or a list of them"));
  }
  EXPECT_THAT(message(stop + "\"\xff\"}"), HasSubstr("jsonl:2: it is not a JSON object"));
  EXPECT_THAT(MessageOf<std::exception>([&] { ReadWorkload(Write("\n")); }),
              HasSubstr("has no requests"));
  EXPECT_THAT(MessageOf<std::exception>([&] { ReadWorkload("/no/such/file"); }),
              HasSubstr("/no/such/file"));
}

TEST_F(WorkloadTest, ArrivalsAtARateAreThoseOfItsSeedInItsScale) {
  Workload workload = SyntheticWorkload("requests=4000,prompt=1,new=1");
  EXPECT_FALSE(workload.HasArrivals());
  const auto arrivals = [&](double rate, uint64_t seed) {
    workload.SetRate(rate, seed);
    std::vector<double> each;
    for (const WorkloadRequest& one : workload.requests) each.push_back(one.arrival_s);
    return each;
  };
  const std::vector<double> slow = arrivals(8, 5), fast = arrivals(16, 5);
  EXPECT_TRUE(workload.HasArrivals());
  EXPECT_TRUE(std::ranges::is_sorted(slow));
  EXPECT_EQ(slow[0], 0);
  EXPECT_NEAR(slow.back(), 4000 / 8.0, 4 * std::sqrt(4000.0) / 8);
  int short_gaps = 0;  // than the mean: of exponential ones, 1 - 1/e
  for (size_t i = 1; i < slow.size(); ++i) {
    EXPECT_NEAR(slow[i], 2 * fast[i], 1e-9);
    short_gaps += slow[i] - slow[i - 1] < 1 / 8.0;
  }
  EXPECT_NEAR(short_gaps / 4000.0, 1 - std::exp(-1.0), 0.04);
  EXPECT_NE(arrivals(8, 6), slow);
  arrivals(std::numeric_limits<double>::infinity(), 5);
  EXPECT_FALSE(workload.HasArrivals());
  EXPECT_THAT(MessageOf<std::exception>([&] { workload.SetRate(1e-6, 5); }),
              HasSubstr("at a rate of 1e-06 arrives after"));
}

TEST_F(WorkloadTest, PercentilesAreFiguresThatOccurred) {
  std::vector<double> values = {5, 1, 2, 3, 4, 6, 7, 8, 9, 10};
  const Percentiles ten = *PercentilesOf(values);
  EXPECT_EQ(ten.count, 10);
  EXPECT_EQ(ten.median, 5);
  EXPECT_EQ(ten.p90, 9);
  EXPECT_FALSE(ten.p99.has_value());
  EXPECT_FALSE(PercentilesOf({1, 2, 3, 4, 5, 6, 7, 8, 9})->p90.has_value());
  for (int value = 11; value < 100; ++value) values.push_back(value);
  EXPECT_FALSE(PercentilesOf(values)->p99.has_value());
  values.push_back(100);
  EXPECT_EQ(PercentilesOf(values)->p99, 99);
  EXPECT_EQ(PercentilesOf({7})->median, 7);
  EXPECT_FALSE(PercentilesOf({}).has_value());
}

TEST_F(WorkloadTest, RunCountsEveryTokenAndLeavesNothingBehind) {
  Decoder decoder(model_.spec, model_.weights,
                  {.max_batch = 4, .max_context = 64, .kv_pages = 10, .page_size = 16});
  const Workload workload = SyntheticWorkload("requests=12,prompt=5-20,new=3-30,ids=300,rate=800");
  const WorkloadResult result = RunWorkload(decoder, workload);
  EXPECT_EQ(result.requests, 12);
  EXPECT_EQ(result.prompt_tokens, workload.PromptTokens());
  EXPECT_EQ(result.new_tokens, workload.NewTokens());
  EXPECT_GT(result.total_s, 0);
  const auto& [first, between, end] = result.serving.latencies;
  EXPECT_EQ(first->count, 12);
  EXPECT_EQ(between->count, result.new_tokens - 12);
  EXPECT_EQ(end->count, 12);
  EXPECT_LE(first->median, first->p90.value());
  EXPECT_GT(between->median, 0);
  EXPECT_LE(result.serving.kv_pages.most, 10);
  EXPECT_GT(result.serving.kv_pages.mean, 0);
  EXPECT_GT(result.serving.host.share, 0);
  EXPECT_LE(result.serving.host.share, 1);
  EXPECT_EQ(decoder.Schedule().NumSequences(), 0);
  EXPECT_EQ(decoder.Pages().NumFree(), 10);
}

TEST_F(WorkloadTest, StopStringEndsItsRequestAndNoOther) {
  Decoder decoder(model_.spec, model_.weights,
                  {.max_batch = 4, .max_context = 64, .kv_pages = 10, .page_size = 16});
  Workload workload = SyntheticWorkload("requests=9,prompt=5-20,new=20,ids=300");
  for (size_t i = 0; i < 9; i += 2) workload.requests[i].stop = {std::to_string(i)};
  // As if the text of request i had its stop string after 3 + i tokens.
  const auto reader = [](std::span<const std::string> stops) {
    return [left = 3 + std::stoi(stops[0])](int32_t) mutable { return --left == 0; };
  };
  const WorkloadResult result = RunWorkload(decoder, workload, nullptr, reader);
  EXPECT_EQ(result.requests, 9);
  EXPECT_EQ(result.new_tokens, 4 * 20 + (3 + 5 + 7 + 9 + 11));
  for (const BenchText& text : result.texts) {
    const size_t i = static_cast<size_t>(
        std::ranges::find(workload.requests, text.prompt,
                          [](const WorkloadRequest& one) { return one.request.prompt; }) -
        workload.requests.begin());
    EXPECT_EQ(text.tokens.size(), i % 2 == 0 ? 3 + i : 20) << i;
  }
  EXPECT_EQ(decoder.Schedule().NumSequences(), 0);
  EXPECT_EQ(decoder.Pages().NumFree(), 10);
  EXPECT_THAT(MessageOf<std::exception>([&] { RunWorkload(decoder, workload); }),
              HasSubstr("has stop strings"));
}

TEST_F(WorkloadTest, RequestThatNeverFitsIsNamedBeforeAnythingRuns) {
  Decoder decoder(model_.spec, model_.weights,
                  {.max_batch = 4, .max_context = 128, .kv_pages = 3, .page_size = 16});
  Workload workload = SyntheticWorkload("requests=3,prompt=5,new=4,ids=300");
  workload.requests[1].request.max_new_tokens = 60;
  EXPECT_THAT(MessageOf<std::exception>([&] { WarmUp(decoder, workload); }),
              AllOf(HasSubstr("request 2"), HasSubstr("4 pages"), HasSubstr("3 of 3")));
  EXPECT_EQ(decoder.Schedule().NumSequences(), 0);
}

TEST_F(WorkloadTest, InterruptedRunEndsAndFreesEverything) {
  Decoder decoder(model_.spec, model_.weights,
                  {.max_batch = 4, .max_context = 64, .kv_pages = 10, .page_size = 16});
  const std::atomic<bool> interrupted = true;
  const Workload workload = SyntheticWorkload("requests=3,prompt=5,new=4,ids=300");
  const WorkloadResult result = RunWorkload(decoder, workload, &interrupted);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.requests, 0);
  EXPECT_EQ(decoder.Pages().NumFree(), 10);
}

}  // namespace
}  // namespace tokline
