// Implements the decoder: turns each scheduled step into arrays, uploads and runs it, and collects
// tokens as soon as that costs no waiting.
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

class ObservedScope {
 public:
  ObservedScope(ForwardPass& forward, OpObserver& observer) : forward_(forward) {
    forward_.SetObserver(&observer);
  }
  ~ObservedScope() { forward_.SetObserver(nullptr); }
  ObservedScope(const ObservedScope&) = delete;
  ObservedScope& operator=(const ObservedScope&) = delete;

 private:
  ForwardPass& forward_;
};

// Stands in for a graph on the host, which has no graphs: enqueues the work again each time.
class HostGraph : public WorkGraph {
 public:
  explicit HostGraph(std::function<void()> enqueue) : enqueue_(std::move(enqueue)) {}
  void Enqueue() override { enqueue_(); }

 private:
  std::function<void()> enqueue_;
};

std::unique_ptr<Backend> MakeBackendWithRoom(const ModelSpec& spec, const DecoderOptions& options) {
  std::unique_ptr<Backend> backend = MakeBackend(options.device);
  if (options.device == Device::kCpu) return backend;  // pages are backed only when touched
  RequireRoom(PlanMemory(spec, options, backend->facts()), backend->FreeBytes());
  return backend;
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
    : Decoder(spec, weights, options, MakeBackendWithRoom(spec, options)) {}

Decoder::Decoder(const ModelSpec& spec, const ModelWeights& weights, const DecoderOptions& options,
                 std::unique_ptr<Backend> backend)
    : spec_(spec),
      backend_(std::move(backend)),
      config_(spec, options, backend_->facts()),
      weights_(spec, weights, config_.options.dtype, *backend_),
      buffers_(spec, config_, *backend_),
      forward_(spec_, config_, weights_, buffers_, *backend_),
      scheduler_(ScheduleOf(config_)),
      shifted_copy_(spec_, config_, buffers_, *backend_) {
  const auto batch = static_cast<size_t>(config_.options.max_batch);
  const int64_t token_bytes = config_.options.max_batch * int64_t{sizeof(int32_t)};
  for (Turn& turn : turns_) {
    turn.arrays = backend_->AllocateStaging(PlaceStep(config_.largest_step, nullptr).bytes);
    turn.tokens = backend_->AllocateStaging(token_bytes);
    turn.moved = backend_->AllocateStaging(token_bytes);
    turn.fence = backend_->MakeFence();
    turn.draws.reserve(batch);
  }
  collected_.reserve(batch);
}

int64_t Decoder::KvTokenBytes() const {
  return 2 * spec_.num_layers * spec_.KvSize() * SizeOf(config_.options.dtype);
}

MemoryPlan Decoder::Memory() const { return PlanMemory(spec_, config_.options, backend_->facts()); }

double Decoder::WarmUp() {
  const auto begin = Clock::now();
  Require(scheduler_.NumSequences() == 0, "a decoder is warmed up before it has sequences");
  Flush();
  prepared_.reset();
  captured_.clear();
  for (const StepShape& unplanned : config_.DecodeShapes()) {
    if (!config_.OnDevice()) break;  // nothing to prepare
    const std::vector<int32_t> parts(
        unplanned.one_kernel ? static_cast<size_t>(unplanned.decode.num_seqs) : 0, 1);
    const StepShape shape =
        UploadArrays({}, unplanned, parts, turns_[turn_]).shape;  // only padding
    forward_.Enqueue(shape);  // lets every op choose its algorithms before the capture
    backend_->Synchronize();
    if (config_.Has(Ablation::kGraphs)) continue;
    captured_.push_back(
        {.shape = shape, .graph = backend_->Capture([&] { forward_.Enqueue(shape); })});
    captured_.back().graph->Enqueue();
    backend_->Synchronize();
  }
  return SecondsSince(begin);
}

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
  scheduler_.Remove(id);
  if (scheduler_.NumSequences() == 0) prepared_.reset();
}

