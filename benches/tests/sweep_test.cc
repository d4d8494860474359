// Tests the shapes that a sweep draws: they are the same everywhere, cover every stated range, and
// are accepted by the bench programs.
#include "benches/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "harness/tests/message_of.h"
#include "harness/tests/models/model_files.h"
#include "kernels/common/error.h"
#include "kernels/kernel_list.h"

namespace tokline::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

std::string TakesAll(const std::string&, const Json&) { return ""; }

// The only family of a sweep.
Json ShapesOf(const Sweep& sweep) { return sweep.shapes.families.begin().value(); }

// One shape of each of a thousand seeds.
const Json& Drawn(const std::string& kernel, const SweepRanges& ranges = kDeviceSweep) {
  static std::map<std::pair<std::string, const SweepRanges*>, Json> drawn;
  Json& shapes = drawn[{kernel, &ranges}];
  for (uint64_t seed = 0; shapes.size() < 1000; ++seed) {
    shapes.push_back(ShapesOf(DrawSweep(kernel, 1, seed, ranges, TakesAll))[0]);
  }
  return shapes;
}

template <typename T = int64_t>
std::set<T> ValuesOf(const Json& shapes, const std::string& key) {
  std::set<T> values;
  for (const Json& shape : shapes) {
    if (!shape.contains(key)) continue;
    const Json& value = shape[key];
    if (!value.is_array()) values.insert(value.get<T>());
    for (const Json& item : value.is_array() ? value : Json::array()) values.insert(item.get<T>());
  }
  return values;
}

void ExpectCovers(const std::set<int64_t>& values, Range range) {
  EXPECT_EQ(*values.begin(), range.least);
  EXPECT_EQ(*values.rbegin(), range.most);
  // There are values for every power of two.
  for (int64_t power = range.least; 2 * power <= range.most; power *= 2) {
    const auto next = values.lower_bound(power);
    EXPECT_TRUE(next != values.end() && *next < 2 * power) << "none from " << power;
  }
}

// FNV-1a of the shapes' text.
uint64_t Digest(const SweepRanges& ranges) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::string_view kernel : kKernelNames) {
    const std::string text =
        ShapesOf(DrawSweep(std::string(kernel), 50, 1, ranges, TakesAll)).dump();
    for (const unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3;
  }
  return hash;
}

TEST(SweepTest, ASeedGivesTheSameShapesOnEveryPlatform) {
  EXPECT_EQ(Digest(kDeviceSweep), 4130027957682849526u);
  EXPECT_EQ(Digest(kCpuSweep), 5385701252333515962u);
}

TEST(SweepTest, AShapeDependsOnItsNumberAndNotOnHowManyAreDrawn) {
  const Json few = ShapesOf(DrawSweep("linear", 3, 5, kDeviceSweep, TakesAll));
  const Json many = ShapesOf(DrawSweep("linear", 9, 5, kDeviceSweep, TakesAll));
  EXPECT_EQ(many[2], few[2]);
  EXPECT_NE(many[2]["in"], many[3]["in"]);
  EXPECT_EQ(many[8]["name"], "sweep:5:8");
}

TEST(SweepTest, WhatIsRefusedIsDrawnAgainAndCounted) {
  const auto refusal = [](const std::string&, const Json& shape) -> std::string {
    return shape["rows"][0] > 16 ? "too many" : "";
  };
  const Sweep sweep = DrawSweep("sampling", 40, 1, kDeviceSweep, refusal);
  const std::set<int64_t> rows = ValuesOf(ShapesOf(sweep), "rows");
  EXPECT_EQ(ShapesOf(sweep).size(), 40u);
  EXPECT_LE(*rows.rbegin(), 16);
  EXPECT_GT(sweep.redrawn.at("too many"), 10);
  // Shapes that are accepted at once are not affected by the others.
  const Json all = ShapesOf(DrawSweep("sampling", 40, 1, kDeviceSweep, TakesAll));
  for (size_t i = 0; i < all.size(); ++i) {
    const bool taken = all[i]["rows"][0] <= 16;
    EXPECT_EQ(all[i] == ShapesOf(sweep)[i], taken);
  }
}

