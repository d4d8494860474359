// Implements the scheduler: admission, growth and preemption of sequences, and the sealing of their
// pages into chunks that others can share.
#include "harness/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "kernels/common/error.h"

namespace tokline {

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      split_(PagesOfSize(options.page_size)),
      pool_(options.num_pages),
      registry_(
          pool_,
          {.page_size = options.page_size, .salt = options.salt, .hash_mask = options.hash_mask}) {
  Require(options.max_batch >= 1, "max_batch is ", options.max_batch, "; it must be >= 1");
  Require(options.token_budget >= 1, "token_budget is ", options.token_budget, "; it must be >= 1");
  Require(options.max_runs >= 1, "max_runs is ", options.max_runs, "; it must be >= 1");
  Require(options.max_pinned_pages >= 0 && options.max_pinned_pages <= options.num_pages,
          "max_pinned_pages is ", options.max_pinned_pages, "; it must be 0 to ",
          options.num_pages);
  const auto batch = static_cast<size_t>(options.max_batch);
  seats_.assign(batch, nullptr);
  step_.moves.reserve(batch);
  step_.decode.reserve(batch);
  step_.prefill.reserve(batch);
  decoding_.reserve(batch);
}

void Scheduler::List::PushNewest(Sequence& sequence) {
  sequence.older = newest;
  sequence.newer = nullptr;
  (newest == nullptr ? oldest : newest->newer) = &sequence;
  newest = &sequence;
  ++count;
}

void Scheduler::List::PushOldest(Sequence& sequence) {
  sequence.older = nullptr;
  sequence.newer = oldest;
  (oldest == nullptr ? newest : oldest->older) = &sequence;
  oldest = &sequence;
  ++count;
}

void Scheduler::List::Unlink(Sequence& sequence) {
  (sequence.older == nullptr ? oldest : sequence.older->newer) = sequence.newer;
  (sequence.newer == nullptr ? newest : sequence.newer->older) = sequence.older;
  sequence.older = sequence.newer = nullptr;
  --count;
}

SequenceId Scheduler::Submit(Request request) {
  const auto length = static_cast<int64_t>(request.prompt.size());
  Require(length >= 1, "the prompt is empty; it must have at least 1 token");
  Require(request.max_new_tokens >= 1, "max_new_tokens is ", request.max_new_tokens,
          "; it must be >= 1");
  Require(request.max_new_tokens <= options_.max_context - length, "a prompt of ", length,
          " tokens and ", request.max_new_tokens, " new tokens exceed the context of ",
          options_.max_context, " tokens");
  Validate(request.rule);
  int64_t last_cut = 0;
  for (const int64_t cut : request.cuts) {
    Require(cut > last_cut && cut <= length, "a cut at ", cut, " after ", last_cut,
            "; cuts must ascend and lie within the prompt of ", length, " tokens");
    last_cut = cut;
  }
  CheckShifted(request);
  const auto max_cuts = options_.reuse ? static_cast<size_t>(options_.max_runs - 1) : 0;
  request.cuts.resize(std::min(request.cuts.size(), max_cuts));
  const int64_t most_tokens = length + request.max_new_tokens - 1;
  const int64_t most_pages = SequencePages(options_.page_size).PagesFor(most_tokens, request.cuts);
  const int64_t all_pages = most_pages + SourcePages(request);
  Require(all_pages <= Capacity(), "a prompt of ", length, " tokens and ", request.max_new_tokens,
          " new tokens needs ", all_pages, " pages of the KV cache",
          request.shifted.empty() ? "" : ", with those that its shifted spans are copied from",
          "; a sequence may have ", Capacity(), " of ", options_.num_pages);

  auto sequence = std::make_unique<Sequence>(options_.page_size);
  sequence->id = next_id_++;
  sequence->tokens.reserve(static_cast<size_t>(length + request.max_new_tokens));
  sequence->tokens = request.prompt;
  sequence->pages.Pages().reserve(static_cast<size_t>(most_pages));
  sequence->request = std::move(request);
  waiting_.PushNewest(*sequence);
  const SequenceId id = sequence->id;
  sequences_.emplace(id, std::move(sequence));
  return id;
}

Sequence& Scheduler::Find(SequenceId id) const {
  const auto found = sequences_.find(id);
  Require(found != sequences_.end(), "there is no sequence ", id);
  return *found->second;
}

void Scheduler::Remove(SequenceId id) {
  Sequence& sequence = Find(id);
  RemoveSources(sequence);
  if (sequence.finish == Finish::kNone && !sequence.awaited_by) ++counts_.removed;
  if (sequence.place == Sequence::Place::kRunning) LeaveBatch(sequence);
  if (sequence.place == Sequence::Place::kWaiting) waiting_.Unlink(sequence);
  ReleasePages(sequence);
  Erase(sequence);
}

void Scheduler::LeaveBatch(Sequence& sequence) {
  if (sequence.AllDrawn()) --retiring_;
  running_.Unlink(sequence);
  seats_[static_cast<size_t>(sequence.seat)] = nullptr;
  sequence.seat = -1;
  sequence.on_device = false;
  sequence.place = Sequence::Place::kHeld;
}

// Steps in flight may still use the pages. The next owner's writes are enqueued after those steps.
void Scheduler::ReleasePages(Sequence& sequence) {
  ReleaseSources(sequence);
  size_t shared = 0;
  for (; !sequence.chunks.empty(); sequence.chunks.pop_back()) {
    shared += registry_.Get(sequence.chunks.back()).pages.size();
    registry_.Release(sequence.chunks.back());
  }
  pool_.Release(std::as_const(sequence.pages).Pages().subspan(shared));
  sequence.pages.Clear();
  sequence.cuts.clear();
  sequence.sealed = 0;
  sequence.in_cache = 0;
}

void Scheduler::Preempt(Sequence& sequence) {
  ++counts_.preemptions;
  sequence.lost = std::max(sequence.lost, sequence.in_cache);
  LeaveBatch(sequence);
  ReleasePages(sequence);
  sequence.place = Sequence::Place::kWaiting;
  waiting_.PushOldest(sequence);
}

const ScheduledStep& Scheduler::ScheduleStep() {
  step_.moves.clear();
  step_.shifted.clear();
  step_.decode.clear();
  step_.prefill.clear();
  step_.decode_rows = 0;
  decoding_.clear();
  stalled_ = false;
  first_hole_ = 0;
  made_before_ = registry_.Made();
  for (Sequence* one = running_.oldest; one != nullptr; one = one->newer) ReleaseSources(*one);
  Retire();
  int64_t budget = options_.token_budget;
  // A sequence that is preempted in this loop is younger and therefore not yet part of the step.
  for (Sequence* sequence = running_.oldest; sequence != nullptr; sequence = sequence->newer) {
    if (sequence->on_device) {
      ScheduleDecode(*sequence);
    } else {
      SchedulePrefill(*sequence, budget);
    }
  }
  int32_t growing = 0;
  for (const Sequence* one = running_.oldest; one != nullptr; one = one->newer) {
    growing += MayGrow(*one);
  }
  while (budget > 0 && !stalled_ && AdmitOldest(growing)) {
    growing += MayGrow(*running_.newest);
    SchedulePrefill(*running_.newest, budget);
  }
  Compact();
  FinishStep();
  return step_;
}

// A sequence that has drawn its last token needs no seat. Its pages are kept if they may be sealed
// once the token is known, or if the caller may still read them.
void Scheduler::Retire() {
  for (Sequence* sequence = running_.oldest; sequence != nullptr && retiring_ > 0;) {
    Sequence& one = *std::exchange(sequence, sequence->newer);
    if (!one.AllDrawn()) continue;
    LeaveBatch(one);
    if (!one.request.hold && !options_.reuse) ReleasePages(one);
  }
}

int64_t Scheduler::MissingPages(const Sequence& sequence, int64_t tokens) const {
  return sequence.pages.PagesFor(tokens, sequence.cuts) - sequence.pages.NumPages();
}

bool Scheduler::MayGrow(const Sequence& sequence) const {
  return MissingPages(sequence, sequence.MaxInCache()) > 0;
}

// Preempts younger sequences and evicts chunks until `pages` pages are free for the sequence.
bool Scheduler::MakeRoom(int64_t pages, const Sequence& sequence) {
  while (Available() < pages) {
    if (running_.newest == &sequence) return false;
    Preempt(*running_.newest);
  }
  while (pool_.NumFree() < pages) registry_.EvictOldest();
  return true;
}

void Scheduler::Grow(Sequence& sequence, int64_t tokens) {
  const int64_t missing = MissingPages(sequence, tokens);
  if (missing <= 0) return;
  sequence.pages.Cut(tokens, sequence.cuts);
  pool_.Allocate(static_cast<int32_t>(missing), sequence.pages.Pages());
}

void Scheduler::ScheduleDecode(Sequence& sequence) {
  const int64_t tokens = sequence.in_cache + 1;
  const int64_t missing = MissingPages(sequence, tokens);
  if (missing > 0 && !MakeRoom(missing, sequence)) {
    // This step overwrites its seat, so the token will come from the host later.
    sequence.on_device = false;
    stalled_ = true;
    ++counts_.stalls;
    return;
  }
  Grow(sequence, tokens);
  decoding_.push_back(
      {.sequence = &sequence, .begin = sequence.in_cache, .count = 1, .draws = true});
  ++sequence.in_cache;
  ++sequence.drawn;
}

void Scheduler::SchedulePrefill(Sequence& sequence, int64_t& budget) {
  if (sequence.InFlight() > 0) {  // the sequence stalled
    stalled_ = true;
    return;
  }
  AdoptSealed(sequence);
  SkipShifted(sequence);
  const int64_t begin = sequence.in_cache;
  const int64_t count = std::min({UntilShifted(sequence, begin), budget, prompt_limit_ - begin});
  if (count <= 0) return;
  const bool writes = begin >= sequence.sealed;
  if (writes) {
    const int64_t missing = MissingPages(sequence, begin + count);
    if (missing > 0 && !MakeRoom(missing, sequence)) {
      stalled_ = true;
      ++counts_.stalls;
      return;
    }
    Grow(sequence, begin + count);
  }
  sequence.in_cache += count;
  budget -= count;
  if (sequence.awaited_by) counts_.source_tokens += count;
  counts_.recomputed_tokens += std::clamp<int64_t>(sequence.lost - begin, 0, count);
  const bool draws = sequence.in_cache == sequence.Known();
  step_.prefill.push_back(
      {.sequence = &sequence, .begin = begin, .count = count, .draws = draws, .writes = writes});
  if (draws) {
    ++sequence.drawn;
    sequence.on_device = true;
  }
  // From here on, other sequences may read these pages, even in this step: in each layer, attention
  // comes after all appends.
  SealKnown(sequence);
}

bool Scheduler::AdmitOldest(int32_t growing) {
  if (waiting_.oldest == nullptr || running_.count == options_.max_batch) return false;
  Sequence& sequence = *waiting_.oldest;
  if (sequence.InFlight() > 0) return false;  // its newest token is not known yet
  // If sources were added, they are now the oldest waiting sequences.
  if (!FindSources(sequence, growing)) return waiting_.oldest != &sequence && AdmitOldest(growing);
  match_.clear();
  int64_t matched = 0;
  if (options_.reuse) {
    const auto exact =
        std::span(sequence.tokens)
            .first(static_cast<size_t>(std::min(sequence.Known(), sequence.Exact())));
    matched = registry_.Match(exact, sequence.awaited_by ? 0 : options_.max_runs - 1, match_);
    LayOut(sequence, matched);
    // Chunks that end within pages waste space. Submit has promised that the sequence fits even
    // when it is longest, so without that space only whole pages are reused.
    if (sequence.pages.PagesFor(sequence.MaxInCache(), sequence.cuts) +
            SourcePages(sequence.request) >
        Capacity()) {
      matched = registry_.Match(exact, 0, match_);
    }
  }
  LayOut(sequence, matched);
  const int64_t missing = MissingPages(sequence, sequence.Known());
  int64_t idle = IdlePagesOf(match_);
  for (const std::vector<ChunkId>& source : sources_) idle += IdlePagesOf(source);
  // Reserves a page for each running sequence that may grow; otherwise this one might be preempted
  // at once.
  if (missing + idle + growing > Available()) {
    sequence.pages.Clear();
    sequence.cuts.clear();
    return false;
  }
  for (const ChunkId id : match_) registry_.Acquire(id);
  AcquireSources(sequence);
  sequence.chunks = match_;
  sequence.sealed = matched;
  MakeRoom(missing, sequence);
  Grow(sequence, sequence.Known());
  sequence.in_cache = std::min(matched, sequence.Known() - 1);
  counts_.reused_tokens += sequence.in_cache;
  waiting_.Unlink(sequence);
  running_.PushNewest(sequence);
  sequence.place = Sequence::Place::kRunning;
  while (seats_[static_cast<size_t>(first_hole_)] != nullptr) ++first_hole_;
  sequence.seat = first_hole_;
  seats_[static_cast<size_t>(first_hole_)] = &sequence;
  return true;
}

void Scheduler::LayOut(Sequence& sequence, int64_t matched) {
  sequence.pages.Clear();
  sequence.cuts.clear();
  int64_t end = 0;
  for (const ChunkId id : match_) {
    const Chunk& chunk = registry_.Get(id);
    sequence.pages.Pages().insert(sequence.pages.Pages().end(), chunk.pages.begin(),
                                  chunk.pages.end());
    end += static_cast<int64_t>(chunk.tokens.size());
    if (!split_.Fill(std::ssize(chunk.tokens))) {
      sequence.cuts.push_back(end);
    }
  }
  for (const int64_t cut : sequence.request.cuts) {
    if (cut > matched && static_cast<int32_t>(sequence.cuts.size()) < options_.max_runs - 1) {
      sequence.cuts.push_back(cut);
    }
  }
  sequence.pages.Cut(matched, sequence.cuts);
}

// The rows of a step are seats, so running sequences move to the lowest ones.
void Scheduler::Compact() {
  int32_t from = options_.max_batch;
  for (int32_t to = first_hole_; to < running_.count; ++to) {
    if (seats_[static_cast<size_t>(to)] != nullptr) continue;
    do --from;
    while (seats_[static_cast<size_t>(from)] == nullptr);
    Sequence& sequence = *std::exchange(seats_[static_cast<size_t>(from)], nullptr);
    seats_[static_cast<size_t>(to)] = &sequence;
    sequence.seat = to;
    if (sequence.on_device) step_.moves.push_back({.from = from, .to = to});
  }
}

void Scheduler::FinishStep() {
  step_.decode_rows = static_cast<int32_t>(decoding_.size());
  if (!step_.Empty()) ++counts_.steps;
  const auto finish = [this](StepSlice& slice) {
    slice.seat = slice.sequence->seat;
    if (!slice.draws) return;
    Sequence& sequence = *seats_[static_cast<size_t>(slice.seat)];
    sequence.last_draw = counts_.steps;
    sequence.draw_seat = slice.seat;
    if (sequence.AllDrawn()) ++retiring_;
  };
  for (StepSlice& slice : step_.prefill) finish(slice);
  for (StepSlice& slice : decoding_) {
    finish(slice);
    const auto seat = static_cast<size_t>(slice.seat);
    if (seat >= step_.decode.size()) step_.decode.resize(seat + 1);
    step_.decode[seat] = slice;
  }
}

std::optional<Finish> Scheduler::TakeToken(SequenceId id, int32_t token) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->finish != Finish::kNone) return std::nullopt;
  Sequence& sequence = *found->second;
  const int64_t number = sequence.Known() - sequence.NumPrompt() + 1;
  Require(number <= sequence.drawn, "sequence ", id, " has drawn ", sequence.drawn,
          " tokens and gets number ", number);
  const bool replaced = sequence.replacement && sequence.replacement->number == number;
  sequence.tokens.push_back(replaced ? sequence.replacement->token : token);
  const std::vector<int32_t>& stop_ids = sequence.request.stop_ids;
  Finish finish = Finish::kNone;
  if (number == sequence.request.max_new_tokens) finish = Finish::kLength;
  if (std::ranges::find(stop_ids, token) != stop_ids.end()) finish = Finish::kStop;
  SealKnown(sequence);
  const bool source = sequence.awaited_by.has_value();
  if (finish != Finish::kNone) {
    sequence.finish = finish;
    End(sequence);
  }
  return source ? std::nullopt : std::optional(finish);
}

