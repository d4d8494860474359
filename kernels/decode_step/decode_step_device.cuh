// One kernel for a whole decode step.
//
// Grid: one block per SM, all resident at the same time (a cooperative launch). Every block owns a
//   slice of the rows of every weight, and some tasks of attention.
// Block: consumer warps; a producer warp that streams weights, K and V through a ring in
//   shared memory and runs ahead across layers; a warp that clears the words of the previous step.
// Words: activations go from block to block through L2 as words that readers poll
//   (packets_device.cuh), so there is no barrier between blocks. A layer has five hops: x to qkv,
//   to attention, to o, to gate and up, to down; a cut context adds one for the merge.
// Rounding points are those of the chain (linear.h, kv_append.h, chunk_decode.h). Sums are added in
//   a fixed order, so results are repeatable to the bit.
#pragma once

#include "kernels/decode_step/activations_device.cuh"
#include "kernels/decode_step/attention_device.cuh"
#include "kernels/decode_step/producer_device.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/silu.cuh"

namespace tokline::decode_step {

// Lists the block's tasks. There is one task per part of a context and KV head, and the blocks take
// tasks in turn.
__device__ __forceinline__ void ListTasks(const Arguments& args, Shared& shared) {
  const DecodeStepParams& params = args.params;
  const int kv_heads = params.layout.num_kv_heads, block = static_cast<int>(blockIdx.x);
  const int blocks = static_cast<int>(gridDim.x);
  int first_task = 0, first_partial = 0, tasks = 0, list = 0;
  for (int token = 0; token < params.num_tokens; ++token) {
    const int parts = params.parts[token];
    int tiles = 0;
    for (int i = params.table.seq_chunk_indptr[token]; i < params.table.seq_chunk_indptr[token + 1];
         ++i) {
      tiles += DecodeStepTiles(params.table.chunk_lengths[params.table.seq_chunks[i]]);
    }
    int begin = block - first_task % blocks;
    if (begin < 0) begin += blocks;
    for (int i = begin; i < parts * kv_heads; i += blocks) {
      Task& task = shared.tasks[tasks++];
      task.token = token;
      task.kv_head = i % kv_heads;
      task.part = i / kv_heads;
      task.parts = parts;
      task.first_partial = first_partial + task.kv_head * parts;
      task.begin = static_cast<int>(int64_t{task.part} * tiles / parts);
      task.tiles = static_cast<int>(int64_t{task.part + 1} * tiles / parts) - task.begin;
      task.first_tile = list;
      task.slot = params.slots[token];
      task.position = params.positions[token];
      task.appends = task.part == parts - 1 && tiles > 0 && task.slot >= 0;
      list += task.tiles;
    }
    first_task += parts * kv_heads;
    if (parts > 1) first_partial += parts * kv_heads;
  }
  shared.num_tasks = tasks;
  shared.num_partials = first_partial;
}

// Lists the tiles of all tasks, which are the same in every layer.
__device__ __forceinline__ void ListTiles(const Arguments& args, const Shared& shared,
                                          uint32_t* tiles) {
  const ChunkTableView& table = args.params.table;
  const PageSplit pages = args.params.layout.Pages();
  for (int t = 0; t < shared.num_tasks; ++t) {
    const Task& task = shared.tasks[t];
    const int begin = table.seq_chunk_indptr[task.token];
    for (int i = static_cast<int>(threadIdx.x); i < task.tiles; i += kConsumerThreads) {
      int tile = task.begin + i, listed = begin, chunk = table.seq_chunks[begin];
      while (true) {
        const int count = DecodeStepTiles(table.chunk_lengths[chunk]);
        if (tile < count) break;
        tile -= count;
        chunk = table.seq_chunks[++listed];
      }
      const int token = tile * kDecodeStepTileTokens;
      const int page = table.chunk_pages[table.chunk_page_indptr[chunk] + pages.PageOf(token)];
      tiles[task.first_tile + i] =
          PackTile(pages.SlotOf(page, pages.RowOf(token)),
                   min(kDecodeStepTileTokens, table.chunk_lengths[chunk] - token));
    }
  }
}

// Clears what the previous step left in the other set.
__device__ __forceinline__ void ClearWords(const Arguments& args, const WorkspaceState& state) {
  const uint32_t other = 1 - state.steps % 2;
  const WordArea area(args, other);
  const int64_t first = blockIdx.x * 32 + threadIdx.x % 32, stride = int64_t{32} * gridDim.x;
  const auto clear = [&](uint32_t* words, int64_t count) {
    for (int64_t i = first; i < count / 4; i += stride) {
      reinterpret_cast<uint4*>(words)[i] = uint4{};
    }
  };
  clear(area.words, int64_t{state.rows[other]} * area.layers * area.of.total);
  clear(area.partials, int64_t{state.partials[other]} * area.layers * area.partial_words);
}

// The arithmetic of a block, seen from one consumer thread.
template <typename P>
class Worker {
 public:
  using T = typename P::T;

