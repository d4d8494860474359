// What is asked of a decoder, and how far it has come.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "harness/scheduler/chunk_registry.h"
#include "harness/scheduler/sequence_pages.h"
#include "kernels/sampling/sampling.h"

namespace tokline {

using SequenceId = int64_t;

// That a user may ask for.
inline constexpr int64_t kMostTemperature = 1'000'000;

// Consecutive tokens of a prompt whose K and V come from elsewhere; see Request::shifted.
struct ShiftedSpan {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t Size() const { return end - begin; }
  bool operator==(const ShiftedSpan&) const = default;
};

struct Request {
  std::vector<int32_t> prompt = {};
  SamplingRule rule = {};  // rule.offset is not used: draws go by seed and position
  int64_t max_new_tokens = 16;
  std::vector<int32_t> stop_ids = {};  // a token of these ends the sequence and is its last
  // Positions in the prompt, ascending, where a chunk ends that other prompts may share. Without
  // them chunks end where pages do. Taken as far as there are runs for them.
  std::vector<int64_t> cuts = {};
  // What follows the last whole page becomes a chunk too, in the end; not if it goes on with a
  // shifted span and is held.
  bool keep = false;
  // Its K and V stay after its last token until it is removed. One that was preempted while its
  // last token was under way has none.
  bool hold = false;
  // Ascending and disjoint: tokens that are not computed behind what stands before them. Their K
  // and V are taken from the same tokens right after the first `shifted_after` of the prompt, and
  // their keys rotated to where they stand. All from the first of them on is approximate.
  std::vector<ShiftedSpan> shifted = {};
  int64_t shifted_after = 0;
};

// Why a sequence has come to its end.
enum class Finish : uint8_t { kNot, kStop, kLength };

// A request on its way. The scheduler's own; others read.
struct Sequence {
  explicit Sequence(int32_t page_size) : pages(page_size) {}

  SequenceId id = 0;
  Request request;
  // The prompt and what was drawn, as far as the host knows it: tokens of the step under way are
  // only on the device.
  std::vector<int32_t> tokens = {};
  int64_t drawn = 0;       // tokens, by the steps scheduled so far
  int64_t in_cache = 0;    // tokens whose K and V are written by the steps scheduled so far
  int64_t lost = 0;        // the most tokens that a preemption took out of the cache
  int64_t last_draw = 0;   // number of the step that drew the newest token; 0: none
  int32_t draw_slot = -1;  // where it did
  Finish finish = Finish::kNot;

  enum class Place : uint8_t { kWaiting, kRunning, kHeld };
  Place place = Place::kWaiting;
  int32_t slot = -1;       // kRunning: its row in every step
  bool on_device = false;  // its newest token lies in its slot, where the next step reads it
  // Of a drawn token that the host has yet to see: its number, from 1, and what it is to be.
  struct Replacement {
    int64_t number;
    int32_t token;
  };
  std::optional<Replacement> replacement = {};

  SequencePages pages;               // shared ones of its chunks, then its own
  std::vector<ChunkId> chunks = {};  // sealed, in order; the rest of the pages is private
  int64_t sealed = 0;                // tokens in them
  // Of each shifted span the chunks that it is copied from, until the step after the copy.
  std::vector<std::vector<ChunkId>> sources = {};
  int32_t awaited = 0;  // sequences that compute such chunks and have not ended
  // Not of a request: it computes what this sequence awaits.
  std::optional<SequenceId> awaited_by = {};
  std::vector<int64_t> cuts = {};  // where chunks end within a page

  Sequence* older = nullptr;  // neighbours among the waiting or the running
  Sequence* newer = nullptr;

  int64_t NumPrompt() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t Known() const { return static_cast<int64_t>(tokens.size()); }
  // Tokens drawn by scheduled steps that the host has not seen.
  int64_t UnderWay() const { return finish == Finish::kNot ? NumPrompt() + drawn - Known() : 0; }
  // Tokens before the first shifted one: as far as K and V are those of the prefix alone.
  int64_t Exact() const {
    return request.shifted.empty() ? INT64_MAX : request.shifted.front().begin;
  }
  bool AllDrawn() const { return drawn == request.max_new_tokens; }
  // Tokens that it has in the cache at its longest: the last one is not fed.
  int64_t MaxInCache() const { return NumPrompt() + request.max_new_tokens - 1; }
};

}  // namespace tokline
