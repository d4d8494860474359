// Tests how shapes are read, and which shapes are refused.
#include "benches/shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/tests/message_of.h"
#include "kernels/common/error.h"
#include "kernels/kernel_list.h"

namespace tokline::bench {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MessageOf;
using ::testing::Not;

ShapeReader FirstOf(const ShapeFile& shapes, const std::string& family) {
  return ShapeReader(shapes.name, family, shapes.families.at(family).at(0));
}

TEST(ShapesTest, ReadsLengthsInBothForms) {
  const ShapeFile shapes = ParseShapes("f", R"({"decode": [{"name": "a", "lens": [3, 0, 5]}],
                                                "gather": [{"name": "b", "batch": 2, "len": 7}]})");
  ShapeReader list = FirstOf(shapes, "decode");
  EXPECT_THAT(list.Lengths("lens", "len"), ElementsAre(3, 0, 5));
  EXPECT_NO_THROW(list.Finish());
  ShapeReader brief = FirstOf(shapes, "gather");
  EXPECT_THAT(brief.Lengths("lens", "len"), ElementsAre(7, 7));
  EXPECT_NO_THROW(brief.Finish());
}

TEST(ShapesTest, LengthsInBothFormsOrNoneAreRefused) {
  const ShapeFile shapes = ParseShapes(
      "f",
      R"({"decode": [{"name": "a", "lens": [3], "len": 3, "batch": 1}], "gather": [{"name": "b"}]})");
  EXPECT_THAT(MessageOf([&] { FirstOf(shapes, "decode").Lengths("lens", "len"); }),
              HasSubstr("f: decode: a: give the lengths either as 'lens'"));
  EXPECT_THAT(MessageOf([&] { FirstOf(shapes, "gather").Lengths("lens", "len"); }),
              HasSubstr("give the lengths"));
}

TEST(ShapesTest, AnUnknownKeyIsNamedWithItsShape) {
  const ShapeFile shapes =
      ParseShapes("my.json", R"({"decode": [{"name": "a", "hq": 8, "hqq": 2}]})");
  ShapeReader reader = FirstOf(shapes, "decode");
  EXPECT_EQ(reader.Int("hq"), 8);
  EXPECT_THAT(MessageOf([&] { reader.Finish(); }),
              AllOf(HasSubstr("my.json: decode: a: unknown key \"hqq\""), HasSubstr("hq, name")));
}

TEST(ShapesTest, AMissingOrWrongValueIsNamed) {
  const ShapeFile shapes = ParseShapes(
      "f", R"({"decode": [{"name": "a", "zero": 0, "text": "x", "half": 1.5, "big": 1e30,
                           "huge": 18446744073709551615, "empty": [], "mixed": [1, "2"]}]})");
  ShapeReader reader = FirstOf(shapes, "decode");
  EXPECT_THAT(MessageOf([&] { reader.Int("hq"); }), HasSubstr("'hq' is missing"));
  for (const char* key : {"zero", "text", "half", "big", "huge"}) {
    EXPECT_THAT(MessageOf([&] { reader.Int(key); }), HasSubstr(std::string("'") + key + "' is"));
  }
  for (const char* key : {"zero", "empty", "mixed"}) {
    EXPECT_THAT(MessageOf([&] { reader.Ints(key); }), HasSubstr(std::string("'") + key + "' is"));
  }
}