StepReport Decoder::Step() {
  const TimedScope timed(times_.total_s);
  StepReport report;
  collected_.clear();
  Turn& current = turns_[turn_];
  Turn& previous = turns_[1 - turn_];
  if (!prepared_) Prepare(current);
  if (prepared_) {
    Run(prepared_->shape);
    report.prefill_tokens = prepared_->shape.prefill.num_tokens;
    report.decode_rows = prepared_->decode_rows;
    reads_.tokens += prepared_->reads.tokens;
    reads_.unshared_tokens += prepared_->reads.unshared_tokens;
    const int64_t token_bytes = prepared_->shape.logit_rows * int64_t{sizeof(int32_t)};
    prepared_.reset();
    backend_->CopyToHost(current.tokens.data(), buffers_.sampled, token_bytes);
    current.fence->Record();
    current.pending = true;
    turn_ = 1 - turn_;
  } else if (scheduler_.HasWork()) {
    Require(previous.pending, "the KV cache is full: ", scheduler_.Pages().NumFree(), " of ",
            scheduler_.Pages().NumPages(), " pages are free, sequences that are held after their ",
            "end have others, and none of the ", scheduler_.NumRunning() + scheduler_.NumWaiting(),
            " unfinished sequences can continue");
  }
  Collect(previous);
  if (!backend_->asynchronous()) Collect(current);
  report.tokens = collected_;
  return report;
}

void Decoder::Prepare(Turn& turn) {
  const ScheduledStep& scheduled = scheduler_.NextStep();
  MoveTokens(scheduled, turn);
  for (const Sequence* sequence : scheduled.shifted) {
    shifted_copy_.Enqueue(*sequence, scheduler_.Chunks());
  }
  if (scheduled.Empty()) return;
  const std::vector<int32_t> parts = OneKernelParts(scheduled);
  prepared_ =
      UploadArrays(scheduled,
                   parts.empty() ? ChainShape(scheduled)
                                 : config_.OneKernelShape(static_cast<int32_t>(parts.size())),
                   parts, turn);
  turn.draws.clear();
  const auto draw = [&turn](const StepPart& part) {
    if (part.draws) turn.draws.push_back({.id = part.sequence->id, .slot = part.slot});
  };
  for (const StepPart& part : scheduled.decode) draw(part);
  for (const StepPart& part : scheduled.prefill) draw(part);
}

// Copies by way of host memory. The host does not wait, because the copies are ordered like all
// work.
void Decoder::MoveTokens(const ScheduledStep& scheduled, Turn& turn) {
  constexpr int64_t kBytes = sizeof(int32_t);
  std::byte* moved = turn.moved.data();
  for (const SlotMove& move : scheduled.moves) {
    backend_->CopyToHost(moved, buffers_.sampled + move.from, kBytes);
    backend_->CopyToDevice(buffers_.sampled + move.to, moved, kBytes);
    moved += kBytes;
  }
}

std::unique_ptr<WorkGraph> Decoder::NextStep(OpObserver& observer) {
  if (!prepared_) Prepare(turns_[turn_]);
  Require(prepared_.has_value(), "there is no work for another step");
  const auto enqueue = [this, shape = prepared_->shape, &observer] {
    const ObservedScope observed(forward_, observer);
    forward_.Enqueue(shape);
  };
  backend_->Synchronize();
  if (config_.OnDevice()) return backend_->Capture(enqueue);
  return std::make_unique<HostGraph>(enqueue);
}

std::span<const NewToken> Decoder::Flush() {
  const TimedScope timed(times_.total_s);
  collected_.clear();
  Collect(turns_[1 - turn_]);
  return collected_;
}