  __device__ __forceinline__ Worker(const Arguments& args, Shared& shared, char* memory,
                                    const CopyRing& ring, const uint32_t* tiles)
      : params_(args.params),
        model_(args.params.model),
        shared_(shared),
        tokens_(static_cast<int>(args.params.num_tokens)),
        hidden_(static_cast<int>(model_.hidden_size)),
        inner_(static_cast<int>(model_.intermediate_size)),
        area_(args, shared.state.steps % 2),
        attention_(args, memory, tiles),
        consumer_(ring),
        sums_(consumer_, reinterpret_cast<float*>(memory + args.geometry.sums), tokens_),
        x_(consumer_, shared, ring.data + args.geometry.x, tokens_,
           DecodeStepMaxFeatures(model_, P::kHeadDim)),
        has_token_(consumer_.row < tokens_),
        layer_words_(area_.Row(consumer_.warp, 0)),
        x_words_(area_.Row(x_.active ? x_.token : 0, 0)) {
    const Slice& rows = shared.hidden;
    if (consumer_.warp < tokens_ && rows.begin + 2 * consumer_.lane < rows.end &&
        shared.embedding[consumer_.warp] != nullptr) {
      residual_ = shared.embedding[consumer_.warp][rows.begin / 2 + consumer_.lane];
    }
  }

  __device__ __forceinline__ void Run() {
    const Projection qkv(shared_.qkv, hidden_, consumer_.warp);
    const Projection output(shared_.hidden, model_.num_q_heads * P::kHeadDim, consumer_.warp);
    const Projection gate_up(shared_.inner, hidden_, consumer_.warp, true);
    const Projection down(shared_.hidden, inner_, consumer_.warp);
    if (params_.stamps != nullptr && threadIdx.x == 0) {
      stamps_ = params_.stamps + int64_t{blockIdx.x} * DecodeStepStamps(model_.num_layers);
    }
    Stamp();
    const uint32_t* before = x_.active ? shared_.embedding[x_.token] : nullptr;
#pragma unroll 1
    for (int layer = 0; layer < model_.num_layers; ++layer) {
      const auto of_layer = [&](const void* tensor) {
        return OfLayer<char>(tensor, model_.layer_stride_bytes, layer);
      };
      Prepare(qkv);
      x_.LoadNormalised(consumer_, qkv, before, layer > 0, of_layer(model_.input_norm),
                        model_.norm_eps);
      const auto* const bias = model_.qkv_bias == nullptr
                                   ? nullptr
                                   : reinterpret_cast<const uint32_t*>(of_layer(model_.qkv_bias));
      Project<false>(qkv, [&](int word, float2 y, float2) {
        if (bias != nullptr) {
          const float2 added = Unpack2<T>(bias[word]);
          y.x += added.x;
          y.y += added.y;
        }
        Publish(layer_words_ + area_.of.qkv + word, Pack2<T>(y.x, y.y));
      });
      Stamp();
#pragma unroll 1
      for (int i = 0; i < shared_.num_tasks; ++i) {
        if (i > 0) SyncConsumers();  // protects rows and states of the previous task
        attention_.Run(consumer_, shared_.tasks[i], area_, layer);
      }
      Stamp();
      Prepare(output);
      x_.Load(consumer_, output, x_words_ + area_.of.attention);
      Project<false>(output, [&](int word, float2 y, float2) {
        Publish(layer_words_ + area_.of.mid + word, AddToResidual(y));
      });
      Stamp();
      Prepare(gate_up);
      x_.LoadNormalised(consumer_, gate_up, x_words_ + area_.of.mid, true,
                        of_layer(model_.post_norm), model_.norm_eps);
      Project<true>(gate_up, [&](int word, float2 gate, float2 up) {
        Publish(layer_words_ + area_.of.act + word,
                Pack2<T>(Round<T>(Silu(Round<T>(gate.x))) * Round<T>(up.x),
                         Round<T>(Silu(Round<T>(gate.y))) * Round<T>(up.y)));
      });
      Stamp();
      Prepare(down);
      x_.Load(consumer_, down, x_words_ + area_.of.act);
      Project<false>(down, [&](int word, float2 y, float2) {
        Publish(layer_words_ + area_.of.out + word, AddToResidual(y));
      });
      Stamp();
      before = x_words_ + area_.of.out;
      layer_words_ += area_.of.total;
      x_words_ += area_.of.total;
    }
    const Projection head(shared_.vocab, hidden_, consumer_.warp);
    Prepare(head);
    x_.LoadNormalised(consumer_, head, before, true, model_.final_norm, model_.norm_eps);
    float* const logits = params_.logits + consumer_.warp * model_.vocab_size;
    Project<false>(head, [&](int word, float2 y, float2) {
      *reinterpret_cast<float2*>(logits + 2 * word) = y;
    });
    Stamp();
  }

