// Obeys the orders of the decoder on one device: copies, steps, and captures of steps.
#include "harness/engine/decoder_rank.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "harness/engine/process_group.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Stands in for a graph on the host, which has no graphs: enqueues the work again each time.
class HostGraph : public WorkGraph {
 public:
  explicit HostGraph(std::function<void()> enqueue) : enqueue_(std::move(enqueue)) {}
  void Enqueue() override { enqueue_(); }

 private:
  std::function<void()> enqueue_;
};

// The pages of the host are backed only when they are touched.
std::unique_ptr<Backend> WithRoom(const ModelSpec& whole, const DecoderOptions& options,
                                  std::unique_ptr<Backend> backend) {
  if (backend->device() == Device::kCuda) {
    const MemoryNeeds needs = MemoryNeedsOf(whole, options, backend->facts());
    RequireRoom(needs, backend->FreeBytes() + needs.exchange_bytes);  // which the backend has
  }
  return backend;
}

// The most bytes that the arrays of a step take.
int64_t ArrayRoom(const StepShape& shape) { return PlaceStep(shape, nullptr).bytes; }

// The values that determine which kernels a step runs.
DecoderRank::StepKernels KernelsOf(const StepShape& shape) {
  return {shape.Tokens(),
          shape.logit_rows,
          shape.decode.num_seqs,
          shape.decode.grid.num_lanes,
          shape.decode.grid.cluster_lanes,
          shape.decode.grid.block_lanes,
          shape.decode.grid.run_lanes,
          shape.decode.grid.takes_parts,
          static_cast<int64_t>(shape.prefill.kind),
          shape.prefill.num_seqs > 0,
          shape.prefill.num_parts > 0};
}

}  // namespace

RankPlace PlaceOf(const ModelSpec& spec, const DecoderOptions& options, RankGroup* threads,
                  int32_t thread) {
  RankPlace place{.sums = SumRoomOf(spec, options)};
  if (ProcessGroup* const processes = options.Processes()) {
    place.link = processes;
    place.rank = processes->Rank();
    place.device = processes->RankOnHost();
    place.own_process = true;
  } else if (threads->Size() > 1) {
    place.link = threads;
    place.rank = place.device = thread;
  }
  return place;
}

void RequireSameKind(const DeviceFacts& first, const DeviceFacts& facts, int32_t rank) {
  const auto kind = [](const DeviceFacts& of) {
    return StrCat(of.sm_count, " SMs of compute capability ", of.compute_major, ".",
                  of.compute_minor, ", ", of.l2_bytes, " bytes of L2, ", of.shared_bytes_per_sm,
                  " of shared memory per SM and ", of.shared_bytes_per_block,
                  " per block, clusters of up to ", of.max_cluster_blocks,
                  " blocks and code for sm_", of.code_architecture, of.code_is_sm90a ? "a" : "");
  };
  Require(facts == first, "the device of rank ", rank, " has ", kind(facts),
          "; that of rank 0 has ", kind(first), "; a step is planned once for all");
}

DecoderRank::DecoderRank(const ModelSpec& whole, const ModelWeights& whole_weights,
                         const DecoderOptions& options, int32_t rank, std::unique_ptr<Backend> with)
    : backend(WithRoom(whole, options, std::move(with))),
      config(whole, options, backend->facts(), rank),
      weights(config.shard, whole_weights, config.options.dtype, *backend),
      buffers(config, *backend),
      forward(config, weights, buffers, *backend),
      shifted_copy(config.shard.local, config, buffers, *backend) {
  const int64_t token_bytes = config.options.max_batch * int64_t{sizeof(int32_t)};
  for (StepMemory& turn : turns) {
    turn.arrays = backend->AllocateStaging(ArrayRoom(config.largest_step));
    turn.tokens = backend->AllocateStaging(token_bytes);
    turn.moved = backend->AllocateStaging(token_bytes);
    turn.fence = backend->MakeFence();
  }
}

void DecoderRank::Obey(const RankOrder& order) {
  // Rank 0 observes for all.
  const auto observer = [&](std::optional<FollowingObserver>& follower) -> OpObserver* {
    if (config.shard.rank == 0) return order.leader;
    return &follower.emplace(order.observer);
  };
  switch (order.kind) {
    case RankOrderKind::kMove:
      return MoveTokens(order.Items<SeatMove>(), order.turn);
    case RankOrderKind::kCopyShifted:
      return shifted_copy.Enqueue(order.pages, order.tokens, order.Items<std::byte>());
    case RankOrderKind::kRun:
      KeepArrays(order);
      return RunStep(order.shape, order.turn);
    case RankOrderKind::kCollect:
      turns[order.turn].fence->Wait();
      return RequireDraws(order.turn, order.Items<RankOrder::Draw>());
    case RankOrderKind::kCapture:
      KeepArrays(order);
      return CaptureStep(order.shape, order.turn);
    case RankOrderKind::kDropGraphs:
      return captured.clear();
    case RankOrderKind::kObserve:
      return forward.SetObserver(order.leader == nullptr ? nullptr : observer(follower_));
    case RankOrderKind::kMakeGraph: {
      ObservedGraph& made = graphs_[order.graph];
      KeepArrays(order);
      made.graph = ObservedStep(order.shape, order.turn, *observer(made.follower));
      return;
    }
    case RankOrderKind::kRunGraph:
      return graphs_.at(order.graph).graph->Enqueue();
    case RankOrderKind::kDropGraph:
      graphs_.erase(order.graph);
      return;
    case RankOrderKind::kReplaceNewest:
      return backend->Upload(buffers.sampled + order.seat, order.payload, order.payload_bytes);
  }
}

