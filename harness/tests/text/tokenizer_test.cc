// Tests what the golden texts do not cover: refusals, streams of broken text, limits.
#include "harness/text/tokenizer.h"
#include "harness/tests/message_of.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <thread>

#include "harness/tests/models/model_files.h"
#include "harness/tests/text/golden_text.h"
#include "harness/text/normalizer.h"
#include "kernels/common/error.h"

namespace tokline::testing {
namespace {

using testing::MessageOf;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// A small tokenizer with the tokens a b c ab abc and <0x00> to <0xFF>, and with the decoder of
// SentencePiece models.
Json SmallTokenizer() {
  Json json = Json::parse(R"({"version": "1.0", "added_tokens": [
      {"id": 262, "content": "<s>", "special": true}],
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
      "vocab": {"<unk>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5},
      "merges": ["a b", ["ab", "c"]]}})");
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    json["model"]["vocab"][name] = 6 + byte;
  }
  return json;
}

Tokenizer Parse(const Json& json) { return Tokenizer::Parse(json.dump(), "t.json"); }

TEST(TokenizerTest, MergesBothSpellingsAndFallsBackToBytes) {
  const Tokenizer tokenizer = Parse(SmallTokenizer());
  EXPECT_THAT(tokenizer.Encode("abcab"), ElementsAre(5, 4));
  EXPECT_THAT(tokenizer.Encode("b\xC3\xA9"), ElementsAre(2, 6 + 0xC3, 6 + 0xA9));
  EXPECT_EQ(tokenizer.Find("<s>"), 262);
  EXPECT_EQ(tokenizer.Find("zz"), std::nullopt);
  EXPECT_EQ(tokenizer.Spelling(4), "ab");
  EXPECT_EQ(tokenizer.Spelling(9999), std::nullopt);
  EXPECT_TRUE(tokenizer.IsSpecial(262));
  EXPECT_FALSE(tokenizer.IsSpecial(4));
  EXPECT_EQ(tokenizer.MaxId(), 262);
}

TEST(TokenizerTest, PartsAreOneTextOfWhichSomeMaySpellSpecialTokens) {
  const Tokenizer tokenizer = Parse(SmallTokenizer());
  const auto encode = [&](std::vector<TextPart> parts) { return tokenizer.Encode(parts); };
  EXPECT_THAT(encode({{"a", true}, {"b", false}, {"c", true}}), ElementsAre(5));
  EXPECT_THAT(encode({{"<s>", true}, {"ab", false}, {"<s>", true}}), ElementsAre(262, 4, 262));
  const int32_t less = 6 + '<';
  const int32_t greater = 6 + '>';
  const int32_t s = 6 + 's';
  EXPECT_THAT(encode({{"<s>", false}, {"<s>", true}}), ElementsAre(less, s, greater, 262));
  // A special token across a bound is not recognized, and does not hide one that begins inside it.
  EXPECT_THAT(encode({{"<", false}, {"s>", true}}), ElementsAre(less, s, greater));
  EXPECT_THAT(encode({{"<", false}, {"<s>", true}}), ElementsAre(less, 262));
}

// A tokenizer that searches for <s> and </s> in normalized text.
Tokenizer SearchingNormalizedText(const Json& normalizer) {
  Json json = SmallTokenizer();
  json["normalizer"] = normalizer;
  json["added_tokens"] = Json::parse(R"([
      {"id": 262, "content": "<s>", "special": true, "normalized": true},
      {"id": 263, "content": "</s>", "special": true, "normalized": true}])");
  return Parse(json);
}

