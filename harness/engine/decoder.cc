// Implements the decoder: turns each scheduled step into arrays, uploads and runs it, and collects
// tokens as soon as that needs no waiting.
#include "harness/engine/decoder.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "harness/engine/convert_elements.h"
#include "harness/platform/clock.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Adds the duration of its scope to `seconds`.
class TimedScope {
 public:
  explicit TimedScope(double& seconds) : seconds_(seconds) {}
  ~TimedScope() { seconds_ += SecondsSince(begin_); }
  TimedScope(const TimedScope&) = delete;
  TimedScope& operator=(const TimedScope&) = delete;

 private:
  double& seconds_;
  Clock::time_point begin_ = Clock::now();
};

// A step of every rank. All ranks enqueue it at the same time.
class GroupGraph : public WorkGraph {
 public:
  // `tell` gives an order to all ranks.
  GroupGraph(std::function<void(const RankOrder&)> tell, RankOrder order)
      : tell_(std::move(tell)), graph_(order.graph) {
    tell_(order);
  }
  ~GroupGraph() override {
    try {
      tell_({.kind = RankOrderKind::kDropGraph, .graph = graph_});
    } catch (const std::exception&) {  // a rank has failed, which ends the decoder
    }
  }
  GroupGraph(const GroupGraph&) = delete;
  GroupGraph& operator=(const GroupGraph&) = delete;
  void Enqueue() override { tell_({.kind = RankOrderKind::kRunGraph, .graph = graph_}); }

 private:
  std::function<void(const RankOrder&)> tell_;
  int64_t graph_;
};

RankGroup::Options GroupOf(const ModelSpec& spec, const DecoderOptions& options) {
  ShardModel(spec, options.ranks, 0);  // throws if the model cannot be divided like this
  return {.ranks = options.Processes() == nullptr ? options.ranks : 1,
          .limit = options.rank_limit,
          .on_hang = options.on_hang};
}

std::vector<std::unique_ptr<DecoderRank>> MakeRanks(const ModelSpec& spec,
                                                    const ModelWeights& weights,
                                                    const DecoderOptions& options, RankGroup& group,
                                                    const BackendMaker& make_backend) {
  std::vector<std::unique_ptr<DecoderRank>> ranks(static_cast<size_t>(group.Size()));
  group.RunApart([&](int32_t rank) {
    const RankPlace place = PlaceOf(spec, options, &group, rank);
    ranks[static_cast<size_t>(rank)] =
        std::make_unique<DecoderRank>(spec, weights, options, rank, make_backend(place));
  });
  const DeviceFacts& first = ranks[0]->config.facts;
  for (const auto& rank : ranks) {
    RequireSameKind(first, rank->config.facts, rank->config.shard.rank);
  }
  if (ProcessGroup* const processes = options.Processes()) RequireSameKinds(*processes, first);
  return ranks;
}

SchedulerOptions ScheduleOf(const DecoderConfig& config) {
  const DecoderOptions& options = config.options;
  return {.num_pages = static_cast<int32_t>(options.kv_pages),
          .page_size = options.page_size,
          .max_batch = options.max_batch,
          .max_context = options.max_context,
          .token_budget = options.token_budget,
          .reuse = options.reuse,
          .max_runs = config.max_runs,
          .max_pinned_pages = static_cast<int32_t>(options.pinned_pages)};
}

void AddRuns(TableWriter& table, const SequencePages& pages, int64_t length, int64_t new_tokens) {
  pages.ForEachRun(length, [&table](std::span<const int32_t> run, int64_t tokens) {
    table.AddChunk(run, static_cast<int32_t>(tokens));
  });
  table.EndSequence(static_cast<int32_t>(new_tokens));
}

// Adds room for one more sequence, with `length` tokens on these pages.
void AddRoom(AttentionShape& shape, const SequencePages& pages, int64_t length) {
  ++shape.num_seqs;
  --shape.more_chunks;
  pages.ForEachRun(length, [&shape](std::span<const int32_t> run, int64_t) {
    ++shape.more_chunks;
    shape.max_pages += static_cast<int64_t>(run.size());
  });
}

