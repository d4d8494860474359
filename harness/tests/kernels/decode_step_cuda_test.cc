// decode_step on the device: models of many shapes within the bound of the reference, models whose
// arithmetic is exact, and the words that blocks pass to each other over many steps.
#include <algorithm>
#include <functional>
#include <numeric>

#include "harness/platform/cuda_handles.h"
#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/kernels/decode_step_case.h"
#include "harness/tests/kernels/device_table.h"
#include "harness/tests/message_of.h"
#include "kernels/common/error.h"

namespace tokline::testing {
namespace {

// A model in device memory and the workspace of all its steps.
class DeviceModel {
 public:
  explicit DeviceModel(const StepModel& model)
      : model_(model),
        embedding_(ToDevice(model.embedding)),
        final_norm_(ToDevice(model.final_norm)),
        lm_head_(ToDevice(model.lm_head)),
        layers_(ToDevice(model.layers)) {
    const PagedKvLayout layout{.num_kv_heads = model.shape.kv_heads,
                               .head_dim = model.shape.head_dim};
    workspace = DeviceBuffer(DecodeStepWorkspaceBytes(model.Bind(), layout, QueryDeviceFacts()));
    workspace.Fill(0);
  }

  const StepModel& host() const { return model_; }
  DecodeStepModel Bind() const {
    return model_.Bind(embedding_.data(), final_norm_.data(), lm_head_.data(), layers_.data());
  }

  DeviceBuffer workspace;

 private:
  const StepModel& model_;
  DeviceBuffer embedding_, final_norm_, lm_head_, layers_;
};

// A step in device memory.
class DeviceStep {
 public:
  // Cuts contexts as planned where `parts` is empty.
  DeviceStep(const DeviceModel& model, const Step& step, std::vector<int32_t> parts = {})
      : dtype_(model.host().shape.dtype),
        logits_(std::vector<float>(static_cast<size_t>(step.Tokens() * model.host().shape.vocab),
                                   NAN)) {
    params = step.Params(model.Bind(), nullptr, logits_.as<float>());
    const auto allocate = [](int64_t elements, int64_t size) {
      return DeviceBuffer(std::max<int64_t>(elements, 1) * size);
    };
    ids_ = allocate(step.Tokens(), 4);
    positions_ = allocate(step.Tokens(), 4);
    slots_ = allocate(step.Tokens(), 8);
    parts_ = allocate(step.Tokens(), 4);
    table_ = DeviceTable(params.table);
    kv_ = ToDevice(step.kv);
    rope_ = DeviceBuffer(step.rope);
    Upload(step, std::move(parts));
    params.token_ids = ids_.as<int32_t>();
    params.positions = positions_.as<int32_t>();
    params.slots = slots_.as<int64_t>();
    params.parts = parts_.as<int32_t>();
    params.table = table_.View();
    params.kv = kv_.data();
    params.rope_cos_sin = rope_.as<float>();
    params.workspace = model.workspace.data();
    params.workspace_bytes = model.workspace.bytes();
  }

  // Replaces the contents by those of a step with equally many tokens, chunks and pages.
  void Upload(const Step& step, std::vector<int32_t> parts = {}) {
    if (parts.empty()) parts = DecodeStepParts(step.tiles, step.layout, QueryDeviceFacts());
    ASSERT_EQ(static_cast<int64_t>(parts.size()), step.Tokens());
    const int32_t tasks = std::accumulate(parts.begin(), parts.end(), 0) * step.layout.num_kv_heads;
    ASSERT_TRUE(*std::max_element(parts.begin(), parts.end()) == 1 ||
                tasks <= QueryDeviceFacts().sm_count)
        << tasks << " tasks, some of which wait for others, are more than there are blocks";
    const auto copy = [](DeviceBuffer& to, const auto* from, int64_t count) {
      to.CopyFrom(from, count * static_cast<int64_t>(sizeof(*from)));
    };
    copy(ids_, step.ids.data(), step.Tokens());
    copy(positions_, step.positions.data(), step.Tokens());
    copy(slots_, step.slots.data(), step.Tokens());
    copy(parts_, parts.data(), step.Tokens());
    table_.Upload(step.table.View());
    kv_.CopyFrom(step.kv.data(), static_cast<int64_t>(step.kv.bytes().size()));
    logits_.Fill(0xff);  // NaN
  }