StepShape Decoder::ChainShape(const ScheduledStep& scheduled) const {
  StepShape shape;
  if (scheduled.decode_rows > 0) {
    int64_t longest = 1;
    for (const StepPart& part : scheduled.decode)
      longest = std::max(longest, part.begin + part.count);
    shape =
        config_.DecodeShape(config_.Bucket(static_cast<int32_t>(scheduled.decode.size())), longest);
  }
  AttentionShape& prefill = shape.prefill;
  prefill = {.kind = config_.largest_step.prefill.kind, .grid = config_.largest_step.prefill.grid};
  for (const StepPart& part : scheduled.prefill) {
    prefill.num_tokens += part.count;
    const SequencePages& pages = part.sequence->pages;
    if (prefill.kind == AttentionKind::kPagedPrefill) {
      AddRoom(prefill, pages, part.begin + part.count);
    } else {  // every token is a separate sequence
      for (int64_t i = 0; i < part.count; ++i) AddRoom(prefill, pages, part.begin + i + 1);
    }
    if (part.draws) shape.logit_rows = std::max(shape.logit_rows, part.slot + 1);
  }
  return shape;
}

std::vector<int32_t> Decoder::DecodeTiles(const ScheduledStep& scheduled, int32_t rows) const {
  std::vector<int32_t> tiles(static_cast<size_t>(rows));
  for (const StepPart& part : scheduled.decode) {
    if (part.sequence == nullptr) continue;
    int32_t& count = tiles[static_cast<size_t>(part.slot)];
    part.sequence->pages.ForEachRun(
        part.begin + part.count,
        [&count](std::span<const int32_t>, int64_t tokens) { count += DecodeStepTiles(tokens); });
  }
  return tiles;
}

std::vector<int32_t> Decoder::OneKernelParts(const ScheduledStep& scheduled) const {
  if (scheduled.decode_rows == 0 || !scheduled.prefill.empty()) return {};
  const int32_t bucket = config_.Bucket(static_cast<int32_t>(scheduled.decode.size()));
  if (!config_.RunsAsOneKernel(bucket)) return {};
  if (forward_.Observer() != nullptr && forward_.Observer()->NeedsChain()) return {};
  std::vector<int32_t> parts =
      DecodeStepParts(DecodeTiles(scheduled, bucket), config_.layout, config_.facts);
  if (parts.empty() || !config_.SharesReads()) return parts;
  // One kernel reads shared contexts for each sequence. That is worth it until these bytes take
  // longer than the launches of a layer in a chain do.
  constexpr int64_t kWorthBytes = int64_t{32} << 20;
  const std::vector<SharedRun> shared =
      SharedRunsOf(scheduled, config_.DecodeShape(bucket, config_.options.max_context));
  const int64_t layer_bytes = KvTokenBytes() / spec_.num_layers;
  if (SharedTokensSaved(shared, config_.group) * layer_bytes >= kWorthBytes) return {};
  return parts;
}

std::vector<SharedRun> Decoder::SharedRunsOf(const ScheduledStep& scheduled,
                                             const StepShape& shape) const {
  // A cluster works on one sequence, so it cannot share reads.
  if (!config_.SharesReads() || shape.one_kernel || shape.decode.grid.cluster_lanes > 1) return {};
  std::vector<std::span<const ChunkId>> chains(scheduled.decode.size());
  for (size_t row = 0; row < chains.size(); ++row) {
    if (scheduled.decode[row].sequence != nullptr)
      chains[row] = scheduled.decode[row].sequence->chunks;
  }
  return SharedRunsOfChains(chains, scheduler_.Chunks(), config_.options.page_size, config_.group,
                            config_.options.sharing);
}