void RequireVocabulary(int32_t token, int64_t vocab_size, const char* what) {
  Require(token >= 0 && token < vocab_size, what, " is ", token, "; the vocabulary has ids 0 to ",
          vocab_size - 1);
}

}  // namespace

Decoder::Decoder(const ModelSpec& spec, const ModelWeights& weights, const DecoderOptions& options)
    : Decoder(spec, weights, options,
              [&options](const RankPlace& place) { return MakeBackend(options.device, place); }) {}

Decoder::Decoder(const ModelSpec& spec, const ModelWeights& weights, const DecoderOptions& options,
                 const BackendMaker& make_backend, std::unique_ptr<RemoteRanks> remote)
    : spec_(spec),
      group_(GroupOf(spec, options)),
      ranks_(MakeRanks(spec, weights, options, group_, make_backend)),
      backend_(*ranks_[0]->backend),
      config_(ranks_[0]->config),
      buffers_(ranks_[0]->buffers),
      remote_(std::move(remote)),
      scheduler_(ScheduleOf(config_)) {
  const auto batch = static_cast<size_t>(config_.options.max_batch);
  for (EnqueuedStep& turn : turns_) turn.draws.reserve(batch);
  collected_.reserve(batch);
}

int64_t Decoder::KvTokenBytes() const {
  return 2 * spec_.num_layers * spec_.KvSize() * SizeOf(config_.options.dtype);
}

MemoryNeeds Decoder::Memory() const { return MemoryNeedsOf(spec_, config_.options, config_.facts); }

void Decoder::Tell(std::span<const RankOrder> orders) {
  if (orders.empty()) return;
  if (remote_) {
    for (const RankOrder& order : orders) remote_->Tell(order);
  }
  group_.Run([&](int32_t rank) {
    for (const RankOrder& order : orders) ranks_[static_cast<size_t>(rank)]->Obey(order);
  });
}

void Decoder::WarmUp() {
  Require(scheduler_.NumSequences() == 0, "a decoder is warmed up before it has sequences");
  Flush();
  prepared_.reset();
  DropGraphs();
  for (const StepShape& unplanned : config_.DecodeShapes()) {
    if (!config_.OnDevice()) break;  // nothing to prepare
    const std::vector<int32_t> parts(
        unplanned.one_kernel ? static_cast<size_t>(unplanned.decode.num_seqs) : 0, 1);
    const PreparedStep step =
        WriteArrays({}, {.shape = unplanned, .parts = parts, .shared = {}});  // only padding
    Tell({OrderOf(step, RankOrderKind::kCapture)});
  }
}

void Decoder::SetObserver(OpObserver* observer) {
  RankOrder order{.kind = RankOrderKind::kObserve, .leader = observer};
  if (observer != nullptr) order.observer = OpChoice::Of(*observer);
  Tell({order});
}

OpObserver* Decoder::Observer() const { return ranks_[0]->forward.Observer(); }

void Decoder::DropGraphs() { Tell({{.kind = RankOrderKind::kDropGraphs}}); }

SequenceId Decoder::Submit(Request request) {
  for (const int32_t token : request.prompt) {
    RequireVocabulary(token, spec_.vocab_size, "a prompt's token");
  }
  if (!request.shifted.empty()) RequireShiftable(spec_);
  return scheduler_.Submit(std::move(request));
}

SequenceId Decoder::AddSequence(std::span<const int32_t> prompt, const SamplingRule& rule,
                                int64_t max_new_tokens) {
  return AddSequence(
      {.prompt = {prompt.begin(), prompt.end()}, .rule = rule, .max_new_tokens = max_new_tokens});
}

SequenceId Decoder::AddSequence(Request request) {
  const int32_t there = scheduler_.NumSequences() - scheduler_.NumSources();
  Require(there < config_.options.max_batch, "the batch is full: max_batch allows ",
          config_.options.max_batch, " sequences");
  request.hold = true;
  return Submit(std::move(request));
}

