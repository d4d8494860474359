// Compares the CUDA decoder with transformers: its error against fp32 is at most 1.25 times that of
// transformers in bf16, alone and in batches, with all kernels and with each one ablated, on one
// GPU and divided among two.
#include <gtest/gtest.h>

#include <vector>

#include "harness/engine/ablation.h"
#include "harness/models/sharding.h"
#include "harness/tests/engine/golden.h"
#include "harness/tests/kernels/cuda_test.h"

namespace tokline {
namespace {

using testing::CompareWithGolden;
using testing::Golden;
using testing::GoldenCase;
using testing::LoadedModel;
using testing::ReadGolden;
using testing::RelativeError;

constexpr double kAllowedRatio = 1.25;

// A checkpoint, and the number of GPUs among which it is divided.
struct DividedGolden {
  std::string name;
  int32_t ranks = 1;
};

void PrintTo(const DividedGolden& golden, std::ostream* out) {
  *out << golden.name << " on " << golden.ranks << " GPUs";
}

std::vector<DividedGolden> DividedGoldens() {
  std::vector<DividedGolden> all;
  for (const std::string& name : testing::GoldenNames()) {
    for (const int32_t ranks : AllowedWorldSizes(LoadModelSpec(ReadGolden(name).checkpoint))) {
      if (ranks <= 2) all.push_back({name, ranks});
    }
  }
  return all;
}

DecoderOptions CudaOptions(int32_t max_batch, int32_t ranks) {
  return {.device = Device::kCuda,
          .ranks = ranks,
          .dtype = DType::kBf16,
          .max_batch = max_batch,
          .max_context = 160,
          .page_size = 16};
}

// Decodes `batch` sequences together along the golden tokens, cycling through the cases. Removes
// the first sequence before step `remove_at`, so that row 0 is padding from then on. Returns the
// error of the logits of all others.
double BatchError(Decoder& decoder, const Golden& golden, int32_t batch, int64_t remove_at) {
  struct Running {
    const GoldenCase* golden;
    SequenceId id;
  };
  std::vector<Running> running;
  for (int32_t i = 0; i < batch; ++i) {
    const GoldenCase& one = golden.cases[static_cast<size_t>(i) % golden.cases.size()];
    const auto count = static_cast<int64_t>(one.tokens.size());
    running.push_back({&one, decoder.AddSequence(one.prompt, {}, count)});
  }
  RelativeError error;
  const auto steps = static_cast<int64_t>(golden.cases[0].tokens.size());
  size_t stored = 0;
  for (int64_t step = 0; step < steps; ++step) {
    if (step == remove_at) {
      decoder.RemoveSequence(running[0].id);
      running.erase(running.begin());
    }
    decoder.Step();
    decoder.Flush();
    const bool compare = golden.logit_steps[stored] == step;
    for (const Running& one : running) {
      if (compare) error.Add(decoder.Logits(one.id), golden.Row(*one.golden, stored));
      decoder.ReplaceNewestToken(one.id, one.golden->tokens[static_cast<size_t>(step)]);
    }
    stored += compare;
  }
  for (const Running& one : running) decoder.RemoveSequence(one.id);
  EXPECT_EQ(stored, golden.logit_steps.size());
  return error.Value();
}

class DecoderGoldenCudaTest : public testing::CudaTest,
                              public ::testing::WithParamInterface<DividedGolden> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    if (CudaDeviceCount() < GetParam().ranks) {
      GTEST_SKIP() << "needs " << GetParam().ranks << " GPUs; this process sees "
                   << CudaDeviceCount();
    }
  }
  static DecoderOptions Options(int32_t max_batch) {
    return CudaOptions(max_batch, GetParam().ranks);
  }
};

TEST_P(DecoderGoldenCudaTest, Bf16ErrorIsThatOfTransformersInBf16) {
  const Golden golden = ReadGolden(GetParam().name);
  const LoadedModel model(golden.checkpoint);
  for (const int32_t page_size : {16, 256}) {
    DecoderOptions options = Options(1);
    options.page_size = page_size;
    Decoder decoder(model.spec, model.weights, options);
    decoder.WarmUp();
    const double error = CompareWithGolden(decoder, golden).relative_l2;
    EXPECT_LE(error, kAllowedRatio * golden.bf16_relative_l2) << "page size " << page_size;
    EXPECT_GT(error, 0);
    EXPECT_GT(decoder.GraphSteps(), 0);
    EXPECT_EQ(decoder.PlainSteps(), 0);
  }
}

TEST_P(DecoderGoldenCudaTest, F16ErrorIsBelowThatOfBf16) {
  const Golden golden = ReadGolden(GetParam().name);
  const LoadedModel model(golden.checkpoint);
  DecoderOptions options = Options(1);
  options.dtype = DType::kF16;
  Decoder decoder(model.spec, model.weights, options);
  decoder.WarmUp();
  EXPECT_LE(CompareWithGolden(decoder, golden).relative_l2, golden.bf16_relative_l2);
}

// Uses 3 of 4 rows, 5 of 8, 17 of 24 (the first bucket that cuBLASLt computes), and 40 of 48.
TEST_P(DecoderGoldenCudaTest, PaddedBatchesAreAsGoodAsSingleSequences) {
  const Golden golden = ReadGolden(GetParam().name);
  const LoadedModel model(golden.checkpoint);
  Decoder decoder(model.spec, model.weights, Options(48));
  decoder.WarmUp();
  for (const int32_t batch : {3, 5, 16, 17, 40}) {
    EXPECT_LE(BatchError(decoder, golden, batch, 20), kAllowedRatio * golden.bf16_relative_l2)
        << "batch " << batch;
  }
  EXPECT_EQ(decoder.PlainSteps(), 0);
}

TEST_P(DecoderGoldenCudaTest, EveryAblationIsAsGood) {
  const Golden golden = ReadGolden(GetParam().name);
  const LoadedModel model(golden.checkpoint);
  for (const AblationEntry& entry : AllAblations()) {
    DecoderOptions options = Options(4);
    options.ablate.Add(entry.ablation);
    options.token_budget = 50;  // the longest prompt takes two steps
    Decoder decoder(model.spec, model.weights, options);
    decoder.WarmUp();
    EXPECT_LE(CompareWithGolden(decoder, golden).relative_l2,
              kAllowedRatio * golden.bf16_relative_l2)
        << entry.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, DecoderGoldenCudaTest, ::testing::ValuesIn(DividedGoldens()),
                         [](const auto& info) {
                           return info.param.name + (info.param.ranks > 1 ? "_2_gpus" : "");
                         });

}  // namespace
}  // namespace tokline
