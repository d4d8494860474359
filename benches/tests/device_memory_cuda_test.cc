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

class DeviceMemoryTest : public tokline::testing::CudaTest {};

TEST_F(DeviceMemoryTest, WhatWasFreedDoesNotSlowTheDeviceDown) {
  constexpr int64_t kFreed = int64_t{24} << 30;
  constexpr int64_t kSwept = int64_t{512} << 20;  // exceeds every cache, so DRAM limits a sweep
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  TOKLINE_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (static_cast<int64_t>(free_bytes) < 2 * (kFreed + kSwept)) {
    GTEST_SKIP() << "twice " << kFreed << " bytes do not fit into " << free_bytes << " free";
  }
  DeviceBuffer swept(kSwept);
  swept.Fill(0);
  const auto timer = MakeGraphTimer(
      [&](int, const LaunchOptions& options) {
        Sweep(swept.data(), swept.bytes(), options.stream);
      },
      {});
  const auto sweep_us = [&] { return Median(timer->Sample(15, {})); };
  const double quiet = sweep_us();

  const int64_t kept_before = KeptDeviceBytes();
  {
    const std::unique_ptr<Memory> memory = MakeDeviceMemory();
    memory->SetBytes(memory->Allocate(kFreed), 1, kFreed);
    memory->Synchronize();
    EXPECT_LT(KeptDeviceBytes(), kept_before + kFreed);
  }
  const double after_row = sweep_us();
  EXPECT_GE(KeptDeviceBytes(), kept_before + kFreed);
  {
    const std::unique_ptr<Memory> memory = MakeDeviceMemory();
    memory->Allocate(kFreed);
    EXPECT_LT(KeptDeviceBytes(), kept_before + kFreed) << "what was kept is used again";
  }

  DeviceBuffer(kFreed).Fill(1);
  const double after_free = sweep_us();
  std::cout << "a sweep of " << kSwept << " bytes takes " << quiet << " us, " << after_row
            << " after the memory of a row, " << after_free << " after as much was freed\n";
  EXPECT_LT(after_row, 1.02 * quiet);
  // Skips the test if freeing memory has no effect on this machine.
  if (after_free < 1.02 * quiet) GTEST_SKIP() << "here freed memory slows nothing down";
}

}  // namespace
}  // namespace tokline::bench