TEST(TokenizerTest, PartsMaySpellSpecialTokensThatAreSearchedForInNormalizedText) {
  const auto byte = [](unsigned char c) { return 6 + c; };
  const Tokenizer replacing = SearchingNormalizedText(
      {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "__"}});
  const std::vector<TextPart> parts = {{"a ", true}, {"<s> ", false}, {"<s> b", true}};
  EXPECT_THAT(replacing.Encode(parts),
              ElementsAre(1, byte('_'), byte('_'), byte('<'), byte('s'), byte('>'), byte('_'),
                          byte('_'), 262, byte('_'), byte('_'), 2));
  const Tokenizer composing = SearchingNormalizedText({{"type", "NFC"}});
  const std::vector<TextPart> accents = {{"<s>", true}, {"e\u0301<s>", false}, {"</s>", true}};
  EXPECT_THAT(composing.Encode(accents),
              ElementsAre(262, byte(0xC3), byte(0xA9), byte('<'), byte('s'), byte('>'), 263));
  // The normalizer makes " <s>" of the token, too.
  const Tokenizer prepending = SearchingNormalizedText({{"type", "Prepend"}, {"prepend", " "}});
  const std::vector<TextPart> spaces = {{"<s>", true}, {"ab <s>", false}, {" </s>", true}};
  EXPECT_THAT(prepending.Encode(spaces),
              ElementsAre(262, 4, byte(' '), byte('<'), byte('s'), byte('>'), 263));
}

TEST(TokenizerTest, NormalizerMustNotChangeWhatSpansTextThatMaySpellSpecialTokensAndOther) {
  const Tokenizer tokenizer = SearchingNormalizedText({{"type", "NFC"}});
  const std::vector<TextPart> apart = {{"e", true}, {"\u0301", false}};
  EXPECT_THAT(MessageOf<InvalidArgument>([&] { tokenizer.Encode(apart); }),
              HasSubstr("searches for special tokens after it has normalized the text"));
  const std::vector<TextPart> alike = {{"<s>", true}, {"e", false}, {"\u0301", false}};
  EXPECT_THAT(tokenizer.Encode(alike), ElementsAre(262, 6 + 0xC3, 6 + 0xA9));
}

// The text after a normalized token is normalized with it, and the normalizer prepends once.
TEST(TokenizerTest, NothingIsPrependedToTextAfterANormalizedToken) {
  Json json = SmallTokenizer();
  json["normalizer"] = {{"type", "Prepend"}, {"prepend", "a"}};
  json["added_tokens"].push_back(
      {{"id", 263}, {"content", "</s>"}, {"special", true}, {"normalized", true}});
  const Tokenizer tokenizer = Parse(json);
  const auto after = [&](int32_t id) {
    return tokenizer.Encode("b", {.before = tokenizer.BeforeTextAfter(id)});
  };
  EXPECT_THAT(after(262), ElementsAre(4));
  EXPECT_THAT(after(263), ElementsAre(2));
  EXPECT_THAT(after(1), ElementsAre(2));
}

TEST(TokenizerTest, InvalidUtf8IsRefusedOrReplaced) {
  const Tokenizer tokenizer = Parse(SmallTokenizer());
  EXPECT_EQ(MessageOf<std::exception>([&] { tokenizer.Encode("ab\xFF"); }),
            "the text is not valid UTF-8: byte 0xff at offset 2: invalid start byte");
  EXPECT_THROW(tokenizer.Encode("\xE4\xBD"), InvalidArgument);
  EXPECT_THAT(tokenizer.Encode("ab\xFF", {.invalid_utf8 = InvalidUtf8::kReplace}),
              ElementsAre(4, 6 + 0xEF, 6 + 0xBF, 6 + 0xBD));
}