void Decoder::RemoveSequence(SequenceId id) {
  // Later sequences may reuse the results of a step that was planned but only captured, so it must
  // run. The sequence may end with it.
  if (prepared_ && config_.options.reuse && scheduler_.NumSequences() == 1 && Has(id)) {
    Step();
    if (!Has(id)) return;
  }
  scheduler_.Remove(id);
  if (scheduler_.NumSequences() == 0) prepared_.reset();
}

StepReport Decoder::Step() {
  StepReport report;
  collected_.clear();
  const int current = turn_, previous = 1 - turn_;
  if (!prepared_) Prepare();
  if (prepared_) {
    const StepShape& shape = prepared_->shape;
    Tell({OrderOf(*prepared_, RankOrderKind::kRun)});
    if (shape.prefill.num_tokens == 0) {
      ++(ranks_[0]->captured.empty() ? plain_steps_ : graph_steps_);
    }
    report.prefill_tokens = prepared_->shape.prefill.num_tokens;
    report.decode_rows = prepared_->decode_rows;
    reads_.tokens += prepared_->reads.tokens;
    reads_.unshared_tokens += prepared_->reads.unshared_tokens;
    prepared_.reset();
    turns_[current].pending = true;
    turn_ = previous;
  } else if (scheduler_.HasWork()) {
    Require(turns_[previous].pending, "the KV cache is full: ", scheduler_.Pages().NumFree(),
            " of ", scheduler_.Pages().NumPages(),
            " pages are free, sequences that are held after their ",
            "end have others, and none of the ", scheduler_.NumRunning() + scheduler_.NumWaiting(),
            " unfinished sequences can continue");
  }
  Collect(previous);
  if (!backend_.asynchronous()) Collect(current);
  report.tokens = collected_;
  return report;
}

RankOrder Decoder::OrderOf(const PreparedStep& step, RankOrderKind kind) const {
  return {.kind = kind,
          .turn = turn_,
          .shape = step.shape,
          .payload = Arrays(),
          .payload_bytes = step.array_bytes};
}

void Decoder::Prepare() {
  const ScheduledStep& scheduled = scheduler_.ScheduleStep();
  if (!scheduled.Empty()) prepared_ = WriteArrays(scheduled, PlanStep(scheduled));
  std::vector<RankOrder> orders;
  if (!scheduled.moves.empty()) {
    orders.push_back(RankOrder{.kind = RankOrderKind::kMove, .turn = turn_}.With(scheduled.moves));
  }
  std::vector<ShiftedCopy::Block> blocks;
  for (const Sequence* sequence : scheduled.shifted) {
    for (auto& block : ranks_[0]->shifted_copy.Plan(*sequence, scheduler_.Chunks())) {
      orders.push_back(RankOrder{
          .kind = RankOrderKind::kCopyShifted, .pages = block.pages, .tokens = block.tokens}
                           .With(block.tables));
      blocks.push_back(std::move(block));  // its tables stay where they are
    }
  }
  Tell(orders);
  if (!prepared_) return;
  EnqueuedStep& turn = turns_[turn_];
  turn.draws.clear();
  const auto draw = [&turn](const StepSlice& slice) {
    if (slice.draws) turn.draws.push_back({.id = slice.sequence->id, .seat = slice.seat});
  };
  for (const StepSlice& slice : scheduled.decode) draw(slice);
  for (const StepSlice& slice : scheduled.prefill) draw(slice);
}

std::unique_ptr<WorkGraph> Decoder::CaptureNextStep(OpObserver& observer) {
  if (!prepared_) Prepare();
  Require(prepared_.has_value(), "there is no work for another step");
  RankOrder order = OrderOf(*prepared_, RankOrderKind::kMakeGraph);
  order.graph = ++graphs_made_;
  order.observer = OpChoice::Of(observer);
  order.leader = &observer;
  return std::make_unique<GroupGraph>([this](const RankOrder& told) { Tell({told}); }, order);
}

