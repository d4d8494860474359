// Runs a scheduler together with a model of the device that it drives. In the model, K and V are
// hashes of the prefix after which they were computed, and tokens follow from such a hash, the seed
// and the position. Every page that is stolen, stale or written twice, and every token that is lost
// or repeated, therefore gives a wrong hash. All invariants are recomputed and checked after each
// operation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/scheduler/scheduler.h"
#include "harness/tests/scheduler/scheduler_model_text.h"
#include "kernels/common/error.h"

namespace tokline::testing {

struct ModelFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename... Parts>
void Expect(bool ok, const Parts&... message) {
  if (!ok) throw ModelFailure(StrCat(message...));
}

// Counts the events that a run should cover.
struct ModelCounts {
  int64_t operations = 0, steps = 0, tokens = 0, refused = 0, replaced = 0, pins = 0;
  int64_t finished = 0, cancelled = 0, preemptions = 0, stalls = 0, reused_tokens = 0;
  int64_t evictions = 0, moves = 0, rewritten_last = 0, drained_requests = 0;
  int64_t shifted_tokens = 0, source_tokens = 0, copied_again = 0;
  int64_t recomputed_tokens = 0;

  void Add(const ModelCounts& other) {
    auto* to = &operations;
    const auto* from = &other.operations;
    for (size_t i = 0; i < sizeof(ModelCounts) / sizeof(int64_t); ++i) to[i] += from[i];
  }
};

class SchedulerModel {
 public:
  // The seed determines everything.
  explicit SchedulerModel(uint64_t seed) : SchedulerModel(model::RandomOptions(seed)) {}
  explicit SchedulerModel(const SchedulerOptions& options)
      : options_(options),
        scheduler_(options),
        kv_(static_cast<size_t>(options.num_pages * options.page_size), 0),
        sampled_(static_cast<size_t>(options.max_batch), -1) {}

  // Performs one operation, which `word` and the current state determine, and checks all
  // invariants.
  void Apply(uint64_t word) {
    ++counts_.operations;
    const uint64_t choice = word % 100;
    const uint64_t detail = word / 100;
    if (choice < 20) {
      Submit(detail);
    } else if (choice < 23) {
      Remove(detail);
    } else if (choice < 26) {
      while (!in_flight_.empty()) Deliver();
    } else if (choice < 29) {
      Replace(detail);
    } else if (choice < 32) {
      PinOrUnpin(detail);
    } else if (choice < 34) {
      SubmitTooLong(detail);
    } else {
      Step();
    }
    CheckInvariants();
  }

  // Runs until nothing is left to do. Releases held sequences and pins first, because the scheduler
  // must keep them.
  void Drain() {
    ReleaseHeld();
    for (const Scheduler::Pinned& pinned : pinned_) scheduler_.Unpin(pinned);
    pinned_.clear();
    int64_t bound = 8;
    for (const auto& [id, text] : texts_) {
      ++counts_.drained_requests;
      // Each step advances the oldest sequence by a token, and each sequence may have to be
      // recomputed once it is the oldest.
      int64_t work = static_cast<int64_t>(text.expected.size() + text.tokens.size()) + 4;
      for (const ShiftedSpan& span : text.request.shifted) {
        work += text.request.shifted_after + span.Size() + 4;
      }
      bound += 4 * work;
    }
    while (scheduler_.HasWork() || !in_flight_.empty()) {
      Expect(--bound > 0, "the scheduler makes no progress");
      Step();
      ReleaseHeld();
      CheckInvariants();
    }
    Expect(texts_.empty(), texts_.size(), " requests never ended");
    Expect(scheduler_.Pages().NumFree() + scheduler_.Chunks().IdlePages() == options_.num_pages,
           "pages are lost");
    Expect(scheduler_.Chunks().PinnedPages() == 0, "pages stay pinned");
    AddSchedulerCounts();
  }

  const ModelCounts& Counts() const { return counts_; }

