// Tests the names of ops, and which ops a step enqueues under which ablations.
#include "harness/engine/step_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "harness/engine/ablation.h"
#include "harness/tests/engine/golden.h"
#include "harness/tests/message_of.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Records the ops that it observes, and skips the given ones.
class Listing : public OpObserver {
 public:
  explicit Listing(StepOpSet skipped = {}) : skipped_(skipped) {}
  bool Wants(StepOp op) const override { return !skipped_.Has(op); }
  void Begin(StepOp op, std::string_view kernel) override {
    begun.push_back(StrCat(Name(op), "/", kernel));
  }
  void End() override { ++ended; }

  std::vector<std::string> begun;
  int ended = 0;

 private:
  StepOpSet skipped_;
};

class StepOpsTest : public ::testing::Test {
 protected:
  explicit StepOpsTest(const char* folder = "harness/tests/golden/qwen3_tiny")
      : model_(std::filesystem::path(TOKLINE_SOURCE_DIR) / folder) {}

  // Returns the ops of a decode step with one layer, for a decoder with these options.
  std::vector<std::string> DecodeOps(DecoderOptions options, StepOpSet skipped = {}) {
    model_.spec.num_layers = 1;
    model_.weights.layers.resize(1);
    options.max_context = 64;
    Decoder decoder(model_.spec, model_.weights, options);
    decoder.AddSequence(std::vector<int32_t>{5, 6, 7}, {}, 4);
    decoder.Step();
    Listing listing(skipped);
    decoder.SetObserver(&listing);
    decoder.Step();
    decoder.SetObserver(nullptr);
    decoder.Flush();
    ended_ = listing.ended;
    return listing.begun;
  }

  // Expects that the plan names the ops that are enqueued, for many sets of ablations.
  void ExpectPlanKnowsTheOps(int32_t ranks = 1) {
    for (uint32_t bits = 0; bits < (1u << AllAblations().size()); bits += 3) {
      DecoderOptions options{.ranks = ranks};
      for (const AblationEntry& entry : AllAblations()) {
        if ((bits >> static_cast<int>(entry.ablation)) & 1u) options.ablate.Add(entry.ablation);
      }
      std::set<std::string> enqueued, planned;
      for (const std::string& op : DecodeOps(options)) enqueued.insert(op.substr(0, op.find('/')));
      const StepOpSet ops = DecoderConfig(model_.spec, options, {}).DecodeOps();
      for (const StepOp op : AllStepOps()) {
        if (ops.Has(op)) planned.insert(std::string(Name(op)));
      }
      EXPECT_EQ(planned, enqueued) << bits;
    }
  }

  testing::LoadedModel model_;
  int ended_ = 0;
};

class Gpt2StepOpsTest : public StepOpsTest {
 protected:
  Gpt2StepOpsTest() : StepOpsTest("harness/tests/golden/gpt2_tiny") {}
};

TEST_F(StepOpsTest, EveryNameIsItsOwnAndParses) {
  std::set<std::string_view> names;
  for (const StepOp op : AllStepOps()) {
    EXPECT_EQ(ParseStepOp(Name(op)), op);
    EXPECT_TRUE(names.insert(Name(op)).second) << Name(op);
  }
}

TEST_F(StepOpsTest, UnknownNameIsRefusedWithTheListOfKnownOnes) {
  const std::string message = testing::MessageOf([] { ParseStepOp("gate"); });
  for (const StepOp op : AllStepOps()) EXPECT_THAT(message, HasSubstr(std::string(Name(op))));
}

TEST_F(StepOpsTest, DecodeStepNamesEveryOpInItsOrder) {
  EXPECT_THAT(DecodeOps({}),
              ElementsAre("embedding/embedding", "qkv/rmsnorm_qkv", "chunk_decode/chunk_decode",
                          "attention_output/linear", "gate_up/linear", "down/linear",
                          "lm_head/linear", "sampling/sampling"));
  EXPECT_EQ(ended_, 8);
}

TEST_F(StepOpsTest, RanksAddTheirSumsWhichComeWithTheNorms) {
  EXPECT_THAT(DecodeOps({.ranks = 2}),
              ElementsAre("embedding/embedding", "all_reduce/all_reduce_norm", "qkv/rmsnorm_qkv",
                          "chunk_decode/chunk_decode", "attention_output/linear",
                          "all_reduce/all_reduce_norm", "gate_up/linear", "down/linear",
                          "all_reduce/all_reduce_norm", "lm_head/linear", "gather_logits/peer_copy",
                          "sampling/sampling"));
  EXPECT_EQ(ended_, 12);
}

TEST_F(StepOpsTest, PlainCounterpartsKeepTheNameOfTheirPlace) {
  EXPECT_THAT(
      DecodeOps({.ablate = ParseAblations("rmsnorm_qkv,fused_mlp,chunk_decode")}),
      ElementsAre("embedding/embedding", "input_norm/norm", "qkv/linear", "kv_append/kv_append",
                  "paged_prefill/paged_prefill", "attention_output/linear", "post_norm/norm",
                  "gate_up/linear", "activation/activation", "down/linear", "lm_head/linear",
                  "sampling/sampling"));
}

