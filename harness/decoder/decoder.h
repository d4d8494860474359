// Decodes sequences with a model: continuous batching over a paged KV cache, on the CPU or on CUDA.
//
// A step is one forward pass over a ragged batch: prompt tokens of sequences that are new, and one
// token of each sequence that runs. Sampled tokens stay on the device, where the next step reads
// them, so the host works one step ahead: Step() enqueues a step and hands out the tokens of the
// step before. Each running sequence has a slot, which is its row in every step until it leaves;
// steps are padded to a few batch sizes, for each of which WarmUp() captures a graph. On CUDA the
// last bits of a sequence's logits depend on its batch: sums are split so that the device is busy.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "harness/decoder/backend.h"
#include "harness/decoder/decoder_memory.h"
#include "harness/decoder/device_weights.h"
#include "harness/decoder/forward_pass.h"
#include "harness/decoder/page_pool.h"
#include "harness/models/model_spec.h"
#include "harness/models/model_weights.h"
#include "kernels/sampling/sampling.h"

namespace tokline {

using SequenceId = int64_t;

struct NewToken {
  SequenceId sequence = 0;
  int32_t token = 0;
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

struct KvRows {
  std::vector<float> k;  // [tokens, num_kv_heads, head_dim]
  std::vector<float> v;
};

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

  // Takes a sequence in; `max_new_tokens` end it by themselves. Tokens are drawn with rule's seed
  // and their position, rule.offset is not used. Throws InvalidArgument, with the values and what
  // is allowed, for an empty prompt, an id outside the vocabulary, too long a sequence, a full
  // batch, or a prompt that the free pages do not hold.
  SequenceId AddSequence(std::span<const int32_t> prompt, const SamplingRule& rule,
                         int64_t max_new_tokens);
  // Frees slot and pages. A token of it that is under way is dropped.
  void RemoveSequence(SequenceId id);

  // Whether Step() would enqueue a step.
  bool HasWork() const;
  // Throws InvalidArgument and enqueues nothing if the sequences outgrow the KV cache.
  StepReport Step();
  // Waits for the tokens that are under way. Valid until the next call.
  std::span<const NewToken> Flush();

  // Logits that the newest token of the sequence was drawn from, [vocab_size]. The newest step
  // must have produced them. Waits for it.
  std::vector<float> Logits(SequenceId id);
  // Puts `token` in the place of the newest token, before a step takes it as input.
  void ReplaceNewestToken(SequenceId id, int32_t token);
  // K and V of the sequence in one layer, after the work enqueued so far.
  KvRows ReadKv(SequenceId id, int64_t layer);

  const ModelSpec& Spec() const { return spec_; }
  const DecoderOptions& Options() const { return plan_.options; }
  MemoryPlan Memory() const;
  const PagePool& Pages() const { return pool_; }
  HostTimes Times() const { return times_; }
  // Decode steps that ran as a graph, and as plain launches.
  int64_t GraphSteps() const { return graph_steps_; }
  int64_t PlainSteps() const { return plain_steps_; }

 private:
  struct Sequence {
    SequenceId id = 0;
    int32_t slot = 0;
    std::vector<int32_t> prompt;
    SamplingRule rule;
    int64_t max_new_tokens = 0;
    int64_t in_cache = 0;  // tokens whose K and V are written by the steps enqueued so far
    int64_t sampled = 0;   // tokens drawn by the steps enqueued so far
    int64_t logits_step = -1;
    std::vector<int32_t> pages;

    bool Prefills() const { return in_cache < static_cast<int64_t>(prompt.size()); }
    bool Decodes() const { return !Prefills() && sampled < max_new_tokens; }
  };
  // New tokens of a sequence in a step.
  struct Part {
    Sequence* sequence = nullptr;
    int64_t count = 0;
    bool Finishes() const {
      return sequence->in_cache + count == static_cast<int64_t>(sequence->prompt.size());
    }
  };
  // Host memory of a step: rewritten only after its fence has been passed.
  struct Turn {
    tokline::Memory arrays;
    tokline::Memory tokens;
    std::unique_ptr<Fence> fence;
    bool pending = false;
    struct Draw {
      SequenceId id;
      int32_t slot;
    };
    std::vector<Draw> draws;
  };
  struct CapturedStep {
    AttentionWork decode;
    std::unique_ptr<WorkGraph> graph;
  };

  Sequence& Find(SequenceId id);
  void Schedule();
  void GrowPages();
  int64_t PagesFor(int64_t tokens) const;
  StepShape ScheduledShape() const;
  // Writes and uploads the arrays of a step; returns what the host knows of it.
  StepWork UploadArrays(const StepShape& shape, Turn& turn);
  void WriteRows(const StepShape& shape, const StepArrays& arrays) const;
  TableWriter WriteDecodeTable(const StepShape& shape, const StepArrays& arrays) const;
  void WritePrefillTable(const StepShape& shape, const StepArrays& arrays) const;
  void Run(const StepWork& work);
  void Advance(Turn& turn);
  void Collect(Turn& turn);

  ModelSpec spec_;
  std::unique_ptr<Backend> backend_;
  DecoderPlan plan_;
  DeviceWeights weights_;
  DecoderBuffers buffers_;
  ForwardPass forward_;
  PagePool pool_;
  std::vector<std::optional<Sequence>> slots_;  // [max_batch]
  SequenceId next_id_ = 0;
  Turn turns_[2];
  int turn_ = 0;  // the one that the next step takes; the other may be under way
  int64_t steps_ = 0;
  // The step being made; kept to spare allocations.
  std::vector<Sequence*> decoding_;  // by row: null for padding
  std::vector<Part> prefilling_;     // in order of arrival
  std::vector<NewToken> collected_;
  std::vector<CapturedStep> captured_;  // as plan_.buckets, or empty
  HostTimes times_;
  int64_t graph_steps_ = 0;
  int64_t plain_steps_ = 0;
};

}  // namespace tokline