  StepResult Read() const { return {logits_.ToHost<float>(), ToHost(kv_, dtype_)}; }

  DecodeStepParams params;

 private:
  DType dtype_;
  DeviceBuffer logits_, ids_, positions_, slots_, parts_, kv_, rope_;
  DeviceTable table_;
};

struct RunOptions {
  std::vector<int32_t> parts = {};  // empty: as planned
  int launches = 1;
  bool dependent = false;
};

StepResult RunCuda(const DeviceModel& model, const Step& step, const RunOptions& run = {}) {
  DeviceStep device(model, step, run.parts);
  for (int i = 0; i < run.launches; ++i) {
    Launch(device.params, {.stream = nullptr, .dependent = run.dependent});
  }
  return device.Read();
}

// The bits, of which NaN has some too.
bool SameBits(const StepResult& a, const StepResult& b) {
  return a.logits.size() == b.logits.size() &&
         std::memcmp(a.logits.data(), b.logits.data(), 4 * a.logits.size()) == 0 && a.kv == b.kv;
}

class DecodeStepCudaTest : public HopperCudaTest {};

std::vector<StepModelShape> Shapes(DType dtype) {
  return {
      {.dtype = dtype, .layers = 3, .kv_heads = 1, .group = 1},
      {.dtype = dtype, .hidden = 576, .inner = 1536, .vocab = 250, .kv_heads = 3, .group = 3},
      {.dtype = dtype, .hidden = 896, .inner = 2432, .vocab = 256, .group = 7, .qkv_bias = true},
      {.dtype = dtype,
       .hidden = 1024,
       .inner = 1536,
       .vocab = 9000,
       .head_dim = 128,
       .head_norms = true},
      {.dtype = dtype,
       .layers = 3,
       .hidden = 1152,
       .inner = 704,
       .vocab = 256,
       .group = 4,
       .head_dim = 128,
       .qkv_bias = true,
       .head_norms = true},
      {.dtype = dtype,
       .hidden = 2080,
       .inner = 1056,
       .vocab = 256,
       .kv_heads = 1,
       .group = 8,
       .head_dim = 128,
       .head_norms = true},
      {.dtype = dtype,
       .layers = 1,
       .hidden = 4096,
       .inner = 160,
       .vocab = 256,
       .kv_heads = 4,
       .group = 2},
      {.dtype = dtype,
       .layers = 1,
       .hidden = 96,
       .inner = 5152,
       .vocab = 256,
       .kv_heads = 40,
       .group = 2},  // more outputs and products than one block of K has, and two tasks a block
  };
}

TEST_F(DecodeStepCudaTest, EveryModelMatchesReference) {
  const std::vector<StepRow> rows{
      {.chunks = {17}}, {.chunks = {257}}, {.chunks = {256}}, {.chunks = {100, 7, 33}}};
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const StepModelShape& shape : Shapes(dtype)) {
      const StepModel model(shape);
      const DeviceModel device(model);
      for (const size_t tokens : {1, 2, 3, 4}) {
        SCOPED_TRACE(StrCat(Name(dtype), ", hidden size ", shape.hidden, ", ", tokens, " tokens"));
        const Step step(shape, {.rows = {rows.begin(), rows.begin() + static_cast<int>(tokens)}});
        EXPECT_TRUE(MatchesReference(RunCuda(device, step), model, step));
      }
    }
  }
}

