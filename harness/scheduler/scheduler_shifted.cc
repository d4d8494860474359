// Handles spans of a prompt whose K and V are copied from chunks in which the same tokens follow
// another text. A sequence with such spans is admitted once the registry has all of these chunks.
// For missing chunks, the scheduler puts sources before it in the queue: sequences without a
// request that compute the chunks and end. Copies are made on admission, so a preempted sequence is
// copied to again.
#include <algorithm>
#include <utility>

#include "harness/scheduler/scheduler.h"
#include "kernels/common/error.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline {
namespace {

std::vector<int32_t> SourceTokens(const Request& request, const ShiftedSpan& span) {
  const auto prompt = request.prompt.begin();
  std::vector<int32_t> tokens(prompt, prompt + request.shifted_after);
  tokens.insert(tokens.end(), prompt + span.begin, prompt + span.end);
  return tokens;
}

}  // namespace

void Scheduler::CheckShifted(Request& request) const {
  if (request.shifted.empty()) return;
  Require(options_.reuse, "a request with shifted spans needs a decoder that reuses chunks");
  const auto length = static_cast<int64_t>(request.prompt.size());
  Require(request.shifted_after >= 0, "shifted_after is ", request.shifted_after,
          "; it must be >= 0");
  int64_t end = request.shifted_after;
  for (const ShiftedSpan& span : request.shifted) {
    Require(span.begin >= end && span.end > span.begin && span.end <= length, "a shifted span of ",
            span.begin, " to ", span.end, " after ", end,
            "; spans must ascend, hold a token and lie within the prompt of ", length, " tokens");
    end = span.end;
  }
  // A span at the position of its source is exact and needs no copy. The last token of the prompt
  // must be computed, because a token is drawn after it.
  if (request.shifted.front().begin == request.shifted_after) {
    request.shifted.erase(request.shifted.begin());
  }
  if (!request.shifted.empty() && request.shifted.back().end == length) {
    if (--request.shifted.back().end == request.shifted.back().begin) request.shifted.pop_back();
  }
  if (request.shifted.empty()) return;
  // Nothing is sealed after the first shifted span begins.
  std::erase_if(request.cuts, [&](int64_t cut) { return cut > request.shifted.front().begin; });
}

int64_t Scheduler::SourcePages(const Request& request) const {
  int64_t pages = 0;
  for (const ShiftedSpan& span : request.shifted) {
    pages += split_.PagesFor(request.shifted_after + span.Size());
  }
  return pages;
}

// All sources and their user must fit together, or they would take each other's pages. Chunks that
// they find need no room if others use them or have pinned them. Submit has checked that they fit
// when nothing else runs, but not what held sequences leave to them.
bool Scheduler::FitsWithSources(const Sequence& sequence, int32_t growing) {
  int64_t pages = split_.PagesFor(sequence.Known()) + SourcePages(sequence.request);
  const auto exact = static_cast<size_t>(std::min(sequence.Known(), sequence.Exact()));
  registry_.Match(std::span(sequence.tokens).first(exact), 0, match_);
  pages -= BusyPagesOf(match_);
  for (const std::vector<ChunkId>& source : sources_) pages -= BusyPagesOf(source);
  return pages + growing <= Available();
}

// Sets sources_ and returns whether all chunks of the shifted spans exist and were written by
// earlier steps, because copies come before the rest of a step. Adds sources for missing chunks.
bool Scheduler::FindSources(Sequence& sequence, int32_t growing) {
  sources_.clear();
  if (sequence.request.shifted.empty()) return true;
  if (sequence.awaited > 0) return false;
  bool older = true;
  std::vector<std::vector<int32_t>> missing;
  for (const ShiftedSpan& span : sequence.request.shifted) {
    std::vector<int32_t> tokens = SourceTokens(sequence.request, span);
    std::vector<ChunkId>& chunks = sources_.emplace_back();
    // Only the last chunk of a source may end within a page.
    if (registry_.Match(tokens, 1, chunks) < static_cast<int64_t>(tokens.size())) {
      missing.push_back(std::move(tokens));
    }
    older = older && std::ranges::all_of(chunks, [this](ChunkId id) {
              return registry_.Get(id).number < made_before_;
            });
  }
  if (!missing.empty() && !FitsWithSources(sequence, growing)) return false;
  for (std::vector<int32_t>& tokens : missing) AddSource(sequence, std::move(tokens));
  return older && missing.empty();
}

void Scheduler::AddSource(Sequence& user, std::vector<int32_t> tokens) {
  auto sequence = std::make_unique<Sequence>(options_.page_size);
  const SequenceId id = next_id_++;
  sequence->id = id;
  sequence->awaited_by = user.id;
  sequence->request = {.prompt = tokens, .max_new_tokens = 1, .keep = true};
  sequence->tokens = std::move(tokens);
  waiting_.PushOldest(*sequence);
  ++user.awaited;
  ++num_sources_;
  sequences_.emplace(id, std::move(sequence));
}

// Sources of a user serve no other sequence.
void Scheduler::RemoveSources(Sequence& user) {
  std::vector<SequenceId> sources;
  if (user.awaited > 0) {
    for (const auto& [id, sequence] : sequences_) {
      if (sequence->awaited_by == user.id) sources.push_back(id);
    }
  }
  for (const SequenceId id : sources) Remove(id);
}

void Scheduler::AcquireSources(Sequence& sequence) {
  if (sources_.empty()) return;
  for (const std::vector<ChunkId>& source : sources_) {
    for (const ChunkId id : source) registry_.Acquire(id);
  }
  std::swap(sequence.sources, sources_);
  step_.shifted.push_back(&sequence);
  for (const ShiftedSpan& span : sequence.request.shifted) counts_.shifted_tokens += span.Size();
}

void Scheduler::ReleaseSources(Sequence& sequence) {
  for (std::vector<ChunkId>& source : sequence.sources) {
    for (; !source.empty(); source.pop_back()) registry_.Release(source.back());
  }
  sequence.sources.clear();
}

int64_t Scheduler::UntilShifted(const Sequence& sequence, int64_t begin) {
  for (const ShiftedSpan& span : sequence.request.shifted) {
    if (span.begin > begin) return span.begin - begin;
  }
  return sequence.Known() - begin;
}

void Scheduler::SkipShifted(Sequence& sequence) {
  for (const ShiftedSpan& span : sequence.request.shifted) {
    if (span.begin == sequence.in_cache) sequence.in_cache = span.end;
  }
}

int64_t Scheduler::IdlePagesOf(std::span<const ChunkId> chunks) const {
  int64_t pages = 0;
  for (const ChunkId id : chunks) {
    const Chunk& chunk = registry_.Get(id);
    if (chunk.idle) pages += static_cast<int64_t>(chunk.pages.size());
  }
  return pages;
}

int64_t Scheduler::BusyPagesOf(std::span<const ChunkId> chunks) const {
  int64_t pages = 0;
  for (const ChunkId id : chunks) pages += static_cast<int64_t>(registry_.Get(id).pages.size());
  return pages - IdlePagesOf(chunks);
}

void Scheduler::Erase(Sequence& sequence) {
  if (sequence.awaited_by) {
    --num_sources_;
    const auto user = sequences_.find(*sequence.awaited_by);
    if (user != sequences_.end()) --user->second->awaited;
  }
  sequences_.erase(sequence.id);
}

}  // namespace tokline
