// Decodes sequences with a model: continuous batching over a paged KV cache, on the CPU or on CUDA.
//
// A step is one forward pass over a ragged batch: prompt tokens of sequences that are new, and one
// token of each sequence that runs; the Scheduler decides which. Sampled tokens stay on the device,
// where the next step reads them, so the host works one step ahead: Step() enqueues a step and
// hands out the tokens of the step before. Each running sequence has a slot, which is its row in a
// step; steps are padded to a few batch sizes, for each of which WarmUp() captures a graph. On CUDA
// the last bits of a sequence's logits depend on its batch: sums are split so that the device is
// busy.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "harness/engine/backend.h"
#include "harness/engine/decoder_memory.h"
#include "harness/engine/device_weights.h"
#include "harness/engine/forward_pass.h"
#include "harness/engine/shared_runs.h"
#include "harness/engine/shifted_copy.h"
#include "harness/engine/step_ops.h"
#include "harness/models/model_spec.h"
#include "harness/models/model_weights.h"
#include "harness/scheduler/request.h"
#include "harness/scheduler/scheduler.h"
#include "kernels/sampling/sampling.h"

namespace tokline {

struct NewToken {
  SequenceId sequence = 0;
  int32_t token = 0;
  Finish finish = Finish::kNot;  // a sequence that ends is gone, unless its request holds it
};

struct StepReport {
  // Enqueued by this call; both 0 when there was nothing to do.
  int64_t prefill_tokens = 0;
  int32_t decode_rows = 0;
  // Of the step before. Valid until the next call.
  std::span<const NewToken> tokens;
};

// Host time in Step() and Flush() since the decoder was made.
struct HostTimes {
  double total_s = 0;
  double wait_s = 0;  // of total_s, waiting for the device
};

// Tokens whose K and V the attention of decode steps has read, in each layer.
struct DecodeReads {
  int64_t tokens = 0;  // on the CPU, which reads for each sequence alone, what CUDA would read if
                       // it read every shared run once
  int64_t unshared_tokens = 0;  // had each sequence read all of its own
};

struct KvRows {
  std::vector<float> k;  // [tokens, num_kv_heads, head_dim]
  std::vector<float> v;
};

// Not thread-safe. All CUDA decoders of a process share one stream (WorkStream() says why): only
// one of them may be at work at a time, whichever threads they belong to.
class Decoder {
 public:
  // Copies the weights to the device; neither checkpoint nor `weights` is needed afterwards. Throws
  // InvalidArgument for options that are not allowed and RuntimeFailure, with the needed and the
  // free bytes, if device memory does not suffice.
  Decoder(const ModelSpec& spec, const ModelWeights& weights, const DecoderOptions& options);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Runs a decode step of every batch size and captures its graph; returns the seconds. Without it
  // the decoder works, but launches every kernel of every step. Needs a decoder without sequences.
  double WarmUp();

  // Takes a request in, to run when the batch and the KV cache have room for it, in the order of
  // arrival. Throws InvalidArgument, with the values and what is allowed, for an empty prompt, an
  // id outside the vocabulary, a request that does not fit the context or the KV cache, or shifted
  // spans with a model whose positions cannot be shifted.
  SequenceId Submit(Request request);
  // The same for a sequence that stays, with its K and V, until it is removed. Throws
  // InvalidArgument too if the batch is full.
  SequenceId AddSequence(std::span<const int32_t> prompt, const SamplingRule& rule,
                         int64_t max_new_tokens);
  SequenceId AddSequence(Request request);
  // Ends a sequence at any time and frees its pages. A token of it that is under way is dropped.
  void RemoveSequence(SequenceId id);
  // Whether it is waiting, running or held.
  bool Has(SequenceId id) const { return scheduler_.Has(id); }

  // Keeps the K and V of the longest prefix of `tokens` that is in the cache, until it is unpinned.
  Scheduler::Pinned Pin(std::span<const int32_t> tokens) { return scheduler_.Pin(tokens); }
  void Unpin(const Scheduler::Pinned& pinned) { scheduler_.Unpin(pinned); }
  // Forgets the K and V that no sequence uses and nobody has pinned.
  void EvictIdle() { scheduler_.EvictIdle(); }

  // Whether Step() would enqueue a step, now or when tokens under way are known.
  bool HasWork() const { return prepared_.has_value() || scheduler_.HasWork(); }
  // Throws InvalidArgument and enqueues nothing if held sequences leave the others no pages.
  StepReport Step();
  // Waits for the tokens that are under way. Valid until the next call.
  std::span<const NewToken> Flush();

