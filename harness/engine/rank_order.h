// The orders of a decoder to its ranks. An order is plain data with a payload, so that the ranks of
// other processes get the same orders as those of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "harness/engine/step_arrays.h"
#include "harness/engine/step_ops.h"

namespace tokline {

// None of these waits for the work that it enqueues, unless noted.
enum class RankOrderKind : uint8_t {
  kMove,         // SeatMove[]: the newest tokens move to other seats
  kCopyShifted,  // a block of ShiftedCopy, of `pages` and `tokens`
  kRun,          // the step of `shape` with these arrays; they must not change until the turn has
                 // been collected
  kCollect,      // Draw[]: waits for the step of `turn`, which must have drawn these
  kCapture,      // runs a step of `shape` with these arrays, and captures it where there are
                 // graphs; waits
  kDropGraphs,   // captured steps are no longer used
  kObserve,      // steps are observed from now on, as `observer` and `leader` say; null: no longer
  kMakeGraph,  // the step of `shape` with these arrays, as a graph of its own, named `graph`, with
               // an observer
  kRunGraph,   // enqueues it
  kDropGraph,  // destroys it
  kReplaceNewest,  // int32_t: the newest token of the seat `seat`; waits
};

struct RankOrder {
  RankOrderKind kind = RankOrderKind::kMove;
  int32_t turn = 0;
  int32_t seat = 0;
  int64_t pages = 0;
  int64_t tokens = 0;
  StepShape shape = {};
  int64_t graph = 0;
  OpChoice observer = {};        // for the ranks that observe nothing
  OpObserver* leader = nullptr;  // of rank 0
  const std::byte* payload = nullptr;
  int64_t payload_bytes = 0;

  // A token that a step has drawn.
  struct Draw {
    int32_t seat;
    int32_t token;
  };

  template <typename Item>
  std::span<const Item> Items() const {
    return {reinterpret_cast<const Item*>(payload),
            static_cast<size_t>(payload_bytes) / sizeof(Item)};
  }
  template <typename Items>
  RankOrder& With(const Items& items) {
    const auto bytes = std::as_bytes(std::span(items));
    payload = bytes.data();
    payload_bytes = std::ssize(bytes);
    return *this;
  }
};
static_assert(std::is_trivially_copyable_v<RankOrder>);

}  // namespace tokline