// All ranks have the same logits and draw alike; otherwise their next steps would differ.
void DecoderRank::RequireDraws(int turn, std::span<const RankOrder::Draw> draws) const {
  for (const RankOrder::Draw& draw : draws) {
    const int32_t here = turns[turn].Tokens()[static_cast<size_t>(draw.seat)];
    if (here == draw.token) continue;
    throw RuntimeFailure(StrCat("rank ", config.shard.rank, " of ", config.options.ranks,
                                " drew token ", here, " where rank 0 drew ", draw.token));
  }
}

// Copies through host memory. The host does not wait, because the copies are ordered like all other
// work.
void DecoderRank::MoveTokens(std::span<const SeatMove> moves, int turn) {
  constexpr int64_t kBytes = sizeof(int32_t);
  std::byte* moved = turns[turn].moved.data();
  for (const SeatMove& move : moves) {
    backend->CopyToHost(moved, buffers.sampled + move.from, kBytes);
    backend->CopyToDevice(buffers.sampled + move.to, moved, kBytes);
    moved += kBytes;
  }
}

void DecoderRank::KeepArrays(const RankOrder& order) {
  std::byte* const arrays = turns[order.turn].arrays.data();
  if (order.payload == arrays) return;  // of rank 0
  std::memcpy(arrays, order.payload, static_cast<size_t>(order.payload_bytes));
}

void DecoderRank::CopyArrays(const StepShape& shape, int turn) {
  backend->CopyCounted(buffers.step, turns[turn].arrays.data(), ArrayRoom(shape));
}

void DecoderRank::EnqueueStep(const StepShape& shape, int turn) {
  CopyArrays(shape, turn);
  forward.Enqueue(shape);
  backend->CopyToHost(turns[turn].tokens.data(), buffers.sampled,
                      shape.logit_rows * int64_t{sizeof(int32_t)});
}

void DecoderRank::RunStep(const StepShape& shape, int turn) {
  if (shape.prefill.num_tokens > 0 || captured.empty()) {
    if (rehearsed_.insert(KernelsOf(shape)).second) Rehearse(shape, turn);
    EnqueueStep(shape, turn);
  } else {
    const AttentionShape& decode = shape.decode;
    const auto found = std::ranges::find_if(captured, [&](const CapturedStep& one) {
      return one.shape.decode.num_seqs == decode.num_seqs && one.shape.decode.grid == decode.grid &&
             one.shape.one_kernel == shape.one_kernel;
    });
    Require(found != captured.end(), "no graph was captured for a step of ", decode.num_seqs,
            " sequences on ", decode.grid);
    const CapturedStep& step = *found;
    Require(decode.num_tiles == step.shape.decode.num_tiles, "a step has ", decode.num_tiles,
            " tiles, its graph ", step.shape.decode.num_tiles);
    step.graphs[turn]->Enqueue();
  }
  turns[turn].fence->Record();
}

void DecoderRank::Rehearse(const StepShape& shape, int turn) {
  CopyArrays(shape, turn);  // for a backend that runs what it rehearses
  backend->Rehearse([&] {
    const ObservedScope unobserved(forward, nullptr);  // since no op runs
    forward.Enqueue(shape);
  });
}

void DecoderRank::CaptureStep(const StepShape& shape, int turn) {
  Rehearse(shape, turn);
  EnqueueStep(shape, turn);  // lets every op choose its algorithms before the capture
  backend->Synchronize();
  if (config.Ablates(Ablation::kGraphs)) return;
  CapturedStep step{.shape = shape, .graphs = {}};
  for (int of_turn = 0; of_turn < 2; ++of_turn) {
    step.graphs[of_turn] = backend->Capture([&] { EnqueueStep(shape, of_turn); });
  }
  step.graphs[turn]->Enqueue();
  backend->Synchronize();
  captured.push_back(std::move(step));
}

std::unique_ptr<WorkGraph> DecoderRank::ObservedStep(const StepShape& shape, int turn,
                                                     OpObserver& observer) {
  const auto enqueue = [this, shape, &observer] {
    const ObservedScope observed(forward, &observer);
    forward.Enqueue(shape);
  };
  CopyArrays(shape, turn);
  backend->Synchronize();
  if (config.OnDevice()) return backend->Capture(enqueue);
  return std::make_unique<HostGraph>(enqueue);
}

}  // namespace tokline
