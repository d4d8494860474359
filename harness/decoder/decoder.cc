#include "harness/decoder/decoder.h"

#include <algorithm>
#include <chrono>

#include "harness/decoder/convert_elements.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Adds the life of the scope to `seconds`.
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

std::unique_ptr<Backend> MakeBackendWithRoom(const ModelSpec& spec, const DecoderOptions& options) {
  std::unique_ptr<Backend> backend = MakeBackend(options.device);
  if (options.device == Device::kCpu) return backend;  // backs what is touched, as it is touched
  RequireRoom(PlanMemory(spec, options, backend->facts()), backend->FreeBytes());
  return backend;
}

void RequireVocabulary(int32_t token, int64_t vocab_size, const char* what) {
  Require(token >= 0 && token < vocab_size, what, " is ", token, "; the vocabulary has ids 0 to ",
          vocab_size - 1);
}

}  // namespace

Decoder::Decoder(const ModelSpec& spec, const ModelWeights& weights, const DecoderOptions& options)
    : spec_(spec),
      backend_(MakeBackendWithRoom(spec, options)),
      plan_(spec, options, backend_->facts()),
      weights_(spec, weights, plan_.options.dtype, *backend_),
      buffers_(spec, plan_, *backend_),
      forward_(spec_, plan_, weights_, buffers_, *backend_),
      pool_(static_cast<int32_t>(plan_.options.kv_pages)),
      slots_(static_cast<size_t>(plan_.options.max_batch)) {
  for (Turn& turn : turns_) {
    turn.arrays = backend_->AllocateStaging(PlaceStep(plan_.largest_step, nullptr).bytes);
    turn.tokens = backend_->AllocateStaging(plan_.options.max_batch * int64_t{sizeof(int32_t)});
    turn.fence = backend_->MakeFence();
    turn.draws.reserve(slots_.size());
  }
  decoding_.reserve(slots_.size());
  prefilling_.reserve(slots_.size());
  collected_.reserve(2 * slots_.size());
}

MemoryPlan Decoder::Memory() const { return PlanMemory(spec_, plan_.options, backend_->facts()); }

double Decoder::WarmUp() {
  const auto begin = Clock::now();
  Require(std::ranges::none_of(slots_, [](const auto& slot) { return slot.has_value(); }),
          "a decoder is warmed up before it has sequences");
  Flush();
  captured_.clear();
  decoding_.clear();
  prefilling_.clear();
  for (const int32_t bucket : plan_.buckets) {
    if (!plan_.OnDevice()) break;  // nothing to prepare
    decoding_.assign(static_cast<size_t>(bucket), nullptr);
    const StepWork work = UploadArrays(plan_.DecodeShape(bucket), turns_[turn_]);
    forward_.Enqueue(work);  // lets every op choose its algorithms before the capture
    backend_->Synchronize();
    if (plan_.Has(Ablation::kGraphs)) continue;
    captured_.push_back(
        {.decode = work.decode, .graph = backend_->Capture([&] { forward_.Enqueue(work); })});
    captured_.back().graph->Enqueue();
    backend_->Synchronize();
  }
  return SecondsSince(begin);
}

SequenceId Decoder::AddSequence(std::span<const int32_t> prompt, const SamplingRule& rule,
                                int64_t max_new_tokens) {
  const auto length = static_cast<int64_t>(prompt.size());
  Require(length >= 1, "the prompt is empty; it must have at least 1 token");
  for (const int32_t token : prompt) RequireVocabulary(token, spec_.vocab_size, "a prompt's token");
  Require(max_new_tokens >= 1, "max_new_tokens is ", max_new_tokens, "; it must be >= 1");
  Require(max_new_tokens <= plan_.options.max_context - length, "a prompt of ", length,
          " tokens and ", max_new_tokens, " new tokens exceed the context of ",
          plan_.options.max_context, " tokens");
  Validate(rule);
  const int64_t pages = PagesFor(length);
  Require(pages <= pool_.NumFree(), "a prompt of ", length, " tokens needs ", pages,
          " pages of the KV cache; ", pool_.NumFree(), " of ", pool_.NumPages(), " are free");
  const auto slot = std::ranges::find_if(slots_, [](const auto& s) { return !s.has_value(); });
  Require(slot != slots_.end(), "the batch is full: all ", slots_.size(),
          " sequences that max_batch allows are there");
  slot->emplace();
  Sequence& sequence = **slot;
  sequence.id = next_id_++;
  sequence.slot = static_cast<int32_t>(slot - slots_.begin());
  sequence.prompt.assign(prompt.begin(), prompt.end());
  sequence.rule = rule;
  sequence.max_new_tokens = max_new_tokens;
  sequence.pages.reserve(static_cast<size_t>(PagesFor(length + max_new_tokens)));
  return sequence.id;
}

