// Which decode steps run as one kernel, in the words of `tokline inspect`.
#include "harness/engine/one_kernel_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/tests/kernels/devices.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;

// The shape of Qwen3-0.6B.
ModelSpec Spec() {
  return {.family = "qwen3",
          .hidden_size = 1024,
          .intermediate_size = 3072,
          .num_layers = 28,
          .vocab_size = 151936,
          .max_positions = 40960,
          .num_q_heads = 16,
          .num_kv_heads = 8,
          .head_dim = 128,
          .qk_norm = true};
}

std::string Text(const ModelSpec& spec, int32_t max_batch, const DeviceFacts& facts,
                 Device device = Device::kCuda, AblationSet ablate = {}) {
  return StepPathText(spec, DecoderConfig(spec,
                                          {.device = device,
                                           .dtype = DType::kBf16,
                                           .max_batch = max_batch,
                                           .max_context = 1024,
                                           .ablate = ablate},
                                          facts));
}

TEST(OneKernelStepTest, SaysUpToWhichBatchAStepIsOneKernel) {
  EXPECT_EQ(Text(Spec(), 2, testing::kH200), "one kernel up to batch 2");
  EXPECT_EQ(
      Text(Spec(), 64, testing::kH200),
      "one kernel up to batch 2, a chain of kernels beyond (a chain is quicker for 4 tokens of "
      "1024 features of K; one kernel takes more than 2 up to 512)");
  ModelSpec narrow = Spec();
  narrow.num_kv_heads = 4;
  EXPECT_EQ(Text(narrow, 4, testing::kH200), "one kernel up to batch 4");
  EXPECT_EQ(
      Text(narrow, 64, testing::kH200),
      "one kernel up to batch 4, a chain of kernels beyond (a step of 8 tokens; it takes 1 to "
      "4)");
}

TEST(OneKernelStepTest, SaysWhyStepsAreAChain) {
  ModelSpec wide = Spec();
  wide.hidden_size = 5120;
  EXPECT_THAT(Text(wide, 4, testing::kH200), HasSubstr("hidden size 5120"));
  ModelSpec layer_norm = Spec();
  layer_norm.norm = NormKind::kLayer;
  EXPECT_THAT(Text(layer_norm, 4, testing::kH200), HasSubstr("LayerNorm; it takes RMSNorm"));
  EXPECT_THAT(Text(Spec(), 4, testing::kH200, Device::kCuda, ParseAblations("persistent")),
              HasSubstr("ablation persistent"));
  EXPECT_EQ(Text(Spec(), 4, {}, Device::kCpu), "references, one op at a time");
  EXPECT_EQ(Text(Spec(), 4, {}), "unknown without a CUDA device");
  for (const testing::NamedDevice& device : testing::Devices()) {
    if (device.facts.HasHopperCode()) continue;
    EXPECT_EQ(Text(Spec(), 4, device.facts),
              "a chain of kernels (it needs an sm_90a GPU and code compiled for it)");
  }
}

}  // namespace
}  // namespace tokline
