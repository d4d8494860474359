// The checkpoint reader over good files, malformed ones and mutations of good ones.
#include "harness/models/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "harness/models/safetensors.h"
#include "harness/tests/models/model_files.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::LengthPrefix;
using testing::ReadFile;
using testing::Refuses;
using testing::SafetensorsFile;
using testing::TempFolder;
using testing::TestTensor;
using testing::WriteFile;

// What a header says of one tensor: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}.
std::string Entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return StrCat(R"({"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets,
                "}");
}

std::string Header(std::string_view entry) { return StrCat(R"({"a":)", entry, "}"); }

std::string Header(std::string_view first, std::string_view second) {
  return StrCat(R"({"a":)", first, R"(,"b":)", second, "}");
}

const std::string kGood = Entry("F32", "[2]", "[0,8]");

TEST(CheckpointTest, SingleFileGivesEveryTensorWithItsBytes) {
  TempFolder dir;
  WriteFile(dir / "model.safetensors",
            SafetensorsFile({{"a", {2, 3}, "F32"}, {"scalar", {}, "BF16"}, {"none", {0, 4}}}));
  const Checkpoint checkpoint(dir.Path());
  ASSERT_EQ(checkpoint.Tensors().size(), 3u);
  const CheckpointTensor* a = checkpoint.Find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, "F32");
  EXPECT_EQ(a->shape, (std::vector<int64_t>{2, 3}));
  ASSERT_EQ(a->bytes, 24);
  for (int i = 0; i < 24; ++i) EXPECT_EQ(std::to_integer<int>(a->data[i]), i);
  const CheckpointTensor* scalar = checkpoint.Find("scalar");
  ASSERT_NE(scalar, nullptr);
  EXPECT_TRUE(scalar->shape.empty());
  ASSERT_EQ(scalar->bytes, 2);
  EXPECT_EQ(std::to_integer<int>(scalar->data[0]), 24);
  EXPECT_EQ(checkpoint.Find("none")->bytes, 0);
  EXPECT_EQ(checkpoint.Find("b"), nullptr);
  EXPECT_EQ(checkpoint.FileBytes(),
            static_cast<int64_t>(std::filesystem::file_size(dir / "model.safetensors")));
}

TEST(CheckpointTest, HeaderMayBePaddedAndOrderedFreely) {
  TempFolder dir;
  const std::string header =
      Header(Entry("F32", "[2]", "[4,12]"), Entry("BF16", "[2]", "[0,4]")) + "      ";
  WriteFile(dir / "model.safetensors", SafetensorsFile(header, 12));
  const Checkpoint checkpoint(dir.Path());
  EXPECT_EQ(std::to_integer<int>(checkpoint.Find("a")->data[0]), 4);
  EXPECT_EQ(std::to_integer<int>(checkpoint.Find("b")->data[0]), 0);
}

TEST(CheckpointTest, MovedCheckpointKeepsItsViews) {
  TempFolder dir;
  WriteFile(dir / "model.safetensors", SafetensorsFile({{"a", {2}}}));
  Checkpoint first(dir.Path());
  const Checkpoint second = std::move(first);
  EXPECT_EQ(std::to_integer<int>(second.Find("a")->data[3]), 3);
}

