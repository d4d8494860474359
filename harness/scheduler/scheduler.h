// Decides what each step of a decoder does: continuous batching with chunked prefill, reuse of
// chunks, and preemption by recomputation. Pure host code.
//
// Running sequences always arrived before waiting ones: the oldest waiting sequence is admitted
// first, and the youngest running one is preempted first. The oldest sequence is therefore never
// preempted, gets its pages and its share of each step first, and ends after a bounded number of
// steps. Then the next one is the oldest. This excludes starvation, and it excludes deadlock
// because a request that exceeds the cache on its own is refused when it is submitted.
//
// The device works one step behind the host. A step is scheduled before the tokens of the previous
// step are known on the host; until then they are only in the sequences' seats on the device. The
// caller reports them later with TakeToken.
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
#include "kernels/common/paged_kv_layout.h"

namespace tokline {

struct SchedulerOptions {
  int32_t num_pages = 0;
  int32_t page_size = 256;       // a power of two
  int32_t max_batch = 1;         // running sequences
  int64_t max_context = 0;       // tokens per sequence
  int64_t token_budget = 1;      // prompt tokens per step
  bool reuse = false;            // share chunks that have the same prefix
  int32_t max_runs = 1;          // runs per sequence (SequencePages)
  int32_t max_pinned_pages = 0;  // pages that requests cannot rely on
  uint64_t salt = 0;             // as in ChunkRegistry::Options
  uint64_t hash_mask = ~0ull;    // as in ChunkRegistry::Options
};

// Consecutive tokens of a sequence that a step computes.
struct StepSlice {
  const Sequence* sequence = nullptr;  // null: the seat is padding
  int64_t begin = 0;
  int64_t count = 0;
  int32_t seat = -1;   // the sequence's seat
  bool draws = false;  // whether a token is drawn after the last one
  // False if the K and V are already in a shared chunk. The token is then computed only to draw.
  bool writes = true;
};

struct SeatMove {
  int32_t from = 0;
  int32_t to = 0;
};

// Valid until the next call to the scheduler.
struct ScheduledStep {
  // First, newest tokens move from seat to seat. No seat occurs twice.
  std::vector<SeatMove> moves = {};
  // Then the K and V of the shifted spans of these sequences are copied from their sources, which
  // earlier steps have written.
  std::vector<const Sequence*> shifted = {};
  // One slice per seat, with one token that is in the seat on the device.
  std::vector<StepSlice> decode = {};
  // Slices with tokens that the host knows, oldest sequence first.
  std::vector<StepSlice> prefill = {};
  int32_t decode_rows = 0;  // the slices of `decode` that are not padding

  bool Empty() const { return decode_rows == 0 && prefill.empty(); }
};

struct SchedulerCounts {
  int64_t steps = 0;  // without empty ones
  int64_t finished = 0;
  int64_t removed = 0;  // requests that were removed before they ended
  int64_t preemptions = 0;
  // Tokens computed again after a preemption, without those found in the cache or copied again.
  int64_t recomputed_tokens = 0;
  int64_t reused_tokens = 0;   // found in the cache instead of computed
  int64_t stalls = 0;          // steps that a sequence skipped for lack of a page
  int64_t shifted_tokens = 0;  // copied from another position
  int64_t source_tokens = 0;   // computed so that they can be copied
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Throws InvalidArgument, with what is needed and what is allowed, for a request that can never
  // run to its end.
  SequenceId Submit(Request request);
  // Removes a sequence in any state. Its tokens in flight are dropped.
  void Remove(SequenceId id);

  // Schedules the next step, which the caller must run: the state of the sequences assumes it. The
  // step is empty if there is nothing to do, or nothing until tokens in flight are known or held
  // sequences are removed.
  const ScheduledStep& ScheduleStep();
  // Takes the token that the oldest step in flight drew for a sequence. Returns nothing if the
  // sequence no longer exists.
  std::optional<Finish> TakeToken(SequenceId id, int32_t token);
  // Replaces the newest token with `token` before a step takes it as input.
  void ReplaceNewest(SequenceId id, int32_t token);

  // From now on, no step computes tokens that the host knows from position `tokens` on. INT64_MAX,
  // the default, limits nothing.
  void LimitPrompts(int64_t tokens) { prompt_limit_ = tokens; }

  // Whether ScheduleStep has something to do now or later.
  bool HasWork() const { return waiting_.count > 0 || running_.count > retiring_; }

