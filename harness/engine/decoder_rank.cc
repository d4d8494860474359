#include "harness/engine/decoder_rank.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/common/error.h"

namespace tokline {
namespace {

class ObservedScope {
 public:
  ObservedScope(ForwardPass& forward, OpObserver& observer) : forward_(forward) {
    forward_.SetObserver(&observer);
  }
  ~ObservedScope() { forward_.SetObserver(nullptr); }
  ObservedScope(const ObservedScope&) = delete;
  ObservedScope& operator=(const ObservedScope&) = delete;

 private:
  ForwardPass& forward_;
};

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
    RequireRoom(PlanMemory(whole, options, backend->facts()), backend->FreeBytes());
  }
  return backend;
}

}  // namespace

DecoderRank::DecoderRank(const ModelSpec& whole, const ModelWeights& whole_weights,
                         const DecoderOptions& options, int32_t rank, std::unique_ptr<Backend> with)
    : backend(WithRoom(whole, options, std::move(with))),
      config(whole, options, backend->facts(), rank),
      weights(config.shard, whole_weights, config.options.dtype, *backend),
      buffers(config, *backend),
      forward(config, weights, buffers, *backend),
      shifted_copy(config.shard.local, config, buffers, *backend) {
  const int64_t token_bytes = config.options.max_batch * int64_t{sizeof(int32_t)};
  for (Turn& turn : turns) {
    turn.tokens = backend->AllocateStaging(token_bytes);
    turn.moved = backend->AllocateStaging(token_bytes);
    turn.fence = backend->MakeFence();
  }
}

// Copies by way of host memory. The host does not wait, because the copies are ordered like all
// work.
void DecoderRank::MoveTokens(std::span<const SlotMove> moves, int turn) {
  constexpr int64_t kBytes = sizeof(int32_t);
  std::byte* moved = turns[turn].moved.data();
  for (const SlotMove& move : moves) {
    backend->CopyToHost(moved, buffers.sampled + move.from, kBytes);
    backend->CopyToDevice(buffers.sampled + move.to, moved, kBytes);
    moved += kBytes;
  }
}

void DecoderRank::UploadArrays(const std::byte* arrays, int64_t bytes) {
  backend->CopyToDevice(buffers.step, arrays, bytes);
}

void DecoderRank::RunStep(const StepShape& shape, int turn) {
  if (shape.prefill.num_tokens > 0 || captured.empty()) {
    forward.Enqueue(shape);
  } else {
    const AttentionShape& decode = shape.decode;
    const CapturedStep& step = *std::ranges::find_if(captured, [&](const CapturedStep& one) {
      return one.shape.decode.num_seqs == decode.num_seqs && one.shape.decode.grid == decode.grid &&
             one.shape.one_kernel == shape.one_kernel;
    });
    Require(decode.num_tiles == step.shape.decode.num_tiles, "a step has ", decode.num_tiles,
            " tiles, its graph ", step.shape.decode.num_tiles);
    step.graph->Enqueue();
  }
  backend->CopyToHost(turns[turn].tokens.data(), buffers.sampled,
                      shape.logit_rows * int64_t{sizeof(int32_t)});
  turns[turn].fence->Record();
}

void DecoderRank::CaptureStep(const StepShape& shape) {
  forward.Enqueue(shape);  // lets every op choose its algorithms before the capture
  backend->Synchronize();
  if (config.Has(Ablation::kGraphs)) return;
  captured.push_back({.shape = shape, .graph = backend->Capture([&] { forward.Enqueue(shape); })});
  captured.back().graph->Enqueue();
  backend->Synchronize();
}

std::unique_ptr<WorkGraph> DecoderRank::ObservedStep(const StepShape& shape, OpObserver& observer) {
  const auto enqueue = [this, shape, &observer] {
    const ObservedScope observed(forward, observer);
    forward.Enqueue(shape);
  };
  backend->Synchronize();
  if (config.OnDevice()) return backend->Capture(enqueue);
  return std::make_unique<HostGraph>(enqueue);
}

}  // namespace tokline