 private:
  struct Text {
    Request request;
    std::vector<int32_t> tokens;    // the prompt and all tokens drawn so far
    std::vector<uint64_t> chain;    // chain[i] is the hash of tokens[0..i]
    std::vector<int32_t> expected;  // what the request gives when it runs alone
    size_t seen = 0;                // number of tokens delivered
    bool source = false;            // a source, not a request
    SequenceId user = 0;            // the sequence that a source serves
    bool copied = false;            // its shifted spans were copied at least once
    bool replaced = false;          // a token was replaced, so `expected` does not apply
    bool ended = false;             // it has ended and is held
    int64_t most_in_cache = 0;      // maximum of in_cache so far
  };
  struct Draw {
    SequenceId id;
    int32_t seat;
    int32_t token;
  };

  void Submit(uint64_t detail) {
    if (texts_.size() >= 7) return;
    const Request request = model::RandomRequest(detail, options_);
    const auto length = static_cast<int64_t>(request.prompt.size());
    Text text{.request = request, .tokens = request.prompt, .chain = {}, .expected = {}};
    text.chain = model::PromptChain(request);
    uint64_t chain = text.chain.back();
    for (int64_t i = 0; i < request.max_new_tokens; ++i) {
      const int32_t token = model::Sampled(chain, request.rule.seed, length + i);
      text.expected.push_back(token);
      chain = model::Chain(chain, token);
      if (std::ranges::find(request.stop_ids, token) != request.stop_ids.end()) break;
    }
    // The scheduler must refuse exactly the requests that can never fit.
    const bool context = length + request.max_new_tokens <= options_.max_context;
    const int64_t pages = model::PagesNeeded(request, options_);
    const bool fits = context && pages <= scheduler_.Capacity();
    try {
      const SequenceId id = scheduler_.Submit(request);
      Expect(fits, "a request of ", pages, " pages was taken by a cache of ",
             scheduler_.Capacity());
      texts_.emplace(id, std::move(text));
    } catch (const InvalidArgument& error) {
      Expect(!fits, "a request that fits was refused: ", error.what());
      ++counts_.refused;
    }
  }

  // Adds the sources that the scheduler has added.
  void MeetSources() {
    const auto walk = [this](const Sequence* s) {
      for (; s != nullptr; s = s->newer) {
        if (!s->awaited_by || texts_.contains(s->id)) continue;
        Text text{
            .request = s->request, .tokens = s->tokens, .chain = model::PromptChain(s->request)};
        text.source = true;
        text.user = *s->awaited_by;
        texts_.emplace(s->id, std::move(text));
      }
    };
    walk(scheduler_.OldestRunning());
    walk(scheduler_.OldestWaiting());
  }

  void SubmitTooLong(uint64_t detail) {
    Request request;
    request.prompt.assign(1 + detail % 3, 0);
    request.max_new_tokens =
        int64_t{options_.num_pages} * options_.page_size + 1 + static_cast<int64_t>(detail % 5);
    try {
      scheduler_.Submit(request);
    } catch (const InvalidArgument&) {
      ++counts_.refused;
      return;
    }
    throw ModelFailure("a request that never fits was taken");
  }

  SequenceId AnyId(uint64_t detail) const {
    auto at = texts_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(detail % texts_.size()));
    return at->first;
  }

  void Remove(uint64_t detail) {
    if (texts_.empty()) return;
    const SequenceId id = AnyId(detail);
    if (texts_.at(id).source) return;
    scheduler_.Remove(id);
    texts_.erase(id);
    std::erase_if(
        texts_, [id](const auto& other) { return other.second.source && other.second.user == id; });
    ++counts_.cancelled;
    try {
      scheduler_.Remove(id);
    } catch (const InvalidArgument&) {
      return;
    }
    throw ModelFailure("a sequence was removed twice");
  }

  void ReleaseHeld() {
    for (auto it = texts_.begin(); it != texts_.end();) {
      if (it->second.ended) {
        scheduler_.Remove(it->first);
        it = texts_.erase(it);
      } else {
        ++it;
      }
    }
  }

