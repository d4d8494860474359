// Decodes sequences with a model: continuous batching over a paged KV cache, on the CPU or on CUDA.
//
// A step is one forward pass over a ragged batch: prompt tokens of new sequences, and one token of
// each running sequence. The Scheduler decides which. Sampled tokens stay on the device, where the
// next step reads them, so the host works one step ahead of an asynchronous backend: Step()
// enqueues a step and returns the tokens of the previous one. On a synchronous backend it returns
// the tokens of the step itself, since nothing is gained by holding them back. Each running
// sequence has a seat, which is its row in a step. Steps are padded to a few batch sizes, and
// WarmUp() captures a graph for each. On CUDA, the last bits of a sequence's logits depend on its
// batch, because the batch determines how sums are split over the device.
//
// The model may be divided among several ranks (DecoderOptions::ranks). A step is planned once, and
// all ranks run it. Step() returns the tokens that rank 0 draws.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "harness/engine/backend.h"
#include "harness/engine/decoder_config.h"
#include "harness/engine/decoder_memory.h"
#include "harness/engine/decoder_rank.h"
#include "harness/engine/rank_group.h"
#include "harness/engine/rank_order.h"
#include "harness/engine/rank_server.h"
#include "harness/engine/shared_runs.h"
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
  Finish finish = Finish::kNone;  // a sequence is removed when it ends, unless its request holds it
};

struct StepReport {
  // The numbers of tokens that this call enqueued; both are 0 if there was nothing to do.
  int64_t prefill_tokens = 0;
  int32_t decode_rows = 0;
  // The tokens of the previous step, or of this one if the backend is synchronous. Valid until the
  // next call.
  std::span<const NewToken> tokens;
};

// Number of tokens whose K and V the attention of decode steps has read in each layer.
struct DecodeReads {
  int64_t tokens = 0;  // the CPU shares no reads; it counts what CUDA would read if it read every
                       // shared run once
  int64_t unshared_tokens = 0;  // what would be read if every sequence read all of its tokens
};

struct KvRows {
  std::vector<float> k;  // [tokens, num_kv_heads, head_dim]
  std::vector<float> v;
};

// Makes the backend of a rank, on the rank's thread.
using BackendMaker = std::function<std::unique_ptr<Backend>(const RankPlace&)>;

// Not thread-safe. All CUDA decoders of a process share one stream per device (WorkStream() says
// why), so only one of them may work at a time, even if they belong to different threads.
class Decoder {
 public:
  // Copies the weights to the device; the checkpoint and `weights` are not needed afterwards.
  // Throws InvalidArgument for options that are not allowed, and RuntimeFailure with the needed and
  // the free bytes if device memory does not suffice.
  Decoder(const ModelSpec& spec, const ModelWeights& weights, const DecoderOptions& options);
  // Same, on the given backends, which must be of the device that the options name, and with the
  // ranks of other processes if the options name any (MakeDecoder).
  Decoder(const ModelSpec& spec, const ModelWeights& weights, const DecoderOptions& options,
          const BackendMaker& make_backend, std::unique_ptr<RemoteRanks> remote = nullptr);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Runs a decode step of every batch size and captures its graph. The decoder also works without
  // it, but then launches every kernel of every step. The decoder must have no sequences.
  void WarmUp();

  // Queues a request. Requests run in the order of arrival, as soon as the batch and the KV cache
  // have room. Throws InvalidArgument, with the values and what is allowed, for an empty prompt, an
  // id outside the vocabulary, a request that does not fit the context or the KV cache, or shifted
  // spans with a model whose positions cannot be shifted.
  SequenceId Submit(Request request);
  // Same as Submit, for a sequence that keeps its K and V until it is removed. Also throws
  // InvalidArgument if the batch is full.
  SequenceId AddSequence(std::span<const int32_t> prompt, const SamplingRule& rule,
                         int64_t max_new_tokens);
  SequenceId AddSequence(Request request);
  // Removes a sequence in any state and frees its pages. Its token in flight is dropped. With
  // reuse, a captured step runs before its last sequence is removed.
  void RemoveSequence(SequenceId id);
  // Whether the sequence is waiting, running or held.
  bool Has(SequenceId id) const { return scheduler_.Has(id); }