std::span<const NewToken> Decoder::Flush() {
  collected_.clear();
  Collect(1 - turn_);
  return collected_;
}

Decoder::StepPlan Decoder::PlanStep(const ScheduledStep& scheduled) const {
  std::vector<int32_t> parts = OneKernelParts(scheduled);
  const bool one_kernel = !parts.empty();
  StepPlan chain;
  if (!one_kernel || config_.SharesReads()) chain = PlanChain(scheduled);
  // The single kernel reads shared contexts separately for each sequence. That pays as long as
  // these bytes take less time than the launches of a layer in a chain.
  constexpr int64_t kWorthBytes = int64_t{32} << 20;
  const int64_t layer_bytes = KvTokenBytes() / spec_.num_layers;
  if (!one_kernel || chain.tokens_saved * layer_bytes >= kWorthBytes) return chain;
  const auto bucket = static_cast<int32_t>(parts.size());
  return {.shape = config_.OneKernelShape(bucket), .parts = std::move(parts), .shared = {}};
}

Decoder::StepPlan Decoder::PlanChain(const ScheduledStep& scheduled) const {
  StepPlan plan{.shape = {}, .parts = {}, .shared = SharedRunsOf(scheduled)};
  StepShape& shape = plan.shape;
  if (scheduled.decode_rows > 0) {
    const int32_t bucket = config_.Bucket(static_cast<int32_t>(scheduled.decode.size()));
    int64_t longest = 1, tokens = 0;
    for (const StepSlice& slice : scheduled.decode) {
      longest = std::max(longest, slice.begin + slice.count);
      tokens += slice.begin + slice.count;
    }
    shape =
        config_.DecodeShape(bucket, longest, tokens, SharedTokensSaved(plan.shared, config_.group));
    if (!plan.shared.empty()) {
      const StepArrays arrays = PlaceStep(shape, ArraysToWrite());
      WriteDecodeTable(scheduled, shape, arrays, plan.shared);
      const ChunkDecodeChoice choice =
          ChooseChunkDecodeSharing(arrays.decode.Table(shape.decode), plan.shared, config_.layout,
                                   config_.shard.local.num_q_heads, config_.facts,
                                   config_.options.sharing, shape.decode.grid);
      plan.tokens_saved = choice.tokens_saved;
      if (choice.runs.empty()) {
        plan.shared.clear();
        shape = config_.DecodeShape(bucket, longest, tokens, 0);
      } else {
        shape = config_.DecodeShape(bucket, choice.grid);
      }
    }
  }
  AttentionShape& prefill = shape.prefill;
  const AttentionShape& largest = config_.largest_step.prefill;
  prefill = {.kind = largest.kind, .grid = largest.grid, .max_parts = largest.max_parts};
  for (const StepSlice& slice : scheduled.prefill) {
    prefill.num_tokens += slice.count;
    const SequencePages& pages = slice.sequence->pages;
    switch (prefill.kind) {
      case AttentionKind::kPagedPrefill:
        AddRoom(prefill, pages, slice.begin + slice.count);
        break;
      case AttentionKind::kChunkDecode:  // every token is a separate sequence
        for (int64_t i = 0; i < slice.count; ++i) AddRoom(prefill, pages, slice.begin + i + 1);
        break;
    }
    if (slice.draws) shape.logit_rows = std::max(shape.logit_rows, slice.seat + 1);
  }
  config_.AddRoomForTiles(prefill);
  return plan;
}

std::vector<int32_t> Decoder::DecodeTiles(const ScheduledStep& scheduled, int32_t rows) const {
  std::vector<int32_t> tiles(static_cast<size_t>(rows));
  for (const StepSlice& slice : scheduled.decode) {
    if (slice.sequence == nullptr) continue;
    int32_t& count = tiles[static_cast<size_t>(slice.seat)];
    slice.sequence->pages.ForEachRun(
        slice.begin + slice.count,
        [&count](std::span<const int32_t>, int64_t tokens) { count += DecodeStepTiles(tokens); });
  }
  return tiles;
}

