// Memory that a row frees must not slow down the next row, because benches keep device memory.
#include <gtest/gtest.h>

#include <iostream>

#include "benches/tensors.h"
#include "harness/measure/launch_timer.h"
#include "harness/measure/lead_in.h"
#include "harness/measure/timing.h"
#include "harness/platform/cuda_handles.h"
#include "harness/tests/kernels/cuda_test.h"

namespace tokline::bench {
namespace {

constexpr int64_t kFreed = int64_t{24} << 30;
constexpr int64_t kSwept = int64_t{512} << 20;  // exceeds every cache, so DRAM limits a sweep

class DeviceMemoryTest : public tokline::testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    TOKLINE_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    if (static_cast<int64_t>(free_bytes) < 2 * (kFreed + kSwept)) {
      GTEST_SKIP() << "twice " << kFreed << " bytes do not fit into " << free_bytes << " free";
    }
    swept_ = DeviceBuffer(kSwept);
    swept_.Fill(0);
    timer_ = MakeGraphTimer(
        [this](int, const LaunchOptions& options) {
          Sweep(swept_.data(), swept_.bytes(), options.stream);
        },
        {});
  }
  double SweepUs() const { return Median(timer_->Sample(15, {})); }

 private:
  DeviceBuffer swept_;
  std::unique_ptr<LaunchTimer> timer_;
};

TEST_F(DeviceMemoryTest, MemoryOfARowDoesNotSlowTheDeviceDown) {
  const double quiet = SweepUs();
  const int64_t kept_before = KeptDeviceBytes();
  {
    const std::unique_ptr<Memory> memory = MakeDeviceMemory();
    memory->SetBytes(memory->Allocate(kFreed), 1, kFreed);
    memory->Synchronize();
    EXPECT_LT(KeptDeviceBytes(), kept_before + kFreed);
  }
  const double after_row = SweepUs();
  EXPECT_GE(KeptDeviceBytes(), kept_before + kFreed);
  {
    const std::unique_ptr<Memory> memory = MakeDeviceMemory();
    memory->Allocate(kFreed);
    EXPECT_LT(KeptDeviceBytes(), kept_before + kFreed) << "what was kept is used again";
  }
  std::cout << "a sweep of " << kSwept << " bytes takes " << quiet << " us, " << after_row
            << " after the memory of a row\n";
  EXPECT_LT(after_row, 1.02 * quiet);
}

// Whether the previous test could have failed: not every machine shows the effect.
TEST_F(DeviceMemoryTest, FreedMemorySlowsTheDeviceDown) {
  const double quiet = SweepUs();
  DeviceBuffer(kFreed).Fill(1);
  const double after_free = SweepUs();
  std::cout << "a sweep of " << kSwept << " bytes takes " << quiet << " us, " << after_free
            << " after " << kFreed << " bytes were freed\n";
  if (after_free < 1.02 * quiet) GTEST_SKIP() << "here freed memory slows nothing down";
}

}  // namespace
}  // namespace tokline::bench
