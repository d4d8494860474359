// Shifted spans on CUDA: the copies that the CPU's tests hold against the exact text in f32.
#include <gtest/gtest.h>

#include "harness/measure/divergence.h"
#include "harness/tests/engine/golden.h"
#include "harness/tests/engine/shifted_model.h"
#include "harness/tests/kernels/cuda_test.h"

namespace tokline {
namespace {

using testing::ChunkedRequest;
using testing::LoadedModel;

class DivergenceCudaTest : public testing::CudaTest,
                           public ::testing::WithParamInterface<std::string> {
 protected:
  static DecoderOptions Options(Device device) {
    return {.device = device,
            .dtype = DType::kBf16,
            .max_batch = 2,
            .max_context = 160,
            .page_size = 16,
            .token_budget = 30,
            .reuse = true};
  }
};

TEST_P(DivergenceCudaTest, CopiesTheKeysAndValuesOfTheExactTextInTheFirstLayer) {
  const LoadedModel model(testing::ReadGolden(GetParam()).checkpoint);
  Decoder decoder(model.spec, model.weights, Options(Device::kCuda));
  decoder.WarmUp();
  for (const int64_t prefix : {0, 9}) {
    Request request = ChunkedRequest(model.spec.vocab_size, 1, prefix);
    const SequenceId shifted = decoder.AddSequence(request);
    request.shifted.clear();
    const SequenceId exact = decoder.AddSequence(request);
    const auto drawn = [&](SequenceId id) { return decoder.Schedule().Get(id).drawn > 0; };
    while (!drawn(shifted) || !drawn(exact)) decoder.Step();
    EXPECT_EQ(decoder.Schedule().Counts().shifted_tokens, (prefix == 0 ? 1 : 2) * (39 + 18));
    const auto first = [&](const std::vector<float>& rows) {
      return std::span(rows).first(request.prompt.size() *
                                   static_cast<size_t>(model.spec.KvSize()));
    };
    const KvRows copied = decoder.ReadKv(shifted, 0), computed = decoder.ReadKv(exact, 0);
    testing::RelativeError k, v;
    k.Add(first(copied.k), first(computed.k));
    v.Add(first(copied.v), first(computed.v));
    EXPECT_LE(k.Value(), testing::kBf16KeyError);
    EXPECT_LE(v.Value(), testing::kBf16KeyError);  // the batch may change a last bit
    decoder.RemoveSequence(shifted);
    decoder.RemoveSequence(exact);
  }
}

TEST_P(DivergenceCudaTest, IsExactUpToRoundingWhereKeysDoNotDependOnTheText) {
  LoadedModel model(testing::ReadGolden(GetParam()).checkpoint);
  testing::KeepFirstLayer(model);
  Decoder decoder(model.spec, model.weights, Options(Device::kCuda));
  decoder.WarmUp();
  const Divergence divergence =
      MeasureDivergence(decoder, ChunkedRequest(model.spec.vocab_size, 2, 5));
  EXPECT_EQ(divergence.shifted_tokens, 39 + 18);
  EXPECT_LE(SummarizeKl(divergence.kl).max, testing::kBf16Kl);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, DivergenceCudaTest,
                         ::testing::ValuesIn(testing::RopeModels()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tokline