  // Keeps the K and V of the longest cached prefix of `tokens` until it is unpinned.
  Scheduler::Pinned Pin(std::span<const int32_t> tokens) { return scheduler_.Pin(tokens); }
  void Unpin(const Scheduler::Pinned& pinned) { scheduler_.Unpin(pinned); }
  // Evicts all K and V that are neither used by a sequence nor pinned.
  void EvictIdle() { scheduler_.EvictIdle(); }

  // From now on, no step computes prompt tokens from position `tokens` on, until the limit changes;
  // INT64_MAX removes the limit. Step() must not be called when nothing else is left to compute.
  void LimitPrompts(int64_t tokens) { scheduler_.LimitPrompts(tokens); }

  // Whether Step() would enqueue a step now, or once tokens in flight are known.
  bool HasWork() const { return prepared_.has_value() || scheduler_.HasWork(); }
  // Throws InvalidArgument and enqueues nothing if held sequences leave no pages for the others.
  StepReport Step();
  // Waits for the tokens in flight and returns them. The result is valid until the next call.
  std::span<const NewToken> Flush();

  // Calls the observer for every op that later steps enqueue on rank 0; null removes it. A step
  // that runs as a graph enqueues no ops. The other ranks skip the same ops. With several ranks,
  // the choice of ops that an observer wants must therefore depend on the op alone.
  void SetObserver(OpObserver* observer);
  OpObserver* Observer() const;
  // Returns the step that Step() would enqueue next, without the ops that the observer skips. It
  // may run any number of times: it writes what the step writes, but does not advance the
  // sequences. The observer is called while a graph is captured, and on the host at each run. The
  // result is valid until the next call of Step(). There must be work.
  std::unique_ptr<WorkGraph> CaptureNextStep(OpObserver& observer);
  // Makes later steps launch every kernel, as before WarmUp().
  void DropGraphs();
  Backend& GetBackend() { return backend_; }  // of rank 0

  // Returns the logits from which the newest token of a sequence was drawn, [vocab_size]. The
  // newest step must have produced them, and DecoderOptions::keep_logits be set. Waits for that
  // step.
  std::vector<float> Logits(SequenceId id);
  // Replaces the newest token with `token` before a step takes it as input.
  void ReplaceNewestToken(SequenceId id, int32_t token);
  // Returns the residual stream of the step that is being enqueued, after the work enqueued so far,
  // [rows, hidden_size]: decode rows with their padding, then prompt tokens. For observers.
  std::vector<float> Hidden();
  // Returns the queries of the layer whose attention is enqueued next, for the same rows and for
  // the heads of rank 0, [rows, num_q_heads * head_dim]. For observers.
  std::vector<float> Queries();
  // Returns the K and V of the sequence in one layer, for the heads of rank 0, after the work
  // enqueued so far.
  KvRows ReadKv(SequenceId id, int64_t layer);

  const ModelSpec& Spec() const { return spec_; }
  const DecoderOptions& Options() const { return config_.options; }
  MemoryNeeds Memory() const;
  const PagePool& Pages() const { return scheduler_.Pages(); }
  const Scheduler& Schedule() const { return scheduler_; }
  // How long the host has waited for the device in Step() and Flush() since the decoder was made.
  double WaitSeconds() const { return wait_s_; }
  DecodeReads Reads() const { return reads_; }
  // The size of a token's K and V in all layers.
  int64_t KvTokenBytes() const;
  // The numbers of decode steps that ran as a graph and as plain launches.
  int64_t GraphSteps() const { return graph_steps_; }
  int64_t PlainSteps() const { return plain_steps_; }

