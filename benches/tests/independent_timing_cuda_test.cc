// Compares the suite's figures with a measurement that shares only the stream with the suite's
// timer: plain launches between two events, queued behind a kernel that blocks the stream. Prints
// one line of JSON per row, also to the file that TOKLINE_INDEPENDENT_TIMING names.
//
// The device idles about 0.6 us longer between launches on a stream than between the nodes of a
// graph. This is a difference in the work, not in its timing, and an operation of several kernels
// has it several times. In a row of 100 us or more it does not matter. A shorter row is compared
// with graphs that are timed by the host's clock, without any event. The same is done with graphs
// of the suite that were slowed on purpose, with launches or with a spin, next to the same graphs
// without the slowdown.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "benches/execution.h"
#include "benches/paged_batch.h"
#include "benches/shared_matmul.h"
#include "harness/measure/launch_timer.h"
#include "harness/measure/lead_in.h"
#include "harness/measure/timing.h"
#include "harness/platform/cuda_handles.h"
#include "harness/platform/device.h"
#include "harness/record/record.h"
#include "kernels/activation/activation.h"
#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/device/cuda_check.h"
#include "kernels/device/current_device.h"
#include "kernels/embedding/embedding.h"
#include "kernels/kv_append/kv_append.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"
#include "kernels/paged_gather/paged_gather.h"
#include "kernels/paged_prefill/paged_prefill.h"
#include "kernels/sampling/sampling.h"