// Every block notes every phase once, also where a phase takes several passes, and nothing else.
TEST_F(DecodeStepCudaTest, StampsAscendAndChangeNothing) {
  const int64_t blocks = QueryDeviceFacts().sm_count;
  constexpr int64_t kGuards = 64;
  for (const StepModelShape& shape : Shapes(DType::kBf16)) {
    SCOPED_TRACE(StrCat("hidden size ", shape.hidden));
    const StepModel model(shape);
    const DeviceModel device(model);
    const Step step(shape, {.rows = {{.chunks = {17}}, {.chunks = {257}}}});
    const StepResult expected = RunCuda(device, step);
    const int64_t of_block = DecodeStepStamps(static_cast<int32_t>(shape.layers));
    const DeviceBuffer buffer(
        std::vector<int64_t>(static_cast<size_t>(blocks * of_block + kGuards), -1));
    DeviceStep stamped(device, step);
    stamped.params.stamps = buffer.as<int64_t>();
    Launch(stamped.params, {});
    EXPECT_TRUE(SameBits(stamped.Read(), expected));
    const std::vector<int64_t> stamps = buffer.ToHost<int64_t>();
    for (int64_t i = 0; i < blocks * of_block; ++i) {
      ASSERT_GE(stamps[static_cast<size_t>(i)],
                i % of_block == 0 ? 0 : stamps[static_cast<size_t>(i - 1)])
          << "block " << i / of_block << ", stamp " << i % of_block << " of " << of_block;
    }
    EXPECT_EQ(std::count(stamps.end() - kGuards, stamps.end(), -1), kGuards);
  }
}

TEST_F(DecodeStepCudaTest, ChunksPaddingAndUnknownTokensMatchReference) {
  for (const int32_t head_dim : {64, 128}) {
    const StepModel model(
        {.hidden = 192, .inner = 256, .vocab = 300, .head_dim = head_dim, .qkv_bias = true});
    const DeviceModel device(model);
    for (const int32_t page_size : {16, 32, 256}) {
      SCOPED_TRACE(StrCat("head_dim ", head_dim, ", page size ", page_size));
      for (const std::vector<StepRow>& rows :
           {std::vector<StepRow>{{.chunks = {7, 20, 33}},
                                 {.chunks = {0, 5, 0, 17, 0}},
                                 PaddingRow(),
                                 {.chunks = {300}, .append = false}},
            {{.chunks = {16, 16, 1}, .id = 300},
             {.chunks = {1, 1, 1, 1}, .id = -7},
             {.append = false},
             {.chunks = {256, 255, 600}}}}) {
        const Step step(model.shape, {.rows = rows, .page_size = page_size});
        EXPECT_TRUE(MatchesReference(RunCuda(device, step), model, step));
      }
    }
  }
}

TEST_F(DecodeStepCudaTest, PaddingAloneChangesNothing) {
  const StepModel model({});
  const DeviceModel device(model);
  const Step step(model.shape, {.rows = {PaddingRow(), PaddingRow(), PaddingRow()}});
  EXPECT_TRUE(MatchesReference(RunCuda(device, step), model, step));
}

TEST_F(DecodeStepCudaTest, AnyPartsMatchReference) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int32_t head_dim : {64, 128}) {
      const StepModel model({.dtype = dtype,
                             .hidden = 576,
                             .inner = 704,
                             .vocab = 256,
                             .group = 3,
                             .head_dim = head_dim,
                             .head_norms = true});
      const DeviceModel device(model);
      const Step step(model.shape, {.rows = {{.chunks = {4100}},
                                             {.chunks = {1000, 24}},
                                             {.chunks = {17}},
                                             {.chunks = {2000, 499}}}});
      const StepResult expected = RunReference(model, step);
      const StepTolerance tolerance = ToleranceOf(model, step, expected);
      for (const std::vector<int32_t>& parts :
           {std::vector<int32_t>{}, {1, 1, 1, 1}, {2, 3, 1, 5}, {9, 1, 2, 1}, {30, 4, 1, 13}}) {
        SCOPED_TRACE(StrCat(Name(dtype), ", head_dim ", head_dim, ", first context in ",
                            parts.empty() ? 0 : parts[0], " parts"));
        EXPECT_TRUE(
            Matches(RunCuda(device, step, {.parts = parts}), expected, tolerance, model, step));
      }
    }
  }
}

