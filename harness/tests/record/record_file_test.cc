// Tests appending records to files and reading them back, with unfinished and foreign lines.
#include "harness/record/record_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>

#include "harness/measure/timing.h"
#include "harness/tests/message_of.h"
#include "harness/tests/temp_folder.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::MessageOf;
namespace fs = std::filesystem;

Json EndRecord(int64_t number) {
  return ToJson(
      RunEnd{.run_id = "run", .interrupted = false, .rows = number, .refused = 0, .gpu_after = {}});
}

class RecordFileTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string ReadError() {
    return MessageOf<std::exception>([this] { ReadRecords(path_); });
  }

  testing::TempFolder directory_;
  fs::path path_ = directory_ / "records.jsonl";
};

TEST_F(RecordFileTest, WhatIsAppendedIsRead) {
  for (int64_t i = 0; i < 3; ++i) RecordWriter(path_).Append(EndRecord(i));
  const std::vector<Json> records = ReadRecords(path_);
  ASSERT_EQ(records.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(records[static_cast<size_t>(i)], EndRecord(i));
}

TEST_F(RecordFileTest, AnInvalidRecordIsNotWritten) {
  RecordWriter writer(path_);
  writer.Append(EndRecord(0));
  Json bad = EndRecord(1);
  bad["rows"] = -1;
  EXPECT_THROW(writer.Append(bad), InvalidArgument);
  EXPECT_EQ(ReadRecords(path_).size(), 1u);
}

TEST_F(RecordFileTest, AFileWithoutRecordsIsRemovedIfTheWriterMadeIt) {
  { RecordWriter writer(path_); }
  EXPECT_FALSE(fs::exists(path_));
  Write("");
  { RecordWriter writer(path_); }
  EXPECT_TRUE(fs::exists(path_));
}

TEST_F(RecordFileTest, ALineThatAKilledWriterLeftUnfinishedIsCutOff) {
  const std::string whole = EndRecord(0).dump() + "\n";
  Write(whole + EndRecord(1).dump().substr(0, 20));
  std::string unfinished;
  EXPECT_EQ(ReadRecords(path_, &unfinished).size(), 1u);
  EXPECT_THAT(unfinished, HasSubstr("records.jsonl:2: the last line is unfinished (20 bytes)"));
  RecordWriter(path_).Append(EndRecord(2));
  const std::vector<Json> records = ReadRecords(path_);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1]["rows"], 2);
  ReadRecords(path_, &unfinished);
  EXPECT_EQ(unfinished, "");
}

TEST_F(RecordFileTest, AWholeRecordWithoutItsNewlineIsUnfinishedToo) {
  Write(EndRecord(0).dump());
  std::string unfinished;
  EXPECT_TRUE(ReadRecords(path_, &unfinished).empty());
  EXPECT_THAT(unfinished, HasSubstr(":1: the last line is unfinished"));
}

// What another program wrote must not be taken for an unfinished line of a record.
TEST_F(RecordFileTest, AFileThatHoldsSomethingElseIsRefusedAndStaysAsItIs) {
  for (const std::string text :
       {"my notes\nunfinished", "unfinished", "\n", "{}\n", "[1]\n", "{\"schema\":2}\n", "{\"a",
        "{\"name\": 1}\n{\"schema\":2,\"kind\":\"end\"}\n"}) {
    Write(text);
    const std::string message =
        MessageOf<RuntimeFailure>([&] { RecordWriter(path_).Append(EndRecord(0)); });
    EXPECT_THAT(message, HasSubstr("records.jsonl: it is not a record file")) << text;
    std::ifstream file(path_);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text);
  }
  Write("");
  RecordWriter early(path_);  // opened before another program writes
  Write("my notes\nunfinished");
  EXPECT_THROW(early.Append(EndRecord(0)), RuntimeFailure);
}

TEST_F(RecordFileTest, ARunThatWasKilledInItsFirstLineLeavesAFileToWriteTo) {
  const std::string line = EndRecord(0).dump();
  for (const size_t length : {size_t{1}, size_t{5}, size_t{12}, line.size()}) {
    Write(line.substr(0, length));
    RecordWriter(path_).Append(EndRecord(1));
    EXPECT_EQ(ReadRecords(path_).size(), 1u) << length;
  }
}

