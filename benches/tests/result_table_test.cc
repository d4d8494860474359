// Tests how results are printed: units, verdicts, layouts.
#include "benches/result_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tokline::bench {
namespace {

using ::testing::HasSubstr;

TEST(ResultTableTest, FiguresHaveThreeSignificantDigits) {
  const std::pair<double, const char*> cases[] = {
      {0, "0.00"},     {0.00004, "0.0000"}, {0.01234, "0.0123"}, {0.5, "0.500"},
      {9.994, "9.99"}, {9.996, "10.0"},     {12.34, "12.3"},     {99.96, "100"},
      {999.4, "999"},  {999.6, "1,000"},    {1234.6, "1,235"},   {2e6, "2,000,000"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(Figure(value), text);
}

TEST(ResultTableTest, RatesHaveThePrefixThatTheirSizeAsksFor) {
  const std::pair<double, const char*> cases[] = {{0, "0.00 kB/s"},        {289e6, "289 MB/s"},
                                                  {999.4e6, "999 MB/s"},   {999.6e6, "1.00 GB/s"},
                                                  {4.116e12, "4.12 TB/s"}, {2e15, "2,000 TB/s"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(Rate(value, "B/s"), text);
}

// Reads 1 GB in 250 us, which is 89 % of a peak of 4,500 GB/s.
KernelMeasurement Measured() {
  return {.origin = {.implementation = "cuda", .dtype = "bf16", .device = "GPU"},
          .kernel = "norm",
          .shape = {{"name", "b1"}, {"tokens", 1}},
          .cache = "cold",
          .chain = "plain",
          .cost = {.read_bytes = 1e9, .flops = 1e9},
          .samples = {.us = std::vector<double>(kMinSamples, 250.0)},
          .verified = {.before = true, .after = true, .max_error_over_bound = 0.4},
          .limits = {.peaks = Peaks{.read_gbps = 4500, .matmul_tflops = 780},
                     .datasheet = Datasheet{4800, 989}}};
}

template <typename Change>
Result Changed(const Change& change, const std::string& shape = "b1, tokens 1") {
  KernelMeasurement m = Measured();
  change(m);
  return Result(m, shape, /*timed=*/true);
}

std::vector<Result> OfEachKind() {
  const auto spread = [](KernelMeasurement& m, double us) {
    for (int i = 0; i < kMinSamples; ++i) m.samples.us[static_cast<size_t>(i)] += i * us;
  };
  return {Changed([](auto& m) { m.samples.rested = true; }),
          Changed([](auto& m) { m.chain = "dependent"; }),
          Changed([&](auto& m) { spread(m, 1.2); }, "less than 2 %"),
          Changed([&](auto& m) { spread(m, 1.4); }, "noisy"),
          Changed([&](auto& m) { m.trouble.disturbed = "power cap", spread(m, 9); }, "slowed"),
          Changed([](auto& m) { m.limits.peaks->read_gbps = 3900; }, "fast"),
          Changed([](auto& m) { m.cost.flops = 195e9, m.cache = "warm"; }, "matmul"),
          Changed([](auto& m) { m.samples.us.assign(kMinSamples, 200.0); }, "too fast"),
          Changed([](auto& m) { m.trouble.failure = "unverified before timing: [3]\x1b"; }, "µ")};
}

TEST(ResultTableTest, TypesThatDifferHaveAColumn) {
  EXPECT_EQ(TableOf({Changed([](auto&) {}), Changed([](auto& m) { m.origin.dtype = "f16"; })},
                    TableFormat::kText, 0, false),
            R"(norm on GPU, cuda, cold
shape         dtype  median µs   ± %  % of limit       rate  verdict
b1, tokens 1  bf16         250  0.00     89 read  4.00 TB/s  ok
b1, tokens 1  f16          250  0.00     89 read  4.00 TB/s  ok
)");
}

TEST(ResultTableTest, TextIsAlignedAndSaysWhatEachFigureIsWorth) {
  EXPECT_EQ(TableOf(OfEachKind(), TableFormat::kText, 0, false),
            R"(norm on GPU, bf16
shape          variant          cache  median µs   ± %  % of limit         rate  verdict
b1, tokens 1   cuda             cold         250  0.00     89 read    4.00 TB/s  ok, rested
b1, tokens 1   cuda, dependent  cold         250  0.00     89 read    4.00 TB/s  ok
less than 2 %  cuda             cold         258  1.86     86 read    3.87 TB/s  ok
noisy          cuda             cold         260  2.16     86 read    3.85 TB/s  noisy
slowed         cuda             cold         313    12     71 read    3.19 TB/s  disturbed
fast           cuda             cold         250  0.00    103 read    4.00 TB/s  above limit
matmul         cuda             warm         250  0.00  100 matmul  780 TFLOP/s  ok
too fast       cuda             cold                                             refused
µ              cuda             cold                                             wrong
slowed, cuda: disturbed: power cap
too fast, cuda: refused: above the roofline: 200 us is 104.167 % of the datasheet's memory peak, and at most 102 % can be true
µ, cuda: wrong: unverified before timing: [3]\x1b
)");
}

TEST(ResultTableTest, InFewColumnsShapesStandAboveTheirRows) {
  std::vector<Result> results = OfEachKind();
  results.resize(3, results.front());
  EXPECT_EQ(TableOf(results, TableFormat::kText, 82, false),
            TableOf(results, TableFormat::kText, 0, false));
  EXPECT_EQ(TableOf(results, TableFormat::kText, 81, false), R"(norm on GPU, bf16, cold
  variant          median µs   ± %  % of limit       rate  verdict
b1, tokens 1
  cuda                   250  0.00     89 read  4.00 TB/s  ok, rested
  cuda, dependent        250  0.00     89 read  4.00 TB/s  ok
less than 2 %
  cuda                   258  1.86     86 read  3.87 TB/s  ok
)");
}

TEST(ResultTableTest, WhatAllRowsShareIsSaidAbove) {
  const Result cpu = Changed([](auto& m) {
    m.origin.device = m.cache = "cpu";
    m.origin.implementation = "reference";
    m.chain = "none";
    m.limits = {};
  });
  EXPECT_EQ(TableOf({cpu, cpu}, TableFormat::kText, 0, false), R"(norm on cpu, bf16, reference
shape         median µs   ± %       rate  verdict
b1, tokens 1        250  0.00  4.00 TB/s  ok
b1, tokens 1        250  0.00  4.00 TB/s  ok
)");
}

TEST(ResultTableTest, RowsThatWereOnlyVerifiedShowTheirErrors) {
  KernelMeasurement wrong = Measured();
  wrong.trouble.failure = "unverified before timing: [3]";
  EXPECT_EQ(TableOf({Result(Measured(), "a", false), Result(wrong, "b", false)}, TableFormat::kText,
                    0, false),
            R"(norm on GPU, bf16, cuda, cold
shape  error / bound  verdict
a              0.400  ok
b                     wrong
b, cuda: wrong: unverified before timing: [3]
)");
}

TEST(ResultTableTest, ColoursMarkTheTitlesAndWhatIsNotOk) {
  std::vector<Result> results = OfEachKind();
  const std::string text = TableOf(results, TableFormat::kText, 0, true);
  EXPECT_THAT(text, HasSubstr("\x1b[1mshape"));
  EXPECT_THAT(text, HasSubstr("\x1b[33mnoisy\x1b[0m\n"));
  EXPECT_THAT(text, HasSubstr("\x1b[31mwrong\x1b[0m\n"));
  EXPECT_THAT(text, HasSubstr("  ok\n"));
}

TEST(ResultTableTest, MarkdownIsATable) {
  EXPECT_EQ(TableOf({Changed([](auto&) {}, "a|b"),
                     Changed([](auto& m) { m.trouble.failure = "no memory"; }, "c")},
                    TableFormat::kMarkdown, 10, true),
            R"(## norm on GPU, bf16, cuda, cold

| shape | median µs | ± % | % of limit | rate | verdict |
|---|---:|---:|---:|---:|---|
| a\|b | 250 | 0.00 | 89 read | 4.00 TB/s | ok |
| c |  |  |  |  | refused |

c, cuda: refused: no memory
)");
}

TEST(ResultTableTest, ProgramsGetTheSameColumnsOfAllRows) {
  const std::vector<Result> results = {Changed([](auto& m) {
                                         m.shape = {{"name", "a, \"b\""}, {"lens", {1, 2}}};
                                       }),
                                       Changed([](auto& m) {
                                         m.chosen = false;
                                         m.trouble.failure = "no memory";
                                       })};
  const std::string csv = TableOf(results, TableFormat::kCsv, 10, true);
  EXPECT_EQ(
      csv,
      R"(kernel,device,dtype,name,lens,tokens,implementation,chain,chosen,cache,median_us,ci95_percent,limit,percent_of_measured_peak,gbps,tflops,max_error_over_bound,verdict,note
norm,GPU,bf16,"a, ""b""","[1,2]",,cuda,plain,true,cold,250.0,0.0,read,88.88888888888889,4000.0,4.0,0.4,ok,
norm,GPU,bf16,b1,,1,cuda,plain,false,cold,,,,,,,0.4,refused,no memory
)");
  const Json json = Json::parse(TableOf(results, TableFormat::kJson, 10, true));
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["lens"], Json({1, 2}));
  EXPECT_EQ(json[0]["tokens"], nullptr);
  EXPECT_EQ(json[1]["median_us"], nullptr);
  std::string names;
  for (const auto& [name, value] : json[0].items()) names += (names.empty() ? "" : ",") + name;
  EXPECT_EQ(csv.substr(0, csv.find('\n')), names);
}

TEST(ResultTableTest, WithoutRowsNothingIsPrinted) {
  EXPECT_EQ(TableOf({}, TableFormat::kJson, 0, false), "");
}

}  // namespace
}  // namespace tokline::bench
