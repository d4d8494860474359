// A model that is divided among two GPUs decodes as on one, also where a rank lags behind.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "harness/tests/engine/delayed_backend.h"
#include "harness/tests/engine/drawn_model.h"
#include "harness/tests/engine/golden.h"
#include "harness/tests/kernels/cuda_test.h"
#include "kernels/device/current_device.h"

namespace tokline {
namespace {

using testing::DrawnModel;
using testing::RelativeError;

class ShardedDecodeCudaTest : public testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    if (CudaDeviceCount() < 2) {
      GTEST_SKIP() << "needs 2 GPUs; this process sees " << CudaDeviceCount();
    }
  }
};

// The logits along a text, whose prompt is one step.
GenerateResult Along(const DrawnModel& model, DecoderOptions options, int64_t prompt_tokens) {
  options.page_size = 16;
  Decoder decoder(model.spec, model.weights, options);
  if (options.device == Device::kCuda) decoder.WarmUp();
  GenerateOptions along;
  for (int i = 0; i < 24; ++i) along.force_ids.push_back(11 * i % 203);
  along.max_new_tokens = std::ssize(along.force_ids);
  along.want_logits = true;
  std::vector<int32_t> prompt = {202, 7, 0, 100, 151};
  while (std::ssize(prompt) < prompt_tokens) prompt.push_back((31 * prompt.back() + 5) % 203);
  return Generate(decoder, prompt, along);
}

double ErrorOf(const GenerateResult& result, const GenerateResult& expected) {
  RelativeError error;
  EXPECT_EQ(result.logits.size(), expected.logits.size());
  for (size_t i = 0; i < expected.logits.size(); ++i) {
    error.Add(result.logits[i], expected.logits[i]);
  }
  return error.Value();
}

void ExpectTwoAreAsExactAsOne(const ModelSpec& spec, int64_t prompt_tokens) {
  constexpr double kAllowedRatio = 1.25;
  const DrawnModel model(spec);
  const GenerateResult expected =
      Along(model, {.device = Device::kCpu, .dtype = DType::kF32}, prompt_tokens);
  const auto error = [&](int32_t ranks) {
    const DecoderOptions options{.device = Device::kCuda, .ranks = ranks, .dtype = DType::kBf16};
    return ErrorOf(Along(model, options, prompt_tokens), expected);
  };
  const double one = error(1), two = error(2);
  std::printf("%s: error of one GPU %.4f, of two %.4f\n", spec.family.c_str(), one, two);
  EXPECT_LE(two, kAllowedRatio * one) << spec.family;
  EXPECT_GT(one, 0) << spec.family;
}

TEST_F(ShardedDecodeCudaTest, EveryFamilyIsAsExactOnTwoGpusAsOnOne) {
  for (const ModelSpec& spec : testing::FamilyShapes()) ExpectTwoAreAsExactAsOne(spec, 5);
}

// Projections of one token to 128 send their partials themselves; the sums are the same.
TEST_F(ShardedDecodeCudaTest, SentPartialsGiveTheSameBits) {
  ModelSpec spec = testing::FamilyShapes().front();
  spec.max_positions = 160;
  spec.hidden_size = 512;  // so that kWgmma and kTile run
  // The second one gives its ranks 504 and 512 neurons, of which kTile takes the latter alone.
  for (const int32_t neurons : {1024, 1016}) {
    spec.intermediate_size = neurons;
    const DrawnModel model(spec);
    for (const int64_t prompt : {5, 20, 40, 100}) {
      DecoderOptions options{.device = Device::kCuda, .ranks = 2, .dtype = DType::kBf16};
      const GenerateResult sent = Along(model, options, prompt);
      options.ablate.Add(Ablation::kSend);
      EXPECT_EQ(sent.logits, Along(model, options, prompt).logits)
          << neurons << " neurons, prompt of " << prompt;
    }
  }
}

// Counts the sums whose partials were sent.
class CountingBackend : public testing::ForwardingBackend {
 public:
  CountingBackend(const RankPlace& place, std::atomic<int>& sent)
      : ForwardingBackend(MakeCudaBackend(place)), sent_(sent) {}
  void AllReduceNorm(AllReduceNormParams params, const LaunchOptions& options) override {
    if (params.sent) ++sent_;
    ForwardingBackend::AllReduceNorm(params, options);
  }

 private:
  std::atomic<int>& sent_;
};

TEST_F(ShardedDecodeCudaTest, ProjectionsSendUnlessThatIsAblated) {
  ModelSpec spec = testing::FamilyShapes().front();
  spec.hidden_size = 512;
  spec.intermediate_size = 1024;
  const DrawnModel model(spec);
  for (const bool ablated : {false, true}) {
    std::atomic<int> sent = 0;
    DecoderOptions options{.device = Device::kCuda, .ranks = 2, .dtype = DType::kBf16};
    if (ablated) options.ablate.Add(Ablation::kSend);
    Decoder decoder(model.spec, model.weights, options, [&](const RankPlace& place) {
      return std::make_unique<CountingBackend>(place, sent);
    });
    decoder.WarmUp();
    // The projections that send are those with code for sm_90a.
    EXPECT_EQ(sent > 0, !ablated && CurrentDeviceFacts().HasHopperCode());
  }
}

// 1,500 rows of 4 KiB make sums of slabs.
TEST_F(ShardedDecodeCudaTest, ALongPromptIsAsExactOnTwoGpusAsOnOne) {
  ModelSpec spec = testing::FamilyShapes().front();
  spec.hidden_size = 2048;
  spec.max_positions = 1600;
  ExpectTwoAreAsExactAsOne(spec, 1500);
}

// Rank 1 starts each sum of a prompt late. Rank 0 is ahead of it then, and waits on its device
// while its host loads the kernels of projections of that many tokens.
class LaggingBackend : public testing::ForwardingBackend {
 public:
  explicit LaggingBackend(const RankPlace& place)
      : ForwardingBackend(MakeCudaBackend(place)), lags_(place.rank == 1) {}
  void AllReduceNorm(AllReduceNormParams params, const LaunchOptions& options) override {
    if (lags_ && params.num_tokens > kMaxSentTokens) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ForwardingBackend::AllReduceNorm(params, options);
  }

 private:
  bool lags_;
};

TEST_F(ShardedDecodeCudaTest, KernelsAreLoadedWhileARankLags) {
  const testing::LoadedModel model = testing::LoadTinyModel();
  Decoder decoder(model.spec, model.weights,
                  {.device = Device::kCuda,
                   .ranks = 2,
                   .rank_limit = std::chrono::seconds(30),
                   .dtype = DType::kBf16,
                   .max_context = 600,
                   .page_size = 16},
                  [](const RankPlace& place) { return std::make_unique<LaggingBackend>(place); });
  decoder.WarmUp();
  for (const int tokens : {140, 300, 513}) {
    std::vector<int32_t> prompt;
    for (int i = 0; i < tokens; ++i) prompt.push_back(7 * i % 300);
    GenerateOptions options;
    options.max_new_tokens = 2;
    EXPECT_EQ(Generate(decoder, prompt, options).tokens.size(), 2u);
  }
}

}  // namespace
}  // namespace tokline