  // Replaces a token that no step has taken yet (teacher forcing).
  void Replace(uint64_t detail) {
    if (texts_.empty()) return;
    const SequenceId id = AnyId(detail);
    Text& text = texts_.at(id);
    const Sequence& sequence = scheduler_.Get(id);
    if (text.source || sequence.drawn == 0 || text.ended || !text.request.stop_ids.empty()) return;
    const auto token = static_cast<int32_t>(detail / 64 % model::kVocabulary);
    scheduler_.ReplaceNewest(id, token);
    text.tokens.back() = token;
    text.chain.pop_back();
    text.chain.push_back(model::Chain(text.chain.back(), token));
    text.replaced = true;
    if (sequence.seat >= 0) sampled_[static_cast<size_t>(sequence.seat)] = token;
    ++counts_.replaced;
  }

  void PinOrUnpin(uint64_t detail) {
    if (!pinned_.empty() && detail % 2 == 0) {
      const size_t which = detail / 2 % pinned_.size();
      scheduler_.Unpin(pinned_[which]);
      pinned_.erase(pinned_.begin() + static_cast<std::ptrdiff_t>(which));
      return;
    }
    if (texts_.empty() || pinned_.size() > 3) return;
    const Text& text = texts_.at(AnyId(detail / 2));
    const auto length = static_cast<size_t>(1 + detail / 16 % text.tokens.size());
    const int32_t before = scheduler_.Chunks().PinnedPages();
    try {
      const Scheduler::Pinned pinned =
          scheduler_.Pin(std::span(text.tokens).first(std::min(length, text.tokens.size())));
      if (pinned.chunk != kRootChunk) pinned_.push_back(pinned);
      ++counts_.pins;
    } catch (const InvalidArgument&) {
      Expect(scheduler_.Chunks().PinnedPages() == before, "a refused pin pins");
      ++counts_.refused;
    }
    Expect(scheduler_.Chunks().PinnedPages() <= options_.max_pinned_pages, "too much is pinned");
  }

  // Like the decoder, schedules and runs a step, and then delivers the tokens of the previous one.
  void Step() {
    const int64_t evictions = scheduler_.Chunks().Evictions();
    std::vector<bool> sealed_before(static_cast<size_t>(options_.num_pages), false);
    for (ChunkId id = 0; id < scheduler_.Chunks().EndId(); ++id) {
      for (const int32_t page : PagesOf(id)) sealed_before[static_cast<size_t>(page)] = true;
    }
    const bool expects_work = scheduler_.HasWork();
    const ScheduledStep& step = scheduler_.ScheduleStep();
    MeetSources();
    Expect(step.Empty() || expects_work, "a step without work");
    if (evictions != scheduler_.Chunks().Evictions()) {
      sealed_before.assign(sealed_before.size(),
                           false);  // pages may have changed hands within the step
    }
    Run(step, sealed_before);
    CheckScheduled(step);
    for (auto& [id, text] : texts_) {
      text.most_in_cache = std::max(text.most_in_cache, scheduler_.Get(id).in_cache);
    }
    if (!step.Empty()) ++counts_.steps;
    while (!in_flight_.empty()) Deliver();
    in_flight_.assign(draws_.begin(), draws_.end());
    draws_.clear();
  }

  void Run(const ScheduledStep& step, const std::vector<bool>& sealed_before) {
    const std::vector<int32_t> before = sampled_;
    for (const SeatMove& move : step.moves) {
      sampled_[static_cast<size_t>(move.to)] = before[static_cast<size_t>(move.from)];
      ++counts_.moves;
    }
    for (const Sequence* sequence : step.shifted) CopySources(*sequence, sealed_before);
    const std::vector<int32_t> newest = sampled_;
    int32_t rows = static_cast<int32_t>(step.decode.size());
    for (const StepSlice& slice : step.prefill) {
      if (slice.draws) rows = std::max(rows, slice.seat + 1);
    }
    for (int32_t row = 0; row < rows; ++row) sampled_[static_cast<size_t>(row)] = -1;
    int32_t decode_rows = 0;
    int64_t prefill_tokens = 0;
    for (size_t seat = 0; seat < step.decode.size(); ++seat) {
      const StepSlice& slice = step.decode[seat];
      if (slice.sequence == nullptr) continue;
      Expect(slice.seat == static_cast<int32_t>(seat), "a decode row is not its seat");
      Expect(slice.count == 1 && slice.draws && slice.writes, "a decode row that is none");
      ++decode_rows;
      RunSlice(slice, sealed_before, &newest[seat]);
    }
    SequenceId last = -1;
    for (const StepSlice& slice : step.prefill) {
      Expect(slice.sequence->awaited_by || slice.sequence->id > last, "prefill is not by age");
      if (!slice.sequence->awaited_by) last = slice.sequence->id;
      prefill_tokens += slice.count;
      RunSlice(slice, sealed_before, nullptr);
    }
    Expect(decode_rows == step.decode_rows && prefill_tokens <= options_.token_budget,
           "the step's sums are wrong");
  }