TEST(TokenizerTest, StreamsHoldACodePointBackUntilItIsWhole) {
  const Tokenizer tokenizer = Parse(SmallTokenizer());
  TextStream stream = tokenizer.Stream();
  const auto push = [&](int byte) { return stream.Push(6 + byte); };
  EXPECT_EQ(stream.Push(5), "abc");
  EXPECT_EQ(push(0xE4), "");
  EXPECT_EQ(push(0xBD), "");
  EXPECT_EQ(push(0xA0), "\xE4\xBD\xA0");
  EXPECT_EQ(push(0xF0), "");
  EXPECT_EQ(push(0x9F), "");
  EXPECT_EQ(stream.Push(1), "\uFFFD\uFFFDa");  // the code point was cut short
  EXPECT_EQ(push(0xFF), "\uFFFD");             // never the start of a code point
  EXPECT_EQ(push(0xC3), "");
  EXPECT_EQ(stream.Finish(), "\uFFFD");
  EXPECT_EQ(stream.Push(2), "b");
  // Decode rejects a run of byte tokens as a whole, as the library does.
  EXPECT_EQ(tokenizer.Decode(std::vector<int32_t>{6 + 0xC3, 6 + 0xA9, 6 + 0xFF}),
            "\uFFFD\uFFFD\uFFFD");
}

TEST(TokenizerTest, IdsWithoutATokenAndSkippedSpecialTokensLeaveNoText) {
  const Tokenizer tokenizer = Parse(SmallTokenizer());
  const std::vector<int32_t> ids = {-1, 1, 262, 99999, 2};
  EXPECT_EQ(tokenizer.Decode(ids), "a<s>b");
  EXPECT_EQ(tokenizer.Decode(ids, {.skip_special = true}), "ab");
}