std::vector<int32_t> Decoder::OneKernelParts(const ScheduledStep& scheduled) const {
  if (scheduled.decode_rows == 0 || !scheduled.prefill.empty()) return {};
  const int32_t bucket = config_.Bucket(static_cast<int32_t>(scheduled.decode.size()));
  if (!config_.RunsAsOneKernel(bucket)) return {};
  if (Observer() != nullptr && Observer()->NeedsChain()) return {};
  return DecodeStepParts(DecodeTiles(scheduled, bucket), config_.layout, config_.facts);
}

std::vector<SharedRun> Decoder::SharedRunsOf(const ScheduledStep& scheduled) const {
  if (!config_.SharesReads()) return {};
  std::vector<std::span<const ChunkId>> chains(scheduled.decode.size());
  for (size_t row = 0; row < chains.size(); ++row) {
    if (scheduled.decode[row].sequence != nullptr)
      chains[row] = scheduled.decode[row].sequence->chunks;
  }
  return SharedRunsOfChains(chains, scheduler_.Chunks(), config_.layout.Pages(), config_.group,
                            config_.options.sharing);
}

std::byte* Decoder::ArraysToWrite() const {
  Require(!turns_[turn_].pending, "the arrays of a step are rewritten while it is in flight");
  return Arrays();
}

Decoder::PreparedStep Decoder::WriteArrays(const ScheduledStep& scheduled, StepPlan plan) {
  auto& [shape, parts, shared, tokens_saved] = plan;
  const StepArrays arrays = PlaceStep(shape, ArraysToWrite());
  WriteRows(scheduled, shape, arrays);
  WritePrefillTable(scheduled, shape, arrays);
  std::ranges::copy(parts, arrays.parts);
  const int64_t decode_pages = WriteDecodeTable(scheduled, shape, arrays, shared);
  const int32_t q_heads = config_.shard.local.num_q_heads;
  PlanAttention(shape.prefill, arrays.prefill, config_.layout, q_heads, config_.facts);
  PlanAttention(shape.decode, arrays.decode, config_.layout, q_heads, config_.facts, shared);
  PreparedStep step{.shape = shape,
                    .array_bytes = arrays.bytes,
                    .decode_rows = scheduled.decode_rows,
                    .reads = {}};
  for (const StepSlice& slice : scheduled.decode)
    step.reads.unshared_tokens += slice.begin + slice.count;
  step.reads.tokens = step.reads.unshared_tokens - tokens_saved;
  // The pages of the decode rows come last, with room for the longest contexts. Only the part that
  // is used is copied.
  if (shape.decode.num_seqs > 0) {
    step.array_bytes = reinterpret_cast<std::byte*>(arrays.decode.chunk_pages) - Arrays() +
                       decode_pages * int64_t{sizeof(int32_t)};
  }
  *arrays.bytes_used = step.array_bytes;
  return step;
}

void Decoder::WriteRows(const ScheduledStep& scheduled, const StepShape& shape,
                        const StepArrays& arrays) const {
  std::fill_n(arrays.logit_tokens, shape.logit_rows, -1);
  std::fill_n(arrays.rules, shape.logit_rows, SamplingRule{});
  std::fill_n(arrays.only_best, shape.logit_rows, 1);
  std::fill_n(arrays.positions, shape.decode.num_tokens, 0);  // stays in padding rows
  std::fill_n(arrays.slots, shape.decode.num_tokens, -1);
  const auto write = [&](int64_t row, const StepSlice& slice) {
    const Sequence& sequence = *slice.sequence;
    for (int64_t i = 0; i < slice.count; ++i) {
      arrays.positions[row + i] = static_cast<int32_t>(slice.begin + i);
      arrays.slots[row + i] = slice.writes ? sequence.pages.SlotOf(slice.begin + i) : -1;
    }
    if (!slice.draws) return;
    arrays.logit_tokens[slice.seat] = static_cast<int32_t>(row + slice.count - 1);
    arrays.rules[slice.seat] = sequence.request.rule;
    arrays.rules[slice.seat].offset = static_cast<uint64_t>(slice.begin + slice.count);
    arrays.only_best[slice.seat] =
        config_.options.keep_logits || sequence.request.rule.temperature > 0 ? 0 : 1;
  };
  for (const StepSlice& slice : scheduled.decode) {
    if (slice.sequence != nullptr) write(slice.seat, slice);
  }
  int64_t row = shape.decode.num_tokens;
  int32_t* ids = arrays.prefill_ids;
  for (const StepSlice& slice : scheduled.prefill) {
    ids = std::copy_n(slice.sequence->tokens.begin() + slice.begin, slice.count, ids);
    write(row, slice);
    row += slice.count;
  }
}

