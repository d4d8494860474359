#include "harness/engine/ablation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/tests/message_of.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;

TEST(AblationTest, EveryNameParsesToItsOwnAblationAlone) {
  for (const AblationEntry& entry : AllAblations()) {
    const AblationSet set = ParseAblations(entry.name);
    for (const AblationEntry& other : AllAblations()) {
      EXPECT_EQ(set.Has(other.ablation), other.name == entry.name) << entry.name;
    }
  }
}

TEST(AblationTest, NamesAreSeparatedByCommas) {
  EXPECT_TRUE(ParseAblations("").Empty());
  const AblationSet set = ParseAblations("graphs,fused_mlp");
  EXPECT_TRUE(set.Has(Ablation::kGraphs));
  EXPECT_TRUE(set.Has(Ablation::kFusedMlp));
  EXPECT_FALSE(set.Has(Ablation::kPdl));
}

TEST(AblationTest, UnknownNameIsRefusedWithTheListOfKnownOnes) {
  for (const char* names : {"graph", "pdl,nothing", "pdl,,graphs"}) {
    const std::string message = testing::MessageOf([&] { ParseAblations(names); });
    for (const AblationEntry& entry : AllAblations()) {
      EXPECT_THAT(message, HasSubstr(std::string(entry.name)));
    }
  }
}

}  // namespace
}  // namespace tokline
