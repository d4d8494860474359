// Tests which peaks --peaks takes over from a record file, and which it refuses.
#include "harness/record/reused_peaks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/record/record_file.h"
#include "harness/tests/message_of.h"
#include "harness/tests/temp_folder.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;

constexpr std::time_t kNoon = 1769860800;  // 2026-01-31T12:00:00Z

class ReusePeaksTest : public ::testing::Test {
 protected:
  std::string Path() const { return directory_ / "records.jsonl"; }
  void Record(const std::string& run_id, const std::string& time, const std::string& gpu,
              std::optional<Peaks> peaks) const {
    RunHeader header{.run_id = run_id, .program = "bench_triple", .peaks = std::move(peaks)};
    header.fingerprint = TakeFingerprint(0, nullptr, /*cuda=*/false);
    header.fingerprint.time_utc = "2026-01-31T" + time + "Z";
    header.fingerprint.gpu =
        GpuIdentity{.name = "Simulated", .uuid_hash = gpu, .compute_capability = "9.0"};
    RecordWriter(Path()).Append(ToJson(header));
  }
  std::string Message(const std::string& gpu) const {
    return testing::MessageOf([&] { ReusePeaks(Path(), gpu, PeaksNeeded::kAll, kNoon); });
  }
  static Peaks Measured(double read_gbps) {
    return {.read_gbps = read_gbps,
            .two_to_one_gbps = 6,
            .copy_gbps = 2,
            .matmul_tflops = 3,
            .launch_us = 4,
            .graph_node_us = 5};
  }

  testing::TempFolder directory_;
};

TEST_F(ReusePeaksTest, TakesTheNewestThatThisGpuMeasured) {
  Record("older", "11:10:00", "mine", Measured(100));
  Record("newer", "11:50:00", "mine", Measured(200));
  Record("other", "11:55:00", "another", Measured(300));
  Record("none", "11:56:00", "mine", std::nullopt);
  Peaks taken_over = Measured(400);
  taken_over.from_run = "older";
  Record("reused", "11:57:00", "mine", taken_over);
  const Peaks peaks = ReusePeaks(Path(), "mine", PeaksNeeded::kAll, kNoon);
  EXPECT_EQ(peaks.from_run, "newer");
  EXPECT_EQ(peaks.read_gbps, 200);
  EXPECT_EQ(peaks.two_to_one_gbps, 6);
  EXPECT_EQ(peaks.copy_gbps, 2);
  EXPECT_EQ(peaks.matmul_tflops, 3);
  EXPECT_EQ(peaks.launch_us, 4);
  EXPECT_EQ(peaks.graph_node_us, 5);
}

// A run of the decoder measures no matmul rate, so bench programs must not reuse its peaks: their
// rows would lose a limit.
TEST_F(ReusePeaksTest, TakesPeaksWithoutAMatmulRateOnlyWhereMemoryIsEnough) {
  Record("bench", "11:10:00", "mine", Measured(100));
  Peaks of_memory = Measured(200);
  of_memory.matmul_tflops = 0;
  Record("decoder", "11:50:00", "mine", of_memory);
  EXPECT_EQ(ReusePeaks(Path(), "mine", PeaksNeeded::kAll, kNoon).from_run, "bench");
  EXPECT_EQ(ReusePeaks(Path(), "mine", PeaksNeeded::kMemory, kNoon).from_run, "decoder");
}

TEST_F(ReusePeaksTest, RefusesThoseOfAnotherGpu) {
  Record("other", "11:55:00", "another", Measured(300));
  EXPECT_THAT(Message("mine"), HasSubstr("no run in it measured the peaks of this GPU (mine)"));
}

TEST_F(ReusePeaksTest, RefusesOldOnes) {
  Record("old", "10:30:00", "mine", Measured(100));
  EXPECT_THAT(Message("mine"), HasSubstr("are 90 minutes old; at most 60 are allowed"));
}

TEST_F(ReusePeaksTest, AMissingFileIsNamed) {
  EXPECT_THROW(ReusePeaks("/no/such/records.jsonl", "mine", PeaksNeeded::kAll, kNoon),
               RuntimeFailure);
}

}  // namespace
}  // namespace tokline
