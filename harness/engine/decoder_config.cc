// Fills in the defaults of a decoder, and derives buckets, shapes and ops from its options and
// model.
#include "harness/engine/decoder_config.h"

#include <algorithm>
#include <string>

#include "harness/engine/one_kernel_step.h"
#include "harness/engine/shared_runs.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// The number of runs of a sequence that shares chunks: one for each chunk that ends within a page,
// and one for the rest.
constexpr int32_t kReuseRuns = 8;

int32_t MaxRuns(const DecoderOptions& options) { return options.reuse ? kReuseRuns : 1; }

// The most pages of a sequence. Each run except the last may leave room on its last page.
int64_t MaxPages(const DecoderOptions& options) {
  return PagesOfSize(options.page_size).PagesFor(options.max_context) + MaxRuns(options) - 1;
}

DecoderOptions Resolve(const ModelSpec& spec, DecoderOptions options) {
  const std::string_view device = Name(options.device);
  Require(options.device == Device::kCpu || options.dtype != DType::kF32, "dtype is ",
          Name(options.dtype), " on device ", device, "; supported there: bf16, f16");
  Require(options.max_batch >= 1 && options.max_batch <= kMaxBatch, "max_batch is ",
          options.max_batch, "; it must be 1 to ", kMaxBatch);
  if (options.max_context == 0) options.max_context = spec.max_positions;
  Require(options.max_context >= 1 && options.max_context <= spec.max_positions, "max_context is ",
          options.max_context, "; the model has positions for 1 to ", spec.max_positions);
  Require(options.token_budget >= 1 && options.token_budget <= (int64_t{1} << 20),
          "token_budget is ", options.token_budget, "; it must be 1 to ", int64_t{1} << 20);
  options.token_budget = std::min(options.token_budget, options.max_batch * options.max_context);
  Require(options.page_size >= 16, "page_size is ", options.page_size,
          "; it must be a power of two from 16");
  if (options.kv_pages == 0) options.kv_pages = options.max_batch * MaxPages(options);
  Require(options.kv_pages >= 1 && options.kv_pages <= INT32_MAX / 2, "kv_pages is ",
          options.kv_pages, "; it must be 1 to ", INT32_MAX / 2);
  Require(options.pinned_pages >= 0 && options.pinned_pages < options.kv_pages, "pinned_pages is ",
          options.pinned_pages, "; it must be 0 to ", options.kv_pages - 1);
  return options;
}

std::vector<int32_t> DecodeBuckets(int32_t max_batch) {
  constexpr int32_t kStep = 64;  // between buckets beyond the last of these
  std::vector<int32_t> buckets;
  for (const int32_t bucket : {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128}) {
    if (bucket < max_batch) buckets.push_back(bucket);
  }
  for (int32_t bucket = 128 + kStep; bucket < max_batch; bucket += kStep) {
    buckets.push_back(bucket);
  }
  buckets.push_back(max_batch);
  return buckets;
}

// The largest workspace of all projections. Workspaces grow with tokens and features.
int64_t LinearWorkspace(const ModelSpec& spec, DType dtype, int64_t max_tokens,
                        int64_t max_logit_rows) {
  static constexpr float kAnyWeight[1] = {};  // only whether there is a norm weight matters
  const auto bytes = [&](int64_t tokens, int64_t in, int64_t out, bool gated, bool norm) {
    return LinearWorkspaceBytes({.dtype = dtype,
                                 .gated_silu = gated,
                                 .num_tokens = tokens,
                                 .in_features = in,
                                 .out_features = out,
                                 .norm_weight = norm ? kAnyWeight : nullptr});
  };
  const int64_t hidden = spec.hidden_size;
  return std::max({bytes(max_tokens, hidden, spec.QSize() + 2 * spec.KvSize(), false, true),
                   bytes(max_tokens, spec.QSize(), hidden, false, false),
                   bytes(max_tokens, hidden, spec.intermediate_size, true, true),
                   bytes(max_tokens, hidden, spec.UpRows(), false, false),
                   bytes(max_tokens, spec.intermediate_size, hidden, false, false),
                   bytes(max_logit_rows, hidden, spec.vocab_size, false, true)});
}

// What the fused norms and the fused MLP can do.
bool FusesNorms(const ModelSpec& spec) { return spec.norm == NormKind::kRms; }
bool FusesMlp(const ModelSpec& spec) {
  return FusesNorms(spec) && spec.mlp == ActivationKind::kGatedSilu;
}

void RequireHas(StepOpSet ops, StepOp delayed) {
  std::string names;
  for (const StepOp op : AllStepOps()) {
    if (ops.Has(op)) names += StrCat(names.empty() ? "" : ", ", Name(op));
  }
  Require(ops.Has(delayed), "the op to delay is ", Name(delayed),
          "; a decode step of this decoder has ", names);
}

}  // namespace