TEST_F(RecordFileTest, AFirstLineLongerThanAnyHeaderIsTakenByItsBeginning) {
  Json record = EndRecord(0);
  record["note"] = std::string(100'000, 'x');
  Write(record.dump() + "\n");
  RecordWriter(path_).Append(EndRecord(1));
  EXPECT_EQ(ReadRecords(path_).size(), 2u);
}

TEST_F(RecordFileTest, AnEmptyFileHoldsNoRecords) {
  Write("");
  std::string unfinished;
  EXPECT_TRUE(ReadRecords(path_, &unfinished).empty());
  EXPECT_EQ(unfinished, "");
}

TEST_F(RecordFileTest, OnlyTheLastLineMayBeUnfinished) {
  const std::string whole = EndRecord(0).dump() + "\n";
  Write(whole + EndRecord(1).dump().substr(0, 20) + "\n" + whole);
  EXPECT_THAT(ReadError(), HasSubstr("records.jsonl:2: not JSON"));
  Write(whole + "\n" + whole);
  EXPECT_THAT(ReadError(), HasSubstr("records.jsonl:2: not JSON"));
}

// Nothing that goes down into a value may take the stack of a program that reads it.
TEST_F(RecordFileTest, ALineThatNestsTooDeeplyIsRefusedWithItsNumber) {
  const std::string whole = EndRecord(0).dump() + "\n";
  const auto nested = [&](size_t depth) {
    return whole + std::string(depth, '[') + std::string(depth, ']') + "\n";
  };
  Write(nested(1'000'000));
  EXPECT_THAT(ReadError(), HasSubstr("records.jsonl:2: JSON nests deeper than 32"));
  EXPECT_THROW(ReadRecords(path_), InvalidArgument);
  Write(nested(33));
  EXPECT_THAT(ReadError(), HasSubstr("records.jsonl:2: JSON nests deeper than 32"));
  Write(nested(32));
  EXPECT_THAT(ReadError(), HasSubstr("records.jsonl:2: record is [[["));
  Write(std::string(1'000'000, '[') + "\n");
  EXPECT_THAT(ReadError(), HasSubstr("records.jsonl:1: JSON nests deeper than 32"));
}

TEST_F(RecordFileTest, ASampleThatIsNoNumberIsNamed) {
  Json row = KernelRow(
      {.origin = {.run_id = "run", .implementation = "cuda", .dtype = "bf16", .device = "GPU"},
       .kernel = "linear",
       .shape = {{"name", "t1"}},
       .cache = "warm",
       .chain = "plain",
       .cost = {.read_bytes = 1e6},
       .samples = {.us = std::vector<double>(kMinSamples, 2.0)},
       .verified = {.before = true, .after = true}});
  ASSERT_EQ(row["status"], "ok");
  const std::string text = row.dump() + "\n";
  Write(text);
  EXPECT_EQ(ReadError(), "nothing was thrown");
  const auto with_sample = [&text](const std::string& sample) {
    std::string changed = text;
    const std::string first = "\"samples_us\":[2.0";
    changed.replace(changed.find(first) + first.size() - 3, 3, sample);
    return changed;
  };
  Write(text + with_sample("NaN"));
  EXPECT_THAT(ReadError(), HasSubstr(":2: not JSON"));
  Write(text + with_sample("null"));
  EXPECT_THAT(ReadError(), HasSubstr(":2: row.samples_us[0] is null; it must be a number"));
  Write(text + with_sample("-2.0"));
  EXPECT_THAT(ReadError(), HasSubstr(":2: row.samples_us[0] is -2.0; it must be more than 0"));
}

TEST_F(RecordFileTest, ABrokenTextInARecordDoesNotLoseTheRecord) {
  Json record = EndRecord(0);
  record["argument"] = "caf\xe9";  // Latin-1
  RecordWriter(path_).Append(record);
  ASSERT_EQ(ReadRecords(path_).size(), 1u);
  EXPECT_EQ(ReadRecords(path_)[0]["argument"], "caf\xef\xbf\xbd");
}

TEST_F(RecordFileTest, AnEmptyFileThatAnotherWriterUsesIsNotRemoved) {
  {
    RecordWriter maker(path_);
    RecordWriter(path_).Append(EndRecord(0));
  }
  EXPECT_EQ(ReadRecords(path_).size(), 1u);
}

TEST_F(RecordFileTest, AWriterWhoseEmptyFileWasRemovedMakesItAgain) {
  auto maker = std::make_unique<RecordWriter>(path_);
  RecordWriter other(path_);
  maker.reset();
  ASSERT_FALSE(fs::exists(path_));
  other.Append(EndRecord(0));
  EXPECT_EQ(ReadRecords(path_).size(), 1u);
}

TEST_F(RecordFileTest, RemovingAFileThatIsBeingWrittenIsAnError) {
  RecordWriter writer(path_);
  writer.Append(EndRecord(0));
  fs::remove(path_);
  EXPECT_THAT(MessageOf<RuntimeFailure>([&] { writer.Append(EndRecord(1)); }),
              HasSubstr("it was removed while"));
}

TEST_F(RecordFileTest, WritersAtOnceLoseNothing) {
  constexpr int kWriters = 4;
  constexpr int kRows = 25;
  for (int w = 0; w < kWriters; ++w) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      RecordWriter writer(path_);
      for (int i = 0; i < kRows; ++i) writer.Append(EndRecord(w * kRows + i));
      _exit(0);
    }
  }
  for (int w = 0; w < kWriters; ++w) {
    int status = 0;
    ASSERT_GT(wait(&status), 0);
    EXPECT_EQ(status, 0);
  }
  std::set<int64_t> numbers;
  for (const Json& record : ReadRecords(path_)) numbers.insert(record["rows"].get<int64_t>());
  EXPECT_EQ(numbers.size(), static_cast<size_t>(kWriters * kRows));
}

TEST_F(RecordFileTest, ForeignLinesAreNamedByFileAndLine) {
  Write(EndRecord(0).dump() + "\nhello\n");
  EXPECT_THAT(ReadError(), HasSubstr("records.jsonl:2: not JSON"));
  Write("[1]\n");
  EXPECT_THAT(ReadError(), HasSubstr(":1: record is [1]; it must be an object"));
  Json other = EndRecord(0);
  other["schema"] = 7;
  Write(other.dump() + "\n");
  EXPECT_THAT(ReadError(), HasSubstr(":1: end.schema is 7; it must be 2"));
}

TEST_F(RecordFileTest, UnwritableAndMissingFilesAreNamed) {
  EXPECT_THAT(ReadError(), HasSubstr("cannot read"));
  EXPECT_THAT(MessageOf<RuntimeFailure>([this] { RecordWriter(directory_ / "no" / "such.jsonl"); }),
              HasSubstr("such.jsonl: No such file or directory"));
}

}  // namespace
}  // namespace tokline
