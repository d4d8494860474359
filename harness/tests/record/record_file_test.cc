#include "harness/record/record_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

Json EndRecord(int64_t number) {
  return ToJson(
      RunEnd{.run_id = "run", .interrupted = false, .rows = number, .refused = 0, .gpu_after = {}});
}

class RecordFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tokline_record_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = directory_ / "records.jsonl";
  }
  void TearDown() override { fs::remove_all(directory_); }
  void Write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string ReadError() {
    try {
      ReadRecords(path_);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  fs::path directory_;
  fs::path path_;
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
  EXPECT_THAT(ReadError(), HasSubstr(":2: the last line is unfinished"));
  RecordWriter(path_).Append(EndRecord(2));
  const std::vector<Json> records = ReadRecords(path_);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1]["rows"], 2);
}

TEST_F(RecordFileTest, AKilledWriterLeavesOnlyWholeLinesAndLosesNoAcknowledgedOne) {
  for (int round = 0; round < 20; ++round) {
    fs::remove(path_);
    int acknowledged[2];
    ASSERT_EQ(pipe(acknowledged), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      RecordWriter writer(path_);
      for (int64_t i = 0;; ++i) {
        writer.Append(EndRecord(i));
        if (write(acknowledged[1], "+", 1) != 1) _exit(1);
      }
    }
    close(acknowledged[1]);
    char signs[64];
    ssize_t count = read(acknowledged[0], signs, 1);  // it is writing by now
    ASSERT_EQ(count, 1);
    std::this_thread::sleep_for(std::chrono::microseconds(500 + 300 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    int64_t total = 1;
    while ((count = read(acknowledged[0], signs, sizeof(signs))) > 0) total += count;
    close(acknowledged[0]);
    const std::vector<Json> records = ReadRecords(path_);
    EXPECT_GE(static_cast<int64_t>(records.size()), total);
    for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i]["rows"], i);
  }
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
  EXPECT_THAT(ReadError(), HasSubstr(":1: record must be an object"));
  Json other = EndRecord(0);
  other["schema"] = 7;
  Write(other.dump() + "\n");
  EXPECT_THAT(ReadError(), HasSubstr("schema is 7"));
}

TEST_F(RecordFileTest, UnwritableAndMissingFilesAreNamed) {
  EXPECT_THAT(ReadError(), HasSubstr("cannot read"));
  try {
    RecordWriter writer(directory_ / "no" / "such.jsonl");
    ADD_FAILURE() << "a missing folder passed";
  } catch (const RuntimeFailure& error) {
    EXPECT_THAT(error.what(), HasSubstr("such.jsonl: No such file or directory"));
  }
}

TEST_F(RecordFileTest, AFullDiskIsReported) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  RecordWriter writer("/dev/full");
  try {
    writer.Append(EndRecord(0));
    ADD_FAILURE() << "writing to a full disk passed";
  } catch (const RuntimeFailure& error) {
    EXPECT_THAT(error.what(), HasSubstr("No space left"));
  }
}

}  // namespace
}  // namespace tokline
