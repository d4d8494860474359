// One forward pass over a ragged batch, from token ids to sampled tokens. It is written once,
// against the table of ops, and thus runs with references and with kernels.
//
// Several ranks enqueue the same ops, each with its part of the model. Their additions to the
// residual stream are then summed over all ranks, in one op with the norm that follows.
#pragma once

#include <cstdint>
#include <type_traits>

#include "harness/engine/backend.h"
#include "harness/engine/decoder_config.h"
#include "harness/engine/decoder_memory.h"
#include "harness/engine/device_weights.h"
#include "harness/engine/step_arrays.h"
#include "harness/engine/step_ops.h"
#include "harness/models/model_spec.h"

namespace tokline {

// Its constructor arguments must outlive it.
class ForwardPass {
 public:
  ForwardPass(const DecoderConfig& config, const DeviceWeights& weights,
              const DecoderBuffers& buffers, Backend& backend);

  // Enqueues the step whose arrays are on the device, laid out by PlaceStep(shape, buffers.step),
  // and whose attention is planned. Decode rows take their tokens from buffers.sampled, where new
  // tokens are written. With 0 logit rows the pass ends after the last layer. It neither allocates
  // nor waits.
  void Enqueue(const StepShape& shape);

  // Sets the observer of every op from now on; null removes it. A replayed graph enqueues no ops.
  void SetObserver(OpObserver* observer) { observer_ = observer; }
  OpObserver* Observer() const { return observer_; }

 private:
  // Everything up to the logits in one launch, and sampling.
  void OneKernel(const StepShape& shape, const StepArrays& arrays);
  void Embed(const StepShape& shape, const StepArrays& arrays);
  // Writes to buffers.normed.
  void Norm(StepOp op, int64_t tokens, const std::byte* x, const std::byte* weight,
            const std::byte* bias);
  void Projections(const DeviceLayerWeights& layer, std::byte* kv, int64_t tokens,
                   const StepArrays& arrays);
  void AppendWithSeparateNorms(KvAppendParams params);
  // Attention of the step's rows from `begin` on. `workspace` is chunk_decode's on CUDA, otherwise
  // null. Rows that decode have one new token each, whereas those of prompts follow each other.
  void Attention(const AttentionShape& shape, const AttentionArrays& arrays, int64_t begin,
                 const DecodeWorkspace* workspace, const std::byte* kv, bool decodes);
  // `next` is the next layer, or null.
  void Mlp(const DeviceLayerWeights& layer, const DeviceLayerWeights* next, int64_t tokens);
  // The MLP up to its activation, with one kernel for each operation.
  void SplitMlp(const DeviceLayerWeights& layer, int64_t tokens);
  // Adds the output of a projection to x. `next_norm` is the weight of the RMSNorm that follows, or
  // null if that is a separate op.
  void AddToStream(StepOp op, LinearParams params, const std::byte* next_norm);
  // x = the sum of all ranks' partial + residual, which may be null.
  AllReduceNormParams SumOf(int64_t tokens, const std::byte* residual,
                            const std::byte* next_norm) const;
  // Whether the projection of `params` sends its outputs to the peers for the sum that follows.
  bool Sends(StepOp op, const LinearParams& params, AllReduceNormParams sum) const;
  void AllReduce(const AllReduceNormParams& params);
  void Logits(const StepShape& shape, const StepArrays& arrays);
  // `best_parts`: the number of parts per row whose largest logits the LM head has found; 0: none.
  void Sample(const StepShape& shape, const StepArrays& arrays, int32_t best_parts);
  LinearParams Linear(int64_t tokens, const std::byte* x, int64_t in_features,
                      const std::byte* weight, void* out, int64_t out_features) const;
  // Lets the kernel of `params` prefetch the weights of a later `op` into L2, if they leave room
  // there for everything else and the observer agrees.
  void Prefetch(StepOp op, const std::byte* weight, int64_t elements, LinearParams& params) const;
  // Makes the projection `params`, which reads x, read RMSNorm(x, weight): it normalises x itself
  // unless the sum that wrote x has also written the normalised x.
  void ReadNormed(LinearParams& params, const std::byte* weight) const;
  // Makes the kernel of `params`, which writes x, leave sums of squares of x for the next norm.
  void SumSquares(LinearParams& params);
  bool Wants(StepOp op) const;
  // Enqueues an op, unless the observer skips it.
  template <typename Params>
  void Run(StepOp op, Op<Params> launch, const std::type_identity_t<Params>& params);
  template <typename Params, typename Launch>
  void RunWith(const Launch& launch, StepOp op, const Params& params);
  // Every kernel of a pass except the first may start before its predecessor ends.
  LaunchOptions Next();

  const DecoderConfig& config_;
  const ModelSpec& spec_;  // the model of this rank
  const DeviceWeights& weights_;
  const DecoderBuffers& buffers_;
  Backend& backend_;
  const Ops& ops_;
  DType dtype_;
  int64_t element_bytes_;
  int64_t qkv_width_;
  float scale_;
  const float* x_squares_ = nullptr;   // of x as it is, or null
  const std::byte* normed_ = nullptr;  // x after the norm of what follows, if it came with a sum
  OpObserver* observer_ = nullptr;
  bool first_ = true;
};

}  // namespace tokline