void Decoder::RemoveSequence(SequenceId id) {
  Sequence& sequence = Find(id);
  // Steps under way may still use the pages; whoever gets them next writes after those steps.
  pool_.Release(sequence.pages);
  slots_[static_cast<size_t>(sequence.slot)].reset();
}

Decoder::Sequence& Decoder::Find(SequenceId id) {
  const auto slot =
      std::ranges::find_if(slots_, [&](const auto& s) { return s.has_value() && s->id == id; });
  Require(slot != slots_.end(), "there is no sequence ", id);
  return **slot;
}

bool Decoder::HasWork() const {
  return std::ranges::any_of(
      slots_, [](const auto& s) { return s.has_value() && (s->Prefills() || s->Decodes()); });
}

int64_t Decoder::PagesFor(int64_t tokens) const {
  return (tokens + plan_.options.page_size - 1) / plan_.options.page_size;
}

StepReport Decoder::Step() {
  const TimedScope timed(times_.total_s);
  StepReport report;
  collected_.clear();
  Turn& current = turns_[turn_];
  Turn& previous = turns_[1 - turn_];
  Schedule();
  const bool any = !decoding_.empty() || !prefilling_.empty();
  if (any) {
    GrowPages();
    const StepWork work = UploadArrays(ScheduledShape(), current);
    Run(work);
    for (const Part& part : prefilling_) report.prefill_tokens += part.count;
    report.decode_rows = static_cast<int32_t>(
        std::ranges::count_if(decoding_, [](const Sequence* s) { return s != nullptr; }));
    Advance(current);
    const int64_t token_bytes = work.shape.logit_rows * int64_t{sizeof(int32_t)};
    backend_->CopyToHost(current.tokens.data(), buffers_.sampled, token_bytes);
    current.fence->Record();
    current.pending = true;
    turn_ = 1 - turn_;
  }
  Collect(previous);
  report.tokens = collected_;
  return report;
}

std::span<const NewToken> Decoder::Flush() {
  const TimedScope timed(times_.total_s);
  collected_.clear();
  Collect(turns_[1 - turn_]);
  return collected_;
}

void Decoder::Schedule() {
  decoding_.clear();
  prefilling_.clear();
  for (std::optional<Sequence>& slot : slots_) {
    if (!slot.has_value()) continue;
    if (slot->Prefills()) {
      prefilling_.push_back({.sequence = &*slot});
    } else if (slot->Decodes()) {
      decoding_.resize(static_cast<size_t>(slot->slot), nullptr);
      decoding_.push_back(&*slot);
    }
  }
  std::ranges::sort(prefilling_, {}, [](const Part& part) { return part.sequence->id; });
  int64_t budget = plan_.options.token_budget;
  for (Part& part : prefilling_) {
    const int64_t left =
        static_cast<int64_t>(part.sequence->prompt.size()) - part.sequence->in_cache;
    part.count = std::min(left, budget);
    budget -= part.count;
  }
  std::erase_if(prefilling_, [](const Part& part) { return part.count == 0; });
}

void Decoder::GrowPages() {
  const auto missing = [this](const Sequence& sequence, int64_t new_tokens) {
    return PagesFor(sequence.in_cache + new_tokens) - static_cast<int64_t>(sequence.pages.size());
  };
  int64_t needed = 0;
  for (const Sequence* sequence : decoding_) needed += sequence ? missing(*sequence, 1) : 0;
  for (const Part& part : prefilling_) needed += missing(*part.sequence, part.count);
  Require(needed <= pool_.NumFree(), "the KV cache is full: this step needs ", needed,
          " more pages, ", pool_.NumFree(), " of ", pool_.NumPages(), " are free");
  const auto grow = [&](Sequence& sequence, int64_t new_tokens) {
    pool_.Allocate(static_cast<int32_t>(missing(sequence, new_tokens)), sequence.pages);
  };
  for (Sequence* sequence : decoding_) {
    if (sequence != nullptr) grow(*sequence, 1);
  }
  for (const Part& part : prefilling_) grow(*part.sequence, part.count);
}

StepShape Decoder::ScheduledShape() const {
  StepShape shape;
  if (!decoding_.empty()) {
    shape = plan_.DecodeShape(plan_.Bucket(static_cast<int32_t>(decoding_.size())));
  }
  AttentionShape& prefill = shape.prefill;
  prefill = {.kind = plan_.largest_step.prefill.kind,
             .num_lanes = plan_.largest_step.prefill.num_lanes};
  for (const Part& part : prefilling_) {
    prefill.num_tokens += part.count;
    const int64_t begin = part.sequence->in_cache;
    if (prefill.kind == AttentionKind::kPagedPrefill) {
      prefill.num_seqs += 1;
      prefill.max_pages += PagesFor(begin + part.count);
    } else {  // every token is a sequence of its own
      prefill.num_seqs += static_cast<int32_t>(part.count);
      for (int64_t i = 0; i < part.count; ++i) prefill.max_pages += PagesFor(begin + i + 1);
    }
    if (part.Finishes()) shape.logit_rows = std::max(shape.logit_rows, part.sequence->slot + 1);
  }
  return shape;
}