 private:
  // Notes the time at which a phase ends in the block's first warp.
  __device__ __forceinline__ void Stamp() {
    if (stamps_ != nullptr) *stamps_++ = clock64();
  }

  // Takes the first weights of a projection before its x has arrived.
  __device__ __forceinline__ void Prepare(const Projection& projection) {
    const int units = projection.Units(projection.slice.begin);
    if (units == 0) return;
    if (projection.k_blocks == 1) {
      weights_.Take<true>(consumer_, projection, units, 0);
    } else {
      weights_.Take<false>(consumer_, projection, units, 0);
    }
  }

  // Multiplies x by the block's rows of a weight. `store(word, y, up)` gets the features
  // 2 word and 2 word + 1 of token consumer.warp; with gates, y is the gate.
  template <bool kGated, typename Store>
  __device__ __forceinline__ void Project(const Projection& projection, const Store& store) {
    constexpr int kFeatures = 8 * kDecodeStepPassRows / (kGated ? 2 : 1);
#pragma unroll 1
    for (int pass = projection.slice.begin; pass < projection.slice.end; pass += kFeatures) {
      const int features = min(kFeatures, projection.slice.end - pass);
      const int rows = (features + 7) >> 3 << (kGated ? 1 : 0);
      const int more = projection.Units(pass + kFeatures);
      if (projection.k_blocks == 1) {
        Multiply<T, true>(consumer_, projection, weights_, rows, more, x_.factor, has_token_,
                          sums_.Store(), sums_.Stride());
      } else {
        Multiply<T, false>(consumer_, projection, weights_, rows, more, x_.factor, has_token_,
                           sums_.Store(), sums_.Stride());
      }
      SyncConsumers();
      const int feature = 2 * consumer_.lane;
      if (consumer_.warp < tokens_ && feature < features) {
        if constexpr (kGated) {
          const int row = feature / 8 * 16 + feature % 8;
          store((pass + feature) / 2, sums_.Pair(row), sums_.Pair(row + 8));
        } else {
          store((pass + feature) / 2, sums_.Pair(feature), float2{});
        }
      }
      if (more > 0) SyncConsumers();  // protects the sums
    }
  }

  __device__ __forceinline__ uint32_t AddToResidual(float2 y) {
    const float2 old = Unpack2<T>(residual_);
    residual_ = Pack2<T>(Round<T>(y.x) + old.x, Round<T>(y.y) + old.y);
    return residual_;
  }

