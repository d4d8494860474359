// One rank of a decoder: its device, its part of the model and of the KV cache, and the steps that
// run there. It obeys the orders of the decoder, which does all the planning and gives all ranks
// the same orders.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "harness/engine/backend.h"
#include "harness/engine/decoder_config.h"
#include "harness/engine/decoder_memory.h"
#include "harness/engine/device_weights.h"
#include "harness/engine/forward_pass.h"
#include "harness/engine/rank_group.h"
#include "harness/engine/rank_order.h"
#include "harness/engine/shifted_copy.h"
#include "harness/models/model_weights.h"
#include "harness/scheduler/scheduler.h"

namespace tokline {

// The place of a rank: in the group of processes that the options name, or else as a thread of this
// number.
RankPlace PlaceOf(const ModelSpec& spec, const DecoderOptions& options, RankGroup* threads,
                  int32_t thread);

// Throws InvalidArgument, which names the rank and both kinds, unless its device is of the kind of
// the first one: all facts, which plans depend on.
void RequireSameKind(const DeviceFacts& first, const DeviceFacts& facts, int32_t rank);

struct DecoderRank {
  // Uploads or draws this rank's part of the weights of the whole model.
  DecoderRank(const ModelSpec& whole, const ModelWeights& weights, const DecoderOptions& options,
              int32_t rank, std::unique_ptr<Backend> backend);
  DecoderRank(const DecoderRank&) = delete;
  DecoderRank& operator=(const DecoderRank&) = delete;

  // See RankOrderKind.
  void Obey(const RankOrder& order);
  // Throws RuntimeFailure unless the step of the turn, which must have ended, has drawn these
  // tokens.
  void RequireDraws(int turn, std::span<const RankOrder::Draw> draws) const;

  std::unique_ptr<Backend> backend;
  DecoderConfig config;
  DeviceWeights weights;
  DecoderBuffers buffers;
  ForwardPass forward;
  ShiftedCopy shifted_copy;
  // The host memory of a step. Each rank has its own.
  struct StepMemory {
    Memory arrays;  // of the step
    Memory tokens;  // what was drawn
    Memory moved;   // newest tokens that move to another seat
    std::unique_ptr<Fence> fence;

    std::span<const int32_t> Tokens() const {
      return {reinterpret_cast<const int32_t*>(tokens.data()),
              static_cast<size_t>(tokens.bytes()) / sizeof(int32_t)};
    }
  };
  StepMemory turns[2];
  using StepKernels = std::array<int64_t, 11>;
  struct CapturedStep {
    StepShape shape;
    std::unique_ptr<WorkGraph> graphs[2];  // one per turn, with its copies
  };
  std::vector<CapturedStep> captured;  // one per config.DecodeShapes(), or empty

 private:
  void MoveTokens(std::span<const SeatMove> moves, int turn);
  // Moves the arrays of an order into the host memory of its turn, unless they are already there.
  void KeepArrays(const RankOrder& order);
  void CopyArrays(const StepShape& shape, int turn);  // of the turn, to the device
  // Copies the turn's arrays to the device, runs the step, and copies back what was drawn.
  void EnqueueStep(const StepShape& shape, int turn);
  void RunStep(const StepShape& shape, int turn);
  // Loads the kernels of steps of this shape, without an observer.
  void Rehearse(const StepShape& shape, int turn);
  // Captures steps of this shape, after running one. The host has no graphs.
  void CaptureStep(const StepShape& shape, int turn);
  // The turn's step, with an observer for its ops, and without copies.
  std::unique_ptr<WorkGraph> ObservedStep(const StepShape& shape, int turn, OpObserver& observer);

  struct ObservedGraph {
    std::optional<FollowingObserver> follower;  // unless this is rank 0
    std::unique_ptr<WorkGraph> graph;
  };
  std::map<int64_t, ObservedGraph> graphs_;
  std::set<StepKernels> rehearsed_;  // shapes of steps without a graph whose kernels are loaded
  std::optional<FollowingObserver> follower_;
};

}  // namespace tokline