  void RunSlice(const StepSlice& slice, const std::vector<bool>& sealed_before,
                const int32_t* fed) {
    const Sequence& sequence = *slice.sequence;
    const auto found = texts_.find(sequence.id);
    Expect(found != texts_.end(), "a step runs a sequence that is gone");
    Text& text = found->second;
    Expect(slice.count >= 1 && slice.seat >= 0 && slice.seat < options_.max_batch, "a bad slice");
    for (int64_t position = slice.begin; position < slice.begin + slice.count; ++position) {
      const auto at = static_cast<size_t>(position);
      Expect(at < text.tokens.size(), "a token runs that was never drawn");
      const int32_t token = fed != nullptr ? *fed : sequence.tokens[at];
      Expect(token == text.tokens[at], "sequence ", sequence.id, " runs token ", token, " at ",
             position, " in place of ", text.tokens[at]);
      const auto slot = static_cast<size_t>(sequence.pages.SlotOf(position));
      const uint64_t before = position == 0 ? 1 : ReadContext(sequence, text, position);
      if (slice.writes) {
        Expect(!sealed_before[slot / static_cast<size_t>(options_.page_size)],
               "a sealed chunk is written");
        kv_[slot] = model::Chain(before, token);
      }
      Expect(kv_[slot] == text.chain[at], "wrong K and V at position ", position);
    }
    if (!slice.writes) ++counts_.rewritten_last;
    const int64_t end = slice.begin + slice.count;
    // Counts the tokens that had been in the cache before. Decode rows never have been.
    recomputed_tokens_ += std::max<int64_t>(0, std::min(end, text.most_in_cache) - slice.begin);
    Expect(slice.draws == (end == static_cast<int64_t>(text.tokens.size())),
           "a slice draws before its sequence's end, or not there");
    if (!slice.draws) return;
    const int32_t token = model::Sampled(text.chain.back(), text.request.rule.seed, end);
    text.tokens.push_back(token);
    text.chain.push_back(model::Chain(text.chain.back(), token));
    sampled_[static_cast<size_t>(slice.seat)] = token;
    draws_.push_back({sequence.id, slice.seat, token});
  }

  void CopySources(const Sequence& sequence, const std::vector<bool>& sealed_before) {
    Text& text = texts_.at(sequence.id);
    const Request& request = sequence.request;
    Expect(sequence.sources.size() == request.shifted.size(), "a span has no source");
    const auto page_size = static_cast<size_t>(options_.page_size);
    for (size_t i = 0; i < request.shifted.size(); ++i) {
      const ShiftedSpan& span = request.shifted[i];
      const int64_t shift = span.begin - request.shifted_after;
      int64_t position = 0;
      for (const ChunkId id : sequence.sources[i]) {
        const Chunk& chunk = scheduler_.Chunks().Get(id);
        for (size_t t = 0; t < chunk.tokens.size(); ++t, ++position) {
          if (position < request.shifted_after) continue;
          const auto from = static_cast<size_t>(chunk.pages[t / page_size]);
          const auto to = static_cast<size_t>(sequence.pages.SlotOf(position + shift));
          Expect(!sealed_before[to / page_size], "a sealed chunk is overwritten");
          kv_[to] = model::Shifted(kv_[from * page_size + t % page_size], shift);
          Expect(kv_[to] == text.chain[static_cast<size_t>(position + shift)],
                 "a wrong copy at position ", position + shift);
        }
      }
      Expect(position == request.shifted_after + span.Size(), "a source of another length");
    }
    counts_.copied_again += text.copied;
    text.copied = true;
  }

