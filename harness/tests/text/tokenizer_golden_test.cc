// Compares the tokenizers of all families with Hugging Face tokenizers: ids, texts, Unicode.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <set>

#include "harness/platform/json_node.h"
#include "harness/platform/printable.h"
#include "harness/tests/text/golden_text.h"
#include "harness/text/normalizer.h"
#include "harness/text/pattern.h"
#include "harness/text/pre_tokenizer.h"
#include "harness/text/tokenizer.h"
#include "harness/text/utf8.h"

namespace tokline::testing {
namespace {

std::string Shortened(const std::vector<int32_t>& ids) {
  return ListText(
      std::vector<int32_t>(ids.begin(), ids.begin() + std::min<ptrdiff_t>(std::ssize(ids), 60)));
}

class TokenizerGoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  // A failure names the string; only the first few are reported.
  void Compare(size_t index, const std::vector<int32_t>& wanted, const EncodeOptions& options) {
    const std::string& text = golden.strings[index];
    const std::vector<int32_t> ids = tokenizer.Encode(text, options);
    if (ids == wanted || ++failures > 5) return;
    ADD_FAILURE() << GetParam() << " string " << index << " " << Quoted(text, 300) << "\nids    "
                  << Shortened(ids) << "\nwanted " << Shortened(wanted);
  }

  PipelineGolden golden{GetParam()};
  Tokenizer tokenizer = Tokenizer::Load(golden.folder);
  int failures = 0;
};

TEST_P(TokenizerGoldenTest, IdsEqualThoseOfHuggingFace) {
  ASSERT_GE(golden.strings.size(), 2000u);
  for (size_t i = 0; i < golden.strings.size(); ++i) {
    Compare(i, golden.ids[i], {.allow_special = true});
  }
  EXPECT_EQ(failures, 0) << "of " << golden.strings.size();
}

TEST_P(TokenizerGoldenTest, SpecialTokensInTextAreTextUnlessAllowed) {
  for (size_t i = 0; i < golden.text_ids.size(); ++i) {
    Compare(golden.special_from + i, golden.text_ids[i], {.add_special_tokens = false});
  }
  EXPECT_EQ(failures, 0) << "of " << golden.text_ids.size();
}

TEST_P(TokenizerGoldenTest, TextsComeBackWhereTheyDoInHuggingFace) {
  for (size_t i = 0; i < golden.strings.size(); ++i) {
    const std::string wanted = golden.decoded.value(std::to_string(i), golden.strings[i]);
    const auto ids = tokenizer.Encode(golden.strings[i], {.add_special_tokens = false});
    ASSERT_EQ(Quoted(tokenizer.Decode(ids), 9999), Quoted(wanted, 9999)) << "string " << i;
  }
}

TEST_P(TokenizerGoldenTest, StreamsGiveWholeCodePointsThatAddUpToTheText) {
  for (size_t i = 0; i < golden.strings.size(); ++i) {
    TextStream stream = tokenizer.Stream();
    std::string text;
    for (const int32_t id : golden.ids[i]) {
      const std::string part = stream.Push(id);
      ASSERT_FALSE(FindUtf8Fault(part)) << "string " << i << " after " << Quoted(text);
      text += part;
    }
    text += stream.Finish();
    ASSERT_EQ(Quoted(text), Quoted(tokenizer.Decode(golden.ids[i]))) << "string " << i;
  }
}

TEST_P(TokenizerGoldenTest, RandomIdsDecodeAsInHuggingFace) {
  ASSERT_FALSE(golden.decodes.empty());
  for (const auto& one : golden.decodes) {
    const auto ids = one.at("ids").get<std::vector<int32_t>>();
    EXPECT_EQ(Quoted(tokenizer.Decode(ids), 999), Quoted(one.at("text").get<std::string>(), 999));
    EXPECT_EQ(Quoted(tokenizer.Decode(ids, {.skip_special = true}), 999),
              Quoted(one.at("without_special").get<std::string>(), 999));
  }
}

INSTANTIATE_TEST_SUITE_P(Pipelines, TokenizerGoldenTest, ::testing::ValuesIn(PipelineNames()),
                         [](const auto& info) { return info.param; });

TEST(Utf8GoldenTest, FaultsAreFoundAndReplacedAsInPython) {
  const nlohmann::json broken = ReadGolden("broken.json");
  ASSERT_GE(broken.size(), 250u);
  for (const auto& one : broken) {
    const auto hex = one.at(0).get<std::string>();
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    const std::optional<Utf8Fault> fault = FindUtf8Fault(bytes);
    ASSERT_TRUE(fault) << hex;
    EXPECT_EQ(fault->offset, one.at(1).get<size_t>()) << hex;
    EXPECT_EQ(fault->reason, one.at(2).get<std::string>()) << hex;
    EXPECT_EQ(Quoted(ReplaceUtf8Faults(bytes), 999), Quoted(one.at(3).get<std::string>(), 999))
        << hex;
  }
}

TEST(PatternGoldenTest, TextsAreSplitAsByTheLibrary) {
  const nlohmann::json golden = ReadGolden("splits.json");
  ASSERT_GE(golden.size(), 12u);
  for (const auto& one : golden) {
    const auto expression = one.at(0).get<std::string>();
    const Pattern pattern = Pattern::Regex(expression);
    for (const auto& wanted : one.at(1)) {
      std::string text;
      for (const auto& piece : wanted) text += piece.get<std::string>();
      std::vector<std::string> pieces;
      pattern.Cover(text, [&](MatchSpan span) {
        if (span.begin < span.end) pieces.push_back(text.substr(span.begin, span.end - span.begin));
      });
      EXPECT_EQ(nlohmann::json(pieces).dump(), wanted.dump()) << expression;
    }
  }
}

bool IsSurrogate(uint32_t code_point) { return code_point >= 0xD800 && code_point < 0xE000; }

// Expects `holds` of the code points in these ranges and of no others.
void ExpectSame(const std::string& what, const nlohmann::json& ranges,
                const std::function<bool(const std::string&)>& holds) {
  std::set<uint32_t> wanted, found;
  for (const auto& range : ranges) {
    for (auto c = range.at(0).get<uint32_t>(); c <= range.at(1).get<uint32_t>(); ++c) {
      if (!IsSurrogate(c)) wanted.insert(c);
    }
  }
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (IsSurrogate(c)) continue;
    std::string text;
    AppendUtf8(c, text);
    if (holds(text)) found.insert(c);
  }
  std::vector<uint32_t> different;
  std::ranges::set_symmetric_difference(wanted, found, std::back_inserter(different));
  EXPECT_TRUE(different.empty())
      << what << ": " << different.size() << " code points differ, the first "
      << ListText(std::vector<uint32_t>(
             different.begin(), different.begin() + std::min<ptrdiff_t>(std::ssize(different), 9)));
}

