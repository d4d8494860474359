// Compares decode steps that read shared runs once with steps that read for each sequence alone: on
// the CPU, all logits are the same bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/tests/engine/delayed_backend.h"
#include "harness/tests/engine/golden.h"
#include "harness/tests/kernels/devices.h"

namespace tokline {
namespace {

using testing::TinyModel;

DecoderOptions Options() {
  return {.max_batch = 6,
          .max_context = 256,
          .page_size = 16,
          .token_budget = 60,
          .reuse = true,
          .sharing = ChunkSharing::kNever};
}

// Prompts that branch at two or three levels, which may end within a page.
std::vector<Request> Workload(uint32_t seed) {
  std::mt19937 rng(seed);
  const auto upto = [&rng](size_t n) { return static_cast<size_t>(rng() % n); };
  const auto text = [&](size_t length) {
    std::vector<int32_t> tokens(length);
    for (int32_t& token : tokens) token = static_cast<int32_t>(upto(384));
    return tokens;
  };
  const auto system = text(20 + upto(40));
  const std::vector<std::vector<int32_t>> books{text(16 + upto(30)), text(32), text(9)};
  const std::vector<std::vector<int32_t>> pages{text(1 + upto(20)), text(17)};
  std::vector<Request> requests;
  for (int i = 0; i < 16; ++i) {
    Request request{.prompt = system,
                    .rule = {.temperature = 0.9f, .top_k = 60, .seed = rng()},
                    .max_new_tokens = 10 + static_cast<int64_t>(upto(24)),
                    .keep = upto(2) == 0};
    const auto append = [&](const std::vector<int32_t>& more, bool cut) {
      if (cut) request.cuts.push_back(static_cast<int64_t>(request.prompt.size()));
      request.prompt.insert(request.prompt.end(), more.begin(), more.end());
    };
    append(books[upto(books.size())], i % 4 != 0);
    if (i % 3 != 0) append(pages[upto(pages.size())], i % 4 != 0);
    append(text(1 + upto(6)), i % 2 == 0);
    requests.push_back(std::move(request));
  }
  return requests;
}

// Runs both decoders side by side and compares all logits of all steps.
void ExpectSameBits(Decoder& alone, Decoder& once, const std::vector<Request>& requests) {
  std::vector<SequenceId> ids;
  for (const Request& request : requests) {
    ids.push_back(alone.Submit(request));
    ASSERT_EQ(once.Submit(request), ids.back());
  }
  while (alone.HasWork()) {
    const StepReport expected = alone.Step(), actual = once.Step();
    ASSERT_EQ(actual.decode_rows, expected.decode_rows);
    ASSERT_TRUE(
        std::ranges::equal(actual.tokens, expected.tokens, {}, &NewToken::token, &NewToken::token));
    const int64_t step = alone.Schedule().Counts().steps;
    for (const SequenceId id : ids) {
      if (!alone.Has(id) || alone.Schedule().Get(id).last_draw != step) continue;
      ASSERT_EQ(once.Logits(id), alone.Logits(id)) << "sequence " << id << ", step " << step;
    }
  }
  EXPECT_FALSE(once.HasWork());
  EXPECT_EQ(once.Reads().unshared_tokens, alone.Reads().unshared_tokens);
  EXPECT_EQ(alone.Reads().tokens, alone.Reads().unshared_tokens);
  EXPECT_LT(static_cast<double>(once.Reads().tokens),
            0.8 * static_cast<double>(once.Reads().unshared_tokens));
}

TEST(DecoderSharingTest, ReadingSharedRunsOnceGivesTheSameBits) {
  for (const int64_t kv_pages : {0, 14}) {  // 0: enough for all; 14: too few for most
    for (const uint32_t seed : {1u, 2u, 3u}) {
      DecoderOptions options = Options();
      options.kv_pages = kv_pages;
      Decoder alone(TinyModel().spec, TinyModel().weights, options);
      options.sharing = ChunkSharing::kAlways;
      Decoder once(TinyModel().spec, TinyModel().weights, options);
      ASSERT_NO_FATAL_FAILURE(ExpectSameBits(alone, once, Workload(seed))) << "seed " << seed;
      EXPECT_EQ(once.Schedule().Counts().preemptions > 0, kv_pages > 0);
    }
  }
}

TEST(DecoderSharingTest, ByPlanTheLongCommonPrefixIsReadOnce) {
  DecoderOptions options = Options();
  options.max_batch = 8;
  options.max_context = 400;
  options.token_budget = 400;
  Decoder alone(TinyModel().spec, TinyModel().weights, options);
  options.sharing = ChunkSharing::kWhenItPays;
  Decoder once(TinyModel().spec, TinyModel().weights, options);
  Request request{.prompt = {}, .max_new_tokens = 10};
  for (int32_t i = 0; i < 352; ++i) request.prompt.push_back(i * 37 % 384);
  ExpectSameBits(alone, once, std::vector<Request>(8, request));
  // In each of nine decode steps, all eight read five tiles of 64 once. The 32 tokens that remain
  // are less than a tile.
  EXPECT_EQ(once.Reads().unshared_tokens - once.Reads().tokens, 9 * 7 * 320);
  EXPECT_EQ(once.Reads().unshared_tokens, 9 * 8 * 353 + 8 * 9 * 8 / 2);
}

TEST(DecoderSharingTest, ShortCommonPrefixesAreReadAlone) {
  DecoderOptions options = Options();
  options.sharing = ChunkSharing::kWhenItPays;
  Decoder decoder(TinyModel().spec, TinyModel().weights, options);
  for (const Request& request : Workload(4)) decoder.Submit(request);
  while (decoder.HasWork()) decoder.Step();
  EXPECT_GT(decoder.Reads().unshared_tokens, 0);
  EXPECT_EQ(decoder.Reads().tokens, decoder.Reads().unshared_tokens);
}

// A device on which chunk_decode counts the tokens that its plans read, and other kernels do
// nothing.
class CountingDevice : public testing::ForwardingBackend {
 public:
  explicit CountingDevice(const DeviceFacts& facts)
      : ForwardingBackend(MakeHostBackend()), facts_(facts) {
    ops_.chunk_decode = Count;
    ops_.paged_prefill = Ignore;
    ops_.kv_append = Ignore;
    ops_.embedding = Ignore;
    ops_.norm = Ignore;
    ops_.activation = Ignore;
    ops_.linear = Ignore;
    ops_.rmsnorm_qkv = Ignore;
    ops_.sampling = Ignore;
  }
  Device device() const override { return Device::kCuda; }
  const Ops& ops() const override { return ops_; }
  const DeviceFacts& facts() const override { return facts_; }