void Scheduler::End(Sequence& sequence) {
  counts_.finished += !sequence.awaited_by;
  if (sequence.place == Sequence::Place::kRunning) LeaveBatch(sequence);
  if (sequence.place == Sequence::Place::kWaiting) waiting_.Unlink(sequence);
  sequence.place = Sequence::Place::kHeld;
  if (options_.reuse && sequence.request.keep) {
    const int64_t exact = std::min({sequence.in_cache, sequence.Known(), sequence.Exact()});
    // If the chunk already exists, its page contains nothing after the chunk, so a held sequence
    // would lose the tokens that follow.
    if (!sequence.request.hold || exact == sequence.in_cache) SealTo(sequence, exact);
  }
  if (sequence.request.hold) return;
  ReleasePages(sequence);
  Erase(sequence);
}

void Scheduler::ReplaceNewest(SequenceId id, int32_t token) {
  Sequence& sequence = Find(id);
  Require(sequence.drawn > 0, "sequence ", id, " has no token yet");
  if (sequence.NumPrompt() + sequence.drawn > sequence.Known()) {
    sequence.replacement = {.number = sequence.drawn, .token = token};
  } else {
    sequence.tokens.back() = token;
  }
}

// A chunk ends at the end of its page, or at an earlier cut.
int64_t Scheduler::NextSealEnd(const Sequence& sequence) const {
  int64_t end = sequence.sealed + options_.page_size;
  for (const int64_t cut : sequence.cuts) {
    if (cut > sequence.sealed) end = std::min(end, cut);
  }
  return end <= sequence.Exact() ? end : INT64_MAX;
}