  const DecodeStepParams& params_;
  const DecodeStepModel& model_;
  Shared& shared_;
  int tokens_, hidden_, inner_;
  WordArea area_;
  Attention<P> attention_;
  Consumer consumer_;
  Sums sums_;
  Activations<P> x_;
  WeightStage weights_ = {};
  int64_t* stamps_ = nullptr;  // the next one, in one thread of the block, or null
  bool has_token_;             // whether the lane's row of x in fragments is a token
  uint32_t* layer_words_;      // of token consumer.warp
  const uint32_t* x_words_;    // of the token whose x the lane loads
  uint32_t residual_ = 0;      // the residual stream of token consumer.warp: the thread's pair of
                               // the block's rows
};

// Notes the step for the next ones, once every block has read the state.
__device__ __forceinline__ void NoteStep(const DecodeStepParams& params, const Shared& shared) {
  auto* const state = static_cast<WorkspaceState*>(params.workspace);
  Patience patience;
  while (ptx::LoadRelaxed4(&state->readers) != gridDim.x) patience.Spend();
  const uint32_t set = shared.state.steps % 2;
  state->readers = 0;
  state->steps = shared.state.steps + 1;
  state->rows[set] = static_cast<uint32_t>(params.num_tokens);
  state->partials[set] = static_cast<uint32_t>(shared.num_partials);
  state->rows[1 - set] = 0;
  state->partials[1 - set] = 0;
}

template <typename P>
__global__ void __launch_bounds__(kThreads, 1)
    DecodeStepKernel(const __grid_constant__ Arguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char raw[];
  __shared__ Shared shared;
  char* const memory =
      raw + ((1024 - (static_cast<uint32_t>(__cvta_generic_to_shared(raw)) & 1023)) & 1023);
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const CopyRing ring{.data = base,
                      .barriers = base + static_cast<uint32_t>(args.geometry.barriers),
                      .stages = args.geometry.stages,
                      .stage_bytes = kDecodeStepStageBytes};
  auto* const tiles = reinterpret_cast<uint32_t*>(memory + args.geometry.tiles);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const DecodeStepParams& params = args.params;
  if (threadIdx.x == 0) {
    ring.Init(kWarps);
    ptx::FenceMbarrierInit();
  }
  ptx::GridDependencyWait();
  if (threadIdx.x == 32) {
    auto* const state = static_cast<WorkspaceState*>(params.workspace);
    shared.state = *state;
    __threadfence();
    atomicAdd(&state->readers, 1u);
  }
  if (threadIdx.x == 64) ListTasks(args, shared);
  if (threadIdx.x == 128) {
    const DecodeStepModel& model = params.model;
    shared.qkv = Slice((model.num_q_heads + 2 * params.layout.num_kv_heads) * P::kHeadDim);
    shared.hidden = Slice(model.hidden_size);
    shared.inner = Slice(model.intermediate_size);
    shared.vocab = Slice(model.vocab_size);
  }
  if (warp == 3 && threadIdx.x % 32 < params.num_tokens) {
    const int token = static_cast<int>(threadIdx.x % 32);
    const int64_t id = params.token_ids[token];
    const bool known = id >= 0 && id < params.model.vocab_size;
    shared.embedding[token] = known ? static_cast<const uint32_t*>(params.model.embedding) +
                                          id * (params.model.hidden_size / 2)
                                    : nullptr;
  }
  __syncthreads();
  if (warp == kProducerWarp) {
    Producer<P>(args, ring).Run(shared, tiles);
  } else if (warp == kCleanerWarp) {
    ClearWords(args, shared.state);
    if (blockIdx.x == 0 && threadIdx.x % 32 == 0) NoteStep(params, shared);
  } else {
    ListTiles(args, shared, tiles);
    // The producer waits for the list before its first tile. Consumers do not wait for the
    // producer, which may be waiting for them because the weights before its first tile can fill
    // the ring.
    ptx::NamedBarrierArrive(kTilesBarrier, kConsumerThreads + 32);
    Worker<P>(args, shared, memory, ring, tiles).Run();
  }
#endif
}

}  // namespace tokline::decode_step