  // Checks the K and V of all positions before `position` through the table that attention gets.
  // Returns the hash at the last of them.
  uint64_t ReadContext(const Sequence& sequence, const Text& text, int64_t position) const {
    size_t at = 0;
    int32_t runs = 0;
    sequence.pages.ForEachRun(position, [&](std::span<const int32_t> pages, int64_t tokens) {
      ++runs;
      for (int64_t i = 0; i < tokens; ++i, ++at) {
        const int32_t page = pages[static_cast<size_t>(i / options_.page_size)];
        const auto slot = static_cast<size_t>(page * options_.page_size + i % options_.page_size);
        Expect(kv_[slot] == text.chain[at], "sequence ", sequence.id, " reads at position ", at,
               " what is not its own");
      }
    });
    Expect(static_cast<int64_t>(at) == position && runs <= options_.max_runs, "a context of ", at,
           " tokens in ", runs, " runs");
    return text.chain[at - 1];
  }

  // Checks after a step was scheduled that its rows are dense and that no sequence was skipped
  // without a reason.
  void CheckScheduled(const ScheduledStep& step) {
    std::vector<bool> taken(static_cast<size_t>(options_.max_batch), false);
    for (const Sequence* s = scheduler_.OldestRunning(); s != nullptr; s = s->newer) {
      Expect(s->seat >= 0 && s->seat < scheduler_.NumRunning(), "seat ", s->seat, " of ",
             scheduler_.NumRunning(), " running sequences");
      taken[static_cast<size_t>(s->seat)] = true;
    }
    Expect(std::ranges::count(taken, true) == scheduler_.NumRunning(), "a seat has two sequences");
    // The oldest sequence is in every step, unless held sequences have its pages.
    const Sequence* oldest = scheduler_.OldestRunning();
    bool held = false;
    for (const auto& [id, text] : texts_) {
      held = held || scheduler_.Get(id).place == Sequence::Place::kHeld;
    }
    if (held) return;
    if (oldest == nullptr) {
      const Sequence* waiting = scheduler_.OldestWaiting();
      Expect(waiting == nullptr || waiting->InFlight() > 0, "nobody is admitted to an empty batch");
      return;
    }
    const auto is_oldest = [&](const StepSlice& slice) { return slice.sequence == oldest; };
    Expect(
        std::ranges::any_of(step.decode, is_oldest) || std::ranges::any_of(step.prefill, is_oldest),
        "the oldest sequence sits a step out");
  }

  void Deliver() {
    const Draw draw = in_flight_.front();
    in_flight_.pop_front();
    const auto found = texts_.find(draw.id);
    const bool there = found != texts_.end() && !found->second.ended;
    const bool expected = there && !found->second.source;
    const bool preempted = there && scheduler_.Get(draw.id).place == Sequence::Place::kWaiting;
    const std::optional<Finish> finish = scheduler_.TakeToken(draw.id, draw.token);
    Expect(finish.has_value() == expected, "a token of a sequence that is ",
           expected ? "there was dropped" : "gone was taken");
    if (there && !expected) texts_.erase(found);  // a source, which draws only once
    if (!expected) return;
    Text& text = found->second;
    ++counts_.tokens;
    if (!text.replaced) {
      Expect(text.seen < text.expected.size() && text.expected[text.seen] == draw.token,
             "sequence ", draw.id, " gets token ", draw.token, " as number ", text.seen);
    }
    ++text.seen;
    const bool stop =
        std::ranges::find(text.request.stop_ids, draw.token) != text.request.stop_ids.end();
    const bool length = static_cast<int64_t>(text.seen) == text.request.max_new_tokens;
    Expect(*finish == (stop     ? Finish::kStop
                       : length ? Finish::kLength
                                : Finish::kNone),
           "sequence ", draw.id, " ends wrongly after ", text.seen, " tokens");
    if (*finish == Finish::kNone) return;
    Expect(text.replaced || text.seen == text.expected.size(), "the text is too short");
    ++counts_.finished;
    if (text.request.hold) {
      text.ended = true;
      const Sequence& held = scheduler_.Get(draw.id);
      Expect(preempted || held.in_cache >= held.Known() - 1, "sequence ", draw.id,
             " is held without its K and V");
    } else {
      texts_.erase(found);
    }
  }