Decoder::PreparedStep Decoder::UploadArrays(const ScheduledStep& scheduled, StepShape shape,
                                            std::span<const int32_t> parts, Turn& turn) {
  Require(!turn.pending, "the arrays of a step are rewritten while it is in flight");
  const StepArrays arrays = PlaceStep(shape, turn.arrays.data());
  WriteRows(scheduled, shape, arrays);
  WritePrefillTable(scheduled, shape, arrays);
  std::ranges::copy(parts, arrays.parts);
  std::vector<SharedRun> shared = SharedRunsOf(scheduled, shape);
  const int64_t decode_pages = WriteDecodeTable(scheduled, shape, arrays, shared);
  const auto plan_attention = [&](AttentionShape& rows, const AttentionArrays& of_rows,
                                  std::span<const SharedRun> runs) {
    return PlanAttention(rows, of_rows, config_.layout, spec_.num_q_heads, backend_->facts(), runs,
                         config_.options.sharing);
  };
  plan_attention(shape.prefill, arrays.prefill, {});
  const bool reads_once = plan_attention(shape.decode, arrays.decode, shared);
  PreparedStep step{.shape = shape, .decode_rows = scheduled.decode_rows, .reads = {}};
  for (const StepPart& part : scheduled.decode)
    step.reads.unshared_tokens += part.begin + part.count;
  step.reads.tokens = step.reads.unshared_tokens;
  if (reads_once || !config_.OnDevice()) {
    step.reads.tokens -= SharedTokensSaved(shared, config_.group);
  }
  // The pages of the decode rows come last, with room for the longest contexts. Only the part that
  // is used is copied.
  int64_t bytes = arrays.bytes;
  if (shape.decode.num_seqs > 0) {
    bytes = reinterpret_cast<std::byte*>(arrays.decode.chunk_pages) - turn.arrays.data() +
            decode_pages * int64_t{sizeof(int32_t)};
  }
  backend_->CopyToDevice(buffers_.step, turn.arrays.data(), bytes);
  return step;
}

void Decoder::WriteRows(const ScheduledStep& scheduled, const StepShape& shape,
                        const StepArrays& arrays) const {
  std::fill_n(arrays.logit_tokens, shape.logit_rows, -1);
  std::fill_n(arrays.rules, shape.logit_rows, SamplingRule{});
  std::fill_n(arrays.positions, shape.decode.num_tokens, 0);  // stays in padding rows
  std::fill_n(arrays.slots, shape.decode.num_tokens, -1);
  const auto write = [&arrays](int64_t row, const StepPart& part) {
    const Sequence& sequence = *part.sequence;
    for (int64_t i = 0; i < part.count; ++i) {
      arrays.positions[row + i] = static_cast<int32_t>(part.begin + i);
      arrays.slots[row + i] = part.writes ? sequence.pages.SlotOf(part.begin + i) : -1;
    }
    if (!part.draws) return;
    arrays.logit_tokens[part.slot] = static_cast<int32_t>(row + part.count - 1);
    arrays.rules[part.slot] = sequence.request.rule;
    arrays.rules[part.slot].offset = static_cast<uint64_t>(part.begin + part.count);
  };
  for (const StepPart& part : scheduled.decode) {
    if (part.sequence != nullptr) write(part.slot, part);
  }
  int64_t row = shape.decode.num_tokens;
  int32_t* ids = arrays.prefill_ids;
  for (const StepPart& part : scheduled.prefill) {
    ids = std::copy_n(part.sequence->tokens.begin() + part.begin, part.count, ids);
    write(row, part);
    row += part.count;
  }
}

int64_t Decoder::WriteDecodeTable(const ScheduledStep& scheduled, const StepShape& shape,
                                  const StepArrays& arrays, std::span<SharedRun> shared) const {
  TableWriter table(shape.decode, arrays.decode);
  SharedTableWriter contexts(table, shared, config_.options.page_size);
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
  for (const StepPart& part : scheduled.prefill) {
    const SequencePages& pages = part.sequence->pages;
    if (shape.prefill.kind == AttentionKind::kPagedPrefill) {
      AddRuns(table, pages, part.begin + part.count, part.count);
    } else {
      for (int64_t i = 0; i < part.count; ++i) AddRuns(table, pages, part.begin + i + 1, 1);
    }
  }
}

void Decoder::Run(const StepShape& shape) {
  if (shape.prefill.num_tokens > 0) {
    forward_.Enqueue(shape);
    return;
  }
  if (captured_.empty()) {
    forward_.Enqueue(shape);
    ++plain_steps_;
    return;
  }
  const AttentionShape& decode = shape.decode;
  CapturedStep& captured = *std::ranges::find_if(captured_, [&](const CapturedStep& step) {
    return step.shape.decode.num_seqs == decode.num_seqs && step.shape.decode.grid == decode.grid &&
           step.shape.one_kernel == shape.one_kernel;
  });
  Require(decode.num_tiles == captured.shape.decode.num_tiles, "a step has ", decode.num_tiles,
          " tiles, its graph ", captured.shape.decode.num_tiles);
  captured.graph->Enqueue();
  ++graph_steps_;
}