DecoderConfig::DecoderConfig(const ModelSpec& whole, const DecoderOptions& given,
                             const DeviceFacts& device_facts, int32_t rank)
    : options(Resolve(whole, given)),
      shard(ShardModel(whole, options.ranks, rank)),
      facts(device_facts) {
  const ModelSpec& spec = shard.local;
  layout = {.num_pages = options.kv_pages,
            .num_kv_heads = spec.num_kv_heads,
            .page_size = options.page_size,
            .head_dim = spec.head_dim,
            .order = KvOrder::kHnd};
  group = static_cast<int32_t>(spec.num_q_heads / spec.num_kv_heads);
  split_input_norm = !FusesNorms(spec) || Ablates(Ablation::kRmsNormQkv);
  split_mlp = !FusesMlp(spec) || Ablates(Ablation::kFusedMlp);
  split_final_norm = !FusesNorms(spec);
  if (Ablates(Ablation::kChunkDecode)) scratch_page = static_cast<int32_t>(layout.num_pages++);
  Validate(layout);
  max_runs = MaxRuns(options);
  max_pages = static_cast<int32_t>(MaxPages(options));
  if (OnDevice() && facts.sm_count > 0) full_grid = ChunkDecodeFullGrid(layout, facts);
  buckets = DecodeBuckets(options.max_batch);
  for (const int32_t bucket : buckets) {
    if (OneKernelRefusal(spec, *this, bucket).empty()) one_kernel_rows = bucket;
  }
  max_tokens = options.token_budget + options.max_batch;

  largest_step = std::ranges::max(
      DecodeShapes(), {}, [](const StepShape& shape) { return PlaceStep(shape, nullptr).bytes; });
  largest_step.one_kernel = one_kernel_rows > 0;
  largest_step.prefill = {.num_seqs = options.max_batch,
                          .num_tokens = options.token_budget,
                          .max_pages = int64_t{options.max_batch} * max_pages,
                          .more_chunks = options.max_batch * (max_runs - 1)};
  if (Ablates(Ablation::kPagedPrefill)) {
    largest_step.prefill.kind = AttentionKind::kChunkDecode;
    largest_step.prefill.num_seqs = static_cast<int32_t>(options.token_budget);
    largest_step.prefill.max_pages = options.token_budget * max_pages;
    largest_step.prefill.more_chunks = largest_step.prefill.num_seqs * (max_runs - 1);
    largest_step.prefill.grid = full_grid;
  } else {
    largest_step.prefill.kind = AttentionKind::kPagedPrefill;
    largest_step.prefill.max_parts = MaxPagedPrefillParts(facts);
  }
  AddRoomForTiles(largest_step.prefill);
  if (OnDevice()) {
    linear_workspace_bytes = LinearWorkspace(spec, options.dtype, max_tokens, options.max_batch);
    sampling_workspace_bytes = SamplingWorkspaceBytes(options.max_batch, whole.vocab_size);
  }
  if (options.delayed) RequireHas(DecodeOps(), options.delayed->op);
}

SumRoom SumRoomOf(const ModelSpec& spec, const DecoderOptions& options) {
  constexpr int64_t kPacketRows = 512;
  constexpr int64_t kMostSlabBytes = int64_t{256} << 20;
  SumRoom room{.hidden_size = spec.hidden_size,
               .packet_rows = std::max<int64_t>(options.max_batch, kPacketRows),
               .slab_rows = Resolve(spec, options).token_budget + options.max_batch};
  const int64_t bytes = room.SlabBytes(options.ranks);
  if (bytes > kMostSlabBytes) room.slab_rows = room.slab_rows * kMostSlabBytes / bytes;
  return room;
}

StepOpSet DecoderConfig::DecodeOps() const {
  const ModelSpec& spec = shard.local;
  const bool split_append = Ablates(Ablation::kKvAppend),
             gated = spec.mlp == ActivationKind::kGatedSilu;
  if (RunsAsOneKernel(options.max_batch)) return {StepOp::kDecodeStep, StepOp::kSampling};
  StepOpSet ops{StepOp::kEmbedding, StepOp::kQkv,    StepOp::kAttentionOutput,
                StepOp::kDown,      StepOp::kLmHead, StepOp::kSampling};
  ops.Add(Ablates(Ablation::kChunkDecode) ? StepOp::kPagedPrefill : StepOp::kChunkDecode);
  ops.Add(gated ? StepOp::kGateUp : StepOp::kUp);
  if (split_input_norm) ops.Add(StepOp::kInputNorm);
  if (split_append && spec.qk_norm) ops.Add(StepOp::kHeadNorms);
  if (split_input_norm || split_append) ops.Add(StepOp::kKvAppend);
  if (split_mlp) {
    ops.Add(StepOp::kPostNorm);
    ops.Add(StepOp::kActivation);
  }
  if (split_final_norm) ops.Add(StepOp::kFinalNorm);
  if (Divided()) {
    ops.Add(StepOp::kAllReduce);
    ops.Add(StepOp::kGatherLogits);
  }
  return ops;
}