namespace tokline::bench {
namespace {

constexpr DType kDType = DType::kBf16;

// A kernel on one shape: its tensors, and a launch on one set of them.
struct TimedRow {
  std::string kernel;
  std::string shape;
  TensorList tensors{};
  std::function<void(const TensorSet&, const LaunchOptions&)> launch{};
};

TimedRow GatedSiluRow(int64_t tokens, int64_t intermediate) {
  TimedRow row{.kernel = "activation", .shape = StrCat("gated_silu_t", tokens, "_i", intermediate)};
  const int x = row.tensors.Random(kDType, tokens, 2 * intermediate);
  const int out = row.tensors.Output(kDType, tokens, intermediate, kElementwise);
  row.launch = [=](const TensorSet& set, const LaunchOptions& options) {
    Launch(ActivationParams{.dtype = kDType,
                            .num_tokens = tokens,
                            .intermediate_size = intermediate,
                            .x = set.At(x),
                            .x_stride = 2 * intermediate,
                            .out = set.At(out),
                            .out_stride = intermediate},
           options);
  };
  return row;
}

TimedRow RmsNormRow(int64_t tokens, int64_t hidden, bool add_given) {
  TimedRow row{.kernel = "norm",
               .shape = StrCat("rmsnorm_t", tokens, "_d", hidden, add_given ? "_add" : "")};
  const int x = row.tensors.Random(kDType, tokens, hidden);
  const int weight = row.tensors.Random(kDType, 1, hidden);
  const int out = row.tensors.Output(kDType, tokens, hidden, kElementwise);
  const int add = add_given ? row.tensors.Random(kDType, tokens, hidden) : -1;
  const int sum = add_given ? row.tensors.Output(kDType, tokens, hidden, kElementwise) : -1;
  row.launch = [=](const TensorSet& set, const LaunchOptions& options) {
    Launch(NormParams{.dtype = kDType,
                      .num_tokens = tokens,
                      .hidden_size = hidden,
                      .eps = 1e-6f,
                      .x = set.At(x),
                      .x_stride = hidden,
                      .add = set.At(add),
                      .add_stride = add_given ? hidden : 0,
                      .weight = set.At(weight),
                      .residual_out = set.At(sum),
                      .residual_out_stride = add_given ? hidden : 0,
                      .out = set.At(out),
                      .out_stride = hidden},
           options);
  };
  return row;
}

TimedRow EmbeddingRow(int64_t tokens, int64_t vocab, int64_t hidden) {
  TimedRow row{.kernel = "embedding", .shape = StrCat("t", tokens, "_v", vocab, "_d", hidden)};
  std::vector<int32_t> ids_host = ShuffledIds(vocab);
  ids_host.resize(static_cast<size_t>(tokens));
  const int table = row.tensors.Random(kDType, vocab, hidden);
  const int out = row.tensors.Output(kDType, tokens, hidden, kExact);
  const int ids = row.tensors.Table(ids_host);
  row.launch = [=](const TensorSet& set, const LaunchOptions& options) {
    Launch(EmbeddingParams{.dtype = kDType,
                           .num_tokens = tokens,
                           .vocab_size = vocab,
                           .hidden_size = hidden,
                           .token_ids = set.At<int32_t>(ids),
                           .table = set.At(table),
                           .out = set.At(out)},
           options);
  };
  return row;
}

TimedRow KvAppendRow(int64_t tokens) {
  const PagedKvLayout layout{
      .num_pages = tokens / 256, .num_kv_heads = 8, .page_size = 256, .head_dim = 128};
  TimedRow row{.kernel = "kv_append", .shape = StrCat("t", tokens, "_h8")};
  std::vector<int64_t> slots_host;
  for (int64_t token = 0; token < tokens; ++token) slots_host.push_back(token);
  const int64_t stride = int64_t{layout.num_kv_heads} * layout.head_dim;
  const int k = row.tensors.Random(kDType, tokens, stride);
  const int v = row.tensors.Random(kDType, tokens, stride);
  const int kv =
      row.tensors.Output(kDType, layout.NumElements() / layout.head_dim, layout.head_dim, kExact);
  const int slots = row.tensors.Table(slots_host);
  row.launch = [=](const TensorSet& set, const LaunchOptions& options) {
    Launch(KvAppendParams{.dtype = kDType,
                          .num_tokens = tokens,
                          .layout = layout,
                          .k = set.At(k),
                          .k_stride = stride,
                          .v = set.At(v),
                          .v_stride = stride,
                          .kv = set.At(kv),
                          .slots = set.At<int64_t>(slots)},
           options);
  };
  return row;
}

TimedRow LinearRow(int64_t tokens, int64_t in, int64_t out_features, LinearVariant variant) {
  TimedRow row{.kernel = "linear",
               .shape = StrCat("t", tokens, "_k", in, "_n", out_features,
                               variant == LinearVariant::kSkinny ? "_skinny" : "_matmul")};
  const int x = row.tensors.Random(kDType, tokens, in);
  const int weight = row.tensors.Random(kDType, out_features, in, /*log2_scale=*/-5);
  const int out = row.tensors.Output(kDType, tokens, out_features, SumTolerance(kDType));
  LinearParams params{.dtype = kDType,
                      .variant = variant,
                      .num_tokens = tokens,
                      .in_features = in,
                      .out_features = out_features,
                      .x_stride = in,
                      .out_stride = out_features,
                      .matmul = SharedMatmul()};
  params.workspace_bytes = LinearWorkspaceBytes(params);
  const int workspace = row.tensors.Workspace(params.workspace_bytes);
  row.launch = [=](const TensorSet& set, const LaunchOptions& options) {
    LinearParams bound = params;
    bound.x = set.At(x);
    bound.weight = set.At(weight);
    bound.out = set.At(out);
    bound.workspace = set.At(workspace);
    Launch(bound, options);
  };
  return row;
}

TimedRow SamplingRow(int64_t rows, int64_t vocab) {
  TimedRow row{.kernel = "sampling", .shape = StrCat("greedy_r", rows, "_v", vocab)};
  const int logits = row.tensors.Random(DType::kF32, rows, vocab);
  const int tokens = row.tensors.OutputIds(rows);
  const int rules = row.tensors.Table(std::vector<SamplingRule>(static_cast<size_t>(rows)));
  const int64_t bytes = SamplingWorkspaceBytes(rows, vocab);
  const int workspace = row.tensors.Workspace(bytes);
  row.launch = [=](const TensorSet& set, const LaunchOptions& options) {
    Launch(SamplingParams{.num_rows = rows,
                          .vocab_size = vocab,
                          .logits = set.At<float>(logits),
                          .logits_stride = vocab,
                          .rules = set.At<SamplingRule>(rules),
                          .tokens = set.At<int32_t>(tokens),
                          .workspace = set.At(workspace),
                          .workspace_bytes = bytes},
           options);
  };
  return row;
}

constexpr PagedKvLayout kPageless{.num_kv_heads = 8, .head_dim = 128};

TimedRow ChunkDecodeRow(int64_t num_seqs, int64_t length, int32_t num_q_heads) {
  TimedRow row{.kernel = "chunk_decode",
               .shape = StrCat("b", num_seqs, "_s", length, "_h", num_q_heads, "-8")};
  const PagedBatch batch =
      ShuffledBatch(kPageless, std::vector<int64_t>(static_cast<size_t>(num_seqs), length));
  const int q = row.tensors.Random(kDType, num_seqs * num_q_heads, 128);
  const int kv = row.tensors.Random(kDType, batch.PoolRows(), 128);
  const int out = row.tensors.Output(kDType, num_seqs * num_q_heads, 128, SumTolerance(kDType));
  const ChunkTable table = batch.Table();
  const TableTensors table_tensors(row.tensors, table);
  const ChunkDecodePlan plan =
      PlanChunkDecode(table.View(), batch.layout, num_q_heads, QueryDeviceFacts());
  const int plan_block = row.tensors.Table(plan.block);
  const int64_t bytes =
      ChunkDecodeWorkspaceBytes(num_seqs, plan.num_partials, num_q_heads, batch.layout);
  const int workspace = row.tensors.Workspace(bytes);
  const ChunkDecodePlanRoom room = plan.size;
  const int64_t max_partials = plan.num_partials;
  const PagedKvLayout layout = batch.layout;
  row.launch = [=](const TensorSet& set, const LaunchOptions& options) {
    Launch(ChunkDecodeParams{.dtype = kDType,
                             .num_q_heads = num_q_heads,
                             .scale = 0.088f,
                             .layout = layout,
                             .table = table_tensors.Bind(set),
                             .q = set.At(q),
                             .q_stride = int64_t{num_q_heads} * 128,
                             .kv = set.At(kv),
                             .out = set.At(out),
                             .out_stride = int64_t{num_q_heads} * 128,
                             .plan = room.View(set.At<std::byte>(plan_block)),
                             .workspace = set.At(workspace),
                             .workspace_bytes = bytes,
                             .max_partials = max_partials},
           options);
  };
  return row;
}

TimedRow PagedGatherRow(int64_t num_seqs, int64_t length) {
  TimedRow row{.kernel = "paged_gather", .shape = StrCat("b", num_seqs, "_s", length, "_h8")};
  const std::vector<int64_t> lengths(static_cast<size_t>(num_seqs), length);
  const PagedBatch batch = ShuffledBatch(kPageless, lengths);
  const int64_t tokens = num_seqs * length;
  const int kv = row.tensors.Random(kDType, batch.PoolRows(), 128);
  const int k_out = row.tensors.Output(kDType, tokens * 8, 128, kExact);
  const int v_out = row.tensors.Output(kDType, tokens * 8, 128, kExact);
  const TableTensors table(row.tensors, batch.Table());
  const int indptr = row.tensors.Table(PrefixSums(lengths));
  const PagedKvLayout layout = batch.layout;
  row.launch = [=](const TensorSet& set, const LaunchOptions& options) {
    Launch(PagedGatherParams{.dtype = kDType,
                             .layout = layout,
                             .table = table.Bind(set),
                             .total_tokens = tokens,
                             .token_indptr = set.At<int32_t>(indptr),
                             .kv = set.At(kv),
                             .k_out = set.At(k_out),
                             .v_out = set.At(v_out)},
           options);
  };
  return row;
}

TimedRow PagedPrefillRow(int64_t num_seqs, int64_t length, int32_t num_q_heads) {
  TimedRow row{.kernel = "paged_prefill",
               .shape = StrCat("b", num_seqs, "_s", length, "_h", num_q_heads, "-8")};
  const std::vector<int64_t> lengths(static_cast<size_t>(num_seqs), length);
  const PagedBatch batch = ShuffledBatch(kPageless, lengths);
  const int64_t tokens = num_seqs * length;
  const int q = row.tensors.Random(kDType, tokens * num_q_heads, 128);
  const int kv = row.tensors.Random(kDType, batch.PoolRows(), 128);
  const int out = row.tensors.Output(kDType, tokens * num_q_heads, 128, SumTolerance(kDType));
  const ChunkTable table = batch.Table();
  const TableTensors table_tensors(row.tensors, table);
  const std::vector<int32_t> indptr_host = PrefixSums(lengths);
  const int indptr = row.tensors.Table(indptr_host);
  const PagedPrefillPlan plan =
      PlanPagedPrefill(table.View(), indptr_host.data(), batch.layout, num_q_heads, /*causal=*/true,
                       CurrentDeviceFacts());
  const int tiles = row.tensors.Table(plan.tiles);
  const int32_t tile_tokens = plan.tile_tokens, num_blocks = plan.num_blocks,
                num_tiles = static_cast<int32_t>(plan.tiles.size());
  const PagedKvLayout layout = batch.layout;
  row.launch = [=](const TensorSet& set, const LaunchOptions& options) {
    Launch(PagedPrefillParams{.dtype = kDType,
                              .num_q_heads = num_q_heads,
                              .causal = true,
                              .scale = 1 / std::sqrt(128.f),
                              .layout = layout,
                              .table = table_tensors.Bind(set),
                              .total_tokens = tokens,
                              .q_indptr = set.At<int32_t>(indptr),
                              .q = set.At(q),
                              .q_stride = int64_t{num_q_heads} * 128,
                              .kv = set.At(kv),
                              .out = set.At(out),
                              .out_stride = int64_t{num_q_heads} * 128,
                              .tile_tokens = tile_tokens,
                              .num_blocks = num_blocks,
                              .num_tiles = num_tiles,
                              .tiles = set.At<PagedPrefillTile>(tiles)},
           options);
  };
  return row;
}

double SecondsOf(const std::function<void()>& work) {
  TOKLINE_CUDA(cudaDeviceSynchronize());
  const auto begin = std::chrono::steady_clock::now();
  work();
  TOKLINE_CUDA(cudaDeviceSynchronize());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// What `measure` returns. A long row reaches the power cap of some devices, whose clock then
// depends on earlier work: after a long row, the device rests twice as long as the measurement
// took. A short row does not reach it, and a device that has rested is slow at first.
template <typename Measure>
double Rested(bool rests, const Measure& measure) {
  double result = 0;
  const double seconds = SecondsOf([&] { result = measure(); });
  if (rests) std::this_thread::sleep_for(std::chrono::duration<double>(2 * seconds));
  return result;
}

// Times plain launches on the stream that rotate over the sets, between two events. Returns the
// microseconds per launch.
double IndependentUs(const TimedRow& row, const std::vector<TensorSet>& sets, int launches) {
  constexpr double kHoldUs = 5000;
  const cudaStream_t stream = WorkStream();
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  TOKLINE_CUDA(cudaEventCreate(&begin));
  TOKLINE_CUDA(cudaEventCreate(&end));
  std::vector<double> us;
  constexpr int kMaxTries = 20;
  for (int tries = 0; tries < kMaxTries && us.size() < 5; ++tries) {
    Spin(kHoldUs, stream);
    TOKLINE_CUDA(cudaEventRecord(begin, stream));
    for (size_t i = 0; i < static_cast<size_t>(launches); ++i)
      row.launch(sets[i % sets.size()], {.stream = stream});
    TOKLINE_CUDA(cudaEventRecord(end, stream));
    const bool held = cudaEventQuery(begin) == cudaErrorNotReady;  // while everything was queued
    cudaGetLastError();  // clears "not ready", which is not an error
    TOKLINE_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    TOKLINE_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (held) us.push_back(1e3 * static_cast<double>(ms) / launches);
  }
  TOKLINE_CUDA(cudaEventDestroy(end));
  TOKLINE_CUDA(cudaEventDestroy(begin));
  if (us.empty())
    throw RuntimeFailure("the host is too slow to queue launches while a stream is held");
  return Median(us);
}

// Times graphs of plain launches that rotate over the sets by the host's clock: the additional time
// of a graph with twice as many launches. The starts of graphs and the work of the host cancel out.
// Returns the microseconds per launch.
double HostClockUs(const TimedRow& row, const std::vector<TensorSet>& sets) {
  constexpr int kShort = 400, kReplays = 10;
  const cudaStream_t stream = WorkStream();
  const auto capture = [&](int launches) {
    return CaptureGraph(stream, [&] {
      for (int i = 0; i < launches; ++i) {
        row.launch(sets[static_cast<size_t>(i) % sets.size()], {.stream = stream});
      }
    });
  };
  const auto seconds = [&](const UniqueGraphExec& graph) {
    return SecondsOf([&] {
      for (int i = 0; i < kReplays; ++i) TOKLINE_CUDA(cudaGraphLaunch(graph.get(), stream));
    });
  };
  const UniqueGraphExec once = capture(kShort), twice = capture(2 * kShort);
  seconds(twice);  // uploads the graphs
  seconds(once);
  std::vector<double> us;
  for (int i = 0; i < 5; ++i)
    us.push_back(1e6 * (seconds(twice) - seconds(once)) / kReplays / kShort);
  return Median(us);
}

// Times the timer's own graph by the host's clock: the additional time of more replays. Returns the
// microseconds per counted launch.
double ReplayUs(LaunchTimer& timer) {
  constexpr int kFew = 2, kMore = 12;
  const double few = SecondsOf([&] { timer.Sample(kFew, {}); });
  const double more = SecondsOf([&] { timer.Sample(kFew + kMore, {}); });
  return 1e6 * (more - few) / kMore / timer.launches_per_sample();
}

// The minimum time of a launch of a row, which determines the measurement with which it is
// compared.
enum class RowLength : uint8_t { kShort, kLong };
constexpr double kLongUs = 100;

class IndependentTimingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  }
  // Calls `check` with the row's tensor sets and a launch on one of them.
  template <typename Check>
  static void WithTensors(const TimedRow& row, const Check& check) {
    constexpr int kSets = 2;  // cold for a long row: each set exceeds 2.5 times the L2
    TensorStore store(row.tensors, kSets, MakeDeviceMemory());
    store.FillRandom(/*seed=*/1);
    std::vector<TensorSet> sets;
    for (int set = 0; set < kSets; ++set) sets.push_back(store.Set(set));
    const std::function<void(int, const LaunchOptions&)> launch =
        [&](int set, const LaunchOptions& options) {
          row.launch(sets[static_cast<size_t>(set)], options);
        };
    launch(0, {.stream = WorkStream()});
    check(sets, launch);
  }

