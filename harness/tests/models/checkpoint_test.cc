// Reads valid checkpoint files, malformed ones, and mutations of valid ones.
#include "harness/models/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <random>
#include <utility>

#include "harness/models/safetensors.h"
#include "harness/tests/models/hub_cache.h"
#include "harness/tests/models/malformed_files.h"
#include "harness/tests/models/model_files.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::Entry;
using testing::Header;
using testing::HubCacheFolder;
using testing::IndexFile;
using testing::kGood;
using testing::ReadFile;
using testing::Refuses;
using testing::SafetensorsFile;
using testing::TempFolder;
using testing::WriteFile;
using testing::WriteShards;

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

TEST(CheckpointTest, ShardsAreReadThroughTheIndex) {
  TempFolder dir;
  WriteShards(dir);
  WriteFile(dir / "model.safetensors.index.json",
            IndexFile({{"a", "one.safetensors"}, {"b", "two.safetensors"}}));
  const Checkpoint checkpoint(dir.Path());
  EXPECT_EQ(checkpoint.Tensors().size(), 2u);
  EXPECT_EQ(checkpoint.Find("b")->bytes, 8);
  EXPECT_EQ(checkpoint.Files()[checkpoint.Find("b")->file].Path(), dir / "two.safetensors");
}

TEST(CheckpointTest, SingleFileMayBeALinkToAnywhere) {
  TempFolder dir, elsewhere;
  WriteFile(elsewhere / "0a1b", SafetensorsFile({{"a", {2}}}));
  std::filesystem::create_symlink(elsewhere / "0a1b", dir / "model.safetensors");
  EXPECT_EQ(Checkpoint(dir.Path()).Tensors().size(), 1u);
}

TEST(CheckpointTest, ShardsAreReadThroughTheLinksOfTheHuggingFaceCache) {
  const HubCacheFolder hub;
  const auto snapshot =
      hub.Add("models--A--B", "c0ffee",
              {{"one.safetensors", SafetensorsFile({{"a", {2}}})},
               {"two.safetensors", SafetensorsFile({{"b", {4}}})},
               {"model.safetensors.index.json",
                IndexFile({{"a", "one.safetensors"}, {"b", "two.safetensors"}})}});
  ASSERT_TRUE(std::filesystem::is_symlink(snapshot / "one.safetensors"));
  EXPECT_EQ(Checkpoint(snapshot).Tensors().size(), 2u);
}

TEST(CheckpointTest, ShardMayBeALinkWithinTheFolderButNotOutOfIt) {
  const HubCacheFolder hub;
  const std::string shard = SafetensorsFile({{"a", {2}}});
  const auto snapshot =
      hub.Add("models--A--B", "c0ffee",
              {{"real.safetensors", shard},
               {"model.safetensors.index.json", IndexFile({{"a", "one.safetensors"}})}});
  const auto other = hub.Add("models--A--Other", "decaf", {{"one.safetensors", shard}});
  const auto link = snapshot / "one.safetensors";
  const auto opened_with = [&](const std::filesystem::path& target) {
    std::filesystem::remove(link);
    std::filesystem::create_symlink(target, link);
    Checkpoint checkpoint(snapshot);
  };
  EXPECT_NO_THROW(opened_with("real.safetensors"));
  WriteFile(hub / "outside", shard);
  for (const std::filesystem::path& target :
       {hub / "outside", std::filesystem::path("../../../outside"), other / "one.safetensors"}) {
    EXPECT_TRUE(Refuses<RuntimeFailure>([&] { opened_with(target); },
                                        {link.string(), "link to", "the model's own folder"}))
        << target;
  }
  EXPECT_TRUE(Refuses<RuntimeFailure>([&] { opened_with("gone"); }, {"No such file"}));
  EXPECT_TRUE(Refuses<RuntimeFailure>([&] { opened_with("one.safetensors"); }, {link.string()}));
}

TEST(CheckpointTest, ShardLinkOutOfAPlainFolderIsRefusedEvenToBlobs) {
  TempFolder parent;
  std::filesystem::create_directories(parent / "model");
  std::filesystem::create_directories(parent / "blobs");
  WriteFile(parent / "blobs" / "0a1b", SafetensorsFile({{"a", {2}}}));
  WriteFile(parent / "model" / "model.safetensors.index.json",
            IndexFile({{"a", "one.safetensors"}}));
  std::filesystem::create_symlink("../blobs/0a1b", parent / "model" / "one.safetensors");
  EXPECT_TRUE(Refuses<RuntimeFailure>([&] { Checkpoint checkpoint(parent / "model"); },
                                      {"one.safetensors", "the model's own folder"}));
}

TEST(CheckpointTest, IndexBeyondTheCapIsRefusedUnread) {
  TempFolder dir;
  WriteFile(dir / "model.safetensors.index.json", "{}");
  std::filesystem::resize_file(dir / "model.safetensors.index.json", (32 << 20) + 1);
  EXPECT_TRUE(Refuses<RuntimeFailure>([&] { Checkpoint checkpoint(dir.Path()); },
                                      {"33554433 bytes", "at most 33554432"}));
}

TEST(CheckpointTest, OtherFormatsAreRefusedByName) {
  const std::pair<const char*, const char*> kCases[] = {
      {"pytorch_model.bin", "a pickled checkpoint, which is never read"},
      {"pytorch_model-00001-of-00002.bin", "a pickled checkpoint"},
      {"consolidated.00.pth", "a pickled checkpoint"},
      {"model-q4.gguf", "of a format that is not supported"},
      {"model-00001-of-00002.safetensors", "which needs model.safetensors.index.json"}};
  for (const auto& [name, says] : kCases) {
    TempFolder dir;
    WriteFile(dir / name, "x");
    WriteFile(dir / "config.json", "{}");
    EXPECT_TRUE(Refuses<RuntimeFailure>([&] { Checkpoint checkpoint(dir.Path()); },
                                        {dir.Path().string(), "neither", name, says}));
  }
}

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

// Resident memory of this process in KiB: "RssAnon" is its own memory, "RssFile" that of mapped
// files.
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
  EXPECT_GE(most, kTensorBytes >> 10);  // touched pages do show up in the figure
  EXPECT_LT(most, 2 * kTensorBytes >> 10);
  EXPECT_LT(ResidentKib("RssFile") - file_before, 4 << 10);
  EXPECT_LT(ResidentKib("RssAnon") - anon_before, 8 << 10);
}

// Whatever is accepted must be consistent; everything else must cause a RuntimeFailure.
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