// A mean of values: a token that is missing or counted twice, or another's page, changes it.
TEST_F(DecodeStepCudaTest, MeansOfContextsAreExact) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int64_t hidden : {192, 1152}) {
      for (const int32_t head_dim : {64, 128}) {
        const StepModel model = ExactModel(
            {.dtype = dtype, .hidden = hidden, .inner = 96, .group = 4, .head_dim = head_dim},
            ExactPart::kAttention);
        const DeviceModel device(model);
        Step shorter(
            model.shape,
            {.rows = {
                 {.chunks = {1}}, {.chunks = {16}}, {.chunks = {9, 7}}, {.chunks = {100, 28}}}});
        Step longer(model.shape, {.rows = {{.chunks = {256}},
                                           {.chunks = {1000, 24}},
                                           {.chunks = {2048, 2000, 48}},
                                           {.chunks = {64}, .append = false}}});
        const auto expect_exact = [&](Step& step, const std::vector<std::vector<int32_t>>& cuts) {
          MakeExact(step);
          for (const std::vector<int32_t>& parts : cuts) {
            SCOPED_TRACE(StrCat(Name(dtype), ", hidden size ", hidden, ", head_dim ", head_dim,
                                ", last context in ", parts.empty() ? 0 : parts.back(), " parts"));
            EXPECT_TRUE(EqualsExactly(RunCuda(device, step, {.parts = parts}), model, step));
          }
        };
        expect_exact(shorter, {{}, {1, 1, 1, 1}, {1, 1, 2, 3}});
        expect_exact(longer, {{}, {1, 1, 1, 1}, {5, 7, 30, 1}});
        // Alone, a context has more copies under way than the weights before and after it.
        Step alone(model.shape, {.rows = {{.chunks = {2048, 2000, 48}}}});
        expect_exact(alone, {{}, {1}, {5}});
      }
    }
  }
}

TEST_F(DecodeStepCudaTest, WordsOfTheMlpAreExact) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int64_t hidden : {192, 576, 1152}) {
      const StepModel model =
          ExactModel({.dtype = dtype, .hidden = hidden, .inner = 2 * hidden + 32}, ExactPart::kMlp);
      const DeviceModel device(model);
      for (size_t tokens = 1; tokens <= kMaxDecodeStepTokens; ++tokens) {
        SCOPED_TRACE(StrCat(Name(dtype), ", hidden size ", hidden, ", ", tokens, " tokens"));
        const Step step(model.shape, {.rows = RowsOf(std::vector<int32_t>(tokens, 20))});
        EXPECT_TRUE(EqualsExactly(RunCuda(device, step), model, step));
      }
    }
  }
}

TEST_F(DecodeStepCudaTest, NormIsRoundedBeforeItsWeight) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    StepModel model = ExactModel({.dtype = dtype, .hidden = 1152}, ExactPart::kAttention);
    model.SetEach(model.o, [](int64_t, int64_t) { return 0.0; });
    const StepModel random({.dtype = dtype, .hidden = 1152, .vocab = 1152});
    model.embedding = random.embedding;
    model.final_norm = random.final_norm;
    const DeviceModel device(model);
    Step step(model.shape, {.rows = RowsOf({1, 2, 3, 8})});
    MakeExact(step);
    // Attention adds zeros, but K and V come from rounded norms and are compared within the bound.
    EXPECT_TRUE(MatchesReference(RunCuda(device, step), model, step));
    StepResult result = RunCuda(device, step);
    result.kv = RunReference(model, step).kv;
    EXPECT_TRUE(EqualsExactly(result, model, step)) << Name(dtype);
  }
}

// Steps of one model share a workspace, which must not keep words of a step longer than one step.
TEST_F(DecodeStepCudaTest, StepsOfDifferentSizesFollowEachOther) {
  for (const ExactPart part : {ExactPart::kAttention, ExactPart::kMlp}) {
    const StepModel model = ExactModel({.hidden = 576, .inner = 704}, part);
    const DeviceModel device(model);
    const std::vector<std::vector<int32_t>> steps{{4096, 1, 64, 2048},
                                                  {64},
                                                  {1024, 1, 4096},
                                                  {1, 2, 4, 8},
                                                  {1, 2, 64, 4096},
                                                  {2048},
                                                  {2},
                                                  {16, 512},
                                                  {1024, 32, 512, 4096}};
    for (size_t i = 0; i < 3 * steps.size(); ++i) {
      Step step(model.shape, {.rows = RowsOf(steps[i % steps.size()]), .seed = i});
      MakeExact(step);
      EXPECT_TRUE(EqualsExactly(RunCuda(device, step), model, step)) << "step " << i;
    }
  }
}