  std::span<const int32_t> PagesOf(ChunkId id) const {
    const ChunkRegistry& chunks = scheduler_.Chunks();
    if (!IsLive(id)) return {};
    return chunks.Get(id).pages;
  }
  bool IsLive(ChunkId id) const { return scheduler_.Chunks().IsLive(id); }

  void CheckInvariants() {
    CheckSequences();
    CheckPages();
    CheckChunks();
  }

  void CheckSequences() {
    Expect(scheduler_.NumSequences() == static_cast<int32_t>(texts_.size()), "sequences are lost");
    SequenceId last = -1;
    int32_t running = 0, waiting = 0;
    const auto walk = [&](const Sequence* s, Sequence::Place place, int32_t& count) {
      for (; s != nullptr; s = s->newer, ++count) {
        Expect(s->awaited_by || s->id > last, "sequence ", s->id, " comes after ", last);
        Expect(s->place == place, "a sequence is in the wrong list");
        Expect(s->finish == Finish::kNone, "a sequence goes on after its end");
        if (!s->awaited_by) last = s->id;
      }
    };
    walk(scheduler_.OldestRunning(), Sequence::Place::kRunning, running);
    walk(scheduler_.OldestWaiting(), Sequence::Place::kWaiting, waiting);
    Expect(running == scheduler_.NumRunning() && waiting == scheduler_.NumWaiting() &&
               running <= options_.max_batch,
           "a list's count is wrong");
    int32_t held = 0;
    for (const auto& [id, text] : texts_) {
      const Sequence& s = scheduler_.Get(id);
      held += s.place == Sequence::Place::kHeld;
      Expect(s.Known() <= static_cast<int64_t>(text.tokens.size()), "tokens from nowhere");
      Expect(std::equal(s.tokens.begin(), s.tokens.end(), text.tokens.begin()), "sequence ", id,
             " has a wrong history");
      Expect(s.Known() - s.NumPrompt() == static_cast<int64_t>(text.seen), "sequence ", id,
             " has a token that was not handed out");
      if (s.finish == Finish::kNone) {
        Expect(s.NumPrompt() + s.drawn == static_cast<int64_t>(text.tokens.size()), "sequence ", id,
               " counts its draws wrongly");
      }
      Expect(s.in_cache < static_cast<int64_t>(text.tokens.size()) + 1, "too much in the cache");
      Expect(s.sealed <= s.Known(), "unknown tokens are sealed");
      Expect(s.sealed <= s.Exact(), "what is not exact is sealed");
      Expect((s.place == Sequence::Place::kRunning) == (s.seat >= 0), "a seat without use");
      if (text.ended) ReadContext(s, text, s.in_cache);
      if (s.place == Sequence::Place::kWaiting) {
        Expect(s.pages.NumPages() == 0 && s.in_cache == 0 && s.chunks.empty() && s.sources.empty(),
               "a waiting sequence has pages");
      }
    }
    Expect(running + waiting + held == scheduler_.NumSequences(), "a sequence is nowhere");
  }