void Decoder::Collect(Turn& turn) {
  if (!turn.pending) return;
  {
    const TimedScope timed(times_.wait_s);
    turn.fence->Wait();
  }
  turn.pending = false;
  const auto* tokens = reinterpret_cast<const int32_t*>(turn.tokens.data());
  for (const Turn::Draw& draw : turn.draws) {
    const std::optional<Finish> finish = scheduler_.TakeToken(draw.id, tokens[draw.slot]);
    if (finish) {
      collected_.push_back({.sequence = draw.id, .token = tokens[draw.slot], .finish = *finish});
    }
  }
}

std::vector<float> Decoder::Logits(SequenceId id) {
  const Sequence& sequence = scheduler_.Get(id);
  Require(sequence.last_draw > 0 && sequence.last_draw == scheduler_.Counts().steps, "sequence ",
          id, " has no logits of the newest step");
  std::vector<float> logits(static_cast<size_t>(spec_.vocab_size));
  backend_->Download(logits.data(), buffers_.logits + sequence.draw_slot * spec_.vocab_size,
                     spec_.vocab_size * int64_t{sizeof(float)});
  return logits;
}

void Decoder::ReplaceNewestToken(SequenceId id, int32_t token) {
  RequireVocabulary(token, spec_.vocab_size, "the token");
  scheduler_.ReplaceNewest(id, token);
  const Sequence& sequence = scheduler_.Get(id);
  if (sequence.on_device) {
    backend_->Upload(buffers_.sampled + sequence.slot, &token, sizeof(token));
  }
}

std::vector<float> Decoder::Hidden() {
  Require(prepared_.has_value(), "no step is being enqueued");
  const DType dtype = config_.options.dtype;
  const int64_t count = prepared_->shape.Tokens() * spec_.hidden_size;
  std::vector<std::byte> raw(static_cast<size_t>(count * SizeOf(dtype)));
  backend_->Download(raw.data(), buffers_.x, std::ssize(raw));
  std::vector<float> values(static_cast<size_t>(count));
  ConvertElements(dtype, raw.data(), DType::kF32, values.data(), count);
  return values;
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
  const int64_t count = sequence.in_cache * spec_.KvSize();
  const int64_t tensor_bytes = count * SizeOf(dtype);
  tokline::Memory host = backend_->AllocateStaging(step_bytes);
  tokline::Memory table = backend_->Allocate(step_bytes);
  tokline::Memory k = backend_->Allocate(tensor_bytes), v = backend_->Allocate(tensor_bytes);
  TableWriter writer(shape, PlaceStep(step, host.data()).prefill);
  AddRuns(writer, sequence.pages, sequence.in_cache, sequence.in_cache);
  backend_->Upload(table.data(), host.data(), step_bytes);
  const AttentionArrays arrays = PlaceStep(step, table.data()).prefill;
  backend_->ops().paged_gather(
      {.dtype = dtype,
       .layout = config_.layout,
       .table = arrays.Table(shape),
       .total_tokens = sequence.in_cache,
       .token_indptr = arrays.q_indptr,
       .kv = buffers_.kv + layer * config_.layout.NumElements() * SizeOf(dtype),
       .k_out = k.data(),
       .v_out = v.data()},
      {.stream = backend_->stream(), .dependent = false});
  const auto download = [&](const tokline::Memory& from) {
    std::vector<std::byte> raw(static_cast<size_t>(tensor_bytes));
    backend_->Download(raw.data(), from.data(), tensor_bytes);
    std::vector<float> values(static_cast<size_t>(count));
    ConvertElements(dtype, raw.data(), DType::kF32, values.data(), count);
    return values;
  };
  return {.k = download(k), .v = download(v)};
}

}  // namespace tokline