  struct Pinned {
    ChunkId chunk = kRootChunk;
    int64_t tokens = 0;
  };
  // Keeps the longest cached prefix of `tokens` until it is unpinned. Throws InvalidArgument if
  // this would pin more than max_pinned_pages pages.
  Pinned Pin(std::span<const int32_t> tokens);
  void Unpin(const Pinned& pinned);
  // Evicts all chunks that are neither used nor pinned.
  void EvictIdle();

  // Throws InvalidArgument if there is no such sequence.
  const Sequence& Get(SequenceId id) const { return Find(id); }
  bool Has(SequenceId id) const { return sequences_.contains(id); }
  int32_t NumSequences() const { return static_cast<int32_t>(sequences_.size()); }
  int32_t NumSources() const { return num_sources_; }  // those without a request
  int32_t NumRunning() const { return running_.count; }
  int32_t NumWaiting() const { return waiting_.count; }
  const Sequence* OldestRunning() const { return running_.oldest; }
  const Sequence* OldestWaiting() const { return waiting_.oldest; }
  const PagePool& Pages() const { return pool_; }
  const ChunkRegistry& Chunks() const { return registry_; }
  const SchedulerOptions& Options() const { return options_; }
  const SchedulerCounts& Counts() const { return counts_; }
  // The number of pages that requests can rely on.
  int32_t Capacity() const { return options_.num_pages - options_.max_pinned_pages; }

 private:
  // An intrusive list in the order of arrival.
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
  // Lays out the pages of a waiting sequence, beginning with those of the chunks in match_.
  void LayOut(Sequence& sequence, int64_t matched);
  bool MakeRoom(int64_t pages, const Sequence& sequence);
  void Grow(Sequence& sequence, int64_t tokens);
  int64_t Available() const { return pool_.NumFree() + registry_.IdlePages(); }
  void Preempt(Sequence& sequence);
  void ReleasePages(Sequence& sequence);
  void LeaveBatch(Sequence& sequence);
  void End(Sequence& sequence);

  // For shifted spans (scheduler_shifted.cc).
  void CheckShifted(Request& request) const;
  int64_t SourcePages(const Request& request) const;
  void RemoveSources(Sequence& user);
  bool FitsWithSources(const Sequence& sequence, int32_t growing);
  bool FindSources(Sequence& sequence, int32_t growing);
  void AddSource(Sequence& user, std::vector<int32_t> tokens);
  void AcquireSources(Sequence& sequence);
  void ReleaseSources(Sequence& sequence);
  // Returns the number of tokens to compute from `begin` on before the next shifted span.
  static int64_t UntilShifted(const Sequence& sequence, int64_t begin);
  static void SkipShifted(Sequence& sequence);
  // Returns the number of pages that could no longer be evicted if these chunks were used.
  int64_t IdlePagesOf(std::span<const ChunkId> chunks) const;
  // Returns the number of pages of these chunks that are in use or pinned.
  int64_t BusyPagesOf(std::span<const ChunkId> chunks) const;
  void Erase(Sequence& sequence);

  void SealKnown(Sequence& sequence);
  void SealTo(Sequence& sequence, int64_t end);
  void AdoptSealed(Sequence& sequence);
  int64_t NextSealEnd(const Sequence& sequence) const;

  SchedulerOptions options_;
  PageSplit split_;
  PagePool pool_;
  ChunkRegistry registry_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  List running_ = {};
  List waiting_ = {};
  int32_t retiring_ = 0;          // running sequences that have drawn their last token
  std::vector<Sequence*> seats_;  // [max_batch]
  SequenceId next_id_ = 0;
  int64_t prompt_limit_ = INT64_MAX;
  int32_t num_sources_ = 0;  // sequences that are sources
  // The state of the step that is being scheduled:
  bool stalled_ = false;     // whether a sequence found no page
  int64_t made_before_ = 0;  // number of chunks made before this step
  int32_t first_hole_ = 0;   // all seats before it are taken
  ScheduledStep step_;
  std::vector<StepSlice> decoding_;            // the step's decode rows, oldest sequence first
  std::vector<ChunkId> match_;                 // a member only to save allocations
  std::vector<std::vector<ChunkId>> sources_;  // for the sequence that is being admitted
  SchedulerCounts counts_;
};

}  // namespace tokline
