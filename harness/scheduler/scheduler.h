// Decides what each step of a decoder does: continuous batching with chunked prefill, reuse of
// chunks, and preemption by recompute. Pure host code.
//
// The running sequences are always older, by arrival, than those that wait: the oldest waiting one
// is admitted first, the youngest running one preempted first. So the oldest sequence is never
// preempted, gets its pages and its share of each step first, and ends after a bounded number of
// steps; then the next is the oldest. Hence nobody starves, and there is no deadlock: a request
// that alone exceeds the cache is refused when it comes.
//
// The device works one step behind the host. A step is scheduled before the tokens of the step
// before it are known; those lie in the sequences' slots on the device. NewestTokens tells of them
// later.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "harness/scheduler/chunk_registry.h"
#include "harness/scheduler/page_pool.h"
#include "harness/scheduler/request.h"

namespace tokline {

struct SchedulerOptions {
  int32_t num_pages = 0;
  int32_t page_size = 256;
  int32_t max_batch = 1;         // running sequences
  int64_t max_context = 0;       // tokens of a sequence
  int64_t token_budget = 1;      // prompt tokens a step
  bool reuse = false;            // of chunks with the same prefix
  int32_t max_runs = 1;          // of a sequence; see SequencePages
  int32_t max_pinned_pages = 0;  // no request counts on these
  uint64_t salt = 0;             // of chunks
  uint64_t hash_mask = ~0ull;    // ChunkRegistry's
};

// Consecutive tokens of a sequence that run in a step.
struct StepPart {
  const Sequence* sequence = nullptr;  // null: the slot is padding
  int64_t begin = 0;
  int64_t count = 0;
  int32_t slot = -1;   // of the sequence
  bool draws = false;  // a token is drawn from the last one
  // Off: K and V are there already, of a chunk that others may read; the token runs only to draw.
  bool writes = true;
};

struct SlotMove {
  int32_t from = 0;
  int32_t to = 0;
};

// Valid until the scheduler's next call.
struct ScheduledStep {
  // First of all: newest tokens go from slot to slot. No slot occurs twice.
  std::vector<SlotMove> moves = {};
  // Next: K and V of the shifted spans of these are copied from their sources, which steps before
  // this one have written.
  std::vector<const Sequence*> shifted = {};
  // One token each, which lies in the slot on the device; by slot.
  std::vector<StepPart> decode = {};
  // Tokens that the host knows, oldest sequence first.
  std::vector<StepPart> prefill = {};
  int32_t decode_rows = 0;  // of decode, less padding

  bool Empty() const { return decode_rows == 0 && prefill.empty(); }
};

struct SchedulerCounts {
  int64_t steps = 0;  // that were not empty
  int64_t submitted = 0;
  int64_t finished = 0;
  int64_t removed = 0;  // before their end
  int64_t preemptions = 0;
  // That ran once more after a preemption. What was found in the cache or copied again did not.
  int64_t recomputed_tokens = 0;
  int64_t reused_tokens = 0;   // that were found there and not computed
  int64_t stalls = 0;          // steps that a sequence sat out for want of a page
  int64_t shifted_tokens = 0;  // that were copied from another position
  int64_t source_tokens = 0;   // that were computed to be copied
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Throws InvalidArgument, with what is needed and what is allowed, for a request that can never
  // run to its end.
  SequenceId Submit(Request request);
  // At any time. Tokens of it that are under way are dropped.
  void Remove(SequenceId id);

  // The next step, which must then be run: sequences count as if it had been. Empty if there is
  // nothing to do, or nothing until tokens under way are known or held sequences are removed.
  const ScheduledStep& NextStep();
  // The token that the oldest step under way drew for a sequence. None: the sequence is gone.
  std::optional<Finish> TakeToken(SequenceId id, int32_t token);
  // Puts `token` in the place of the newest, before a step takes it as input.
  void ReplaceNewest(SequenceId id, int32_t token);

  // Whether NextStep has something to do, now or later.
  bool HasWork() const { return waiting_.count > 0 || running_.count > retiring_; }

  struct Pinned {
    ChunkId chunk = kRootChunk;
    int64_t tokens = 0;
  };
  // The longest prefix of `tokens` that is there stays until it is unpinned. Throws InvalidArgument
  // if more pages were pinned than max_pinned_pages.
  Pinned Pin(std::span<const int32_t> tokens);
  void Unpin(const Pinned& pinned);
  // Forgets the chunks that nobody uses or has pinned.
  void EvictIdle();