  // Recomputes the references to all pages from their users. Private pages have one owner.
  void CheckPages() {
    references_.assign(static_cast<size_t>(options_.num_pages), 0);
    owner_.assign(static_cast<size_t>(options_.num_pages), -1);
    for (ChunkId id = 0; id < scheduler_.Chunks().EndId(); ++id) {
      for (const int32_t page : PagesOf(id)) {
        Expect(references_[static_cast<size_t>(page)]++ == 0, "page ", page, " is of two chunks");
      }
    }
    for (const auto& [id, text] : texts_) {
      const Sequence& s = scheduler_.Get(id);
      const std::span<const int32_t> pages = s.pages.Pages();
      size_t at = 0;
      ChunkId parent = kRootChunk;
      int64_t tokens = 0;
      for (const ChunkId chunk : s.chunks) {
        Expect(IsLive(chunk), "sequence ", id, " has a chunk that was evicted");
        const Chunk& one = scheduler_.Chunks().Get(chunk);
        Expect(one.parent == parent, "sequence ", id, " has chunks of different prefixes");
        parent = chunk;
        Expect(std::equal(one.tokens.begin(), one.tokens.end(), s.tokens.begin() + tokens),
               "sequence ", id, " has a chunk of other tokens");
        tokens += static_cast<int64_t>(one.tokens.size());
        for (const int32_t page : one.pages) {
          Expect(at < pages.size() && pages[at++] == page, "sequence ", id,
                 " has a page that is not its chunk's");
          ++references_[static_cast<size_t>(page)];
        }
      }
      for (const std::vector<ChunkId>& source : s.sources) {
        for (const ChunkId chunk : source) {
          for (const int32_t page : PagesOf(chunk)) ++references_[static_cast<size_t>(page)];
        }
      }
      Expect(tokens == s.sealed, "sequence ", id, " has ", tokens, " sealed tokens, not ",
             s.sealed);
      for (; at < pages.size(); ++at) {
        const auto page = static_cast<size_t>(pages[at]);
        Expect(references_[page]++ == 0 && owner_[page] < 0, "page ", page,
               " is private to two sequences, or shared unsealed");
        owner_[page] = id;
      }
    }
    int32_t free = 0;
    for (int32_t page = 0; page < options_.num_pages; ++page) {
      const int32_t expected = references_[static_cast<size_t>(page)];
      Expect(scheduler_.Pages().References(page) == expected, "page ", page, " has ",
             scheduler_.Pages().References(page), " references, not ", expected);
      free += expected == 0;
    }
    Expect(scheduler_.Pages().NumFree() == free, "the free list is wrong");
  }

  void CheckChunks() {
    const ChunkRegistry& chunks = scheduler_.Chunks();
    users_.assign(static_cast<size_t>(chunks.EndId()), 0);
    pins_.assign(users_.size(), 0);
    for (const auto& [id, text] : texts_) {
      for (const ChunkId chunk : scheduler_.Get(id).chunks) ++users_[static_cast<size_t>(chunk)];
      for (const std::vector<ChunkId>& source : scheduler_.Get(id).sources) {
        for (const ChunkId chunk : source) ++users_[static_cast<size_t>(chunk)];
      }
    }
    for (const Scheduler::Pinned& pinned : pinned_) {
      for (ChunkId id = pinned.chunk; id != kRootChunk; id = chunks.Get(id).parent) {
        ++pins_[static_cast<size_t>(id)];
      }
    }
    int32_t live = 0, idle_pages = 0, pinned_pages = 0;
    for (ChunkId id = 0; id < chunks.EndId(); ++id) {
      const auto at = static_cast<size_t>(id);
      if (!IsLive(id)) continue;
      ++live;
      const Chunk& chunk = chunks.Get(id);
      Expect(chunk.parent == kRootChunk || IsLive(chunk.parent), "chunk ", id, " has no parent");
      Expect(chunks.Find(chunk.parent, chunk.tokens) == id, "chunk ", id, " is not found");
      Expect(chunks.Users(id) == users_[at], "chunk ", id, " has ", chunks.Users(id),
             " users, not ", users_[at]);
      Expect(chunk.pins == pins_[at], "chunk ", id, " has ", chunk.pins, " pins, not ", pins_[at]);
      if (chunk.parent != kRootChunk) {
        const auto parent = static_cast<size_t>(chunk.parent);
        Expect(users_[parent] >= users_[at] && pins_[parent] >= pins_[at], "chunk ", id,
               " is used without its parent");
      }
      const bool idle = users_[at] == 0 && pins_[at] == 0;
      Expect(chunk.idle == idle, "chunk ", id, " is ", idle ? "idle" : "in use",
             " and not counted so");
      const auto pages = static_cast<int32_t>(chunk.pages.size());
      if (idle) idle_pages += pages;
      if (pins_[at] > 0) pinned_pages += pages;
      CheckContent(id);
      int32_t children = 0, counted = 0;
      for (ChunkId child = 0; child < chunks.EndId(); ++child) {
        children += IsLive(child) && chunks.Get(child).parent == id;
      }
      for (const Chunk::Children& of_length : chunk.children) counted += of_length.count;
      Expect(children == counted, "chunk ", id, " has ", children, " children, not ", counted);
    }
    Expect(live == chunks.NumChunks(), "chunks are lost");
    Expect(idle_pages == chunks.IdlePages() && pinned_pages == chunks.PinnedPages(),
           "idle or pinned pages are counted wrongly");
    // The idle chunks are listed in the order of eviction. pins_ is reused to count visits.
    std::ranges::fill(pins_, 0);
    int32_t listed = 0;
    for (ChunkId id = chunks.OldestIdle(); id != kRootChunk; id = chunks.Get(id).newer) {
      Expect(IsLive(id) && chunks.Get(id).idle, "a chunk in use may be evicted");
      const ChunkId parent = chunks.Get(id).parent;
      Expect(parent == kRootChunk || pins_[static_cast<size_t>(parent)] == 0,
             "a chunk is evicted before what comes after it");
      pins_[static_cast<size_t>(id)] = 1;
      listed += static_cast<int32_t>(chunks.Get(id).pages.size());
    }
    Expect(listed == idle_pages, "an idle chunk can never be evicted");
  }