TEST_F(StepOpsTest, PlanKnowsTheOpsThatTheForwardPassEnqueues) { ExpectPlanKnowsTheOps(); }

TEST_F(StepOpsTest, PlanKnowsTheOpsOfRanks) { ExpectPlanKnowsTheOps(2); }

TEST_F(Gpt2StepOpsTest, PlanKnowsTheOpsThatTheForwardPassEnqueues) { ExpectPlanKnowsTheOps(); }

TEST_F(Gpt2StepOpsTest, PlanKnowsTheOpsOfRanks) { ExpectPlanKnowsTheOps(2); }

TEST_F(Gpt2StepOpsTest, LayerNormsAndGeluAreKernelsOfTheirOwn) {
  const auto plain = DecodeOps({});
  EXPECT_THAT(plain, ElementsAre("embedding/embedding", "input_norm/norm", "qkv/linear",
                                 "kv_append/kv_append", "chunk_decode/chunk_decode",
                                 "attention_output/linear", "post_norm/norm", "up/linear",
                                 "activation/activation", "down/linear", "final_norm/norm",
                                 "lm_head/linear", "sampling/sampling"));
  for (const AblationEntry& entry : AllAblations()) {
    const bool swaps = Swaps(model_.spec, entry.ablation);
    EXPECT_EQ(swaps, entry.name != "rmsnorm_qkv" && entry.name != "fused_mlp" &&
                         entry.name != "kv_append" && entry.name != "persistent")
        << entry.name;
    if (!swaps) {
      EXPECT_EQ(DecodeOps({.ablate = ParseAblations(entry.name)}), plain) << entry.name;
    }
  }
}

// The ops that are timed alone include every op that one of the two decoders lacks.
TEST_F(StepOpsTest, AblationsNameTheOpsThatTheyChange) {
  const StepOpSet whole = DecoderConfig(model_.spec, {}, {}).DecodeOps();
  for (const AblationEntry& entry : AllAblations()) {
    DecoderOptions options;
    options.ablate.Add(entry.ablation);
    const StepOpSet ablated = DecoderConfig(model_.spec, options, {}).DecodeOps();
    for (const StepOp op : AllStepOps()) {
      EXPECT_TRUE(whole.Has(op) == ablated.Has(op) || entry.ops.Has(op))
          << entry.name << " " << Name(op);
    }
  }
}

TEST_F(StepOpsTest, UnwantedOpIsNotEnqueued) {
  EXPECT_EQ(DecodeOps({}, {StepOp::kQkv, StepOp::kLmHead}).size(), 6u);
  EXPECT_EQ(ended_, 6);
}

TEST_F(StepOpsTest, DelayOfAnOpThatTheStepLacksIsRefusedWithThoseItHas) {
  EXPECT_THAT(
      [&] {
        DecodeOps({.delayed =
                       DelayedOp{.op = StepOp::kActivation, .delay = [](const LaunchOptions&) {}}});
      },
      ::testing::ThrowsMessage<InvalidArgument>(
          ::testing::AllOf(HasSubstr("activation"),
                           HasSubstr("embedding, qkv, chunk_decode, attention_output, gate_up, "
                                     "down, lm_head, sampling"))));
}

TEST_F(StepOpsTest, CapturingAStepLeavesTheSequencesWhereTheyAre) {
  const StepOpSet all(AllStepOps());
  const auto text = [&](bool look_ahead) {
    Decoder decoder(model_.spec, model_.weights, {.max_batch = 2, .max_context = 64});
    decoder.AddSequence(std::vector<int32_t>{5, 6, 7}, {}, 6);
    std::vector<int32_t> tokens;
    const auto take = [&](std::span<const NewToken> drawn) {
      for (const NewToken& token : drawn) tokens.push_back(token.token);
    };
    while (decoder.HasWork()) {
      Listing skip_all(all);
      if (look_ahead) decoder.CaptureNextStep(skip_all)->Enqueue();
      take(decoder.Step().tokens);
    }
    take(decoder.Flush());
    return tokens;
  };
  EXPECT_EQ(text(true), text(false));
  EXPECT_EQ(text(true).size(), 6u);
}

// With one new token the step that runs before a sequence is removed is its last, and it ends.
TEST_F(StepOpsTest, ACapturedStepThatIsDroppedLeavesNothingToReuse) {
  std::vector<int32_t> prompt(40);
  std::iota(prompt.begin(), prompt.end(), 3);
  const auto text = [&](int64_t dropped_tokens) {
    Decoder decoder(model_.spec, model_.weights,
                    {.max_batch = 2, .max_context = 64, .page_size = 16, .reuse = true});
    if (dropped_tokens > 0) {
      const StepOpSet all(AllStepOps());
      Listing skip_all(all);
      const SequenceId dropped =
          decoder.Submit({.prompt = prompt, .max_new_tokens = dropped_tokens});
      decoder.CaptureNextStep(skip_all);
      decoder.RemoveSequence(dropped);
    }
    decoder.AddSequence(prompt, {}, 6);
    return testing::RunAll(decoder).begin()->second;
  };
  EXPECT_EQ(text(6), text(0));
  EXPECT_EQ(text(1), text(0));
}

}  // namespace
}  // namespace tokline
