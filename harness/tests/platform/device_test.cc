#include "harness/platform/device.h"

#include <gtest/gtest.h>

#include "harness/tests/message_of.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

TEST(DeviceTest, TooOldADeviceIsRefusedWithItsCapabilityAndTheLeast) {
  EXPECT_EQ(testing::MessageOf<RuntimeFailure>([] {
              RequireSupportedDevice("Tesla T4", {.compute_major = 7, .compute_minor = 5});
            }),
            "Tesla T4 has compute capability 7.5; 8.0 or newer is needed");
  EXPECT_NO_THROW(RequireSupportedDevice("A100", {.compute_major = 8}));
  EXPECT_NO_THROW(RequireSupportedDevice("later", {.compute_major = 12, .compute_minor = 1}));
}

}  // namespace
}  // namespace tokline