TEST(ShapesTest, AFileOfAnotherFormIsRefused) {
  const auto message = [](const char* json) { return MessageOf([&] { ParseShapes("f", json); }); };
  EXPECT_THAT(message("{"), HasSubstr("f: not valid JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("f: must be an object of families"));
  EXPECT_THAT(
      message(R"({"decoed": []})"),
      HasSubstr(
          "unknown family \"decoed\"; known are activation, all_reduce, append, cascade, decode"));
  EXPECT_THAT(message(R"({"decode": {}})"), HasSubstr("decode: must be a list"));
  EXPECT_THAT(message(R"({"decode": [{"hq": 1}]})"),
              HasSubstr("shape 0 must be an object with a name"));
  EXPECT_THAT(message(R"({"decode": [{"name": "a"}, {"name": "a"}]})"),
              HasSubstr("two shapes are named \"a\""));
  EXPECT_EQ(message(" \n"), "f is empty; it must hold a JSON object of families");
  EXPECT_THAT(message("{]"), Not(HasSubstr("json.exception")));
  EXPECT_THAT(message(R"({"decode": [{"name": "a", "hq": 8, "hq": 16}]})"),
              HasSubstr("f: the key \"hq\" occurs twice"));
}

TEST(ShapesTest, AFileThatCannotBeReadIsNamedWithTheReason) {
  const auto message = [](const std::string& path) {
    return MessageOf<RuntimeFailure>([&] { ReadShapeFile(path); });
  };
  EXPECT_EQ(message("/no/such/file.json"),
            "cannot read shapes from /no/such/file.json: No such file or directory");
  EXPECT_EQ(message("/dev"), "cannot read shapes from /dev: Is a directory");
}

TEST(ShapesTest, AFlagIsZeroOrOne) {
  const ShapeFile shapes = ParseShapes(
      "f", R"({"linear": [{"name": "a", "norm": 1, "residual": 0, "gated": 2, "append": [2]}]})");
  ShapeReader reader = FirstOf(shapes, "linear");
  EXPECT_TRUE(reader.Flag("norm"));
  EXPECT_FALSE(reader.Flag("residual"));
  EXPECT_FALSE(reader.Flag("out_f32"));
  EXPECT_THAT(MessageOf([&] { reader.Flag("gated"); }),
              HasSubstr("f: linear: a: 'gated' is 2; it must be a whole number from 0 to 1"));
  EXPECT_THAT(MessageOf([&] {
                reader.IntsOr("append", {}, {0, 1});
              }),
              HasSubstr("f: linear: a: 'append' is [2]; it must be a list of 1 to 65536 whole "
                        "numbers from 0 to 1"));
}

enum class Fruit { kApple, kPear };
constexpr std::string_view Name(Fruit fruit) { return fruit == Fruit::kApple ? "apple" : "pear"; }

TEST(ShapesTest, AKindIsOneOfThoseThatExist) {
  const ShapeFile shapes = ParseShapes("f", R"({"norm": [{"name": "a", "is": "pear", "was": 3}]})");
  ShapeReader reader = FirstOf(shapes, "norm");
  EXPECT_EQ(reader.OneOf("is", {Fruit::kApple, Fruit::kPear}), Fruit::kPear);
  EXPECT_THAT(MessageOf([&] { reader.OneOf("is", {Fruit::kApple}); }),
              HasSubstr("f: norm: a: 'is' is \"pear\"; it must be one of apple"));
  EXPECT_THAT(MessageOf([&] {
                reader.OneOf("was", {Fruit::kApple, Fruit::kPear});
              }),
              HasSubstr("'was' is 3; it must be one of apple, pear"));
  EXPECT_THAT(MessageOf([&] { reader.OneOf("will_be", {Fruit::kApple}); }),
              HasSubstr("'will_be' is missing"));
}

TEST(ShapesTest, ARowIsNamedOnceAndHasSomethingToDo) {
  const ShapeFile shapes = ParseShapes(
      "f", R"({"gather": [{"name": "a", "tokens": [1, 8, 1], "batch": 2, "len": 0, "lens": [0, 0],
                           "pages": [0]}]})");
  ShapeReader reader = FirstOf(shapes, "gather");
  EXPECT_THAT(MessageOf([&] { reader.Ints("tokens"); }),
              HasSubstr("f: gather: a: 'tokens' has 1 twice"));
  EXPECT_THAT(MessageOf([&] { reader.Lengths("lens", "other"); }),
              HasSubstr("f: gather: a: 'lens' has no length above 0"));
  EXPECT_THAT(MessageOf([&] { reader.Lengths("other", "len"); }),
              HasSubstr("f: gather: a: 'len' is 0; it must be a whole number from 1"));
  EXPECT_THAT(MessageOf([&] { reader.IntsOr("pages", {256}, kPageSizes); }),
              HasSubstr("'pages' is [0]"));
}

TEST(ShapesTest, EveryKernelHasDefaultShapesForBothDevices) {
  for (const std::string_view name : kKernelNames) {
    const std::string kernel(name);
    for (const bool cuda : {false, true}) {
      const ShapeFile shapes = DefaultShapes(kernel, cuda);
      EXPECT_FALSE(shapes.families.empty()) << kernel << " " << cuda;
      for (const auto& list : shapes.families) EXPECT_FALSE(list.empty()) << kernel << " " << cuda;
    }
  }
  EXPECT_THROW(DefaultShapes("no_such_kernel", true), RuntimeFailure);
}

TEST(ShapesTest, LengthsAreDescribedBriefly) {
  nlohmann::ordered_json shape;
  DescribeLengths(shape, "len", {5, 5, 5});
  EXPECT_EQ(shape.dump(), R"({"batch":3,"len":5})");
  shape.clear();
  DescribeLengths(shape, "len", {5, 6});
  EXPECT_EQ(shape.dump(), R"({"batch":2,"lens":[5,6]})");
}

}  // namespace
}  // namespace tokline::bench
