// Fixture of CUDA tests: skips with a visible message if there is no device.
#pragma once

#include <gtest/gtest.h>

#include "harness/platform/device.h"
#include "harness/platform/device_buffer.h"
#include "harness/tests/kernels/check.h"

namespace tokline::testing {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  }
  // Synchronises and checks every launch of a test, even if the test itself does not.
  void TearDown() override {
    if (CudaDeviceCount() == 0) return;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
};

// Fixture of tests of kernels that need wgmma and the copy engine: skips, and says so, on a GPU or
// in a program that has no code for sm_90a.
class HopperCudaTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped() && !QueryDeviceFacts().HasHopperCode()) {
      GTEST_SKIP() << "needs an sm_90a GPU and code compiled for it";
    }
  }
};

inline DeviceBuffer ToDevice(const HostTensor& host) { return DeviceBuffer(host.bytes()); }

inline HostTensor ToHost(const DeviceBuffer& device, DType dtype) {
  HostTensor host(dtype, device.bytes() / SizeOf(dtype));
  device.CopyTo(host.data(), device.bytes());
  return host;
}

}  // namespace tokline::testing