  // Expects that the K and V of a sealed chunk are those of its prefix.
  void CheckContent(ChunkId id) {
    const ChunkRegistry& chunks = scheduler_.Chunks();
    prefix_.clear();
    for (ChunkId at = id; at != kRootChunk; at = chunks.Get(at).parent) prefix_.push_back(at);
    uint64_t chain = 1;
    for (size_t i = prefix_.size(); i-- > 0;) {
      const Chunk& chunk = chunks.Get(prefix_[i]);
      for (size_t t = 0; t < chunk.tokens.size(); ++t) {
        chain = model::Chain(chain, chunk.tokens[t]);
        if (i > 0) continue;
        const auto page_size = static_cast<size_t>(options_.page_size);
        const auto page = static_cast<size_t>(chunk.pages[t / page_size]);
        Expect(kv_[page * page_size + t % page_size] == chain, "chunk ", id,
               " does not hold its text");
      }
    }
  }

  void AddSchedulerCounts() {
    const SchedulerCounts& counts = scheduler_.Counts();
    Expect(counts.recomputed_tokens == recomputed_tokens_, recomputed_tokens_,
           " tokens were computed again, not ", counts.recomputed_tokens);
    counts_.recomputed_tokens += counts.recomputed_tokens;
    Expect(counts.steps == counts_.steps && counts.finished == counts_.finished,
           "the scheduler counts ", counts.steps, " steps and ", counts.finished,
           " finished requests, and there were ", counts_.steps, " and ", counts_.finished);
    counts_.preemptions += counts.preemptions;
    counts_.stalls += counts.stalls;
    counts_.reused_tokens += counts.reused_tokens;
    counts_.shifted_tokens += counts.shifted_tokens;
    counts_.source_tokens += counts.source_tokens;
    counts_.evictions += scheduler_.Chunks().Evictions();
  }

  SchedulerOptions options_;
  Scheduler scheduler_;
  std::vector<uint64_t> kv_;
  std::vector<int32_t> sampled_;
  std::map<SequenceId, Text> texts_;
  std::vector<Scheduler::Pinned> pinned_;
  std::deque<Draw> in_flight_;
  std::vector<Draw> draws_;
  ModelCounts counts_;
  int64_t recomputed_tokens_ = 0;
  // Used by the checks; members only to save allocations.
  std::vector<int32_t> references_, users_, pins_;
  std::vector<int64_t> owner_;
  std::vector<ChunkId> prefix_;
};

}  // namespace tokline::testing