TEST_F(DecodeStepCudaTest, SameInputsGiveTheSameBitsEveryTime) {
  const StepModel model({.hidden = 1152,
                         .inner = 1536,
                         .vocab = 4096,
                         .group = 4,
                         .head_dim = 128,
                         .head_norms = true});
  const DeviceModel device(model);
  for (const std::vector<int32_t>& lengths :
       {std::vector<int32_t>{4000, 70, 640, 1}, {5000}, {30, 800}}) {
    const Step step(model.shape, {.rows = RowsOf(lengths)});
    const StepResult first = RunCuda(device, step);
    EXPECT_TRUE(MatchesReference(first, model, step));
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(
          SameBits(first, RunCuda(device, step, {.launches = 1 + i % 3, .dependent = i % 2 == 1})))
          << lengths.size() << " tokens, run " << i;
    }
  }
}

TEST_F(DecodeStepCudaTest, PagesDeadSlotsAndNeighboursChangeNothing) {
  const StepModel model({.hidden = 576, .inner = 704, .vocab = 512, .kv_heads = 3, .group = 3});
  const DeviceModel device(model);
  const auto first_logits = [&](std::vector<StepRow> others, std::vector<int32_t> parts,
                                const std::function<void(StepOptions&)>& change = {}) {
    others.insert(others.begin(), {.chunks = {1500, 77}});
    parts.insert(parts.begin(), 6);
    StepOptions options{.rows = std::move(others), .rope_rows = 4096};
    if (change) change(options);
    StepResult result = RunCuda(device, Step(model.shape, options), {.parts = parts});
    result.logits.resize(512);
    return result.logits;
  };
  const std::vector<StepRow> three = RowsOf({40, 700});
  const std::vector<float> base = first_logits(three, {1, 2});
  EXPECT_EQ(first_logits(three, {1, 2}, [](StepOptions& o) { o.page_seed = 5; }), base);
  EXPECT_EQ(first_logits(three, {1, 2}, [](StepOptions& o) { o.nan_in_dead_slots = false; }), base);
  EXPECT_EQ(first_logits(three, {7, 1}), base);
  EXPECT_EQ(first_logits({PaddingRow(), PaddingRow()}, {1, 1}), base);
  EXPECT_EQ(first_logits(RowsOf({1, 333, 4000}), {1, 2, 9}), base);
  // Two tokens have a kernel of their own.
  EXPECT_EQ(first_logits(RowsOf({2000}), {4}), first_logits({PaddingRow()}, {1}));
}

// The same pages with shorter contexts of one chunk each.
Step Shortened(const Step& step, const std::vector<int32_t>& lengths) {
  Step shorter = step;
  const ChunkTableView table = step.table.View();
  shorter.table.Clear();
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int32_t* const pages = table.chunk_pages + table.chunk_page_indptr[i];
    const int32_t chunk = shorter.table.AddChunk(
        {pages, table.chunk_pages + table.chunk_page_indptr[i + 1]}, lengths[i]);
    shorter.table.AddSequence({&chunk, 1});
    const int32_t last = lengths[i] - 1, page_size = step.layout.page_size;
    shorter.lengths[i] = lengths[i];
    shorter.positions[i] = last;
    shorter.slots[i] = int64_t{pages[last / page_size]} * page_size + last % page_size;
    shorter.ForSlot(shorter.slots[i], [&](int64_t at) { shorter.kv.Set(at, NAN); });
  }
  return shorter;
}