TEST(UnicodeGoldenTest, ExpressionsMatchTheSameCodePoints) {
  const nlohmann::json golden = ReadGolden("unicode.json");
  ASSERT_GE(golden.at("members").size(), 16u);
  for (const auto& [expression, ranges] : golden.at("members").items()) {
    const Pattern pattern = Pattern::Regex(expression);
    ExpectSame(expression, ranges, [&](const std::string& text) {
      bool matches = false;
      pattern.Cover(text, [&](MatchSpan span) { matches = matches || span.matched; });
      return matches;
    });
  }
}

TEST(UnicodeGoldenTest, DigitsAreTheSameCodePoints) {
  const nlohmann::json spec = {{"type", "Digits"}, {"individual_digits", true}};
  const PreTokenizer digits = PreTokenizer::Read(JsonNode(spec, "spec"));
  ExpectSame("Digits", ReadGolden("unicode.json").at("digits"), [&](const std::string& text) {
    const std::string after = "a" + text;
    std::deque<std::string> made;
    return digits.Split({.text = after}, made).size() > 1;
  });
}

TEST(UnicodeGoldenTest, AddedTokensStandAloneAfterTheSameCodePoints) {
  const Tokenizer tokenizer = Tokenizer::Load(TextGoldenFolder() / "metaspace");
  const std::vector<int32_t> fox = tokenizer.Encode("fox");  // which stands alone, or is no token
  ASSERT_FALSE(fox.empty());
  const nlohmann::json ranges = ReadGolden("unicode.json").at("word");
  ASSERT_GT(ranges.size(), 500u);
  size_t next = 0;
  for (uint32_t c = 0; c < 0x20000; ++c) {
    if (IsSurrogate(c)) continue;
    while (next < ranges.size() && ranges[next].at(1).get<uint32_t>() < c) ++next;
    const bool is_word = next < ranges.size() && ranges[next].at(0).get<uint32_t>() <= c;
    std::string text;
    AppendUtf8(c, text);
    EXPECT_EQ(tokenizer.Encode(text + "fox").back() == fox.back(), !is_word) << std::hex << c;
  }
}

TEST(UnicodeGoldenTest, NfcIsTheSameForEveryCodePoint) {
  const nlohmann::json hashes = ReadGolden("unicode.json").at("nfc");
  const nlohmann::json spec = {{"type", "NFC"}};
  const Normalizer nfc = Normalizer::Read(JsonNode(spec, "spec"));
  const uint32_t block = 0x110000 / static_cast<uint32_t>(hashes.size());
  for (uint32_t first = 0; first < 0x110000; first += block) {
    uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
    const auto add = [&](const std::string& text) {
      for (const char c : nfc.Apply(text) + "\n") {
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
      }
    };
    for (uint32_t c = first; c < first + block; ++c) {
      if (IsSurrogate(c)) continue;
      std::string character;
      AppendUtf8(c, character);
      add(character);
      add("a" + character + "\u0334");
      add("a\u0301" + character);
      add(character + character);
    }
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
    EXPECT_EQ(text, hashes.at(first / block).get<std::string>())
        << "code points from " << first << " to " << first + block - 1;
  }
}

}  // namespace
}  // namespace tokline::testing