  // Throws InvalidArgument if there is none.
  const Sequence& Get(SequenceId id) const { return Find(id); }
  bool Has(SequenceId id) const { return sequences_.contains(id); }
  int32_t NumSequences() const { return static_cast<int32_t>(sequences_.size()); }
  int32_t NumSources() const { return num_sources_; }  // of them, that are nobody's request
  int32_t NumRunning() const { return running_.count; }
  int32_t NumWaiting() const { return waiting_.count; }
  const Sequence* OldestRunning() const { return running_.oldest; }
  const Sequence* OldestWaiting() const { return waiting_.oldest; }
  const PagePool& Pages() const { return pool_; }
  const ChunkRegistry& Chunks() const { return registry_; }
  const SchedulerOptions& Options() const { return options_; }
  const SchedulerCounts& Counts() const { return counts_; }
  // Pages that requests may count on.
  int32_t Capacity() const { return options_.num_pages - options_.max_pinned_pages; }

 private:
  // By arrival, linked through the sequences.
  struct List {
    Sequence* oldest = nullptr;
    Sequence* newest = nullptr;
    int32_t count = 0;
    void PushNewest(Sequence& sequence);
    void PushOldest(Sequence& sequence);
    void Unlink(Sequence& sequence);
  };

  Sequence& Find(SequenceId id) const;
  void Retire();
  void ScheduleDecode(Sequence& sequence);
  void SchedulePrefill(Sequence& sequence, int64_t& budget);
  bool AdmitOldest(int32_t growing);
  void Compact();
  void FinishStep();

  int64_t MissingPages(const Sequence& sequence, int64_t tokens) const;
  bool MayGrow(const Sequence& sequence) const;
  // Lays the pages of a waiting sequence out, beginning with the chunks that match_ has.
  void LayOut(Sequence& sequence, int64_t matched);
  bool MakeRoom(int64_t pages, const Sequence& sequence);
  void Grow(Sequence& sequence, int64_t tokens);
  int64_t Available() const { return pool_.NumFree() + registry_.IdlePages(); }
  void Preempt(Sequence& sequence);
  void ReleasePages(Sequence& sequence);
  void LeaveBatch(Sequence& sequence);
  void End(Sequence& sequence);

  // Of shifted spans (scheduler_shifted.cc).
  void CheckShifted(Request& request) const;
  int64_t SourcePages(const Request& request) const;
  void RemoveSources(Sequence& user);
  bool FindSources(Sequence& sequence, int32_t growing);
  void AddSource(Sequence& user, std::vector<int32_t> tokens);
  void AcquireSources(Sequence& sequence);
  void ReleaseSources(Sequence& sequence);
  // Tokens from `begin` on that are computed before the next shifted ones come.
  static int64_t UntilShifted(const Sequence& sequence, int64_t begin);
  static void SkipShifted(Sequence& sequence);
  // Pages of chunks that a use would keep from eviction.
  int64_t IdlePagesOf(std::span<const ChunkId> chunks) const;
  void Erase(Sequence& sequence);

  void SealKnown(Sequence& sequence);
  void SealTo(Sequence& sequence, int64_t end);
  void AdoptSealed(Sequence& sequence);
  int64_t NextSealEnd(const Sequence& sequence) const;

  SchedulerOptions options_;
  PagePool pool_;
  ChunkRegistry registry_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  List running_ = {};
  List waiting_ = {};
  int32_t retiring_ = 0;          // running sequences that have drawn their last token
  std::vector<Sequence*> slots_;  // [max_batch]
  SequenceId next_id_ = 0;
  int32_t num_sources_ = 0;  // sequences that are sources
  // Of the step being scheduled:
  bool stalled_ = false;     // some sequence found no page
  int64_t made_before_ = 0;  // chunks that are older than the step
  int32_t first_hole_ = 0;   // no slot before it is free
  ScheduledStep step_;
  std::vector<StepPart> decoding_;             // the step's decode rows by age
  std::vector<ChunkId> match_;                 // kept to spare allocations
  std::vector<std::vector<ChunkId>> sources_;  // of who is being admitted
  SchedulerCounts counts_;
};

}  // namespace tokline