int64_t Decoder::WriteDecodeTable(const ScheduledStep& scheduled, const StepShape& shape,
                                  const StepArrays& arrays, std::span<SharedRun> shared) const {
  TableWriter table(shape.decode, arrays.decode);
  SharedTableWriter contexts(table, shared, config_.layout.Pages());
  for (size_t row = 0; row < static_cast<size_t>(shape.decode.num_seqs); ++row) {
    const Sequence* sequence =
        row < scheduled.decode.size() ? scheduled.decode[row].sequence : nullptr;
    if (sequence != nullptr) {
      contexts.Add(row, sequence->pages, scheduled.decode[row].begin + 1);
    } else if (config_.scratch_page >= 0) {
      table.Add({&config_.scratch_page, 1}, 1, 1);  // paged_prefill needs a context to attend to
    } else {
      table.Add({}, 0, 1);
    }
  }
  return table.PagesUsed();
}

void Decoder::WritePrefillTable(const ScheduledStep& scheduled, const StepShape& shape,
                                const StepArrays& arrays) const {
  TableWriter table(shape.prefill, arrays.prefill);
  for (const StepSlice& slice : scheduled.prefill) {
    const SequencePages& pages = slice.sequence->pages;
    switch (shape.prefill.kind) {
      case AttentionKind::kPagedPrefill:
        AddRuns(table, pages, slice.begin + slice.count, slice.count);
        break;
      case AttentionKind::kChunkDecode:
        for (int64_t i = 0; i < slice.count; ++i) AddRuns(table, pages, slice.begin + i + 1, 1);
        break;
    }
  }
}

void Decoder::Collect(int index) {
  EnqueuedStep& turn = turns_[index];
  if (!turn.pending) return;
  {
    const TimedScope timed(wait_s_);
    for (const auto& rank : ranks_) rank->turns[index].fence->Wait();
  }
  turn.pending = false;
  const std::span<const int32_t> tokens = ranks_[0]->turns[index].Tokens();
  if (config_.options.ranks > 1) {
    std::vector<RankOrder::Draw> draws;
    for (const EnqueuedStep::Draw& draw : turn.draws) {
      draws.push_back({.seat = draw.seat, .token = tokens[static_cast<size_t>(draw.seat)]});
    }
    for (const auto& rank : ranks_) rank->RequireDraws(index, draws);
    if (remote_) {
      remote_->Tell(RankOrder{.kind = RankOrderKind::kCollect, .turn = index}.With(draws));
    }
  }
  for (const EnqueuedStep::Draw& draw : turn.draws) {
    const int32_t token = tokens[static_cast<size_t>(draw.seat)];
    const std::optional<Finish> finish = scheduler_.TakeToken(draw.id, token);
    if (finish) collected_.push_back({.sequence = draw.id, .token = token, .finish = *finish});
  }
}

std::vector<float> Decoder::Logits(SequenceId id) {
  Require(config_.options.keep_logits, "keep_logits is false; Logits needs a decoder with it");
  const Sequence& sequence = scheduler_.Get(id);
  Require(sequence.last_draw > 0 && sequence.last_draw == scheduler_.Counts().steps, "sequence ",
          id, " has no logits of the newest step");
  std::vector<float> logits(static_cast<size_t>(spec_.vocab_size));
  backend_.Download(logits.data(), buffers_.logits + sequence.draw_seat * spec_.vocab_size,
                    spec_.vocab_size * int64_t{sizeof(float)});
  return logits;
}