  inline static DecodeReads reads;  // in all layers
  inline static bool by_run_lanes;
  inline static ChunkDecodeGrid grid;  // of the last launch

 private:
  template <typename Params>
  static void Ignore(const Params&, const LaunchOptions&) {}
  static void Count(const ChunkDecodeParams& params, const LaunchOptions&) {
    const ChunkDecodePlanView& plan = params.plan;
    for (int32_t t = 0; t < plan.lane_task_indptr[plan.grid.AllLanes()]; ++t) {
      const ChunkDecodeTask& task = plan.tasks[t];
      for (int32_t r = task.range_begin; r < task.range_end; ++r) {
        const int64_t tokens = plan.ranges[r].token_end - plan.ranges[r].token_begin;
        reads.tokens += tokens;
        reads.unshared_tokens += tokens * task.member_count;
      }
    }
    by_run_lanes |= plan.grid.run_lanes > 0;
    grid = plan.grid;
  }
  Ops ops_;
  DeviceFacts facts_;
};

// On a device the lanes read what was decided: long prefixes once, by run lanes if many share them,
// and what is left in clusters or warps by each sequence.
TEST(DecoderSharingTest, PlansReadWhatTheDecoderCounts) {
  struct Case {
    int32_t rows, shared;
    bool has_run_lanes, once;
  };
  for (const Case& one : {Case{200, 3000, true, true},
                          {200, 3000, false, true},
                          {200, 100, true, false},
                          {8, 3000, true, false}}) {
    DeviceFacts facts = testing::kH200;
    facts.code_is_sm90a = one.has_run_lanes;
    SCOPED_TRACE(StrCat(one.rows, " rows share ", one.shared, " tokens"));
    DecoderOptions options = Options();
    options.device = Device::kCuda;
    options.dtype = DType::kBf16;
    options.max_batch = one.rows;
    options.max_context = 4000;
    options.token_budget = 1 << 20;
    options.sharing = ChunkSharing::kWhenItPays;
    options.ablate.Add(Ablation::kPersistent);
    CountingDevice::reads = {};
    CountingDevice::by_run_lanes = false;
    const auto run = [&](const DecoderOptions& with) {
      Decoder decoder(TinyModel().spec, TinyModel().weights, with,
                      [&](const RankPlace&) { return std::make_unique<CountingDevice>(facts); });
      for (int32_t row = 0; row < one.rows; ++row) {
        Request request{.prompt = std::vector<int32_t>(static_cast<size_t>(one.shared), 1),
                        .max_new_tokens = 4};
        request.prompt.insert(request.prompt.end(), static_cast<size_t>(20 + row), 2 + row);
        decoder.Submit(std::move(request));
      }
      while (decoder.HasWork()) decoder.Step();
      return decoder.Reads();
    };
    const DecodeReads reads = run(options);
    const int64_t layers = TinyModel().spec.num_layers;
    EXPECT_EQ(CountingDevice::reads.tokens, layers * reads.tokens);
    EXPECT_EQ(CountingDevice::reads.unshared_tokens, layers * reads.unshared_tokens);
    EXPECT_EQ(reads.tokens < reads.unshared_tokens, one.once);
    EXPECT_EQ(CountingDevice::by_run_lanes, one.once && one.has_run_lanes);
    if (one.once) continue;
    // What is read alone has the grid of a decoder that does not share.
    const ChunkDecodeGrid grid = CountingDevice::grid;
    options.sharing = ChunkSharing::kNever;
    run(options);
    EXPECT_EQ(grid, CountingDevice::grid);
  }
}

// Turns and the device have room only for the arrays of the largest step, which need not be one of
// the largest bucket.
TEST(DecoderSharingTest, ArraysOfEveryShapeFitThoseOfTheLargestStep) {
  for (const testing::NamedDevice& device : testing::Devices()) {
    for (const int32_t kv_heads : {1, 2, 8, 30}) {
      for (const int32_t max_batch : {1, 2, 5, 20, 64, 200}) {
        for (const int64_t max_context : {60, 500, 4000}) {
          ModelSpec spec = TinyModel().spec;
          spec.num_kv_heads = kv_heads;
          spec.num_q_heads = 2 * kv_heads;
          DecoderOptions options = Options();
          options.device = Device::kCuda;
          options.dtype = DType::kBf16;
          options.max_batch = max_batch;
          options.max_context = max_context;
          options.sharing = ChunkSharing::kWhenItPays;
          const DecoderConfig config(spec, options, device.facts);
          SCOPED_TRACE(StrCat(::testing::PrintToString(device), ", ", kv_heads, " KV heads, up to ",
                              max_batch, " of ", max_context));
          const auto shapes = config.DecodeShapes();
          const auto with_run_lanes = std::ranges::count_if(
              shapes, [](const StepShape& shape) { return shape.decode.grid.run_lanes > 0; });
          ASSERT_EQ(with_run_lanes,
                    device.facts.HasHopperCode() ? 2 * std::ssize(config.buckets) : 0);
          for (const StepShape& shape : shapes) {
            ASSERT_LE(PlaceStep(shape, nullptr).bytes,
                      PlaceStep(config.largest_step, nullptr).bytes);
            ASSERT_LE(DecodeRoomOf(shape.decode).members,
                      config.MaxPartials(shape.decode.num_seqs));
            ASSERT_EQ(shape.decode.shared_runs, kMaxSharedRuns);
          }
        }
      }
    }
  }
}

// A step finds its graph by its grid, which follows from what it reads.
TEST(DecoderSharingTest, EveryStepHasTheShapeOfAGraph) {
  int32_t clusters = 0;
  for (const ChunkSharing sharing : {ChunkSharing::kNever, ChunkSharing::kWhenItPays}) {
    DecoderOptions options = Options();
    options.device = Device::kCuda;
    options.dtype = DType::kBf16;
    options.max_batch = 200;
    options.max_context = 4000;
    options.sharing = sharing;
    const DecoderConfig config(TinyModel().spec, options, testing::kH200);
    const std::vector<StepShape> shapes = config.DecodeShapes();
    for (const int32_t bucket : config.buckets) {
      for (const int64_t longest : {1, 64, 65, 128, 300, 1000, 4000}) {
        for (const int64_t tokens : {longest, bucket * longest}) {
          const ChunkDecodeGrid grid = config.DecodeShape(bucket, longest, tokens, 0).decode.grid;
          clusters += grid.cluster_lanes > 1;
          EXPECT_TRUE(std::ranges::any_of(shapes,
                                          [&](const StepShape& shape) {
                                            return shape.decode.num_seqs == bucket &&
                                                   shape.decode.grid == grid;
                                          }))
              << bucket << " sequences of " << longest << " tokens";
        }
      }
    }
  }
  EXPECT_GT(clusters, 0);
}

TEST(DecoderSharingTest, WithoutReuseNothingIsShared) {
  DecoderOptions options = Options();
  options.reuse = false;
  options.sharing = ChunkSharing::kAlways;
  Decoder decoder(TinyModel().spec, TinyModel().weights, options);
  for (const Request& request : Workload(5)) decoder.Submit(request);
  while (decoder.HasWork()) decoder.Step();
  EXPECT_EQ(decoder.Reads().tokens, decoder.Reads().unshared_tokens);
}

}  // namespace
}  // namespace tokline