TEST(SweepTest, ASweepOfWhichNothingFitsSaysSo) {
  const auto refusal = [](const std::string&, const Json&) -> std::string { return "too large"; };
  EXPECT_EQ(
      testing::MessageOf<RuntimeFailure>([&] { DrawSweep("norm", 1, 1, kDeviceSweep, refusal); }),
      "no shape of 1000 draws can be run; the last: too large");
}

TEST(SweepTest, AttentionCoversItsRanges) {
  for (const SweepRanges* ranges : {&kDeviceSweep, &kCpuSweep}) {
    const Json& shapes = Drawn("chunk_decode", *ranges);
    std::set<int64_t> batches, longest, groups;
    for (const Json& shape : shapes) {
      const std::vector<int64_t> lengths = shape["lens"];
      batches.insert(std::ssize(lengths));
      longest.insert(std::ranges::max(lengths));
      EXPECT_GE(std::ranges::min(lengths), 1);
      groups.insert(shape["hq"].get<int64_t>() / shape["hk"].get<int64_t>());
    }
    ExpectCovers(batches, ranges->batch);
    ExpectCovers(longest, ranges->context);
    ExpectCovers(ValuesOf(shapes, "hk"), ranges->kv_heads);
    EXPECT_EQ(groups.size(), 16u);
    ExpectCovers(groups, ranges->groups);
    EXPECT_THAT(ValuesOf(shapes, "head_dim"), ElementsAre(64, 128));
    EXPECT_THAT(ValuesOf(shapes, "pages"), ElementsAre(16, 32, 64, 128, 256));
    EXPECT_THAT(ValuesOf<std::string>(shapes, "order"), ElementsAre("hnd", "nhd"));
    EXPECT_THAT(ValuesOf<std::string>(shapes, "dtype"), ElementsAre("bf16", "f16"));
  }
}

TEST(SweepTest, ContextsAreEqualRaggedSkewedAndZipfs) {
  std::map<std::string, int> kinds;
  for (const Json& shape : Drawn("paged_gather")) {
    std::vector<int64_t> lengths = shape["lens"];
    const int64_t batch = std::ssize(lengths);
    std::ranges::sort(lengths, std::greater());
    const int64_t longest = lengths[0], second = lengths[1 % lengths.size()];
    if (batch < 20 || longest < 10000) continue;
    const auto distinct = std::set<int64_t>(lengths.begin(), lengths.end()).size();
    ++kinds[distinct == 1                                    ? "equal"
            : distinct == 2 && lengths.back() * 60 < longest ? "skewed"
            : second == (longest + 1) / 2                    ? "Zipf"
            : distinct > 15 && second > (longest + 1) / 2    ? "ragged"
                                                             : "another"];
  }
  EXPECT_GT(kinds["equal"], 10);
  EXPECT_GT(kinds["skewed"], 10);
  EXPECT_GT(kinds["Zipf"], 10);
  EXPECT_GT(kinds["ragged"], 10);
  EXPECT_EQ(kinds["another"], 0);
}

TEST(SweepTest, PrefillsAreWholeWithAPastChunkedAndMixed) {
  std::map<std::string, int> kinds;
  for (const Json& shape : Drawn("paged_prefill")) {
    const std::vector<int64_t> tokens = shape["q"], contexts = shape["kv"];
    ASSERT_EQ(tokens.size(), contexts.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_GE(tokens[i], 1);
      ASSERT_LE(tokens[i], contexts[i]);
    }
    const std::set<int64_t> chunks(tokens.begin(), tokens.end());
    const bool single = chunks.contains(1), chunked = *chunks.rbegin() > 1;
    if (std::ssize(tokens) < 20 || std::ranges::min(contexts) <= 256) continue;
    ++kinds[tokens == contexts                        ? "whole"
            : chunks.size() == 1                      ? "chunked"
            : single && chunked && chunks.size() == 2 ? "mixed"
                                                      : "past"];
  }
  EXPECT_GT(kinds["whole"], 5);
  EXPECT_GT(kinds["chunked"], 5);
  EXPECT_GT(kinds["mixed"], 5);
  EXPECT_GT(kinds["past"], 5);
}

