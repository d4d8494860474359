// The options of a decoder, and what follows from them: sizes, buckets, and the ops of a step.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/engine/ablation.h"
#include "harness/engine/backend.h"
#include "harness/engine/step_arrays.h"
#include "harness/engine/step_ops.h"
#include "harness/models/model_spec.h"
#include "harness/models/sharding.h"
#include "kernels/common/device_facts.h"
#include "kernels/common/dtype.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline {

class ProcessGroup;

inline constexpr int32_t kMaxBatch = 4096;

struct DecoderOptions {
  Device device = Device::kCpu;
  // The number of ranks among which the model is divided. Each is a device, or a thread on the CPU.
  int32_t ranks = 1;
  // If this is set and there are several ranks, the ranks are these processes, and this process is
  // rank 0. Otherwise the ranks are threads.
  ProcessGroup* processes = nullptr;
  std::chrono::milliseconds rank_limit{60'000};  // how far a rank may fall behind the others
  std::function<void(const std::string&)> on_hang = {};  // as in RankGroup::Options
  DType dtype = DType::kF32;    // of weights, activations and KV; CUDA takes bf16 and f16
  int32_t max_batch = 1;        // sequences that run at a time, up to kMaxBatch
  int64_t max_context = 0;      // tokens per sequence, prompt and new; 0: what the model allows
  int64_t kv_pages = 0;         // 0: enough for max_batch sequences of max_context
  int32_t page_size = 256;      // tokens
  int64_t token_budget = 8192;  // prompt tokens per step; longer prompts take several steps
  bool reuse = false;           // whether prompts that begin with the same tokens share K and V
  // With reuse: whether decode steps read only once what their sequences share.
  ChunkSharing sharing = ChunkSharing::kWhenItPays;
  // Whether Decoder::Logits may be called. If not, logits of greedy rows need not be written.
  bool keep_logits = true;
  int64_t pinned_pages = 0;  // at most this many pages may be pinned; sequences do not rely on them
  AblationSet ablate = {};
  std::optional<DelayedOp> delayed = {};  // to test the tools

  // The ranks, if they are processes.
  ProcessGroup* Processes() const { return ranks > 1 ? processes : nullptr; }
};

// The checked options with all defaults filled in, and what follows from them for a rank.
struct DecoderConfig {
  DecoderOptions options;
  ModelShard shard;           // all sizes are those of its local model, except the sizes of logits
  PagedKvLayout layout;       // of one layer; includes the scratch page if there is one
  int32_t group = 1;          // query heads per KV head
  int32_t max_runs = 1;       // per sequence; see SequencePages
  int32_t max_pages = 0;      // per sequence
  int32_t scratch_page = -1;  // stays zero; padding rows read it when paged_prefill decodes
  DeviceFacts facts;
  ChunkDecodeGrid full_grid;     // of chunk_decode; has no lanes on the host
  std::vector<int32_t> buckets;  // numbers of decode rows that steps are padded to, ascending
  int64_t max_tokens = 0;        // per step
  // Whether these run as separate kernels, because an ablation asks for it or because no fused op
  // does what the model needs.
  bool split_input_norm = false;
  bool split_mlp = false;  // norm, first projection, activation
  bool split_final_norm = false;
  int32_t one_kernel_rows = 0;  // the largest bucket whose steps may run as one kernel
  StepShape largest_step;       // no step's arrays are larger
  int64_t linear_workspace_bytes = 0;
  int64_t sampling_workspace_bytes = 0;

  // Throws InvalidArgument, which states values and limits.
  DecoderConfig(const ModelSpec& whole, const DecoderOptions& options, const DeviceFacts& facts,
                int32_t rank = 0);

  int32_t Bucket(int32_t rows) const;  // the smallest bucket that holds `rows`
  // The shape of a decode step as a chain of kernels. Its longest context, including the new token,
  // has `longest` tokens. It reads `tokens` tokens in total, less `tokens_saved` if it reads shared
  // runs once.
  StepShape DecodeShape(int32_t bucket, int64_t longest, int64_t tokens,
                        int64_t tokens_saved) const;
  StepShape DecodeShape(int32_t bucket, const ChunkDecodeGrid& grid) const;
  // The most partial states that the plan of a step of `bucket` rows can have.
  int64_t MaxPartials(int32_t bucket) const;
  // All grids that steps may have, and only those of them with run lanes.
  std::vector<ChunkDecodeGrid> DecodeGrids(int32_t bucket) const;
  std::vector<ChunkDecodeGrid> RunGrids() const;
  // The shape of a decode step as one kernel.
  StepShape OneKernelShape(int32_t bucket) const;
  // Sets max_tiles if the shape's attention is paged_prefill.
  void AddRoomForTiles(AttentionShape& shape) const;
  // Whether a decode step of `bucket` rows can run as one kernel.
  bool RunsAsOneKernel(int32_t bucket) const { return bucket <= one_kernel_rows; }
  // Every shape that a decode step can have. Each is captured as a graph.
  std::vector<StepShape> DecodeShapes() const;
  // Whether the grid of chunk_decode depends on what a step reads.
  bool ChoosesGrid() const;
  bool Ablates(Ablation ablation) const { return options.ablate.Has(ablation); }
  bool Divided() const { return shard.world_size > 1; }  // among several ranks
  // The ops of a decode step.
  StepOpSet DecodeOps() const;
  bool OnDevice() const { return options.device == Device::kCuda; }
  bool SharesReads() const {
    return options.reuse && options.sharing != ChunkSharing::kNever &&
           !Ablates(Ablation::kChunkDecode);
  }
  bool AlwaysSharesReads() const {
    return SharesReads() && options.sharing == ChunkSharing::kAlways;
  }
};

// The room for sums of a decoder with several ranks.
SumRoom SumRoomOf(const ModelSpec& spec, const DecoderOptions& options);

// Whether the ablation swaps anything in a decoder of this model. It does not if no fused op does
// the work for this model anyway.
bool Swaps(const ModelSpec& spec, Ablation ablation);

}  // namespace tokline