void Decoder::ReplaceNewestToken(SequenceId id, int32_t token) {
  RequireVocabulary(token, spec_.vocab_size, "the token");
  scheduler_.ReplaceNewest(id, token);
  const Sequence& sequence = scheduler_.Get(id);
  if (sequence.on_device) {
    Tell({RankOrder{.kind = RankOrderKind::kReplaceNewest, .seat = sequence.seat}.With(
        std::span(&token, 1))});
  }
}

std::vector<float> Decoder::RowsOfStep(const std::byte* data, int64_t stride, int64_t columns) {
  Require(prepared_.has_value(), "no step is being enqueued");
  const DType dtype = config_.options.dtype;
  const int64_t rows = prepared_->shape.Tokens();
  std::vector<std::byte> raw(static_cast<size_t>(rows * stride * SizeOf(dtype)));
  backend_.Download(raw.data(), data, std::ssize(raw));
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (int64_t row = 0; row < rows; ++row) {
    ConvertElements(dtype, raw.data() + row * stride * SizeOf(dtype), DType::kF32,
                    values.data() + row * columns, columns);
  }
  return values;
}

std::vector<float> Decoder::Hidden() {
  return RowsOfStep(buffers_.x, spec_.hidden_size, spec_.hidden_size);
}

std::vector<float> Decoder::Queries() {
  const ModelSpec& local = config_.shard.local;
  return RowsOfStep(buffers_.qkv, local.QSize() + 2 * local.KvSize(), local.QSize());
}

KvRows Decoder::ReadKv(SequenceId id, int64_t layer) {
  const Sequence& sequence = scheduler_.Get(id);
  Require(layer >= 0 && layer < spec_.num_layers, "layer is ", layer, "; the model has 0 to ",
          spec_.num_layers - 1);
  AttentionShape shape{.kind = AttentionKind::kPagedPrefill, .num_tokens = sequence.in_cache};
  AddRoom(shape, sequence.pages, sequence.in_cache);
  const StepShape step{.prefill = shape};
  const int64_t step_bytes = PlaceStep(step, nullptr).bytes;
  const DType dtype = config_.options.dtype;
  const int64_t count = sequence.in_cache * config_.shard.local.KvSize();
  const int64_t tensor_bytes = count * SizeOf(dtype);
  tokline::Memory host = backend_.AllocateStaging(step_bytes);
  tokline::Memory table = backend_.Allocate(step_bytes);
  tokline::Memory k = backend_.Allocate(tensor_bytes), v = backend_.Allocate(tensor_bytes);
  TableWriter writer(shape, PlaceStep(step, host.data()).prefill);
  AddRuns(writer, sequence.pages, sequence.in_cache, sequence.in_cache);
  backend_.Upload(table.data(), host.data(), step_bytes);
  const AttentionArrays arrays = PlaceStep(step, table.data()).prefill;
  backend_.ops().paged_gather(
      {.dtype = dtype,
       .layout = config_.layout,
       .table = arrays.Table(shape),
       .total_tokens = sequence.in_cache,
       .token_indptr = arrays.q_indptr,
       .kv = buffers_.kv + layer * config_.layout.NumElements() * SizeOf(dtype),
       .k_out = k.data(),
       .v_out = v.data()},
      {.stream = backend_.stream(), .dependent = false});
  const auto download = [&](const tokline::Memory& from) {
    std::vector<std::byte> raw(static_cast<size_t>(tensor_bytes));
    backend_.Download(raw.data(), from.data(), tensor_bytes);
    std::vector<float> values(static_cast<size_t>(count));
    ConvertElements(dtype, raw.data(), DType::kF32, values.data(), count);
    return values;
  };
  return {.k = download(k), .v = download(v)};
}

}  // namespace tokline