void Scheduler::SealKnown(Sequence& sequence) {
  if (!options_.reuse) return;
  const int64_t known = std::min(sequence.in_cache, sequence.Known());
  for (int64_t end = NextSealEnd(sequence); end <= known; end = NextSealEnd(sequence)) {
    SealTo(sequence, end);
  }
}

void Scheduler::SealTo(Sequence& sequence, int64_t end) {
  if (end <= sequence.sealed) return;
  const auto tokens = std::span(sequence.tokens)
                          .subspan(static_cast<size_t>(sequence.sealed),
                                   static_cast<size_t>(end - sequence.sealed));
  int32_t& page =
      sequence.pages.Pages()[static_cast<size_t>(sequence.pages.PageOf(sequence.sealed))];
  const ChunkId parent = sequence.chunks.empty() ? kRootChunk : sequence.chunks.back();
  const ChunkId chunk = registry_.Seal(parent, tokens, {&page, 1});
  page = registry_.Get(chunk).pages[0];
  sequence.chunks.push_back(chunk);
  sequence.sealed = end;
}

// Other sequences may have sealed the next tokens since this one was admitted.
void Scheduler::AdoptSealed(Sequence& sequence) {
  while (options_.reuse) {
    const int64_t end = NextSealEnd(sequence);
    if (end > sequence.Known()) return;
    const auto tokens = std::span(sequence.tokens)
                            .subspan(static_cast<size_t>(sequence.sealed),
                                     static_cast<size_t>(end - sequence.sealed));
    const ChunkId parent = sequence.chunks.empty() ? kRootChunk : sequence.chunks.back();
    const ChunkId chunk = registry_.Find(parent, tokens);
    if (chunk == kRootChunk) return;
    registry_.Acquire(chunk);
    const int32_t page = registry_.Get(chunk).pages[0];
    sequence.pages.Cut(end, sequence.cuts);
    std::vector<int32_t>& pages = sequence.pages.Pages();
    const auto at = static_cast<size_t>(sequence.pages.PageOf(sequence.sealed));
    if (at < pages.size()) {
      pool_.Release({&pages[at], 1});
      pages[at] = page;
    } else {  // the sequence stalled at the beginning of the page
      pages.push_back(page);
    }
    sequence.chunks.push_back(chunk);
    sequence.sealed = end;
    const int64_t in_cache = std::min(end, sequence.Known() - 1);
    counts_.reused_tokens += std::max<int64_t>(0, in_cache - sequence.in_cache);
    sequence.in_cache = std::max(sequence.in_cache, in_cache);
  }
}

Scheduler::Pinned Scheduler::Pin(std::span<const int32_t> tokens) {
  Pinned pinned;
  pinned.tokens = registry_.Match(tokens, options_.max_runs - 1, match_);
  if (match_.empty()) return pinned;
  pinned.chunk = match_.back();
  const int32_t pages = registry_.PinnedPages() + registry_.PagesToPin(pinned.chunk);
  Require(pages <= options_.max_pinned_pages, "with these ", pinned.tokens, " tokens ", pages,
          " pages would be pinned; max_pinned_pages allows ", options_.max_pinned_pages);
  registry_.Pin(pinned.chunk);
  return pinned;
}

void Scheduler::Unpin(const Pinned& pinned) {
  if (pinned.chunk != kRootChunk) registry_.Unpin(pinned.chunk);
}

void Scheduler::EvictIdle() {
  while (registry_.OldestIdle() != kRootChunk) registry_.EvictOldest();
}

}  // namespace tokline
