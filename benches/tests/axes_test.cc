// Tests the shapes that axes produce, and the axes that are refused.
#include "benches/axes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/common/error.h"

namespace tokline::bench {
namespace {

using ::testing::HasSubstr;
using Axes = std::vector<std::string>;

const Axes kFamilies = {"decode", "cascade"};

TEST(AxesTest, ShapesAreTheProductAndNameWhatWasGiven) {
  const ShapeFile file = ShapesOfAxes(kFamilies, {"batch=1,8", "pages=16,64", "len=16:70:x2"});
  EXPECT_EQ(file.families.size(), 1u);
  const auto& shapes = file.families.at("decode");
  std::vector<std::string> names;
  for (const auto& shape : shapes) names.push_back(shape["name"]);
  EXPECT_THAT(names, ::testing::ElementsAre("batch=1,len=16", "batch=1,len=32", "batch=1,len=64",
                                            "batch=8,len=16", "batch=8,len=32", "batch=8,len=64"));
  EXPECT_EQ(
      shapes[4].dump(),
      R"({"batch":8,"len":32,"hq":32,"hk":8,"head_dim":128,"pages":[16,64],"name":"batch=8,len=32"})");
}

TEST(AxesTest, ValuesAreListedOrInRanges) {
  const std::pair<const char*, const char*> cases[] = {
      {"1,8,64", "[1,8,64]"},
      {"7:7:x2", "[7]"},
      {"1:16:x2", "[1,2,4,8,16]"},
      {"3:100:x5", "[3,15,75]"},
      {"0:10:+5", "[0,5,10]"},
      {"100:350:+100,512", "[100,200,300,512]"},
      {"1e3,x,,-1", R"([1000.0,"x","",-1])"},
      {"4611686018427387904:9223372036854775807:x2", "[4611686018427387904]"},
      {"9223372036854775800:9223372036854775807:+5", "[9223372036854775800,9223372036854775805]"}};
  for (const auto& [text, values] : cases) {
    const ShapeFile file = ShapesOfAxes({"norm"}, {std::string("tokens=") + text});
    EXPECT_EQ(file.families.at("norm")[0]["tokens"].dump(), values) << text;
    EXPECT_EQ(file.families.at("norm")[0]["name"], "norm") << text;
  }
}

TEST(AxesTest, TheFirstFamilyThatHasTheAxesIsTaken) {
  EXPECT_TRUE(ShapesOfAxes(kFamilies, {"batch=2"}).families.contains("decode"));
  EXPECT_TRUE(ShapesOfAxes(kFamilies, {"batch=2", "shared=9"}).families.contains("cascade"));
}

TEST(AxesTest, ADefaultMayBeTheValueOfAnotherAxis) {
  const auto kv_lengths = [](const Axes& axes) {
    std::vector<int64_t> lengths;
    const ShapeFile file = ShapesOfAxes({"prefill"}, axes);
    for (const auto& shape : file.families.at("prefill")) {
      lengths.push_back(shape["kv_len"]);
    }
    return lengths;
  };
  EXPECT_THAT(kv_lengths({"q_len=16,64"}), ::testing::ElementsAre(16, 64));
  EXPECT_THAT(kv_lengths({"q_len=16,64", "kv_len=99"}), ::testing::ElementsAre(99, 99));
}

TEST(AxesTest, BadAxesAreRefusedWithWhatIsAllowed) {
  const std::pair<Axes, const char*> cases[] = {
      {{"batch"}, "--axis is \"batch\"; it must be KEY=VALUES, such as batch=1,8,64"},
      {{"=1"}, "--axis is \"=1\""},
      {{"batch=1", "batch=2"}, "--axis \"batch\" is given twice"},
      {{"batch=1,1"}, "two shapes are named \"batch=1\""},
      {{"foo=1"},
       "--axis: no shapes of family decode, cascade have \"foo\"; the axes are decode: "
       "batch=1 len=4096 hq=32 hk=8 head_dim=128 pages=256; cascade: batch=64"},
      {{"len=1", "shared=2"}, "have \"len\", \"shared\"; the axes are"},
      {{"name=x"}, "have \"name\""},
      {{"foo=1", "len=1"}, "have \"foo\"; the axes are"},  // len is one
      {{"\x1b=1"}, "have \"\\x1b\""},
      {{"len=1:2"}, "--axis: \"1:2\" is no range; ranges are BEGIN:END:xFACTOR"},
      {{"len=0:8:x2"}, "\"0:8:x2\" is no range"},
      {{"len=-1:8:+2"}, "is no range"},
      {{"len=8:1:x2"}, "is no range"},
      {{"len=1:8:x1"}, "is no range"},
      {{"len=1:8:+0"}, "is no range"},
      {{"len=1:8:-2"}, "is no range"},
      {{"len=1:8:x2x"}, "is no range"},
      {{"len=1:8:x99999999999999999999999:"}, "is no range"},
      {{"len=1:1001:+1"}, "--axis: these axes make more than 1000 rows"},
      {{"len=1:1000000000000000000:+1"}, "more than 1000 rows"},
      {{"len=1:100:+1", "pages=1:11:+1"}, "more than 1000 rows"}};
  for (const auto& [axes, message] : cases) {
    EXPECT_THAT([&] { ShapesOfAxes(kFamilies, axes); },
                ::testing::ThrowsMessage<InvalidArgument>(HasSubstr(message)))
        << axes.back();
  }
}

TEST(AxesTest, EveryFamilyHasAxes) {
  for (const std::string& family : KnownFamilies()) {
    EXPECT_TRUE(AxisDefaults().contains(family)) << family;
  }
}

}  // namespace
}  // namespace tokline::bench