  static void Write(const Json& line) {
    std::cout << line.dump() << "\n";
    if (const char* path = std::getenv("TOKLINE_INDEPENDENT_TIMING")) {
      std::ofstream file(path, std::ios::app);
      file << line.dump() << "\n";
      EXPECT_TRUE(file.good()) << path << " could not be written";
    }
  }

  static void ExpectAgreement(const TimedRow& row, RowLength length = RowLength::kLong) {
    WithTensors(row, [&](const std::vector<TensorSet>& sets, const auto& launch) {
      const auto timer = MakeGraphTimer(launch, {.buffer_sets = static_cast<int>(sets.size())});
      // The same number as in a sample of the suite: a compute-bound row draws so much power that
      // the clock falls within milliseconds.
      const int launches = std::max(timer->launches_per_sample(), 6);
      const bool is_long = length == RowLength::kLong;
      // The median of the rounds' ratios: a device that drifts changes both figures of a round.
      std::vector<double> suite, independent, ratios;
      for (int round = 0; round < 5; ++round) {
        suite.push_back(Rested(is_long, [&] { return Median(timer->Sample(kMinSamples, {})); }));
        independent.push_back(Rested(is_long, [&] {
          return is_long ? IndependentUs(row, sets, launches) : HostClockUs(row, sets);
        }));
        ratios.push_back(suite.back() / independent.back());
      }
      const double ratio = Median(ratios);
      EXPECT_TRUE(!is_long || Median(suite) >= kLongUs)
          << row.kernel << " " << row.shape
          << " is too short to compare on this device: lengthen it";
      EXPECT_NEAR(ratio, 1, 0.02) << row.kernel << " " << row.shape;
      Write({{"kernel", row.kernel},
             {"shape", row.shape},
             {"suite_us", Median(suite)},
             {"independent_us", Median(independent)},
             {"ratio", ratio}});
    });
  }