TEST(TokenizerTest, VeryLongWordsTakeAboutLinearTime) {
  const Tokenizer tokenizer = Tokenizer::Load(TextGoldenFolder() / "llama3");
  const auto seconds = [&](size_t bytes) {  // processor time, because other programs may be running
    std::string text;
    while (text.size() < bytes) text += "theofandtoinresume";
    double least = 1e9;
    for (int round = 0; round < 3; ++round) {
      const std::clock_t begin = std::clock();
      EXPECT_GT(tokenizer.Encode(text).size(), bytes / 20);
      least = std::min(least, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    return least;
  };
  // The text is 16 times as long: a quadratic merge would take 256 times as long.
  EXPECT_LT(seconds(800'000), 100 * seconds(50'000));
}

TEST(TokenizerTest, ManyThreadsMayEncodeAtOnce) {
  const Tokenizer tokenizer = Tokenizer::Load(TextGoldenFolder() / "qwen");
  const PipelineGolden golden("qwen");
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < golden.strings.size(); i += 3) {
        count += tokenizer.Encode(golden.strings[i], {.allow_special = true}) != golden.ids[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

struct Refusal {
  const char* change;   // a JSON merge patch of SmallTokenizer()
  const char* message;  // part of the error message
};

class TokenizerRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(TokenizerRefusalTest, NamesThePlaceAndWhatIsAllowed) {
  Json json = SmallTokenizer();
  json.merge_patch(Json::parse(GetParam().change));
  const std::string error = MessageOf<std::exception>([&] { Parse(json); });
  EXPECT_THAT(error, AllOf(HasSubstr("t.json"), HasSubstr(GetParam().message)));
  EXPECT_THROW(Parse(json), RuntimeFailure);
}

INSTANTIATE_TEST_SUITE_P(
    Files, TokenizerRefusalTest,
    ::testing::Values(
        Refusal{R"j({"version": "2.0"})j", "version is \"2.0\"; supported: 1.0"},
        Refusal{R"j({"version": null})j", "\"version\" is missing"},
        Refusal{R"j({"model": null})j", "\"model\" is missing"},
        Refusal{R"j({"extra": 1})j", "the key \"extra\" is not known here"},
        Refusal{R"j({"normalizer": {"type": "BertNormalizer"}})j",
                "normalizer.type is \"BertNormalizer\"; supported normalizers: NFC"},
        Refusal{R"j({"normalizer": {"type": "NFKC"}})j", "supported normalizers"},
        Refusal{R"j({"normalizer": {"type": "Lowercase"}})j", "supported normalizers"},
        Refusal{R"j({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "x"}})j",
                "supported normalizers"},
        Refusal{R"j({"normalizer": {"prepend": "x"}})j", "normalizer: \"type\" is missing"},
        Refusal{R"j({"normalizer": {"type": "NFC", "more": true}})j", "the key \"more\""},
        Refusal{R"j({"normalizer": {"type": "Sequence", "normalizers": {}}})j",
                "normalizers is {}; it must be a list"},
        Refusal{R"j({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}]}})j",
                "normalizer.normalizers[0].type is \"NFD\""},
        Refusal{
            R"j({"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}})j",
            "it must not be empty"},
        Refusal{R"j({"normalizer": {"type": "Replace", "pattern": {"Glob": "*"}, "content": ""}})j",
                "the key \"Glob\""},
        Refusal{R"j({"pre_tokenizer": {"type": "WhitespaceSplit"}})j", "supported pre-tokenizers"},
        Refusal{R"j({"pre_tokenizer": {"type": "Punctuation", "behavior": "Isolated"}})j",
                "supported pre-tokenizers: ByteLevel, Digits, Metaspace, Sequence, Split"},
        Refusal{R"j({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": "no"}})j",
                "add_prefix_space is \"no\"; it must be true or false"},
        Refusal{R"j({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
          {"type": "ByteLevel"}, {"type": "ByteLevel"}]}})j",
                "pretokenizers[1].type is \"ByteLevel\"; nothing may come after ByteLevel"},
        Refusal{R"j({"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"},
          "behavior": "Glued"}})j",
                "behavior is \"Glued\"; supported: Removed"},
        Refusal{R"j({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "^a"},
          "behavior": "Isolated"}})j",
                "pre_tokenizer.pattern.Regex: the expression \"^a\" has the anchor ^ at byte 0"},
        Refusal{R"j({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\w+"},
          "behavior": "Isolated"}})j",
                "the escape \"\\w\""},
        Refusal{R"j({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\p{Han}"},
          "behavior": "Isolated"}})j",
                "a property other than one of the general categories L, Ll, Lm"},
        Refusal{R"j({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?m:a)"},
          "behavior": "Isolated"
}
})j",
                "the group \"(?m:\""},
        Refusal{R"j({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a&&b]"},
          "behavior": "Isolated"}})j",
                "the operator &&"},
        Refusal{R"j({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[[a]]"},
          "behavior": "Isolated"}})j",
                "a class inside a class"},
        Refusal{R"j({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a{2}+"},
          "behavior": "Isolated"}})j",
                "the quantifier }+"},
        Refusal{R"j({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"},
          "behavior": "Isolated"}})j",
                "missing closing parenthesis"},
        Refusal{R"j({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a"},
          "behavior": "Isolated"}})j",
                "a class that does not end"},
        Refusal{R"j({"pre_tokenizer": {"type": "Metaspace", "replacement": "__"}})j",
                "replacement is \"__\"; it must be one character"},
        Refusal{R"j({"pre_tokenizer": {"type": "Metaspace", "replacement": "_",
          "prepend_scheme": "last"}})j",
                "supported: always, first, never"},
        Refusal{R"j({"model": {"type": "Unigram"}})j", "model.type is \"Unigram\"; supported"},
        Refusal{R"j({"model": {"dropout": 0.1}})j", "dropout is 0.1; it must be null"},
        Refusal{R"j({"model": {"continuing_subword_prefix": "##"}})j", "it must be null or empty"},
        Refusal{R"j({"model": {"end_of_word_suffix": "</w>"}})j", "it must be null or empty"},
        Refusal{R"j({"model": {"unk_token": "nope"}})j", "unk_token is \"nope\"; it must be in"},
        Refusal{R"j({"model": {"vocab": {"new": 1}}})j", "has the id 1, which"},
        Refusal{R"j({"model": {"vocab": {"new": -1}}})j", "it must be an integer from 0 to"},
        Refusal{R"j({"model": {"vocab": {"new": 1.5}}})j", "it must be an integer from 0 to"},
        Refusal{R"j({"model": {"vocab": {"new": 2000000000}}})j", "it must be an integer from 0"},
        Refusal{R"j({"model": {"vocab": {"": 900}}})j", "has 0 bytes"},
        Refusal{R"j({"model": {"vocab": []}})j", "vocab is []; it must be an object"},
        Refusal{R"j({"model": {"merges": {}}})j", "merges is {}; it must be a list"},
        Refusal{R"j({"model": {"merges": ["ab"]}})j", "merge 0 is"},
        Refusal{R"j({"model": {"merges": ["a b c"]}})j", "merge 0 is"},
        Refusal{R"j({"model": {"merges": [["a"]]}})j", "merge 0 is"},
        Refusal{R"j({"model": {"merges": [1]}})j", "merge 0 is"},
        Refusal{R"j({"model": {"merges": ["a b", "b c"]}})j", "merge 1 needs \"bc\""},
        Refusal{R"j({"model": {"merges": ["x a"]}})j", "merge 0 needs \"x\""},
        Refusal{R"j({"model": {"byte_fallback": 1}})j", "byte_fallback is 1; it must be true"},
        Refusal{R"j({"added_tokens": {}})j", "added_tokens is {}; it must be a list"},
        Refusal{R"j({"added_tokens": [{"id": 263, "content": "<s>"}]})j",
                "added_tokens[0].id is 263; the token \"<s>\" has 262 as the next free id"},
        Refusal{R"j({"added_tokens": [{"id": 262, "content": "ab"}]})j",
                "the token \"ab\" has 4 in model.vocab"},
        Refusal{R"j({"added_tokens": [{"id": 262, "content": ""}]})j", "it must have 1 to 1024"},
        Refusal{R"j({"added_tokens": [{"id": 262, "content": "x"}, {"id": 263, "content": "x"}]})j",
                "added_tokens[1].content is \"x\"; another added token has it too"},
        Refusal{R"j({"added_tokens": [{"content": "x"}]})j", "added_tokens[0]: \"id\" is missing"},
        Refusal{R"j({"added_tokens": [{"id": 262, "content": 5}]})j", "it must be a string"},
        Refusal{R"j({"post_processor": {"type": "BertProcessing"}})j", "supported post-processors"},
        Refusal{R"j({"post_processor": {"type": "TemplateProcessing", "single": [],
          "special_tokens": {}}})j",
                "is missing"},
        Refusal{
            R"j({"post_processor": {"type": "TemplateProcessing", "special_tokens": {}, "single":
          [{"Sequence": {"id": "B", "type_id": 0}}]}})j",
            "id is \"B\"; it must be \"A\""},
        Refusal{R"j({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken":
          {"id": "<s>", "type_id": 0}}], "special_tokens": {}}})j",
                "special_tokens: \"<s>\" is missing"},
        Refusal{R"j({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken":
          {"id": "<s>", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [777]}}}})j",
                "ids[0] is 777; no token has this id"},
        Refusal{R"j({"decoder": {"type": "WordPiece", "decoders": null}})j", "supported decoders"},
        Refusal{R"j({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"},
          {"type": "ByteFallback"}]}})j",
                "it may not come after ByteFallback or Fuse"},
        Refusal{R"j({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"},
          {"type": "Strip", "content": " ", "start": 0, "stop": 1}]}})j",
                "stop is 1; after Fuse it must be 0"},
        Refusal{R"j({"decoder": {"type": "Strip", "decoders": null, "content": " ", "start": -1,
          "stop": 0}})j",
                "start is -1; it must be an integer from 0 to 1024"}));

