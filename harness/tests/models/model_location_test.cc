// Models are found in folders and in the Hugging Face cache; if a model is not found, the message
// explains why.
#include "harness/models/model_location.h"

#include <gtest/gtest.h>

#include <map>

#include "harness/tests/models/hub_cache.h"
#include "harness/tests/models/model_files.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::HubCacheFolder;
using testing::Refuses;
using testing::TempFolder;
using testing::WriteFile;

using Environment = std::map<std::string, std::string>;

HubCache CacheIn(const Environment& environment) {
  return FindHubCache([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

const std::map<std::string, std::string> kFiles = {{"config.json", "{}"}};

class ModelLocationTest : public ::testing::Test {
 protected:
  std::filesystem::path Find(std::string_view model) const {
    return FindModel(model, cache_, made_.Path());
  }
  ::testing::AssertionResult IsRefused(std::string_view model,
                                       const std::vector<std::string>& says) const {
    return Refuses<RuntimeFailure>([&] { Find(model); }, says);
  }

  TempFolder made_;
  HubCacheFolder hub_;
  HubCache cache_ = {hub_.Path(), "from HF_HUB_CACHE"};
};

TEST(HubCacheTest, VariablesAreTakenInTheOrderOfHuggingFace) {
  Environment environment = {{"HOME", "/home/me"}};
  EXPECT_EQ(CacheIn(environment).folder, "/home/me/.cache/huggingface/hub");
  environment["XDG_CACHE_HOME"] = "/xdg";
  EXPECT_EQ(CacheIn(environment).folder, "/xdg/huggingface/hub");
  environment["HF_HOME"] = "~/hf";
  EXPECT_EQ(CacheIn(environment).folder, "/home/me/hf/hub");
  environment["HUGGINGFACE_HUB_CACHE"] = "/old";
  EXPECT_EQ(CacheIn(environment).folder, "/old");
  environment["HF_HUB_CACHE"] = "/hub";
  EXPECT_EQ(CacheIn(environment).folder, "/hub");
  EXPECT_EQ(CacheIn(environment).origin, "from HF_HUB_CACHE");
}

TEST(HubCacheTest, EmptyVariableIsNotSet) {
  EXPECT_EQ(CacheIn({{"HF_HUB_CACHE", ""}, {"HF_HOME", ""}, {"XDG_CACHE_HOME", "/xdg"}}).folder,
            "/xdg/huggingface/hub");
  EXPECT_TRUE(CacheIn({{"HOME", ""}}).folder.empty());
}

TEST_F(ModelLocationTest, FolderIsTakenAsItIs) {
  TempFolder dir;
  EXPECT_EQ(Find(dir.Path().string()), dir.Path());
  EXPECT_EQ(ModelName(dir.Path()), dir.Path().filename().string());
}

TEST(MadeModelsTest, FolderIsInTheUsersCache) {
  const auto folder = [](const Environment& environment) {
    return MadeModelsFolder([&](const char* name) {
      const auto found = environment.find(name);
      return found == environment.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_EQ(folder({{"HOME", "/home/me"}}), "/home/me/.cache/tokline/models");
  EXPECT_EQ(folder({{"HOME", "/home/me"}, {"XDG_CACHE_HOME", "/xdg"}}), "/xdg/tokline/models");
  EXPECT_TRUE(folder({{"HOME", ""}}).empty());
}

TEST_F(ModelLocationTest, NameOfAMadeModelComesBeforeTheHubCache) {
  const auto cached = hub_.Add("models--me--small", "c1899de", kFiles);
  EXPECT_EQ(Find("small"), cached);
  std::filesystem::create_directories(made_ / "small");
  EXPECT_EQ(Find("small"), cached) << "a folder without config.json is no model";
  WriteFile(made_ / "small/config.json", "{}");
  EXPECT_EQ(Find("small"), made_ / "small");
  EXPECT_EQ(Find("me/small"), cached);
  EXPECT_EQ(Find("small@main"), cached);
  EXPECT_TRUE(IsRefused("smaller", {"scripts/model has made none", made_.Path().string()}));
}

TEST_F(ModelLocationTest, NameLeadsToTheSnapshotOfMain) {
  const auto snapshot = hub_.Add("models--Qwen--Qwen3-0.6B", "c1899de", kFiles);
  hub_.Add("models--Qwen--Qwen3-1.7B", "aaaa111", kFiles);
  hub_.Add("models--Qwen--Qwen3-0.6B", "older00", kFiles, "v1");
  EXPECT_EQ(Find("Qwen/Qwen3-0.6B"), snapshot);
  EXPECT_EQ(Find("Qwen3-0.6B"), snapshot);
  EXPECT_EQ(ModelName(snapshot), "Qwen3-0.6B");
}

TEST_F(ModelLocationTest, RevisionIsABranchATagOrACommit) {
  const auto main = hub_.Add("models--Qwen--Qwen3-0.6B", "c1899de", kFiles);
  const auto tagged = hub_.Add("models--Qwen--Qwen3-0.6B", "0123abc", kFiles, "v1.0");
  const auto pull = hub_.Add("models--Qwen--Qwen3-0.6B", "fedcba9", kFiles, "refs/pr/2");
  const auto commit = hub_.Add("models--Qwen--Qwen3-0.6B", "7777777", kFiles, "");
  EXPECT_EQ(Find("Qwen/Qwen3-0.6B@main"), main);
  EXPECT_EQ(Find("Qwen/Qwen3-0.6B@v1.0"), tagged);
  EXPECT_EQ(Find("Qwen3-0.6B@refs/pr/2"), pull);
  EXPECT_EQ(Find("Qwen3-0.6B@7777777"), commit);
  EXPECT_TRUE(IsRefused("Qwen3-0.6B@v2", {"Qwen/Qwen3-0.6B has no revision \"v2\"", "it has main",
                                          "v1.0", "and 1 more"}));
}

TEST_F(ModelLocationTest, RefMayEndInANewline) {
  const auto snapshot = hub_.Add("models--A--B", "c1899de", kFiles);
  WriteFile(hub_ / "models--A--B/refs/main", "c1899de\n");
  EXPECT_EQ(Find("A/B"), snapshot);
}

TEST_F(ModelLocationTest, NameOfSeveralOrganisationsIsRefusedWithAll) {
  hub_.Add("models--Qwen--Qwen3-0.6B", "c1899de", kFiles);
  const auto mine = hub_.Add("models--me--Qwen3-0.6B", "0123abc", kFiles);
  EXPECT_TRUE(IsRefused("Qwen3-0.6B", {"Qwen/Qwen3-0.6B, me/Qwen3-0.6B", "give the whole name"}));
  EXPECT_EQ(Find("me/Qwen3-0.6B"), mine);
}

TEST_F(ModelLocationTest, WholeNameWithoutOrganisationComesFirst) {
  hub_.Add("models--openai-community--gpt2", "c1899de", kFiles);
  const auto whole = hub_.Add("models--gpt2", "0123abc", kFiles);
  EXPECT_EQ(Find("gpt2"), whole);
  EXPECT_EQ(ModelName(whole), "gpt2");
}

TEST_F(ModelLocationTest, UnknownNameSaysWhereWasLookedAndWhatIsThere) {
  EXPECT_TRUE(IsRefused("Qwen/Qwen9", {"no model \"Qwen/Qwen9\"",
                                       (std::filesystem::current_path() / "Qwen/Qwen9").string(),
                                       hub_.Path().string(), "from HF_HUB_CACHE", "no models"}));
  hub_.Add("models--Qwen--Qwen3-0.6B", "c1899de", kFiles);
  std::filesystem::create_directories(hub_ / "datasets--Qwen--Qwen9");
  EXPECT_TRUE(IsRefused("Qwen/Qwen9", {"which has Qwen/Qwen3-0.6B"}));
  EXPECT_TRUE(IsRefused("qwen/qwen3-0.6b", {"which has Qwen/Qwen3-0.6B"}));
  cache_ = CacheIn({{"HF_HOME", "/gone"}});
  EXPECT_TRUE(IsRefused("Qwen9", {"/gone/hub (from HF_HOME), which does not exist"}));
  cache_ = CacheIn({});
  EXPECT_TRUE(IsRefused("Qwen9", {"HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME"}));
}

TEST_F(ModelLocationTest, WhatCanBeNoNameIsNotLookedUp) {
  for (const char* model :
       {"/no/such/folder", "../no-such-model", "no-such/../model", "a/b/c", "a b", "a--b", ".x",
        "-x", "a/", "x@", "x@../main", "x@a//b", "x@.", "a/@main", "caf\xc3\xa9"}) {
    EXPECT_TRUE(IsRefused(model, {"not a folder", "a model is a folder with config.json"}))
        << model;
  }
}

TEST_F(ModelLocationTest, FileIsNoModel) {
  WriteFile(hub_ / "model.safetensors", "x");
  EXPECT_TRUE(IsRefused((hub_ / "model.safetensors").string(), {"not a folder; a model is"}));
}

TEST_F(ModelLocationTest, FolderOfTheCacheStandsForItsMain) {
  const auto snapshot = hub_.Add("models--Qwen--Qwen3-0.6B", "c1899de", kFiles);
  EXPECT_EQ(Find((hub_ / "models--Qwen--Qwen3-0.6B").string()),
            std::filesystem::canonical(snapshot));
}

TEST_F(ModelLocationTest, InterruptedDownloadsAreNamed) {
  hub_.Add("models--A--Config", "c1899de", {{"model.safetensors", "x"}});
  EXPECT_TRUE(IsRefused("A/Config", {"c1899de", "has no config.json", "interrupted?"}));
  hub_.Add("models--A--Ref", "c1899de", kFiles);
  WriteFile(hub_ / "models--A--Ref/refs/main", "0123abc");
  EXPECT_TRUE(IsRefused("A/Ref", {"refs/main", "snapshots/0123abc", "is not there"}));
  std::filesystem::create_directories(hub_ / "models--A--Nothing");
  EXPECT_TRUE(IsRefused("A/Nothing", {"A/Nothing has no revision \"main\"", "none at all"}));
}

TEST_F(ModelLocationTest, RefThatLeadsElsewhereIsRefused) {
  hub_.Add("models--A--B", "c1899de", kFiles);
  for (const std::string& text : {std::string("../.."), std::string("/etc"), std::string("a/b"),
                                  std::string(" \n"), std::string(300, 'a')}) {
    WriteFile(hub_ / "models--A--B/refs/main", text);
    EXPECT_TRUE(IsRefused("A/B", {"refs/main", "must be the name of a snapshot"})) << text;
  }
  WriteFile(hub_ / "models--A--B/refs/main", "");
  EXPECT_TRUE(IsRefused("A/B", {"refs/main", "empty"}));
}

}  // namespace
}  // namespace tokline
