// A request to a decoder, and the state of the sequence that serves it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "harness/scheduler/chunk_registry.h"
#include "harness/scheduler/sequence_pages.h"
#include "kernels/sampling/sampling.h"

namespace tokline {

using SequenceId = int64_t;

// The highest temperature that a user may ask for.
inline constexpr int64_t kMaxTemperature = 1'000'000;

// Consecutive tokens of a prompt whose K and V are copied from other positions. See
// Request::shifted.
struct ShiftedSpan {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t Size() const { return end - begin; }
  bool operator==(const ShiftedSpan&) const = default;
};

struct Request {
  std::vector<int32_t> prompt = {};
  SamplingRule rule = {};  // rule.offset is not used: a draw depends on the seed and the position
  int64_t max_new_tokens = 16;
  std::vector<int32_t> stop_ids = {};  // each of these ends the sequence, as its last token
  // Ascending positions in the prompt where a chunk ends, so that other prompts can share it.
  // Chunks also end where pages do. Cuts beyond the limit on runs (SchedulerOptions::max_runs) are
  // ignored.
  std::vector<int64_t> cuts = {};
  // When the sequence ends, the tokens after its last whole page become a chunk too, unless the
  // sequence is held and continues with a shifted span.
  bool keep = false;
  // The sequence keeps its K and V after its last token until it is removed. A sequence that was
  // preempted while its last token was in flight has no K and V.
  bool hold = false;
  // Ascending, disjoint spans of tokens that are not computed after the tokens before them.
  // Instead, their K and V are those of the same tokens directly after the first `shifted_after`
  // tokens of the prompt, with the keys rotated to the new positions. Everything from the first
  // span on is approximate.
  std::vector<ShiftedSpan> shifted = {};
  int64_t shifted_after = 0;
};

// Why a sequence ended. kNone: it has not ended.
enum class Finish : uint8_t { kNone, kStop, kLength };

// The state of a request. Only the scheduler changes it.
struct Sequence {
  explicit Sequence(int32_t page_size) : pages(page_size) {}

  SequenceId id = 0;
  Request request;
  // The prompt and the drawn tokens that the host knows. Tokens of the step in flight are only on
  // the device.
  std::vector<int32_t> tokens = {};
  int64_t drawn = 0;       // number of tokens that the steps scheduled so far draw
  int64_t in_cache = 0;    // number of tokens whose K and V the steps scheduled so far write
  int64_t lost = 0;        // the largest in_cache at which the sequence was preempted
  int64_t last_draw = 0;   // number of the step that drew the newest token; 0: none
  int32_t draw_seat = -1;  // the seat of the sequence in that step
  Finish finish = Finish::kNone;

  enum class Place : uint8_t { kWaiting, kRunning, kHeld };
  Place place = Place::kWaiting;
  int32_t seat = -1;       // its row in every step while it is kRunning
  bool on_device = false;  // its newest token is in its seat, where the next step reads it
  // Replaces a drawn token that the host has not seen yet. Drawn tokens are numbered from 1.
  struct Replacement {
    int64_t number;
    int32_t token;
  };
  std::optional<Replacement> replacement = {};

  SequencePages pages;               // the shared pages of its chunks, then its private pages
  std::vector<ChunkId> chunks = {};  // its sealed chunks, in order
  int64_t sealed = 0;                // number of tokens in its sealed chunks
  // For each shifted span, the chunks that it is copied from. Kept until the step after the copy.
  std::vector<std::vector<ChunkId>> sources = {};
  int32_t awaited = 0;  // number of source sequences that compute such chunks and have not ended
  // Set for a source, a sequence without a request that computes chunks for this sequence.
  std::optional<SequenceId> awaited_by = {};
  std::vector<int64_t> cuts = {};  // where chunks end within a page

  Sequence* older = nullptr;  // neighbours in the list of waiting or of running sequences
  Sequence* newer = nullptr;

  int64_t NumPrompt() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t Known() const { return static_cast<int64_t>(tokens.size()); }
  // The number of tokens that scheduled steps draw and that the host has not seen.
  int64_t InFlight() const { return finish == Finish::kNone ? NumPrompt() + drawn - Known() : 0; }
  // The number of tokens before the first shifted one. Their K and V depend on the prefix alone.
  int64_t Exact() const {
    return request.shifted.empty() ? INT64_MAX : request.shifted.front().begin;
  }
  bool AllDrawn() const { return drawn == request.max_new_tokens; }
  // The number of tokens in the cache when the sequence is longest. The last token is never fed.
  int64_t MaxInCache() const { return NumPrompt() + request.max_new_tokens - 1; }
};

}  // namespace tokline