// A Sequence, under the name that `list` has in it, of steps that each put 100 times "a" in place
// of an "a".
Json Lengthening(const std::string& list, size_t steps) {
  const Json step = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100, 'a')}};
  return {{"type", "Sequence"}, {list, std::vector<Json>(steps, step)}};
}

TEST(TokenizerTest, TextThatNormalizingMakesTooLongIsRefusedWithItsSizes) {
  Json json = SmallTokenizer();
  json["normalizer"] = Lengthening("normalizers", 5);  // 10^10 bytes for each "a"
  const Tokenizer tokenizer = Parse(json);
  EXPECT_THAT(tokenizer.Encode("b"), ElementsAre(2));
  EXPECT_THAT(MessageOf<RuntimeFailure>([&] { tokenizer.Encode("a"); }),
              HasSubstr("a Replace of the tokenizer makes more than 268435456 bytes, the most that "
                        "are allowed, of a text of 100000000"));
}

TEST(TokenizerTest, NormalizedTextMayHaveTheBytesThatAreAllowed) {
  const Json json = {{"type", "Sequence"},
                     {"normalizers",
                      {{{"type", "Prepend"}, {"prepend", "aa"}},
                       {{"type", "Replace"}, {"pattern", {{"Regex", "b"}}}, {"content", "aaa"}}}}};
  const Normalizer normalizer = Normalizer::Read(JsonNode(json, "t.json"));
  const auto apply = [&](size_t max_bytes) { return normalizer.Apply("bc", true, max_bytes); };
  EXPECT_EQ(apply(6), "aaaaac");
  EXPECT_THAT(MessageOf<RuntimeFailure>([&] { apply(5); }),
              HasSubstr("a Replace of the tokenizer makes more than 5 bytes, the most that are "
                        "allowed, of a text of 4"));
  EXPECT_THAT(MessageOf<RuntimeFailure>([&] { apply(3); }),
              HasSubstr("a Prepend of the tokenizer makes more than 3 bytes, the most that are "
                        "allowed, of a text of 2"));
}