StepWork Decoder::UploadArrays(const StepShape& shape, Turn& turn) {
  Require(!turn.pending, "the arrays of a step are rewritten while it is under way");
  const StepArrays arrays = PlaceStep(shape, turn.arrays.data());
  WriteRows(shape, arrays);
  WritePrefillTable(shape, arrays);
  const TableWriter decode_table = WriteDecodeTable(shape, arrays);
  const StepWork work{.shape = shape,
                      .decode = PlanAttention(shape.decode, arrays.decode, plan_.layout,
                                              spec_.num_q_heads, backend_->facts()),
                      .prefill = PlanAttention(shape.prefill, arrays.prefill, plan_.layout,
                                               spec_.num_q_heads, backend_->facts())};
  // The pages of the decode rows come last, with room for the longest contexts.
  int64_t bytes = arrays.bytes;
  if (shape.decode.num_seqs > 0) {
    bytes = reinterpret_cast<std::byte*>(arrays.decode.chunk_pages) - turn.arrays.data() +
            decode_table.PagesUsed() * int64_t{sizeof(int32_t)};
  }
  backend_->CopyToDevice(buffers_.step, turn.arrays.data(), bytes);
  return work;
}

void Decoder::WriteRows(const StepShape& shape, const StepArrays& arrays) const {
  std::fill_n(arrays.logit_tokens, shape.logit_rows, -1);
  std::fill_n(arrays.rules, shape.logit_rows, SamplingRule{});
  const auto write_token = [&](int64_t row, const Sequence& sequence, int64_t position) {
    const int64_t page_size = plan_.options.page_size;
    const int64_t page = sequence.pages[static_cast<size_t>(position / page_size)];
    arrays.positions[row] = static_cast<int32_t>(position);
    arrays.slots[row] = page * page_size + position % page_size;
  };
  const auto write_draw = [&](int64_t row, const Sequence& sequence) {
    arrays.logit_tokens[sequence.slot] = static_cast<int32_t>(row);
    arrays.rules[sequence.slot] = sequence.rule;
    arrays.rules[sequence.slot].offset = sequence.prompt.size() + sequence.sampled;
  };
  for (int64_t row = 0; row < shape.decode.num_tokens; ++row) {
    const bool padding = row >= static_cast<int64_t>(decoding_.size()) ||
                         decoding_[static_cast<size_t>(row)] == nullptr;
    if (padding) {
      arrays.positions[row] = 0;
      arrays.slots[row] = -1;
      continue;
    }
    const Sequence& sequence = *decoding_[static_cast<size_t>(row)];
    write_token(row, sequence, sequence.in_cache);
    write_draw(row, sequence);
  }
  int64_t row = shape.decode.num_tokens;
  for (const Part& part : prefilling_) {
    const Sequence& sequence = *part.sequence;
    for (int64_t i = 0; i < part.count; ++i, ++row) {
      const int64_t position = sequence.in_cache + i;
      arrays.prefill_ids[row - shape.decode.num_tokens] =
          sequence.prompt[static_cast<size_t>(position)];
      write_token(row, sequence, position);
    }
    if (part.Finishes()) write_draw(row - 1, sequence);
  }
}

TableWriter Decoder::WriteDecodeTable(const StepShape& shape, const StepArrays& arrays) const {
  TableWriter table(shape.decode, arrays.decode);
  for (int32_t row = 0; row < shape.decode.num_seqs; ++row) {
    const Sequence* sequence = row < static_cast<int32_t>(decoding_.size())
                                   ? decoding_[static_cast<size_t>(row)]
                                   : nullptr;
    if (sequence != nullptr) {
      table.Add(sequence->pages, static_cast<int32_t>(sequence->in_cache + 1), 1);
    } else if (plan_.scratch_page >= 0) {
      table.Add({&plan_.scratch_page, 1}, 1, 1);  // paged_prefill wants a context to attend to
    } else {
      table.Add({}, 0, 1);
    }
  }
  return table;
}

