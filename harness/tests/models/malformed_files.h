// Checkpoint files that are each wrong in one place, and what the error message must contain.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/tests/models/model_files.h"
#include "kernels/common/error.h"

namespace tokline::testing {

// A tensor's entry in the header: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}.
inline std::string Entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return StrCat(R"({"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets,
                "}");
}

inline std::string Header(std::string_view entry) { return StrCat(R"({"a":)", entry, "}"); }

inline std::string Header(std::string_view first, std::string_view second) {
  return StrCat(R"({"a":)", first, R"(,"b":)", second, "}");
}

inline const std::string kGood = Entry("F32", "[2]", "[0,8]");

// A malformed model.safetensors and what the error message must contain.
struct Malformed {
  std::string name;
  std::string file;
  std::vector<std::string> says;
};

inline void PrintTo(const Malformed& malformed, std::ostream* out) { *out << malformed.name; }

inline std::vector<Malformed> MalformedFiles() {
  std::vector<Malformed> cases;
  const auto add = [&](std::string name, std::string file, std::vector<std::string> says) {
    cases.push_back({std::move(name), std::move(file), std::move(says)});
  };
  // Adds a header that is wrong in itself; the data has the length of the good entry's.
  const auto header = [&](std::string name, const std::string& text,
                          std::vector<std::string> says) {
    add(std::move(name), SafetensorsFile(text, 8), std::move(says));
  };
  // Adds a header whose tensor "a" is wrong.
  const auto entry = [&](std::string name, const std::string& text, std::vector<std::string> says) {
    says.push_back("tensor \"a\"");
    header(std::move(name), Header(text), std::move(says));
  };
  const std::string good = SafetensorsFile(Header(kGood), 8);

  // Size of the file and of the header.
  add("EmptyFile", "", {"the file is empty"});
  add("OneByte", "x", {"the file has 1 bytes", "at least 9"});
  add("SevenBytes", good.substr(0, 7), {"the file has 7 bytes", "at least 9"});
  add("PrefixOnly", good.substr(0, 8), {"the file has 8 bytes; a safetensors file has at least 9"});
  add("HeaderLengthZero", LengthPrefix(0) + good.substr(8), {"it has 0 bytes"});
  add("HeaderLongerThanFile", LengthPrefix(1000) + good.substr(8), {"it has 1000 bytes"});
  add("HeaderOneByteTooLong", LengthPrefix(good.size() - 7) + good.substr(8), {"truncated"});
  add("HeaderAboveTheCap", LengthPrefix(100'000'001) + good.substr(8), {"it has 100000001 bytes"});
  add("HeaderLengthNegativeAsSigned", LengthPrefix(~uint64_t{0}) + good.substr(8),
      {"it has 18446744073709551615 bytes"});
  add("HeaderLengthWrapsWithPrefix", LengthPrefix(~uint64_t{0} - 7) + good.substr(8),
      {"it has 18446744073709551608 bytes"});
  add("HeaderLengthBigEndian", std::string("\0\0\0\0\0\0\0\x40", 8) + good.substr(8),
      {"it has 4611686018427387904 bytes"});
  add("TruncatedInHeader", good.substr(0, 30), {"truncated"});
  add("TruncatedInData", good.substr(0, good.size() - 1), {"7 bytes of data", "truncated"});
  add("DataMissing", good.substr(0, good.size() - 8), {"0 bytes of data", "truncated"});
  add("BytesAfterTheData", good + "x", {"end at byte 8", "9 bytes of data"});
  add("NotSafetensors", std::string("PK\x03\x04", 4) + std::string(100, 'z'), {"bytes; allowed"});

  // JSON.
  header("HeaderStartsWithSpace", " " + Header(kGood), {"must start with \"{\""});
  header("HeaderIsArray", "[1, 2]", {"must start with \"{\""});
  header("HeaderIsZeros", std::string(16, '\0'), {"must start with \"{\""});
  header("JsonCutShort", R"({"a":{"dtype":)", {"not valid JSON"});
  header("JsonTrailingText", Header(kGood) + "x", {"not valid JSON"});
  header("JsonSecondValue", Header(kGood) + "{}", {"not valid JSON"});
  header("JsonTrailingComma", R"({"a":)" + kGood + ",}", {"not valid JSON"});
  header("JsonTrailingNul", Header(kGood) + '\0', {"not valid JSON"});
  header("JsonTextAfterNul", Header(kGood) + '\0' + "x", {"not valid JSON"});
  header("JsonComment", "{/* */}", {"not valid JSON"});
  header("JsonNewlineInString", "{\"a\nb\":" + kGood + "}", {"not valid JSON"});
  header("JsonInvalidUtf8", "{\"\xff\":" + kGood + "}", {"not valid JSON"});
  header("JsonLoneSurrogate", R"({"\ud800":)" + kGood + "}", {"not valid JSON"});
  header("JsonNan", Header(Entry("F32", "[NaN]", "[0,8]")), {"not valid JSON"});
  header("DepthBombOfArrays", R"({"a":)" + std::string(1'000'000, '['), {"is an array"});
  header("DepthBombInShape", R"({"a":{"shape":)" + std::string(1'000'000, '['),
         {"an array in its"});
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  header("DepthBombOfObjects", objects, {"\"a\""});

  // Keys.
  header("DuplicateTensor", Header(kGood).insert(1, R"("a":)" + kGood + ","), {"\"a\" twice"});
  header("DuplicateTensorEscaped", Header(kGood).insert(1, R"("\u0061":)" + kGood + ","),
         {"\"a\" twice"});
  entry("DuplicateDtype", R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})",
        {"\"dtype\" twice"});
  entry("DuplicateOffsets",
        R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"data_offsets":[0,8]})",
        {"\"data_offsets\" twice"});
  header("DuplicateMetadata", R"({"__metadata__":{},"__metadata__":{},"a":)" + kGood + "}",
         {"\"__metadata__\" twice"});
  header("DuplicateMetadataKey", R"({"__metadata__":{"x":"1","x":"2"},"a":)" + kGood + "}",
         {"\"x\" twice"});
  header("MetadataIsString", R"({"__metadata__":"x"})", {"__metadata__ is a string"});
  header("MetadataIsNull", R"({"__metadata__":null})", {"__metadata__ is null"});
  header("MetadataHoldsNumber", R"({"__metadata__":{"x":1}})", {"must be a string"});
  header("MetadataNests", R"({"__metadata__":{"x":{}}})", {"must be a string"});
  entry("UnknownKey", R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1]})",
        {"\"strides\""});
  entry("NoDtype", R"({"shape":[2],"data_offsets":[0,8]})", {"has no dtype"});
  entry("NoShape", R"({"dtype":"F32","data_offsets":[0,8]})", {"has no shape"});
  entry("NoOffsets", R"({"dtype":"F32","shape":[2]})", {"has no data_offsets"});
  entry("EmptyEntry", "{}", {"has no dtype"});
  entry("EntryIsString", R"("F32")", {"is a string"});
  entry("EntryIsNull", "null", {"is null"});
  entry("EntryIsTrue", "true", {"is a boolean"});

  // Dtypes.
  entry("UnknownDtype", Entry("F31", "[2]", "[0,8]"), {"\"F31\"", "known are", "BF16"});
  entry("LowerCaseDtype", Entry("f32", "[2]", "[0,8]"), {"\"f32\""});
  entry("EmptyDtype", Entry("", "[2]", "[0,8]"), {"\"\""});
  entry("DtypeIsNumber", R"({"dtype":32,"shape":[2],"data_offsets":[0,8]})", {"a number as dtype"});
  entry("DtypeWithNewline", Entry("F\\n32", "[2]", "[0,8]"), {"F\\x0a32"});

  // Shapes.
  entry("ShapeIsNumber", Entry("F32", "2", "[0,8]"), {"a number as shape"});
  entry("ShapeIsObject", Entry("F32", "{}", "[0,8]"), {"an object as shape"});
  entry("ShapeNegative", Entry("F32", "[-2]", "[0,8]"), {"the number -2 in its shape"});
  entry("ShapeFraction", Entry("F32", "[2.0]", "[0,8]"), {"the number 2.0 in its shape"});
  entry("ShapeExponent", Entry("F32", "[2e0]", "[0,8]"), {"the number 2e0 in its shape"});
  entry("ShapeString", Entry("F32", R"(["2"])", "[0,8]"), {"a string in its shape"});
  entry("ShapeAboveInt64", Entry("F32", "[9223372036854775808]", "[0,8]"),
        {"9223372036854775808 in its shape"});
  entry("ShapeAboveUint64", Entry("F32", "[18446744073709551616]", "[0,8]"), {"in its shape"});
  entry("ProductWrapsToSize", Entry("F32", "[4611686018427387905,2]", "[0,8]"),
        {"more than 2^63 - 1 bytes"});
  entry("ProductWrapsToZero", Entry("F32", "[4294967296,4294967296]", "[0,0]"),
        {"more than 2^63 - 1 bytes"});
  entry("BytesWrap", Entry("F32", "[4611686018427387904]", "[0,0]"), {"more than 2^63 - 1 bytes"});
  entry("TooManyDimensions", Entry("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), {"more than 8"});
  entry("ShapeTooLarge", Entry("F32", "[3]", "[0,8]"), {"has 8 bytes", "make 12"});
  entry("ShapeTooSmall", Entry("F32", "[1]", "[0,8]"), {"has 8 bytes", "make 4"});
  entry("ShapeWithZero", Entry("F32", "[0]", "[0,8]"), {"has 8 bytes", "make 0"});
  entry("ScalarTooLong", Entry("F32", "[]", "[0,8]"), {"has 8 bytes", "make 4"});

  // Offsets.
  entry("OffsetsAreNumber", Entry("F32", "[2]", "8"), {"a number as data_offsets"});
  entry("OffsetsEmpty", Entry("F32", "[2]", "[]"), {"0 data_offsets"});
  entry("OffsetsOne", Entry("F32", "[2]", "[8]"), {"1 data_offsets"});
  entry("OffsetsThree", Entry("F32", "[2]", "[0,8,8]"), {"more than 2 data_offsets"});
  entry("OffsetNegative", Entry("F32", "[2]", "[-8,0]"), {"the number -8"});
  entry("OffsetFraction", Entry("F32", "[2]", "[0,8.0]"), {"the number 8.0"});
  entry("OffsetNull", Entry("F32", "[2]", "[null,8]"), {"null in its data_offsets"});
  entry("OffsetsReversed", Entry("F32", "[2]", "[8,0]"), {"[8, 0]", "must not exceed"});
  entry("OffsetAboveInt64", Entry("F32", "[2]", "[0,9223372036854775816]"),
        {"9223372036854775816"});
  entry("OffsetsFarBeyond", Entry("F32", "[2]", "[9223372036854775799,9223372036854775807]"),
        {"ends at byte 9223372036854775807", "8 bytes of data"});
  entry("EndBeyondFile", Entry("F32", "[3]", "[0,12]"), {"ends at byte 12", "8 bytes of data"});
  header("Overlap", Header(Entry("BF16", "[2]", "[0,4]"), Entry("BF16", "[3]", "[2,8]")),
         {"tensor \"b\"", "overlaps", "ends at 4"});
  header("SameBytesTwice", Header(kGood, kGood), {"tensor \"b\"", "overlaps"});
  header("TensorInsideAnother", Header(kGood, Entry("BF16", "[1]", "[2,4]")), {"overlaps"});
  header("HoleAtTheStart", Header(Entry("BF16", "[2]", "[4,8]")), {"starts at byte 4", "holes"});
  header("HoleInTheMiddle", Header(Entry("BF16", "[1]", "[0,2]"), Entry("BF16", "[2]", "[4,8]")),
         {"tensor \"b\"", "ends at 2", "holes"});
  header("HoleAtTheEnd", Header(Entry("BF16", "[2]", "[0,4]")), {"end at byte 4", "8 bytes"});
  header("NoTensorsButData", "{}", {"end at byte 0", "8 bytes of data"});
  header("EmptyTensorBeyondData", Header(kGood, Entry("F32", "[0]", "[16,16]")),
         {"tensor \"b\"", "ends at byte 16"});
  std::string many = "{";
  for (int i = 0; i <= 200'000; ++i) {
    many += StrCat(i == 0 ? "\"t" : ",\"t", i, "\":", Entry("U8", "[0]", "[0,0]"));
  }
  add("TooManyTensors", SafetensorsFile(many + "}", 0), {"more than 200000 tensors"});
  header("NameWithNewline", R"({"a\nb":{}})", {R"(tensor "a\x0ab")"});
  return cases;
}

// Writes "a" to one.safetensors, "b" to two.safetensors, and two files that clash with them.
inline void WriteShards(const TempFolder& dir) {
  WriteFile(dir / "one.safetensors", SafetensorsFile({{"a", {2}}}));
  WriteFile(dir / "two.safetensors", SafetensorsFile({{"b", {4}}}));
  WriteFile(dir / "both.safetensors", SafetensorsFile({{"c", {2}}, {"d", {2}}}));
  WriteFile(dir / "again.safetensors", SafetensorsFile({{"b", {2}}, {"e", {2}}}));
}

inline std::string IndexFile(const nlohmann::json& map) {
  return nlohmann::json{{"weight_map", map}}.dump();
}

// Malformed index files, which go beside the files of WriteShards.
inline std::vector<Malformed> MalformedIndexes() {
  const auto shard_of_a = [&](std::string name) {
    return IndexFile({{"a", std::move(name)}, {"b", "two.safetensors"}});
  };
  const std::string must = "a shard is a file name in the same folder";
  return {
      {"NotJson", "weight_map", {"not valid JSON"}},
      {"EmptyFile", "", {"the file is empty"}},
      {"CutShort", R"({"weight_map":{"a":"one.safetensors")", {"not valid JSON"}},
      {"SecondValue", R"({"weight_map":{"a":"one.safetensors"}} {})", {"not valid JSON"}},
      {"TrailingComma", R"({"weight_map":{"a":"one.safetensors",}})", {"not valid JSON"}},
      {"TextAfterNul",
       R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})" + std::string("\0x", 2),
       {"not valid JSON", "is 0"}},
      {"InvalidUtf8", "{\"weight_map\":{\"\xc3\x28\":\"one.safetensors\"}}", {"not valid JSON"}},
      {"LoneSurrogate", R"({"weight_map":{"a":"\udc00.safetensors"}})", {"not valid JSON"}},
      {"HugeNumber", R"({"metadata":{"total_size":1e999},"weight_map":{}})", {"not valid JSON"}},
      {"Array", "[]", {"weight_map must be an object"}},
      {"NoMap", "{}", {"weight_map must be an object"}},
      {"MapIsArray", R"({"weight_map":["a"]})", {"weight_map must be an object"}},
      {"MapIsEmpty", R"({"weight_map":{}})", {"weight_map must be an object"}},
      {"DuplicateTensor",
       R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors","b":"two.safetensors"}})",
       {"\"a\" occurs twice"}},
      {"DuplicateMap",
       R"({"weight_map":{},"weight_map":{"a":"one.safetensors"}})",
       {"\"weight_map\" occurs twice"}},
      {"DepthBomb", R"({"weight_map":)" + std::string(100'000, '['), {"nests deeper than 32"}},
      {"ShardIsNumber", IndexFile({{"a", 1}}), {"tensor \"a\"", must}},
      {"ShardIsArray", R"({"weight_map":{"a":["one.safetensors"]}})", {must}},
      {"ShardIsObject", R"({"weight_map":{"a":{"file":"one.safetensors"}}})", {must}},
      {"ShardIsNull", IndexFile({{"a", nullptr}}), {must}},
      {"ShardIsEmpty", shard_of_a(""), {must}},
      {"ShardIsParent", shard_of_a(".."), {must}},
      {"ShardInParent", shard_of_a("../one.safetensors"), {"../one.safetensors", must}},
      {"ShardIsAbsolute", shard_of_a("/tmp/one.safetensors"), {must}},
      {"ShardInFolder", shard_of_a("sub/one.safetensors"), {must}},
      {"ShardWithEscapedSlash",
       R"({"weight_map":{"a":"\u002e\u002e\u002fone.safetensors"}})",
       {must}},
      {"ShardIsUrl", shard_of_a("file:///tmp/one.safetensors"), {must}},
      {"ShardIsExtension", shard_of_a(".safetensors"), {must}},
      {"ShardWithBackslash", shard_of_a("..\\one.safetensors"), {must}},
      {"ShardWithNul", shard_of_a(std::string("one\0.safetensors", 16)), {must}},
      {"ShardNamedDotDot", shard_of_a("...safetensors"), {must}},
      {"ShardOfOtherKind", shard_of_a("pytorch_model.bin"), {must}},
      {"ShardNameTooLong", shard_of_a(std::string(300, 'x') + ".safetensors"), {must}},
      {"ShardMissing", shard_of_a("gone.safetensors"), {"gone.safetensors", "No such file"}},
      {"TensorInNoShard",
       IndexFile({{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "two.safetensors"}}),
       {"tensor \"c\" is not in \"two.safetensors\""}},
      {"TensorNotInMap",
       IndexFile({{"a", "one.safetensors"}, {"c", "two.safetensors"}}),
       {"tensor \"c\" is not in"}},
      {"TensorInOtherShard",
       IndexFile({{"a", "two.safetensors"}, {"b", "one.safetensors"}}),
       {"tensor \"a\" is in \"one.safetensors\"", "weight_map says \"two.safetensors\""}},
      {"TensorLeftOut",
       IndexFile({{"a", "one.safetensors"}, {"d", "both.safetensors"}}),
       {"weight_map says nothing of it"}},
      {"TensorInTwoShards",
       IndexFile({{"b", "two.safetensors"}, {"e", "again.safetensors"}}),
       {"tensor \"b\" is also in"}},
  };
}

}  // namespace tokline::testing
