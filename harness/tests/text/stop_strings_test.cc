// Compares StopStrings with a direct implementation of its definition, for many ways of cutting a
// text into pieces.
#include "harness/text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

#include "harness/tests/models/model_files.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using Strings = std::vector<std::string>;

struct Shown {
  std::string text;
  std::string found;
  bool operator==(const Shown&) const = default;
};

// Applies the definition directly, character by character over the whole text.
Shown Oracle(const std::string& text, const Strings& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string longest;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop) && stop.size() > longest.size()) longest = stop;
    }
    if (!longest.empty()) return {text.substr(0, end - longest.size()), longest};
  }
  return {text, ""};
}

// Whether some stop string could begin within the last `held` characters of the text.
bool MightBegin(const std::string& text, size_t held, const Strings& stops) {
  const std::string tail = text.substr(text.size() - held);
  return std::ranges::any_of(stops, [&](const std::string& stop) {
    return stop.size() > tail.size() && stop.starts_with(tail);
  });
}

Shown InPieces(const Strings& pieces, const Strings& stops) {
  StopStrings stream(stops);
  Shown shown;
  std::string text;
  for (const std::string& piece : pieces) {
    text += piece;
    shown.text += stream.Push(piece);
    if (!stream.Found().empty()) continue;
    // Nothing may be held back without a reason.
    const size_t held = text.size() - shown.text.size();
    EXPECT_TRUE(held == 0 || MightBegin(text, held, stops)) << text << ", held " << held;
  }
  shown.found = stream.Found();
  shown.text += stream.Finish();
  return shown;
}

TEST(StopStringsTest, TextEndsBeforeAStopStringThatSpansPieces) {
  EXPECT_EQ(InPieces({"one tw", "o th", "ree four"}, {"two three"}), (Shown{"one ", "two three"}));
  EXPECT_EQ(InPieces({"a", "a", "a", "b", "c"}, {"aab"}), (Shown{"a", "aab"}));
  EXPECT_EQ(InPieces({"abab", "ac"}, {"ababc"}), (Shown{"ababac", ""}));
}

TEST(StopStringsTest, TheFirstThatIsCompleteCountsAndOfThoseTheLongest) {
  EXPECT_EQ(InPieces({"abcd"}, {"abcd", "bc"}), (Shown{"a", "bc"}));
  EXPECT_EQ(InPieces({"xabc"}, {"bc", "abc", "c"}), (Shown{"x", "abc"}));
  EXPECT_EQ(InPieces({"aXbY"}, {"Y", "X"}), (Shown{"a", "X"}));
}

TEST(StopStringsTest, WhatIsHeldBackComesWhenItIsNoStopString) {
  StopStrings stream({"###"});
  EXPECT_EQ(stream.Push("a#"), "a");
  EXPECT_EQ(stream.Push("#"), "");
  EXPECT_EQ(stream.Push("b#"), "##b");
  EXPECT_EQ(stream.Finish(), "#");
  EXPECT_EQ(stream.Found(), "");
}

TEST(StopStringsTest, NothingComesAfterTheEnd) {
  StopStrings stream({"."});
  EXPECT_EQ(stream.Push("a.b"), "a");
  EXPECT_EQ(stream.Push("c"), "");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(StopStringsTest, CodePointsStayWhole) {
  StopStrings stream({"é!"});
  EXPECT_EQ(stream.Push("aé"), "a");
  EXPECT_EQ(stream.Push("è"), "éè");
}

TEST(StopStringsTest, EmptyAndBrokenOnesAreRefused) {
  EXPECT_TRUE(testing::Refuses<InvalidArgument>(
      [] {
        StopStrings({"a", ""});
      },
      {"stop string is empty"}));
  EXPECT_TRUE(testing::Refuses<InvalidArgument>([] { StopStrings({"a\xff"}); },
                                                {"stop string", "byte 0xff at offset 1"}));
}

TEST(StopStringsTest, RandomTextsInRandomPiecesEndWhereTheOracleSays) {
  std::mt19937_64 rng(11);
  const auto random_text = [&](size_t least, size_t most) {
    std::string text;
    for (size_t length = least + rng() % (most - least + 1); length > 0; --length) {
      text += static_cast<char>('a' + rng() % 2);
    }
    return text;
  };
  int stopped = 0;
  for (int round = 0; round < 100'000; ++round) {
    Strings stops;
    for (size_t i = rng() % 4; i > 0; --i) stops.push_back(random_text(1, 7));
    const std::string text = random_text(0, 24);
    Strings pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t length = std::min<size_t>(rng() % 5, text.size() - at);
      pieces.push_back(text.substr(at, length));
      at += length;
    }
    const Shown wanted = Oracle(text, stops);
    stopped += !wanted.found.empty();
    ASSERT_EQ(InPieces(pieces, stops), wanted)
        << "text " << text << ", stops " << ::testing::PrintToString(stops) << ", pieces "
        << ::testing::PrintToString(pieces);
  }
  EXPECT_GT(stopped, 30'000);
  EXPECT_LT(stopped, 90'000);
}

}  // namespace
}  // namespace tokline
