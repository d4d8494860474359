#include "kernels/device/dispatch.h"

#include <gmock/gmock.h>

namespace tokline {
namespace {

using ::testing::ThrowsMessage;

TEST(DispatchTest, TheCallGetsTheValueAsATemplateArgument) {
  int calls = 0;
  DispatchDType(DType::kF16, [&]<DType kDType>() {
    DispatchHeadDim(128, [&]<int kHeadDim>() {
      static_assert(kHeadDim == 64 || kHeadDim == 128);
      EXPECT_EQ(kDType, DType::kF16);
      EXPECT_EQ(kHeadDim, 128);
      ++calls;
    });
  });
  EXPECT_EQ(calls, 1);
}

TEST(DispatchTest, OtherValuesAreRefusedWithThoseThatAreSupported) {
  EXPECT_THAT([] { DispatchDType(DType::kF32, []<DType>() { FAIL(); }); },
              ThrowsMessage<InvalidArgument>("dtype is f32; supported on CUDA are bf16, f16"));
  EXPECT_THAT([] { DispatchHeadDim(96, []<int>() { FAIL(); }); },
              ThrowsMessage<InvalidArgument>("head_dim is 96; supported on CUDA are 64, 128"));
}

}  // namespace
}  // namespace tokline
