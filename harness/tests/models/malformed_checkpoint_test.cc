// Every malformed checkpoint file is refused with a message that names the file and the fault.
#include <gtest/gtest.h>

#include "harness/models/checkpoint.h"
#include "harness/tests/models/malformed_files.h"
#include "harness/tests/models/malformed_random_files.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::Malformed;
using testing::MalformedFiles;
using testing::MalformedIndexes;
using testing::MalformedRandomFile;
using testing::Refuses;
using testing::TempFolder;
using testing::WriteFile;
using testing::WriteShards;

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

// A failure's message contains the seed.
TEST(MalformedRandomFileTest, IsRefusedByName) {
  TempFolder dir;
  for (uint64_t seed = 0; seed < 1200; ++seed) {
    const Malformed malformed = MalformedRandomFile(seed);
    WriteFile(dir / "model.safetensors", malformed.file);
    EXPECT_TRUE(Refuses<RuntimeFailure>([&] { Checkpoint checkpoint(dir.Path()); }, malformed.says))
        << "seed " << seed << ", " << malformed.name;
  }
}

// The files are valid before the fault is added, so only the fault can cause a refusal.
TEST(MalformedRandomFileTest, WithoutTheFaultItIsRead) {
  TempFolder dir;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    WriteFile(dir / "model.safetensors", testing::RandomGoodFile(seed));
    EXPECT_NO_THROW(Checkpoint{dir.Path()}) << "seed " << seed;
  }
}

TEST(MalformedCorpusTest, HasAtLeast120ChosenFiles) {
  EXPECT_GE(MalformedFiles().size() + MalformedIndexes().size(), 120u);
}

class MalformedIndexTest : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedIndexTest, IsRefusedByName) {
  TempFolder dir;
  WriteShards(dir);
  WriteFile(dir / "model.safetensors.index.json", GetParam().file);
  EXPECT_TRUE(Refuses<RuntimeFailure>([&] { Checkpoint checkpoint(dir.Path()); }, GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(Files, MalformedIndexTest, ::testing::ValuesIn(MalformedIndexes()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tokline