// Added tokens are normalized when the file is read.
TEST(TokenizerTest, AddedTokensThatNormalizingMakesTooLongAreRefused) {
  Json json = SmallTokenizer();
  json["normalizer"] = Lengthening("normalizers", 2);  // 10^4 bytes for each "a"
  json["added_tokens"].clear();
  const auto add = [&] {
    const size_t number = json["added_tokens"].size();
    json["added_tokens"].push_back({{"id", 262 + number},
                                    {"content", StrCat(std::string(10, 'a'), number)},
                                    {"special", false}});
  };
  for (int i = 0; i < 41; ++i) add();
  EXPECT_EQ(Parse(json).MaxId(), 262 + 40);
  add();  // 42 times 99,990 bytes more are more than 4 MiB
  EXPECT_THAT(MessageOf<RuntimeFailure>([&] { Parse(json); }),
              HasSubstr("t.json: added_tokens[41].content: a Replace of the tokenizer makes more"));
}

TEST(TokenizerTest, TokenThatDecodingMakesTooLongIsRefused) {
  Json json = SmallTokenizer();
  json["decoder"] = Lengthening("decoders", 5);
  const Tokenizer tokenizer = Parse(json);
  EXPECT_EQ(tokenizer.Decode(std::vector<int32_t>{2}), "b");
  EXPECT_THAT(MessageOf<RuntimeFailure>([&] { tokenizer.Decode(std::vector<int32_t>{1}); }),
              HasSubstr("more than 65536 bytes, the most that are allowed, of a text of 10000"));
}

TEST(TokenizerTest, FilesThatAreNotJsonOrNotThereAreNamed) {
  EXPECT_THAT(MessageOf<std::exception>([] { Tokenizer::Parse("{", "t.json"); }),
              HasSubstr("t.json: not valid JSON"));
  EXPECT_THAT(MessageOf<std::exception>([] { Tokenizer::Parse("[]", "t.json"); }),
              HasSubstr("must be an object"));
  EXPECT_THAT(MessageOf<std::exception>([] { Tokenizer::Parse(R"({"a": 1, "a": 2})", "t.json"); }),
              HasSubstr("\"a\" occurs twice"));
  const TempFolder folder;
  EXPECT_THAT(MessageOf<std::exception>([&] { Tokenizer::Load(folder.Path()); }),
              HasSubstr((folder / "tokenizer.json").string()));
}

}  // namespace
}  // namespace tokline::testing