  // Who is told of every op that a step enqueues from here on; null: nobody. A step that runs as a
  // graph enqueues none.
  void SetObserver(OpObserver* observer) { forward_.SetObserver(observer); }
  // The step that Step() would enqueue next, less the ops that the observer skips, to be run any
  // number of times: the sequences stay as they are, but what the step writes is written. The
  // observer is told of the ops while a graph is captured, on the host at each run. Only until the
  // next call of Step(), and there must be work.
  std::unique_ptr<WorkGraph> NextStep(OpObserver& observer);
  // From here on steps launch every kernel, as before WarmUp().
  void DropGraphs() { captured_.clear(); }
  Backend& GetBackend() { return *backend_; }

  // Logits that the newest token of a sequence was drawn from, [vocab_size]. The newest step must
  // have produced them. Waits for it.
  std::vector<float> Logits(SequenceId id);
  // Puts `token` in the place of the newest token, before a step takes it as input.
  void ReplaceNewestToken(SequenceId id, int32_t token);
  // K and V of the sequence in one layer, after the work enqueued so far.
  KvRows ReadKv(SequenceId id, int64_t layer);

  const ModelSpec& Spec() const { return spec_; }
  const DecoderOptions& Options() const { return config_.options; }
  MemoryPlan Memory() const;
  const PagePool& Pages() const { return scheduler_.Pages(); }
  const Scheduler& Schedule() const { return scheduler_; }
  HostTimes Times() const { return times_; }
  DecodeReads Reads() const { return reads_; }
  // K and V of a token in all layers.
  int64_t KvTokenBytes() const;
  // Decode steps that ran as a graph, and as plain launches.
  int64_t GraphSteps() const { return graph_steps_; }
  int64_t PlainSteps() const { return plain_steps_; }

 private:
  // Host memory of a step: rewritten only after its fence has been passed.
  struct Turn {
    tokline::Memory arrays;
    tokline::Memory tokens;
    tokline::Memory moved;  // newest tokens on their way to another slot
    std::unique_ptr<Fence> fence;
    bool pending = false;
    struct Draw {
      SequenceId id;
      int32_t slot;
    };
    std::vector<Draw> draws;
  };
  struct CapturedStep {
    StepShape shape;
    std::unique_ptr<WorkGraph> graph;
  };

  // A step whose arrays are on the device.
  struct PreparedStep {
    StepShape shape;
    int32_t decode_rows = 0;  // less padding
    DecodeReads reads;
  };

  // Schedules the next step, if there is one, and makes its arrays.
  void Prepare(Turn& turn);
  void MoveTokens(const ScheduledStep& scheduled, Turn& turn);
  StepShape ShapeOf(const ScheduledStep& scheduled) const;
  // What its decode rows share, as far as it may be read once.
  std::vector<SharedRun> SharedRunsOf(const ScheduledStep& scheduled, const StepShape& shape) const;
  // Writes and uploads the arrays of a step; returns what the host knows of it.
  PreparedStep UploadArrays(const ScheduledStep& scheduled, StepShape shape, Turn& turn);
  void WriteRows(const ScheduledStep& scheduled, const StepShape& shape,
                 const StepArrays& arrays) const;
  // Returns the page ids written. Gives the shared runs their chunks.
  int64_t WriteDecodeTable(const ScheduledStep& scheduled, const StepShape& shape,
                           const StepArrays& arrays, std::span<SharedRun> shared) const;
  void WritePrefillTable(const ScheduledStep& scheduled, const StepShape& shape,
                         const StepArrays& arrays) const;
  void Run(const StepShape& shape);
  void Collect(Turn& turn);

  ModelSpec spec_;
  std::unique_ptr<Backend> backend_;
  DecoderConfig config_;
  DeviceWeights weights_;
  DecoderBuffers buffers_;
  ForwardPass forward_;
  Scheduler scheduler_;
  ShiftedCopy shifted_copy_;
  Turn turns_[2];
  int turn_ = 0;  // the one that the next step takes; the other may be under way
  std::optional<PreparedStep> prepared_;
  std::vector<NewToken> collected_;
  std::vector<CapturedStep> captured_;  // as config_.DecodeShapes(), or empty
  HostTimes times_;
  DecodeReads reads_;
  int64_t graph_steps_ = 0;
  int64_t plain_steps_ = 0;
};

}  // namespace tokline