  // Checks that the suite's graph with a slowdown is longer than the one without by that amount,
  // both by the host's clock and by the suite's events.
  static void ExpectSlowdown(const TimedRow& row, double percent) {
    WithTensors(row, [&](const std::vector<TensorSet>& sets, const auto& launch) {
      const GraphTimerOptions as_it_is{.buffer_sets = static_cast<int>(sets.size())};
      GraphTimerOptions slower = as_it_is;
      slower.slowdown_percent = percent;
      const auto plain = MakeGraphTimer(launch, as_it_is);
      const auto slowed = MakeGraphTimer(launch, slower);
      const bool rests = plain->Sample(1, {}).front() >= kLongUs;
      const auto rested = [rests](const auto& measure) { return Rested(rests, measure); };
      std::vector<double> suite, suite_plain, independent, independent_plain;
      for (int round = 0; round < 7; ++round) {
        suite.push_back(rested([&] { return Median(slowed->Sample(kMinSamples, {})); }));
        suite_plain.push_back(rested([&] { return Median(plain->Sample(kMinSamples, {})); }));
        independent.push_back(rested([&] { return ReplayUs(*slowed); }));
        independent_plain.push_back(rested([&] { return ReplayUs(*plain); }));
      }
      // The median of the rounds' ratios: a device that drifts changes both figures of a round.
      const auto longer = [](const std::vector<double>& slowed_us,
                             const std::vector<double>& plain_us) {
        std::vector<double> percents;
        for (size_t i = 0; i < slowed_us.size(); ++i) {
          percents.push_back(100 * (slowed_us[i] / plain_us[i] - 1));
        }
        return Median(percents);
      };
      EXPECT_NEAR(longer(independent, independent_plain), percent, 1)
          << row.kernel << " " << row.shape;
      EXPECT_NEAR(longer(suite, suite_plain), percent, 1) << row.kernel << " " << row.shape;
      Write({{"kernel", row.kernel},
             {"shape", row.shape},
             {"suite_us", Median(suite)},
             {"independent_us", Median(independent)},
             {"slowdown_percent", percent},
             {"slowed_percent", longer(independent, independent_plain)},
             {"by",
              MoreLaunches(slowed->launches_per_sample(), percent) > 0 ? "launches" : "a spin"}});
    });
  }
};

TEST_F(IndependentTimingTest, GatedSilu) {
  ExpectAgreement(GatedSiluRow(32768, 3072));
  ExpectAgreement(GatedSiluRow(12288, 8192));
}

TEST_F(IndependentTimingTest, RmsNorm) {
  ExpectAgreement(RmsNormRow(36864, 4096, /*add_given=*/false));
  ExpectAgreement(RmsNormRow(18432, 4096, /*add_given=*/true));
}

TEST_F(IndependentTimingTest, Embedding) { ExpectAgreement(EmbeddingRow(36864, 36864, 4096)); }

TEST_F(IndependentTimingTest, KvAppend) { ExpectAgreement(KvAppendRow(73728)); }

TEST_F(IndependentTimingTest, Linear) {
  ExpectAgreement(LinearRow(1, 8192, 36864, LinearVariant::kSkinny));
  ExpectAgreement(LinearRow(64, 8192, 36864, LinearVariant::kMatmul));
}

TEST_F(IndependentTimingTest, Sampling) { ExpectAgreement(SamplingRow(1024, 151936)); }

TEST_F(IndependentTimingTest, ChunkDecode) { ExpectAgreement(ChunkDecodeRow(18, 8192, 32)); }

TEST_F(IndependentTimingTest, PagedGather) { ExpectAgreement(PagedGatherRow(18, 4096)); }

TEST_F(IndependentTimingTest, PagedPrefill) { ExpectAgreement(PagedPrefillRow(16, 1024, 16)); }

// About 1,000 us on an H200.
TEST_F(IndependentTimingTest, LongRows) {
  ExpectAgreement(GatedSiluRow(81920, 8192));
  ExpectAgreement(ChunkDecodeRow(128, 8192, 32));
}

// About 2, 4 and 10 us on an H200.
TEST_F(IndependentTimingTest, ShortRows) {
  ExpectAgreement(RmsNormRow(64, 1024, /*add_given=*/false), RowLength::kShort);
  ExpectAgreement(LinearRow(8, 4096, 2560, LinearVariant::kSkinny), RowLength::kShort);
  ExpectAgreement(ChunkDecodeRow(1, 4096, 16), RowLength::kShort);
}

// Short rows and rows of about 150 us are slowed by additional launches, rows of 1,000 us by a
// spin.
TEST_F(IndependentTimingTest, SlowedKernels) {
  for (const double percent : {3.0, 10.0}) {
    ExpectSlowdown(RmsNormRow(64, 1024, /*add_given=*/false), percent);
    ExpectSlowdown(ChunkDecodeRow(1, 4096, 16), percent);
    ExpectSlowdown(LinearRow(1, 8192, 36864, LinearVariant::kSkinny), percent);
    ExpectSlowdown(GatedSiluRow(32768, 3072), percent);
    ExpectSlowdown(GatedSiluRow(81920, 8192), percent);
    ExpectSlowdown(ChunkDecodeRow(128, 8192, 32), percent);
  }
}

}  // namespace
}  // namespace tokline::bench