TEST_F(DecodeStepCudaTest, OneGraphServesStepsOfChangingLengths) {
  const StepModel model = ExactModel({.hidden = 192, .inner = 256}, ExactPart::kAttention);
  const DeviceModel device(model);
  Step longest(model.shape, {.rows = RowsOf({4096, 2048, 512, 64})});
  MakeExact(longest);
  DeviceStep arrays(device, longest);
  const UniqueStream stream = MakeStream();
  const UniqueGraphExec graph =
      CaptureGraph(stream.get(), [&] { Launch(arrays.params, {.stream = stream.get()}); });
  std::mt19937_64 rng(3);
  for (int replay = 0; replay < 50; ++replay) {
    std::vector<int32_t> lengths;
    for (const int32_t length : longest.lengths) {
      lengths.push_back(replay % 10 == 0 ? length : std::max(1, length >> rng() % 13));
    }
    Step step = Shortened(longest, lengths);
    for (int32_t& id : step.ids) id = static_cast<int32_t>(rng() % 192);
    arrays.Upload(step);
    TOKLINE_CUDA(cudaGraphLaunch(graph.get(), stream.get()));
    TOKLINE_CUDA(cudaStreamSynchronize(stream.get()));
    ASSERT_TRUE(EqualsExactly(arrays.Read(), model, step)) << "replay " << replay;
  }
}

TEST_F(DecodeStepCudaTest, WhatItDoesNotTakeIsRefused) {
  const StepModel model({});
  const DeviceModel device(model);
  const Step step(model.shape, {.rows = RowsOf({5, 17})});
  const auto launch = [&](const std::function<void(DecodeStepParams&)>& change) {
    DeviceStep arrays(device, step);
    change(arrays.params);
    Launch(arrays.params, {});
  };
  using P = DecodeStepParams;
  EXPECT_NO_THROW(launch([](P&) {}));
  const std::vector<std::function<void(P&)>> changes{
      [](P& p) { p.workspace = nullptr; },
      [](P& p) { p.workspace = static_cast<char*>(p.workspace) + 128; },
      [](P& p) { p.model.qkv = static_cast<const char*>(p.model.qkv) + 8; },
      [](P& p) { --p.workspace_bytes; },
      [](P& p) { p.parts = nullptr; },
      [](P& p) { p.num_tokens = p.table.num_seqs = 9; },
      [](P& p) { p.table.num_seqs = 1; },
      [](P& p) { p.table.seq_shifts = p.table.seq_chunks; },
      [](P& p) { p.layout.order = KvOrder::kNhd; },
      [](P& p) { p.layout.num_kv_heads = 3; },
      [](P& p) { p.model.num_q_heads = 18; },
      [](P& p) { p.model.hidden_size = 72; },
      [](P& p) { p.model.intermediate_size = 100; },
      [](P& p) { p.model.vocab_size = 63; },
      [](P& p) { p.model.k_norm = p.model.input_norm; },
      [](P& p) { p.model.lm_head = nullptr; },
      [](P& p) { p.model.dtype = DType::kF32; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    EXPECT_THROW(launch(changes[i]), InvalidArgument) << "change " << i;
  }
}

class DecodeStepPortableCudaTest : public CudaTest {};

// As a program compiled to PTX meets it.
TEST_F(DecodeStepPortableCudaTest, IsRefusedWithoutCodeForIt) {
  if (QueryDeviceFacts().HasHopperCode()) GTEST_SKIP() << "this program has the code";
  const StepModel model({});
  const DeviceModel device(model);
  DeviceStep arrays(device, Step(model.shape, {.rows = RowsOf({5, 17})}), {1, 1});
  const StepResult before = arrays.Read();
  EXPECT_EQ(MessageOf([&] { Launch(arrays.params, {}); }),
            "decode_step refuses this step: it needs an sm_90a GPU and code compiled for it");
  EXPECT_TRUE(SameBits(arrays.Read(), before));
}

TEST_F(DecodeStepCudaTest, NoTokensLaunchNothing) {
  const StepModel model({});
  const DeviceModel device(model);
  const Step step(model.shape, {.rows = RowsOf({5})});
  DeviceStep arrays(device, step);
  const StepResult before = arrays.Read();
  arrays.params.num_tokens = arrays.params.table.num_seqs = 0;
  EXPECT_NO_THROW(Launch(arrays.params, {}));
  EXPECT_TRUE(SameBits(arrays.Read(), before));
}

}  // namespace
}  // namespace tokline::testing
