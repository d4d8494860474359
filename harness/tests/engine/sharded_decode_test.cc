// A model that is divided among ranks decodes as on one, and a rank that fails ends all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include "harness/models/sharding.h"
#include "harness/tests/engine/delayed_backend.h"
#include "harness/tests/engine/drawn_model.h"
#include "harness/tests/engine/golden.h"
#include "harness/tests/message_of.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::DrawnModel;
using testing::FamilyShapes;
using testing::Golden;
using ::testing::HasSubstr;
using testing::LoadedModel;
using testing::ParityResult;
using testing::ReadGolden;
using testing::RelativeError;
using ::testing::ThrowsMessage;
using testing::TinyModel;

// The sums of the ranks and of the whole model differ in the order of fp32 additions. The K-norm
// weights of the committed checkpoints, up to 96.5, amplify that; the largest error seen is 3.9e-7.
constexpr double kMostError = 2e-6;

// The numbers of ranks of a process among which a model can be divided.
std::vector<int32_t> WorldSizes(const ModelSpec& spec) {
  std::vector<int32_t> sizes = AllowedWorldSizes(spec);
  std::erase_if(sizes, [](int32_t size) { return size > kMaxRanks; });
  return sizes;
}

class ShardedCheckpointTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ShardedCheckpointTest, LogitsAndGreedyTokensAreThoseOfTransformers) {
  const Golden golden = ReadGolden(GetParam());
  const LoadedModel model(golden.checkpoint);
  EXPECT_EQ(WorldSizes(model.spec).size() == 1, model.spec.num_q_heads == 1);
  for (const int32_t ranks : WorldSizes(model.spec)) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(StrCat(ranks, " ranks, ", Name(dtype)));
      Decoder decoder(model.spec, model.weights,
                      {.ranks = ranks, .dtype = dtype, .max_context = 160, .page_size = 16});
      const ParityResult parity = CompareWithGolden(decoder, golden);
      EXPECT_LE(parity.relative_l2, dtype == DType::kF32 ? 1e-4 : 1.25 * golden.bf16_relative_l2);
      if (dtype == DType::kF32) {
        EXPECT_EQ(parity.different_tokens, 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, ShardedCheckpointTest,
                         ::testing::ValuesIn(testing::GoldenNames()),
                         [](const auto& info) { return info.param; });

// The logits along a text.
GenerateResult Along(const ModelSpec& spec, const ModelWeights& weights, int32_t ranks) {
  Decoder decoder(spec, weights, {.ranks = ranks, .max_context = 64, .page_size = 16});
  GenerateOptions options;
  options.force_ids = {3, 198, 50};
  options.max_new_tokens = std::ssize(options.force_ids);
  options.want_logits = options.want_hidden = true;
  return Generate(decoder, std::vector<int32_t>{202, 7, 0, 100, 151}, options);
}

void ExpectNear(const GenerateResult& divided, const GenerateResult& whole) {
  RelativeError logits, hidden;
  ASSERT_EQ(divided.logits.size(), whole.logits.size());
  for (size_t i = 0; i < whole.logits.size(); ++i) logits.Add(divided.logits[i], whole.logits[i]);
  hidden.Add(divided.hidden, whole.hidden);
  EXPECT_LE(logits.Value(), kMostError);
  EXPECT_LE(hidden.Value(), kMostError);
}

TEST(ShardedDecodeTest, OneToEightRanksOfEveryFamilyGiveTheLogitsOfTheWholeModel) {
  for (const ModelSpec& spec : FamilyShapes()) {
    const DrawnModel model(spec);
    const GenerateResult whole = Along(spec, model.weights, 1);
    for (const int32_t ranks : {2, 4, 8}) {
      SCOPED_TRACE(StrCat(spec.family, ", ", ranks, " ranks"));
      ExpectNear(Along(spec, model.weights, ranks), whole);
    }
  }
}

TEST(ShardedDecodeTest, RanksDrawThePartsOfTheSameRandomWeights) {
  for (const ModelSpec& spec : FamilyShapes()) {
    const GenerateResult whole = Along(spec, RandomWeights(spec, 5), 1);
    for (const int32_t ranks : {2, 8}) {
      SCOPED_TRACE(StrCat(spec.family, ", ", ranks, " ranks"));
      ExpectNear(Along(spec, RandomWeights(spec, 5), ranks), whole);
    }
  }
}

// The texts of requests that share prefixes, are preempted, and are drawn in every way.
std::map<SequenceId, std::vector<int32_t>> Texts(int32_t ranks) {
  Decoder decoder(TinyModel().spec, TinyModel().weights,
                  {.ranks = ranks,
                   .max_batch = 4,
                   .max_context = 96,
                   .kv_pages = 9,
                   .page_size = 16,
                   .token_budget = 20,
                   .reuse = true});
  const SamplingRule rules[] = {
      {}, {.temperature = 0.8f, .top_k = 40}, {.temperature = 1, .top_p = 0.7f}};
  for (int i = 0; i < 12; ++i) {
    Request request{.max_new_tokens = 40 + i};
    for (int t = 0; t < 24; ++t) request.prompt.push_back(t < 18 ? 7 + t : 3 * i + t);
    request.rule = rules[i % 3];
    request.rule.seed = static_cast<uint64_t>(i);
    request.keep = i % 2 == 0;
    decoder.Submit(request);
  }
  auto texts = testing::RunAll(decoder);
  EXPECT_GT(decoder.Schedule().Counts().preemptions, 0);
  EXPECT_GT(decoder.Schedule().Counts().reused_tokens, 0);
  return texts;
}

TEST(ShardedDecodeTest, ManyRequestsGiveTheSameTextsHoweverTheirTokensAreDrawn) {
  const auto whole = Texts(1);
  EXPECT_EQ(whole.size(), 12u);
  EXPECT_EQ(Texts(2), whole);
}

TEST(ShardedDecodeTest, ANumberOfRanksThatDoesNotDivideIsRefusedWithThoseThatDo) {
  for (const int32_t ranks : {0, 3, 5}) {
    EXPECT_THAT(
        [&] {
          Decoder(TinyModel().spec, TinyModel().weights, {.ranks = ranks, .max_context = 64});
        },
        ThrowsMessage<InvalidArgument>(
            HasSubstr(StrCat("cannot be divided among ", ranks, " ranks; allowed: 1, 2"))));
  }
}

// A step's kernels are loaded by enqueuing it without anything that runs.
TEST(ShardedDecodeTest, NobodyObservesRehearsals) {
  class RehearsingBackend : public testing::ForwardingBackend {
   public:
    explicit RehearsingBackend(int& rehearsals)
        : ForwardingBackend(MakeHostBackend()), rehearsals_(rehearsals) {}
    void Rehearse(const std::function<void()>& enqueue) override {
      ++rehearsals_;
      enqueue();
    }

   private:
    int& rehearsals_;
  };
  class Counter : public OpObserver {
   public:
    void Begin(StepOp op, std::string_view) override { samplings += op == StepOp::kSampling; }
    void End() override {}
    int samplings = 0;
  };
  int rehearsals = 0;
  Decoder decoder(
      TinyModel().spec, TinyModel().weights, {.max_context = 64},
      [&](const RankPlace&) { return std::make_unique<RehearsingBackend>(rehearsals); });
  Counter counter;
  decoder.SetObserver(&counter);
  decoder.AddSequence(std::vector<int32_t>{1, 2, 3}, {}, 5);
  int steps = 0;
  for (; decoder.HasWork(); ++steps) decoder.Step();
  decoder.SetObserver(nullptr);
  EXPECT_EQ(rehearsals, 2);  // the prompt and the first token after it
  EXPECT_EQ(counter.samplings, steps);
}

// A prompt's sums are exchanged in pieces that fit the room, which is that of the largest step.
TEST(ShardedDecodeTest, TheRoomOfSumsIsThatOfTheLargestStep) {
  const auto room = [](int64_t hidden, DecoderOptions options) {
    ModelSpec spec = TinyModel().spec;
    spec.hidden_size = hidden;
    return SumRoomOf(spec, options);
  };
  EXPECT_EQ(room(1024, {.ranks = 2, .max_batch = 3, .max_context = 100}).slab_rows, 303);
  EXPECT_EQ(room(1024, {.ranks = 2, .max_batch = 900, .max_context = 100}).packet_rows, 900);
  for (const int32_t ranks : {2, 4, 8}) {
    const SumRoom capped = room(8192, {.ranks = ranks, .max_batch = 64, .max_context = 4096});
    EXPECT_LE(capped.SlabBytes(ranks), int64_t{257} << 20);
    AllReduceNormParams sum{
        .hidden_size = 8192, .partial_stride = 8192, .residual_out_stride = 8192};
    sum.peers = {
        .world_size = ranks, .bytes = capped.Bytes(ranks), .slab_bytes = capped.SlabBytes(ranks)};
    for (void*& buffer : sum.peers.buffers) buffer = reinterpret_cast<void*>(1 << 20);
    sum.partials[0] = sum.residual_out = sum.peers.buffers[0];
    int64_t pieces = 0;
    for (int64_t rows = 8192 + 64; rows > 0; ++pieces) {
      sum.num_tokens = rows;
      sum.num_tokens = RowsInOneLaunch(sum);
      EXPECT_NO_THROW(ValidateBuffers(sum)) << ranks << " ranks, " << rows << " rows are left";
      rows -= sum.num_tokens;
    }
    EXPECT_LE(pieces, 3) << ranks;
  }
}

// The host's backend, except for what rank 1 does instead of its n-th sum.
class TroubledBackend : public testing::ForwardingBackend {
 public:
  TroubledBackend(const RankPlace& place, std::function<void()> trouble)
      : ForwardingBackend(MakeHostBackend(place)),
        rank_(place.rank),
        trouble_(std::move(trouble)) {}

  void AllReduceNorm(AllReduceNormParams params, const LaunchOptions& options) override {
    constexpr int kBefore = 7;
    if (rank_ == 1 && ++sums_ == kBefore) trouble_();
    ForwardingBackend::AllReduceNorm(params, options);
  }

 private:
  int32_t rank_;
  std::function<void()> trouble_;
  int sums_ = 0;
};

Decoder Troubled(std::function<void()> trouble, DecoderOptions options = {}) {
  options.ranks = 2;
  options.max_context = 64;
  return Decoder(TinyModel().spec, TinyModel().weights, options, [trouble](const RankPlace& place) {
    return std::make_unique<TroubledBackend>(place, trouble);
  });
}

void Decode(Decoder& decoder) {
  decoder.AddSequence(std::vector<int32_t>{1, 2, 3}, {}, 20);
  while (decoder.HasWork()) decoder.Step();
}

// A backend that says that rank 1 has another device.
class OtherDeviceBackend : public testing::ForwardingBackend {
 public:
  using Change = std::function<void(DeviceFacts&)>;
  OtherDeviceBackend(const RankPlace& place, const Change& change)
      : ForwardingBackend(MakeHostBackend(place)), facts_(ForwardingBackend::facts()) {
    if (place.rank == 1) change(facts_);
  }
  const DeviceFacts& facts() const override { return facts_; }

 private:
  DeviceFacts facts_;
};

TEST(ShardedDecodeTest, ARankOnAnotherKindOfDeviceIsRefusedWithBothKinds) {
  const auto message_of = [](const OtherDeviceBackend::Change& change) {
    return testing::MessageOf([&] {
      Decoder(TinyModel().spec, TinyModel().weights, {.ranks = 2, .max_context = 64},
              [&](const RankPlace& place) {
                return std::make_unique<OtherDeviceBackend>(place, change);
              });
    });
  };
  for (const OtherDeviceBackend::Change& change : std::vector<OtherDeviceBackend::Change>{
           [](DeviceFacts& facts) { ++facts.sm_count; },
           [](DeviceFacts& facts) { ++facts.compute_major; },
           [](DeviceFacts& facts) { ++facts.compute_minor; },
           [](DeviceFacts& facts) { ++facts.l2_bytes; },
           [](DeviceFacts& facts) { ++facts.shared_bytes_per_sm; },
           [](DeviceFacts& facts) { ++facts.shared_bytes_per_block; },
           [](DeviceFacts& facts) { ++facts.code_architecture; },
           [](DeviceFacts& facts) { facts.code_is_sm90a = !facts.code_is_sm90a; }}) {
    EXPECT_THAT(message_of(change), HasSubstr("the device of rank 1 has "));
  }
  EXPECT_THAT(message_of([](DeviceFacts& facts) { facts.max_cluster_blocks = 16; }),
              ::testing::AllOf(HasSubstr("rank 1 has "), HasSubstr("clusters of up to 16 blocks"),
                               HasSubstr("rank 0 has "), HasSubstr("clusters of up to 8 blocks")));
}

TEST(ShardedDecodeTest, ARankThatThrowsEndsAllWithItsName) {
  Decoder decoder = Troubled([] { throw RuntimeFailure("it is out of order"); });
  EXPECT_THAT([&] { Decode(decoder); },
              ThrowsMessage<RuntimeFailure>("rank 1 of 2: it is out of order"));
  EXPECT_THAT([&] { decoder.Step(); },  // and so it stays
              ThrowsMessage<RuntimeFailure>("rank 1 of 2: it is out of order"));
}

TEST(ShardedDecodeTest, ARankThatFallsBehindEndsAllWithItsName) {
  using std::chrono::milliseconds;
  Decoder decoder = Troubled([] { std::this_thread::sleep_for(milliseconds(300)); },
                             {.rank_limit = milliseconds(200)});
  EXPECT_THAT([&] { Decode(decoder); },
              ThrowsMessage<RuntimeFailure>("rank 1 of 2 hangs: the others have waited for 0.2 s"));
}

TEST(ShardedDecodeTest, ARankThatDrawsAnotherTokenEndsAllWithItsName) {
  class Disagreeing : public testing::ForwardingBackend {
   public:
    explicit Disagreeing(const RankPlace& place)
        : ForwardingBackend(MakeHostBackend(place)), rank_(place.rank) {}
    void CopyToHost(void* staging, const void* device, int64_t bytes) override {
      ForwardingBackend::CopyToHost(staging, device, bytes);
      if (bytes > 0) *static_cast<int32_t*>(staging) += rank_;
    }

   private:
    int32_t rank_;
  };
  Decoder decoder(TinyModel().spec, TinyModel().weights, {.ranks = 2, .max_context = 64},
                  [](const RankPlace& place) { return std::make_unique<Disagreeing>(place); });
  EXPECT_THAT([&] { Decode(decoder); },
              ThrowsMessage<RuntimeFailure>(HasSubstr("rank 1 of 2 drew token")));
}

}  // namespace
}  // namespace tokline