void Decoder::WritePrefillTable(const StepShape& shape, const StepArrays& arrays) const {
  TableWriter table(shape.prefill, arrays.prefill);
  for (const Part& part : prefilling_) {
    const auto add = [&](int64_t length, int64_t new_tokens) {
      table.Add(std::span(part.sequence->pages).first(static_cast<size_t>(PagesFor(length))),
                static_cast<int32_t>(length), static_cast<int32_t>(new_tokens));
    };
    const int64_t begin = part.sequence->in_cache;
    if (shape.prefill.kind == AttentionKind::kPagedPrefill) {
      add(begin + part.count, part.count);
    } else {
      for (int64_t i = 0; i < part.count; ++i) add(begin + i + 1, 1);
    }
  }
}

void Decoder::Run(const StepWork& work) {
  if (work.shape.prefill.num_tokens > 0) {
    forward_.Enqueue(work);
    return;
  }
  if (captured_.empty()) {
    forward_.Enqueue(work);
    ++plain_steps_;
    return;
  }
  const auto bucket = std::ranges::find(plan_.buckets, work.shape.decode.num_seqs);
  CapturedStep& captured = captured_[static_cast<size_t>(bucket - plan_.buckets.begin())];
  Require(work.decode.num_tiles == captured.decode.num_tiles, "a step has ", work.decode.num_tiles,
          " tiles, its graph ", captured.decode.num_tiles);
  captured.graph->Enqueue();
  ++graph_steps_;
}

void Decoder::Advance(Turn& turn) {
  turn.draws.clear();
  const auto draw = [&](Sequence& sequence) {
    turn.draws.push_back({.id = sequence.id, .slot = sequence.slot});
    ++sequence.sampled;
    sequence.logits_step = steps_;
  };
  for (Sequence* sequence : decoding_) {
    if (sequence == nullptr) continue;
    ++sequence->in_cache;
    draw(*sequence);
  }
  for (const Part& part : prefilling_) {
    const bool finishes = part.Finishes();
    part.sequence->in_cache += part.count;
    if (finishes) draw(*part.sequence);
  }
  ++steps_;
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
    const std::optional<Sequence>& slot = slots_[static_cast<size_t>(draw.slot)];
    if (slot.has_value() && slot->id == draw.id) {
      collected_.push_back({.sequence = draw.id, .token = tokens[draw.slot]});
    }
  }
}

std::vector<float> Decoder::Logits(SequenceId id) {
  const Sequence& sequence = Find(id);
  Require(sequence.logits_step >= 0 && sequence.logits_step == steps_ - 1, "sequence ", id,
          " has no logits of the newest step");
  std::vector<float> logits(static_cast<size_t>(spec_.vocab_size));
  backend_->Download(logits.data(), buffers_.logits + sequence.slot * spec_.vocab_size,
                     spec_.vocab_size * int64_t{sizeof(float)});
  return logits;
}

void Decoder::ReplaceNewestToken(SequenceId id, int32_t token) {
  const Sequence& sequence = Find(id);
  RequireVocabulary(token, spec_.vocab_size, "the token");
  Require(sequence.sampled > 0, "sequence ", id, " has no token yet");
  backend_->Upload(buffers_.sampled + sequence.slot, &token, sizeof(token));
}

KvRows Decoder::ReadKv(SequenceId id, int64_t layer) {
  const Sequence& sequence = Find(id);
  Require(layer >= 0 && layer < spec_.num_layers, "layer is ", layer, "; the model has 0 to ",
          spec_.num_layers - 1);
  const AttentionShape shape{.kind = AttentionKind::kPagedPrefill,
                             .num_seqs = 1,
                             .num_tokens = sequence.in_cache,
                             .max_pages = static_cast<int64_t>(sequence.pages.size())};
  const StepShape step{.prefill = shape};
  const int64_t step_bytes = PlaceStep(step, nullptr).bytes;
  const DType dtype = plan_.options.dtype;
  const int64_t count = sequence.in_cache * spec_.KvSize();
  const int64_t tensor_bytes = count * SizeOf(dtype);
  tokline::Memory host = backend_->AllocateStaging(step_bytes);
  tokline::Memory table = backend_->Allocate(step_bytes);
  tokline::Memory k = backend_->Allocate(tensor_bytes), v = backend_->Allocate(tensor_bytes);
  TableWriter writer(shape, PlaceStep(step, host.data()).prefill);
  writer.Add(sequence.pages, static_cast<int32_t>(sequence.in_cache),
             static_cast<int32_t>(sequence.in_cache));
  backend_->Upload(table.data(), host.data(), step_bytes);
  const AttentionArrays arrays = PlaceStep(step, table.data()).prefill;
  backend_->ops().paged_gather(
      {.dtype = dtype,
       .layout = plan_.layout,
       .table = arrays.Table(shape),
       .total_tokens = sequence.in_cache,
       .token_indptr = arrays.q_indptr,
       .kv = buffers_.kv + layer * plan_.layout.NumElements() * SizeOf(dtype),
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