void WriteShards(const TempFolder& dir, const nlohmann::json& map) {
  WriteFile(dir / "one.safetensors", SafetensorsFile({{"a", {2}}}));
  WriteFile(dir / "two.safetensors", SafetensorsFile({{"b", {4}}}));
  WriteFile(dir / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
}

TEST(CheckpointTest, ShardsAreReadThroughTheIndex) {
  TempFolder dir;
  WriteShards(dir, {{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  const Checkpoint checkpoint(dir.Path());
  EXPECT_EQ(checkpoint.Tensors().size(), 2u);
  EXPECT_EQ(checkpoint.Find("b")->bytes, 8);
  EXPECT_EQ(checkpoint.Files()[checkpoint.Find("b")->file].Path(), dir / "two.safetensors");
}

TEST(CheckpointTest, ShardMayBeALinkAsInTheHuggingFaceCache) {
  TempFolder dir, blobs;
  WriteFile(blobs / "0a1b", SafetensorsFile({{"a", {2}}}));
  std::filesystem::create_symlink(blobs / "0a1b", dir / "model.safetensors");
  EXPECT_EQ(Checkpoint(dir.Path()).Tensors().size(), 1u);
}

// One malformed model.safetensors each, and what the refusal must say.
struct Malformed {
  std::string name;
  std::string file;
  std::vector<std::string> says;
};

void PrintTo(const Malformed& malformed, std::ostream* out) { *out << malformed.name; }

std::vector<Malformed> MalformedFiles() {
  std::vector<Malformed> cases;
  const auto add = [&](std::string name, std::string file, std::vector<std::string> says) {
    cases.push_back({std::move(name), std::move(file), std::move(says)});
  };
  // A header that is wrong by itself; the data is as long as the good entry's.
  const auto header = [&](std::string name, const std::string& text,
                          std::vector<std::string> says) {
    add(std::move(name), SafetensorsFile(text, 8), std::move(says));
  };
  // One tensor "a" that is wrong.
  const auto entry = [&](std::string name, const std::string& text, std::vector<std::string> says) {
    says.push_back("tensor \"a\"");
    header(std::move(name), Header(text), std::move(says));
  };
  const std::string good = SafetensorsFile(Header(kGood), 8);

  // Size of the file and of the header.
  add("EmptyFile", "", {"the file is empty"});
  add("OneByte", "x", {"the file has 1 bytes", "at least 8"});
  add("SevenBytes", good.substr(0, 7), {"the file has 7 bytes", "at least 8"});
  add("PrefixOnly", good.substr(0, 8), {"allowed are 1 to 0 in a file of 8 bytes"});
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
  header("NameWithNewline", R"({"a\nb":{}})", {R"(tensor "a\x0ab")"});
  return cases;
}

class MalformedCheckpointTest : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedCheckpointTest, IsRefusedByName) {
  TempFolder dir;
  WriteFile(dir / "model.safetensors", GetParam().file);
  std::vector<std::string> says = GetParam().says;
  says.push_back((dir / "model.safetensors").string());
  EXPECT_TRUE(Refuses<RuntimeFailure>([&] { Checkpoint checkpoint(dir.Path()); }, says));
}

INSTANTIATE_TEST_SUITE_P(Files, MalformedCheckpointTest, ::testing::ValuesIn(MalformedFiles()),
                         [](const auto& info) { return info.param.name; });

// One malformed model.safetensors.index.json each; the shards are good.
std::vector<Malformed> MalformedIndexes() {
  const auto map = [](nlohmann::json entries) {
    return nlohmann::json{{"weight_map", std::move(entries)}}.dump();
  };
  const auto shard_of_a = [&](std::string name) {
    return map({{"a", std::move(name)}, {"b", "two.safetensors"}});
  };
  const std::string must = "a shard is a file name in the same folder";
  return {
      {"NotJson", "weight_map", {"not valid JSON"}},
      {"EmptyFile", "", {"the file is empty"}},
      {"Array", "[]", {"weight_map must be an object"}},
      {"NoMap", "{}", {"weight_map must be an object"}},
      {"MapIsArray", R"({"weight_map":["a"]})", {"weight_map must be an object"}},
      {"MapIsEmpty", R"({"weight_map":{}})", {"weight_map must be an object"}},
      {"DuplicateTensor",
       R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors","b":"two.safetensors"}})",
       {"\"a\" is there twice"}},
      {"DuplicateMap",
       R"({"weight_map":{},"weight_map":{"a":"one.safetensors"}})",
       {"\"weight_map\" is there twice"}},
      {"DepthBomb", R"({"weight_map":)" + std::string(100'000, '['), {"nests deeper than 32"}},
      {"ShardIsNumber", map({{"a", 1}}), {"tensor \"a\"", must}},
      {"ShardIsNull", map({{"a", nullptr}}), {must}},
      {"ShardIsEmpty", shard_of_a(""), {must}},
      {"ShardIsParent", shard_of_a(".."), {must}},
      {"ShardInParent", shard_of_a("../one.safetensors"), {"../one.safetensors", must}},
      {"ShardIsAbsolute", shard_of_a("/tmp/one.safetensors"), {must}},
      {"ShardInFolder", shard_of_a("sub/one.safetensors"), {must}},
      {"ShardWithBackslash", shard_of_a("..\\one.safetensors"), {must}},
      {"ShardWithNul", shard_of_a(std::string("one\0.safetensors", 16)), {must}},
      {"ShardNamedDotDot", shard_of_a("...safetensors"), {must}},
      {"ShardOfOtherKind", shard_of_a("pytorch_model.bin"), {must}},
      {"ShardNameTooLong", shard_of_a(std::string(300, 'x') + ".safetensors"), {must}},
      {"ShardMissing", shard_of_a("gone.safetensors"), {"gone.safetensors", "No such file"}},
      {"TensorInNoShard",
       map({{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "two.safetensors"}}),
       {"tensor \"c\" is not in \"two.safetensors\""}},
      {"TensorNotInMap",
       map({{"a", "one.safetensors"}, {"c", "two.safetensors"}}),
       {"tensor \"c\" is not in"}},
      {"TensorInOtherShard",
       map({{"a", "two.safetensors"}, {"b", "one.safetensors"}}),
       {"tensor \"a\" is in \"one.safetensors\"", "weight_map says \"two.safetensors\""}},
      {"TensorLeftOut",
       map({{"a", "one.safetensors"}, {"d", "both.safetensors"}}),
       {"weight_map says nothing of it"}},
      {"TensorInTwoShards",
       map({{"b", "two.safetensors"}, {"e", "again.safetensors"}}),
       {"tensor \"b\" is also in"}},
  };
}

class MalformedIndexTest : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedIndexTest, IsRefusedByName) {
  TempFolder dir;
  WriteShards(dir, {});
  WriteFile(dir / "both.safetensors", SafetensorsFile({{"c", {2}}, {"d", {2}}}));
  WriteFile(dir / "again.safetensors", SafetensorsFile({{"b", {2}}, {"e", {2}}}));
  WriteFile(dir / "model.safetensors.index.json", GetParam().file);
  EXPECT_TRUE(Refuses<RuntimeFailure>([&] { Checkpoint checkpoint(dir.Path()); }, GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(Files, MalformedIndexTest, ::testing::ValuesIn(MalformedIndexes()),
                         [](const auto& info) { return info.param.name; });

TEST(CheckpointTest, FolderWithoutCheckpointIsRefused) {
  TempFolder dir;
  const auto open = [&] { Checkpoint checkpoint(dir.Path()); };
  EXPECT_TRUE(Refuses<RuntimeFailure>(open, {dir.Path().string(), "neither model.safetensors"}));
  EXPECT_TRUE(Refuses<RuntimeFailure>([&] { Checkpoint checkpoint(dir / "gone"); },
                                      {(dir / "gone").string(), "not a folder"}));
}

TEST(CheckpointTest, WhatIsNoRegularFileIsRefused) {
  const auto open = [](const TempFolder& dir) {
    return [&dir] { Checkpoint checkpoint(dir.Path()); };
  };
  TempFolder folder, fifo, dangling;
  std::filesystem::create_directory(folder / "model.safetensors");
  EXPECT_TRUE(Refuses<RuntimeFailure>(open(folder), {"not a regular file"}));
  ASSERT_EQ(::mkfifo((fifo / "model.safetensors").c_str(), 0600), 0);
  EXPECT_TRUE(Refuses<RuntimeFailure>(open(fifo), {"not a regular file"}));
  std::filesystem::create_symlink(dangling / "gone", dangling / "model.safetensors");
  EXPECT_TRUE(Refuses<RuntimeFailure>(open(dangling), {"No such file"}));
}

TEST(CheckpointTest, TruncationAfterOpeningIsFoundBeforeTheRead) {
  TempFolder dir;
  WriteFile(dir / "model.safetensors", SafetensorsFile({{"a", {4096}}}));
  const Checkpoint checkpoint(dir.Path());
  const CheckpointTensor& a = *checkpoint.Find("a");
  checkpoint.Prefetch(a.data, a.bytes);
  std::filesystem::resize_file(dir / "model.safetensors", 100);
  EXPECT_TRUE(Refuses<RuntimeFailure>([&] { checkpoint.Prefetch(a.data, a.bytes); },
                                      {"truncated from", "to 100 bytes"}));
}

TEST(CheckpointTest, AdviceOutsideTheFilesIsRefused) {
  TempFolder dir;
  WriteFile(dir / "model.safetensors", SafetensorsFile({{"a", {4}}}));
  const Checkpoint checkpoint(dir.Path());
  const CheckpointTensor& a = *checkpoint.Find("a");
  EXPECT_TRUE(Refuses<InvalidArgument>([&] { checkpoint.Release(a.data, a.bytes + 1); },
                                       {"9 bytes", "do not lie in"}));
  const int elsewhere = 0;
  EXPECT_TRUE(
      Refuses<InvalidArgument>([&] { checkpoint.Prefetch(&elsewhere, 4); }, {"do not lie in"}));
}

// Resident memory of this process in KiB: "RssAnon" is its own, "RssFile" that of mapped files.
int64_t ResidentKib(const std::string& kind) {
  std::istringstream status(ReadFile("/proc/self/status"));
  std::string key;
  for (std::string line; std::getline(status, line);) {
    std::istringstream fields(line);
    int64_t value = 0;
    if (fields >> key >> value && key == kind + ":") return value;
  }
  throw std::runtime_error("no " + kind + " in /proc/self/status");
}

TEST(CheckpointTest, LoadingKeepsResidentMemorySmall) {
  constexpr int64_t kTensors = 8, kTensorBytes = 8 << 20;
  TempFolder dir;
  std::string header = "{";
  for (int64_t i = 0; i < kTensors; ++i) {
    header += StrCat(i == 0 ? "" : ",", "\"t", i, "\":",
                     Entry("U8", StrCat("[", kTensorBytes, "]"),
                           StrCat("[", i * kTensorBytes, ",", (i + 1) * kTensorBytes, "]")));
  }
  header += "}";
  WriteFile(dir / "model.safetensors", SafetensorsFile(header, 0));
  std::filesystem::resize_file(dir / "model.safetensors",
                               8 + header.size() + kTensors * kTensorBytes);

  const int64_t anon_before = ResidentKib("RssAnon");
  const int64_t file_before = ResidentKib("RssFile");
  const Checkpoint checkpoint(dir.Path());
  EXPECT_LT(ResidentKib("RssFile") - file_before, 4 << 10);
  int64_t most = 0;
  int64_t sum = 0;
  for (const auto& [name, tensor] : checkpoint.Tensors()) {
    checkpoint.Prefetch(tensor.data, tensor.bytes);
    for (int64_t i = 0; i < tensor.bytes; i += 64) sum += std::to_integer<int>(tensor.data[i]);
    most = std::max(most, ResidentKib("RssFile") - file_before);
    checkpoint.Release(tensor.data, tensor.bytes);
  }
  EXPECT_EQ(sum, 0);
  EXPECT_GE(most, kTensorBytes >> 10);  // the figure does see what is touched
  EXPECT_LT(most, 2 * kTensorBytes >> 10);
  EXPECT_LT(ResidentKib("RssFile") - file_before, 4 << 10);
  EXPECT_LT(ResidentKib("RssAnon") - anon_before, 8 << 10);
}

// Whatever is accepted must be consistent; whatever is not must be a RuntimeFailure.
TEST(CheckpointTest, MutatedHeadersAreReadConsistentlyOrRefused) {
  constexpr uint64_t kSeed = 20240611;
  constexpr std::string_view kPieces[] = {
      "{",   "}",    "[",    "]",   ",",    ":", "\"", "0",  "-1",    "1e9",
      "\\u", "null", "true", "F32", "BF16", "a", "\0", "/*", "shape", "18446744073709551615"};
  const std::string seeds[] = {Header(kGood, Entry("BF16", "[2,3]", "[8,20]")),
                               StrCat(R"({"__metadata__":{"x":"y"},"a":)", kGood, "}"), "{}"};
  std::mt19937_64 rng(kSeed);
  int accepted = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string header = seeds[rng() % std::size(seeds)];
    for (uint64_t edits = rng() % 4; edits > 0 && !header.empty(); --edits) {
      const size_t at = rng() % header.size();
      switch (rng() % 4) {
        case 0:
          header[at] = static_cast<char>(rng());
          break;
        case 1:
          header.erase(at, 1 + rng() % 8);
          break;
        case 2:
          header.insert(at, kPieces[rng() % std::size(kPieces)]);
          break;
        default:
          header.insert(at, header.substr(rng() % header.size(), 1 + rng() % 40));
          break;
      }
    }
    const int64_t data_bytes = static_cast<int64_t>(rng() % 24);
    try {
      int64_t covered = 0;
      for (const SafetensorsEntry& entry : ParseSafetensorsHeader(header, data_bytes, "file")) {
        ASSERT_EQ(entry.begin, covered) << header;
        ASSERT_GE(entry.end, entry.begin) << header;
        covered = entry.end;
      }
      ASSERT_EQ(covered, data_bytes) << header;
      ++accepted;
    } catch (const RuntimeFailure& failure) {
      ASSERT_EQ(std::string_view(failure.what()).find('\n'), std::string_view::npos) << header;
    }
  }
  EXPECT_GT(accepted, 30);
}

}  // namespace
}  // namespace tokline