TEST(SweepTest, RowsCoverTheirRangesAndEveryPublishedModel) {
  for (const std::string kernel :
       {"activation", "all_reduce_norm", "embedding", "linear", "norm", "rmsnorm_qkv"}) {
    SCOPED_TRACE(kernel);
    ExpectCovers(ValuesOf(Drawn(kernel), "tokens"), kDeviceSweep.tokens);
  }
  ExpectCovers(ValuesOf(Drawn("kv_append"), "tokens"), kDeviceSweep.appended);
  ExpectCovers(ValuesOf(Drawn("sampling"), "rows"), kDeviceSweep.batch);
  ExpectCovers(ValuesOf(Drawn("decode_step"), "context"), kDeviceSweep.context);
  ExpectCovers(ValuesOf(Drawn("decode_step"), "layers"), kDeviceSweep.layers);
  EXPECT_THAT(ValuesOf(Drawn("all_reduce_norm"), "ranks"), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(ValuesOf<std::string>(Drawn("norm"), "kind"), ElementsAre("layernorm", "rmsnorm"));
  EXPECT_THAT(ValuesOf<std::string>(Drawn("activation"), "kind"),
              ElementsAre("gated_silu", "gelu_tanh"));
  for (const char* flag : {"norm", "gated", "residual", "out_f32"}) {
    EXPECT_THAT(ValuesOf(Drawn("linear"), flag), ElementsAre(1)) << flag;
  }

  std::set<std::pair<int64_t, int64_t>> projections;
  for (const Json& shape : Drawn("linear")) {
    projections.emplace(shape["in"].get<int64_t>(), shape["out"].get<int64_t>());
  }
  std::set<std::string_view> names;
  for (const PublishedModel& model : PublishedModels()) {
    names.insert(model.name);
    const int64_t q = model.hq * model.head_dim, k = model.hk * model.head_dim;
    for (const auto& projection :
         {std::pair(model.hidden, q + 2 * k), std::pair(q, model.hidden),
          std::pair(model.hidden, model.inner), std::pair(model.inner, model.hidden),
          std::pair(model.hidden, model.vocab)}) {
      EXPECT_TRUE(projections.contains(projection))
          << model.name << ": " << projection.first << " x " << projection.second;
    }
  }
  EXPECT_EQ(names.size(), 30u);
}

// Bench programs check shapes by their own rules before they make cases of them.
TEST(SweepTest, TheProgramsTakeEveryShape) {
  const std::filesystem::path programs = std::filesystem::path(TOKLINE_PROGRAM).parent_path();
  if (!std::filesystem::exists(programs / "bench_activation")) {
    GTEST_SKIP() << "the bench programs are not built";
  }
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "sweep_test";
  std::filesystem::create_directories(folder);
  for (const std::string_view name : kKernelNames) {
    const std::string kernel(name);
    for (const SweepRanges* ranges : {&kDeviceSweep, &kCpuSweep}) {
      const ShapeFile one = DrawSweep(kernel, 1, 0, *ranges, TakesAll).shapes;
      Json file{{one.families.begin().key(), Drawn(kernel, *ranges)}};
      testing::WriteFile(folder / "shapes.json", file.dump());
      const std::string command =
          StrCat((programs / ("bench_" + kernel)).string(), " --device=cpu --shapes ",
                 (folder / "shapes.json").string(), " --benchmark_list_tests=true 2>&1 | tail -1");
      FILE* const pipe = ::popen(command.c_str(), "r");
      std::string last(4096, '\0');
      last.resize(std::fread(last.data(), 1, last.size(), pipe));
      ::pclose(pipe);
      EXPECT_THAT(last, HasSubstr(kernel + "/sweep:999:0/"));
    }
  }
}

}  // namespace
}  // namespace tokline::bench