 private:
  // What the host knows about a step. Its arrays, in the memory of rank 0, are rewritten only after
  // waiting for the fences of all ranks.
  struct EnqueuedStep {
    bool pending = false;
    struct Draw {
      SequenceId id;
      int32_t seat;
    };
    std::vector<Draw> draws;
  };
  // How a step runs.
  struct StepPlan {
    StepShape shape;
    std::vector<int32_t> parts;     // OneKernelParts, or empty if it runs as a chain
    std::vector<SharedRun> shared;  // the runs that a chain reads once
    int64_t tokens_saved = 0;       // tokens that need not be read because of them
  };
  // A step whose arrays have been written.
  struct PreparedStep {
    StepShape shape;
    int64_t array_bytes = 0;  // that are used
    int32_t decode_rows = 0;  // without padding
    DecodeReads reads;
  };

  // Has all ranks obey these orders at the same time.
  void Tell(std::span<const RankOrder> orders);
  void Tell(std::initializer_list<RankOrder> orders) { Tell(std::span(orders)); }
  // Schedules the next step, if there is one, and writes its arrays.
  void Prepare();
  StepPlan PlanStep(const ScheduledStep& scheduled) const;
  // Plans the step as a chain of kernels. If its sequences share anything, this overwrites the
  // arrays of the next step with the table by which it decides.
  StepPlan PlanChain(const ScheduledStep& scheduled) const;
  // The numbers of parts into which the contexts of a step are cut if it runs as one kernel, one
  // entry per row including padding; empty if it must run as a chain.
  std::vector<int32_t> OneKernelParts(const ScheduledStep& scheduled) const;
  // The numbers of tiles of the contexts of `rows` decode rows, as decode_step counts them; 0 in
  // padding.
  std::vector<int32_t> DecodeTiles(const ScheduledStep& scheduled, int32_t rows) const;
  // Returns the runs that several decode rows share and that a chain may read once.
  std::vector<SharedRun> SharedRunsOf(const ScheduledStep& scheduled) const;
  // Writes the arrays of the next step, which may be empty except for padding.
  PreparedStep WriteArrays(const ScheduledStep& scheduled, StepPlan plan);
  // Downloads the first `columns` of each row of the step that is being enqueued.
  std::vector<float> RowsOfStep(const std::byte* data, int64_t stride, int64_t columns);
  // An order about the prepared step.
  RankOrder OrderOf(const PreparedStep& step, RankOrderKind kind) const;
  void WriteRows(const ScheduledStep& scheduled, const StepShape& shape,
                 const StepArrays& arrays) const;
  // Sets the chunks of the shared runs. Returns the number of page ids written.
  int64_t WriteDecodeTable(const ScheduledStep& scheduled, const StepShape& shape,
                           const StepArrays& arrays, std::span<SharedRun> shared) const;
  void WritePrefillTable(const ScheduledStep& scheduled, const StepShape& shape,
                         const StepArrays& arrays) const;
  void Collect(int turn);
  std::byte* Arrays() const { return ranks_[0]->turns[turn_].arrays.data(); }  // of the next step
  std::byte* ArraysToWrite() const;  // the same; throws if the step that has them is in flight

  ModelSpec spec_;
  RankGroup group_;
  std::vector<std::unique_ptr<DecoderRank>> ranks_;
  // The following belong to rank 0:
  Backend& backend_;
  const DecoderConfig& config_;
  const DecoderBuffers& buffers_;
  std::unique_ptr<RemoteRanks> remote_;
  Scheduler scheduler_;
  EnqueuedStep turns_[2];
  int turn_ = 0;  // index of the turn that the next step uses; the other may be in flight
  std::optional<PreparedStep> prepared_;
  std::vector<NewToken> collected_;
  double wait_s_ = 0;
  DecodeReads reads_;
  int64_t graph_steps_ = 0;
  int64_t plain_steps_ = 0;
  int64_t graphs_made_ = 0;  // by CaptureNextStep
};

}  // namespace tokline
