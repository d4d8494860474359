// Compares the CUDA decoder in bf16 with transformers in fp32 on trained weights.
#include <gtest/gtest.h>

#include "harness/models/loaded_model.h"
#include "harness/tests/engine/trained_golden.h"
#include "harness/tests/kernels/cuda_test.h"

namespace tokline {
namespace {

class TrainedModelCudaTest : public testing::CudaTest {};

// The noise is how far transformers' own bf16 moves a margin, times the ratio that the decoder's
// other golden tests allow.
TEST_F(TrainedModelCudaTest, TokensAreThoseOfFp32WhereverTheMarginExceedsTheNoiseOfBf16) {
  const nlohmann::json golden = testing::ReadTrainedGolden();
  const auto folder = testing::TrainedModel(golden);
  if (!folder) GTEST_SKIP() << testing::kNoTrainedModel;
  const LoadedModel model(*folder);
  Decoder decoder(model.spec, model.weights,
                  {.device = Device::kCuda, .dtype = DType::kBf16, .max_context = 256});
  const double noise = 1.25 * golden.at("bf16_margin_shift").get<double>();
  testing::TrainedParity parity;
  for (const nlohmann::json& one : golden.at("cases")) {
    testing::CompareCase(decoder, one, one.at("tokens").size(), noise, parity);
  }
  EXPECT_GE(parity.compared, 300);
  EXPECT_EQ(parity.different, 0);
}

}  // namespace
}  // namespace tokline
