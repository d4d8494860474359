// Ops of chains timed in place on the device, beside delays of a known size.
#include "harness/measure/ops_in_place.h"

#include <gtest/gtest.h>

#include <map>

#include "harness/measure/op_delay.h"
#include "harness/tests/engine/golden.h"
#include "harness/tests/kernels/cuda_test.h"

namespace tokline {
namespace {

class OpsInPlaceCudaTest : public testing::CudaTest {
 protected:
  static std::map<StepOp, OpInPlace> Time(std::optional<OpDelay> delay) {
    const testing::LoadedModel model = testing::LoadTinyModel();
    Decoder decoder(model.spec, model.weights,
                    {.device = Device::kCuda,
                     .dtype = DType::kBf16,
                     .max_batch = 4,
                     .max_context = 160,
                     .page_size = 16,
                     .ablate = ParseAblations("persistent"),
                     .delayed = DelayedBy(delay, Device::kCuda)});
    decoder.WarmUp();
    std::map<StepOp, OpInPlace> ops;
    const BenchOptions bench{.batch = 4, .prompt_tokens = 16, .new_tokens = 64};
    const std::optional<std::vector<OpInPlace>> times = TimeOpsInPlace(decoder, bench, 20);
    for (const OpInPlace& op : times.value()) ops[op.op] = op;
    return ops;
  }
};

// What a delay adds to the op's own time is the delay, per launch; no other op shows it.
TEST_F(OpsInPlaceCudaTest, DelayOfAnOpIsFoundInThatOp) {
  constexpr double kDelayUs = 100;
  const auto plain = Time({});
  EXPECT_EQ(plain.size(), 8u);
  EXPECT_FALSE(plain.at(StepOp::kEmbedding).time);
  for (const StepOp delayed : {StepOp::kQkv, StepOp::kChunkDecode, StepOp::kDown}) {
    const auto slowed = Time(OpDelay{.op = delayed, .us = kDelayUs});
    for (const auto& [name, op] : slowed) {
      if (!op.time) continue;
      const auto launches = static_cast<double>(op.launches);
      const double added = (op.time->us - plain.at(name).time->us) / launches;
      // The delay is a kernel of its own, whose launch takes some microseconds at most.
      EXPECT_NEAR(added, name == delayed ? kDelayUs : 0, 5) << Name(name) << ", " << Name(delayed);
    }
  }
}

}  // namespace
}  // namespace tokline