bool Swaps(const ModelSpec& spec, Ablation ablation) {
  switch (ablation) {
    case Ablation::kRmsNormQkv:
      return FusesNorms(spec);
    case Ablation::kFusedMlp:
      return FusesMlp(spec);
    case Ablation::kPersistent:
      return FusesMlp(spec) && spec.position == PositionKind::kRope && !spec.output_bias &&
             !spec.mlp_bias;
    case Ablation::kKvAppend:
      return FusesNorms(spec) || spec.qk_norm;
    default:
      return true;
  }
}

int32_t DecoderConfig::Bucket(int32_t rows) const {
  return *std::ranges::lower_bound(buckets, rows);
}

std::vector<StepShape> DecoderConfig::DecodeShapes() const {
  std::vector<StepShape> shapes;
  for (const int32_t bucket : buckets) {
    if (RunsAsOneKernel(bucket)) shapes.push_back(OneKernelShape(bucket));
    for (const ChunkDecodeGrid& grid : DecodeGrids(bucket)) {
      shapes.push_back(DecodeShape(bucket, grid));
    }
  }
  return shapes;
}

std::vector<ChunkDecodeGrid> DecoderConfig::DecodeGrids(int32_t bucket) const {
  std::vector<ChunkDecodeGrid> grids = {full_grid};
  if (ChoosesGrid()) grids = ChunkDecodeGrids(bucket, layout, facts);
  for (const ChunkDecodeGrid& grid : RunGrids()) grids.push_back(grid);
  return grids;
}

std::vector<ChunkDecodeGrid> DecoderConfig::RunGrids() const {
  if (!SharesReads() || full_grid.num_lanes == 0) return {};
  return ChunkDecodeRunGrids(layout, facts);
}

int64_t DecoderConfig::MaxPartials(int32_t bucket) const {
  int64_t most = 0;
  for (const ChunkDecodeGrid& grid : DecodeGrids(bucket)) {
    most = std::max(most, DecodeRoomOf(DecodeShape(bucket, grid).decode).members);
  }
  return most;
}

bool DecoderConfig::ChoosesGrid() const {
  // Clusters and warps share nothing.
  return full_grid.num_lanes > 0 && !Ablates(Ablation::kChunkDecode) && !AlwaysSharesReads();
}

StepShape DecoderConfig::DecodeShape(int32_t bucket, int64_t longest, int64_t tokens,
                                     int64_t tokens_saved) const {
  const ChunkDecodeLoad load{
      .num_seqs = bucket, .longest = longest, .tokens = tokens, .tokens_saved = tokens_saved};
  return DecodeShape(bucket,
                     ChoosesGrid() ? ChooseChunkDecodeGrid(load, layout, group, facts) : full_grid);
}

StepShape DecoderConfig::DecodeShape(int32_t bucket, const ChunkDecodeGrid& grid) const {
  StepShape shape;
  shape.decode = {.kind = Ablates(Ablation::kChunkDecode) ? AttentionKind::kPagedPrefill
                                                          : AttentionKind::kChunkDecode,
                  .num_seqs = bucket,
                  .num_tokens = bucket,
                  .max_pages = int64_t{bucket} * max_pages,
                  .more_chunks = bucket * (max_runs - 1)};
  if (!Ablates(Ablation::kChunkDecode)) shape.decode.grid = grid;
  AddRoomForTiles(shape.decode);
  if (SharesReads()) {
    shape.decode.shared_runs = kMaxSharedRuns;
    shape.decode.task_members = std::min(bucket, kChunkDecodeMaxRows / group);
    shape.decode.run_task_members = std::min(bucket, kChunkDecodeRunRows / group);
    shape.decode.more_chunks += bucket * kMaxSharedRuns;
  }
  shape.logit_rows = bucket;
  return shape;
}

void DecoderConfig::AddRoomForTiles(AttentionShape& shape) const {
  if (shape.kind != AttentionKind::kPagedPrefill) return;
  shape.max_tiles = MaxPagedPrefillTiles(layout, static_cast<int32_t>(shard.local.num_q_heads),
                                         shape.num_seqs, shape.num_tokens) +
                    shape.max_parts;
}

StepShape DecoderConfig::OneKernelShape(int32_t bucket) const {
  StepShape shape = DecodeShape(bucket, full_grid);
  shape.one_kernel = true;
  shape.decode.grid = {};
  return shape;
}

}  // namespace tokline
