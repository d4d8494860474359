// Seeded models and steps for the tests of decode_step, on the CPU and on CUDA.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "harness/tests/kernels/check.h"
#include "kernels/common/rounding.h"
#include "kernels/decode_step/decode_step.h"
#include "reference/decode_step.h"

namespace tokline::testing {

struct StepModelShape {
  DType dtype = DType::kBf16;
  int32_t layers = 2;
  int64_t hidden = 64, inner = 96, vocab = 64;
  int32_t kv_heads = 2, group = 2, head_dim = 64;
  bool qkv_bias = false, head_norms = false;
  uint64_t seed = 1;

  int32_t QHeads() const { return kv_heads * group; }
  int64_t Q() const { return int64_t{QHeads()} * head_dim; }
  int64_t QkvRows() const { return Q() + 2 * int64_t{kv_heads} * head_dim; }
};

// A matrix or vector of a layer: its first element, counted from the layer's.
struct LayerTensor {
  int64_t at = 0, rows = 0, cols = 0;
  int64_t Size() const { return rows * cols; }
};

// A random model whose activations keep the scale of their inputs.
struct StepModel {
  StepModelShape shape;
  LayerTensor input_norm, qkv, qkv_bias, q_norm, k_norm, o, post_norm, gate_up, down;
  int64_t layer_elements = 0;
  HostTensor embedding, final_norm, lm_head, layers;

  explicit StepModel(const StepModelShape& s)
      : shape(s),
        embedding(s.dtype, s.vocab * s.hidden),
        final_norm(s.dtype, s.hidden),
        lm_head(s.dtype, s.vocab * s.hidden),
        layers(s.dtype, 0) {
    const auto place = [this](int64_t rows, int64_t cols) {
      const LayerTensor tensor{layer_elements, rows, cols};
      layer_elements = RoundUp(layer_elements + rows * cols, 8);  // 16 B
      return tensor;
    };
    input_norm = place(1, s.hidden);
    qkv = place(s.QkvRows(), s.hidden);
    qkv_bias = place(1, s.QkvRows());
    q_norm = place(1, s.head_dim);
    k_norm = place(1, s.head_dim);
    o = place(s.hidden, s.Q());
    post_norm = place(1, s.hidden);
    gate_up = place(2 * s.inner, s.hidden);
    down = place(s.hidden, s.inner);
    layers = HostTensor(s.dtype, s.layers * layer_elements);

    std::mt19937_64 rng(s.seed);
    const auto weights = [&rng](HostTensor& to, int64_t at, int64_t size, double scale) {
      std::normal_distribution<double> normal(0, scale);
      for (int64_t i = at; i < at + size; ++i) to.Set(i, normal(rng));
    };
    const auto norm = [&rng](HostTensor& to, int64_t at, int64_t size) {
      std::uniform_real_distribution<double> uniform(0.5, 1.5);
      for (int64_t i = at; i < at + size; ++i) to.Set(i, uniform(rng));
    };
    const auto keeping_scale = [](int64_t in) { return 1 / std::sqrt(static_cast<double>(in)); };
    weights(embedding, 0, embedding.size(), 1);
    norm(final_norm, 0, s.hidden);
    weights(lm_head, 0, lm_head.size(), keeping_scale(s.hidden));
    for (int64_t l = 0; l < s.layers; ++l) {
      const int64_t first = l * layer_elements;
      for (const LayerTensor& tensor : {qkv, o, gate_up, down}) {
        weights(layers, first + tensor.at, tensor.Size(), keeping_scale(tensor.cols));
      }
      weights(layers, first + qkv_bias.at, qkv_bias.Size(), 0.5);
      for (const LayerTensor& tensor : {input_norm, q_norm, k_norm, post_norm}) {
        norm(layers, first + tensor.at, tensor.Size());
      }
    }
  }

  // Sets one tensor of every layer.
  template <typename Value>
  void SetEach(const LayerTensor& tensor, const Value& value) {
    for (int64_t l = 0; l < shape.layers; ++l) {
      for (int64_t i = 0; i < tensor.Size(); ++i) {
        layers.Set(l * layer_elements + tensor.at + i, value(i / tensor.cols, i % tensor.cols));
      }
    }
  }

  // The pointers are those of the given copies of the four tensors.
  DecodeStepModel Bind(const void* of_embedding, const void* of_final_norm, const void* of_lm_head,
                       const void* of_layers) const {
    const int64_t element = SizeOf(shape.dtype);
    const auto of = [&](const LayerTensor& tensor) -> const void* {
      return static_cast<const char*>(of_layers) + tensor.at * element;
    };
    return {.dtype = shape.dtype,
            .num_layers = shape.layers,
            .num_q_heads = shape.QHeads(),
            .vocab_size = shape.vocab,
            .hidden_size = shape.hidden,
            .intermediate_size = shape.inner,
            .norm_eps = 1e-6f,
            .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
            .embedding = of_embedding,
            .final_norm = of_final_norm,
            .lm_head = of_lm_head,
            .layer_stride_bytes = layer_elements * element,
            .input_norm = of(input_norm),
            .qkv = of(qkv),
            .qkv_bias = shape.qkv_bias ? of(qkv_bias) : nullptr,
            .q_norm = shape.head_norms ? of(q_norm) : nullptr,
            .k_norm = shape.head_norms ? of(k_norm) : nullptr,
            .o = of(o),
            .post_norm = of(post_norm),
            .gate_up = of(gate_up),
            .down = of(down)};
  }
  DecodeStepModel Bind() const {
    return Bind(embedding.data(), final_norm.data(), lm_head.data(), layers.data());
  }
};

struct StepRow {
  std::vector<int32_t> chunks = {};  // lengths, the step's own token included
  bool append = true;                // false: slot -1
  int32_t id = -1;                   // -1: a random one
};

// Rows of one chunk each.
inline std::vector<StepRow> RowsOf(const std::vector<int32_t>& lengths) {
  std::vector<StepRow> rows;
  for (const int32_t length : lengths) rows.push_back({.chunks = {length}});
  return rows;
}

// A row that only fills a graph's batch.
inline StepRow PaddingRow() { return {.append = false, .id = 0}; }

struct StepOptions {
  std::vector<StepRow> rows;
  int32_t page_size = 16;
  int64_t rope_rows = 0;  // 0: as many as the longest context needs
  uint64_t seed = 1;
  uint64_t page_seed = 1;  // permutes the pages, nothing else
  bool nan_in_dead_slots = true;
};

// The tables and the KV cache of a step. K and V of a token depend on (seed, layer, row, token)
// alone, neither on its page nor on the other rows. The slots of the step's own tokens are dead.
struct Step {
  StepOptions options;
  PagedKvLayout layout;
  ChunkTable table;
  std::vector<int32_t> ids, positions, lengths, tiles;
  std::vector<int64_t> slots;
  std::vector<float> rope;
  int64_t rope_rows = 0;
  HostTensor kv;

  Step(const StepModelShape& model, const StepOptions& o)
      : options(o), kv(model.dtype, 0), num_layers_(model.layers) {
    int32_t num_pages = 2;  // that no chunk lists
    for (const StepRow& row : o.rows) {
      for (const int32_t length : row.chunks) num_pages += Pages(length);
    }
    layout = {.num_pages = num_pages,
              .num_kv_heads = model.kv_heads,
              .page_size = o.page_size,
              .head_dim = model.head_dim};
    std::vector<int32_t> pages(static_cast<size_t>(num_pages));
    std::iota(pages.begin(), pages.end(), 0);
    std::mt19937_64 page_rng(o.page_seed);
    std::shuffle(pages.begin(), pages.end(), page_rng);
    kv = HostTensor(model.dtype, model.layers * layout.NumElements());
    if (o.nan_in_dead_slots) kv.FillNan();
    size_t next = 0;
    for (size_t r = 0; r < o.rows.size(); ++r) {
      const StepRow& row = o.rows[r];
      std::mt19937_64 rng(o.seed * 1000003 + r);
      const auto random_id = static_cast<int32_t>(rng() % static_cast<uint64_t>(model.vocab));
      ids.push_back(row.id == -1 ? random_id : row.id);
      std::vector<int32_t> chunks;
      int64_t last_slot = -1;
      for (const int32_t length : row.chunks) {
        const std::span<const int32_t> listed(pages.data() + next,
                                              static_cast<size_t>(Pages(length)));
        next += listed.size();
        chunks.push_back(table.AddChunk(listed, length));
        for (int32_t t = 0; t < length; ++t) {
          last_slot =
              int64_t{listed[static_cast<size_t>(t / o.page_size)]} * o.page_size + t % o.page_size;
          FillToken(last_slot, rng);
        }
      }
      table.AddSequence(chunks);
      tiles.push_back(0);
      for (const int32_t length : row.chunks) tiles.back() += DecodeStepTiles(length);
      lengths.push_back(
          static_cast<int32_t>(std::accumulate(row.chunks.begin(), row.chunks.end(), 0)));
      positions.push_back(std::max(lengths.back() - 1, 0));
      slots.push_back(row.append ? last_slot : -1);
      if (row.append && o.nan_in_dead_slots) {
        ForSlot(last_slot, [&](int64_t at) { kv.Set(at, std::nan("")); });
      }
    }
    rope_rows = o.rope_rows;
    if (rope_rows == 0 && !lengths.empty()) {
      rope_rows = 1 + *std::max_element(positions.begin(), positions.end());
    }
    for (int64_t p = 0; p < rope_rows; ++p) {
      for (int32_t i = 0; i < model.head_dim / 2; ++i) {
        const double angle = static_cast<double>(p) * std::pow(1e4, -2.0 * i / model.head_dim);
        rope.push_back(static_cast<float>(std::cos(angle)));
        rope.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }

  int64_t Tokens() const { return static_cast<int64_t>(ids.size()); }

  // Calls visit(element) for all K and V of a slot in one layer, or in all.
  template <typename Visit>
  void ForSlot(int32_t layer, int64_t slot, const Visit& visit) const {
    const int64_t page = slot / layout.page_size;
    const auto row = static_cast<int32_t>(slot % layout.page_size);
    for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
      for (const int64_t at :
           {layout.KeyOffset(page, head, row), layout.ValueOffset(page, head, row)}) {
        for (int32_t d = 0; d < layout.head_dim; ++d) {
          visit(layer * layout.NumElements() + at + d);
        }
      }
    }
  }
  template <typename Visit>
  void ForSlot(int64_t slot, const Visit& visit) const {
    for (int32_t layer = 0; layer < num_layers_; ++layer) ForSlot(layer, slot, visit);
  }
  // Whether an element of the cache is one of V.
  bool IsValue(int64_t element) const { return element % layout.PageStride() >= layout.KvStride(); }

  // The pointers are those of the host tensors; CUDA tests replace them.
  DecodeStepParams Params(const DecodeStepModel& model, void* to_kv, float* logits) const {
    ChunkTableView unshifted = table.View();
    unshifted.seq_shifts = nullptr;
    return {.model = model,
            .num_tokens = Tokens(),
            .token_ids = ids.data(),
            .positions = positions.data(),
            .slots = slots.data(),
            .table = unshifted,
            .layout = layout,
            .kv = to_kv,
            .rope_cos_sin = rope.data(),
            .rope_rows = rope_rows,
            .logits = logits};
  }

 private:
  int32_t Pages(int32_t length) const {
    return static_cast<int32_t>(DivideUp(length, options.page_size));
  }
  void FillToken(int64_t slot, std::mt19937_64& rng) {
    // Cheaper than normal values: the sum of four uniform ones, with the same variance.
    ForSlot(slot, [&](int64_t at) {
      const uint64_t bits = rng();
      double sum = 0;
      for (int i = 0; i < 4; ++i)
        sum += static_cast<double>(bits >> (16 * i) & 0xffff) / 65536 - 0.5;
      kv.Set(at, sum * std::sqrt(3.0));
    });
  }

  int32_t num_layers_;
};

struct StepResult {
  std::vector<float> logits;  // [tokens, vocab]
  HostTensor kv;
};

inline StepResult RunReference(const StepModel& model, const Step& step) {
  StepResult result{std::vector<float>(static_cast<size_t>(step.Tokens() * model.shape.vocab), NAN),
                    step.kv};
  DecodeStepReference(step.Params(model.Bind(), result.kv.data(), result.logits.data()));
  return result;
}

// Moves elements of a 2-byte type to a neighbouring number, each with this probability.
inline void Flip(HostTensor& tensor, double probability, std::mt19937_64& rng) {
  std::geometric_distribution<int64_t> gap(probability);
  for (int64_t i = gap(rng); i < tensor.size(); i += 1 + gap(rng)) {
    const double value = tensor[i];
    if (value == 0 || !std::isfinite(value)) continue;
    uint16_t bits;
    std::memcpy(&bits, tensor.bytes().data() + 2 * i, 2);
    bits = static_cast<uint16_t>(bits + (rng() % 2 ? 1 : -1));
    std::memcpy(tensor.bytes().data() + 2 * i, &bits, 2);
  }
}

// How far a right result may be from the reference's, as root mean squares.
//
// Every op rounds its outputs, so an error of fp32 that moves one across the middle between two
// numbers moves it by a whole unit, and later ops carry that on: no bound per element would be
// tight. What such flips amount to is measured instead. The reference runs again with flips of one
// unit in its inputs, which add to an op's output as much as the same share of flips in that output
// does: one in 64 of the weights, where fp32 flips one in 256 outputs of f16 and fewer of bf16, and
// one in 4 of K and V, which adds 0.36 epsilons to attention, where the roundings of its weights
// add 0.29. A right result may be twice as far as the farthest of three such runs.
struct StepTolerance {
  std::vector<double> logits;  // by token
  std::vector<double> kv;      // by layer and token, of what is appended
};

// The root mean square of a row's differences.
inline double RmsOfLogits(const StepResult& a, const StepResult& b, int64_t token, int64_t vocab) {
  double squares = 0;
  for (int64_t i = token * vocab; i < (token + 1) * vocab; ++i) {
    const double difference =
        double{a.logits[static_cast<size_t>(i)]} - b.logits[static_cast<size_t>(i)];
    squares += difference * difference;
  }
  return std::sqrt(squares / static_cast<double>(vocab));
}
inline double RmsOfKv(const StepResult& a, const StepResult& b, const Step& step, int32_t layer,
                      int64_t token) {
  double squares = 0;
  int64_t count = 0;
  step.ForSlot(layer, step.slots[static_cast<size_t>(token)], [&](int64_t at) {
    squares += (a.kv[at] - b.kv[at]) * (a.kv[at] - b.kv[at]);
    ++count;
  });
  return std::sqrt(squares / static_cast<double>(count));
}

inline StepTolerance ToleranceOf(const StepModel& model, const Step& step,
                                 const StepResult& expected) {
  constexpr int kRuns = 3;
  constexpr double kFactor = 2, kOfWeights = 1.0 / 64, kOfCache = 1.0 / 4;
  const int32_t layers = model.shape.layers;
  StepTolerance tolerance{std::vector<double>(static_cast<size_t>(step.Tokens())),
                          std::vector<double>(static_cast<size_t>(layers * step.Tokens()))};
  std::mt19937_64 rng(model.shape.seed * 7919 + step.options.seed);
  for (int run = 0; run < kRuns; ++run) {
    StepModel flipped = model;
    for (HostTensor* tensor :
         {&flipped.embedding, &flipped.final_norm, &flipped.lm_head, &flipped.layers}) {
      Flip(*tensor, kOfWeights, rng);
    }
    Step cache = step;
    Flip(cache.kv, kOfCache, rng);
    const StepResult result = RunReference(flipped, cache);
    for (int64_t t = 0; t < step.Tokens(); ++t) {
      const auto raise = [](double& bound, double rms) { bound = std::max(bound, kFactor * rms); };
      raise(tolerance.logits[static_cast<size_t>(t)],
            RmsOfLogits(result, expected, t, model.shape.vocab));
      if (step.slots[static_cast<size_t>(t)] < 0) continue;
      for (int32_t l = 0; l < layers; ++l) {
        raise(tolerance.kv[static_cast<size_t>(l * step.Tokens() + t)],
              RmsOfKv(result, expected, step, l, t));
      }
    }
  }
  return tolerance;
}

// Whether the step wrote K and V of its tokens and left every other bit of the cache as it was.
inline ::testing::AssertionResult OnlyItsSlotsChanged(const StepResult& actual, const Step& step) {
  std::vector<bool> written(static_cast<size_t>(step.kv.size()));
  for (const int64_t slot : step.slots) {
    if (slot < 0) continue;
    step.ForSlot(slot, [&](int64_t at) { written[static_cast<size_t>(at)] = true; });
  }
  for (int64_t i = 0; i < step.kv.size(); ++i) {
    const bool same = std::memcmp(actual.kv.bytes().data() + i * SizeOf(actual.kv.dtype()),
                                  step.kv.bytes().data() + i * SizeOf(step.kv.dtype()),
                                  static_cast<size_t>(SizeOf(step.kv.dtype()))) == 0;
    if (!written[static_cast<size_t>(i)] && !same) {
      return ::testing::AssertionFailure()
             << "element " << i << " of the cache was " << step.kv[i] << " and is " << actual.kv[i]
             << ", although no token of the step belongs there";
    }
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult Matches(const StepResult& actual, const StepResult& expected,
                                          const StepTolerance& tolerance, const StepModel& model,
                                          const Step& step) {
  if (auto only = OnlyItsSlotsChanged(actual, step); !only) return only;
  const auto fails = [&](double rms, double bound) { return !(rms <= bound); };  // NaN fails
  const auto failure = [&] {
    return ::testing::AssertionFailure()
           << "seeds " << model.shape.seed << " and " << step.options.seed << ": ";
  };
  for (int64_t t = 0; t < step.Tokens(); ++t) {
    for (int32_t l = 0; l < model.shape.layers && step.slots[static_cast<size_t>(t)] >= 0; ++l) {
      const double rms = RmsOfKv(actual, expected, step, l, t);
      const double bound = tolerance.kv[static_cast<size_t>(l * step.Tokens() + t)];
      if (fails(rms, bound)) {
        return failure() << "K and V of token " << t << " in layer " << l << " are off by " << rms
                         << " (root mean square), allowed are " << bound;
      }
    }
    const double rms = RmsOfLogits(actual, expected, t, model.shape.vocab);
    const double bound = tolerance.logits[static_cast<size_t>(t)];
    if (fails(rms, bound)) {
      return failure() << "the logits of token " << t << " are off by " << rms
                       << " (root mean square), allowed are " << bound;
    }
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult MatchesReference(const StepResult& actual, const StepModel& model,
                                                   const Step& step) {
  const StepResult expected = RunReference(model, step);
  return Matches(actual, expected, ToleranceOf(model, step, expected), model, step);
}

// Models whose arithmetic is exact up to the final norm, and whose LM head shows each element of
// that norm's output: a word that is missing, stale or added twice changes results by much more
// than a rounding. The residual stream begins with +1 and -1, so its norm is 1.
enum class ExactPart { kAttention, kMlp };

// An element of a matrix with five entries of +1 or -1 in each row, whose sum is never 0, and with
// entries in every column if it has at least a fifth as many rows as columns.
inline double SparseSign(int64_t row, int64_t col, int64_t cols, uint64_t seed) {
  constexpr int64_t kStride = 37;  // coprime to cols, which are even and no multiple of 37
  for (int64_t j = 0; j < 5; ++j) {
    if ((5 * row + j) * kStride % cols != col) continue;
    std::mt19937_64 rng(seed + static_cast<uint64_t>(row * 5 + j));
    return rng() % 2 ? 1 : -1;
  }
  return 0;
}

inline StepModel ExactModel(StepModelShape shape, ExactPart part) {
  shape.vocab = shape.hidden;
  shape.layers = 1;
  shape.qkv_bias = shape.head_norms = false;
  StepModel model(shape);
  std::mt19937_64 rng(shape.seed);
  for (int64_t i = 0; i < model.embedding.size(); ++i) {
    // Channel 0 is 1 for all tokens, for the gates.
    model.embedding.Set(i, i % shape.hidden == 0 || rng() % 2 ? 1 : -1);
  }
  for (int64_t i = 0; i < shape.hidden; ++i) model.final_norm.Set(i, 1);
  for (int64_t i = 0; i < model.lm_head.size(); ++i) {
    model.lm_head.Set(i, i / shape.hidden == i % shape.hidden ? 1 : 0);
  }
  const auto one = [](int64_t, int64_t) { return 1.0; };
  const auto zero = [](int64_t, int64_t) { return 0.0; };
  const auto sparse = [&](int64_t cols, uint64_t seed) {
    return [=](int64_t row, int64_t col) { return SparseSign(row, col, cols, seed); };
  };
  model.SetEach(model.input_norm, one);
  model.SetEach(model.post_norm, one);
  if (part == ExactPart::kAttention) {
    // Keys are 0, so attention is the mean of V.
    const int64_t keys = shape.Q(), values = keys + int64_t{shape.kv_heads} * shape.head_dim;
    model.SetEach(model.qkv, [&](int64_t row, int64_t col) {
      return row >= keys && row < values ? 0.0 : SparseSign(row, col, shape.hidden, 1);
    });
    model.SetEach(model.o, sparse(model.o.cols, 2));
    model.SetEach(model.down, zero);
  } else {
    // Each gate is 8, which SiLU leaves as it is to a rounding, and each product a small integer.
    model.SetEach(model.o, zero);
    model.SetEach(model.gate_up, [&](int64_t row, int64_t col) {
      if (row < shape.inner) return col == 0 ? 8.0 : 0.0;
      return SparseSign(row - shape.inner, col, shape.hidden, 3);
    });
    model.SetEach(model.down, sparse(model.down.cols, 4));
  }
  return model;
}

// Gives every live token of the cache the key 0 and small integers as values.
inline void MakeExact(Step& step) {
  for (int64_t i = 0; i < step.kv.size(); ++i) {
    if (std::isnan(step.kv[i])) continue;
    step.kv.Set(i, step.IsValue(i) ? std::round(4 * step.kv[i]) : 0);
  }
}

// Expects the logits of an exact model to be those of the reference, but for the rare element of
// the final norm that fp32 rounds to its other neighbour, which moves its product with the norm's
// weight by at most three units.
inline ::testing::AssertionResult EqualsExactly(const StepResult& actual, const StepModel& model,
                                                const Step& step) {
  if (auto only = OnlyItsSlotsChanged(actual, step); !only) return only;
  const StepResult expected = RunReference(model, step);
  for (int64_t t = 0; t < step.Tokens(); ++t) {
    const int64_t slot = step.slots[static_cast<size_t>(t)];
    if (slot < 0) continue;
    double largest = 0, difference = 0;
    step.ForSlot(slot, [&](int64_t at) {
      largest = std::max(largest, std::abs(expected.kv[at]));
      difference = std::max(difference, std::abs(actual.kv[at] - expected.kv[at]));
    });
    // An element of the norm that fp32 rounds to its other neighbour moves K and V too. Few do: of
    // the outputs fp32 moves one in 256 by a unit, and allowed is what one in 16 amounts to.
    const double half_ulp = HalfUlp(model.shape.dtype, largest);
    const double rms = RmsOfKv(actual, expected, step, 0, t);
    if (!(difference <= 6 * half_ulp && rms <= 0.5 * half_ulp)) {  // NaN fails
      return ::testing::AssertionFailure()
             << "K and V of slot " << slot << " differ by " << difference << ", allowed is "
             << 6 * half_ulp << ", and by " << rms << " (root mean square), allowed is "
             << 0.5 * half_ulp;
    }
  }
  const auto size = static_cast<int64_t>(expected.logits.size());
  auto within = WithinBound(
      actual.logits, expected.logits, size,
      [&](int64_t i) {
        return 6 * HalfUlp(model.shape.dtype, expected.logits[static_cast<size_t>(i)]);
      },
      model.shape.seed);
  if (!within) return within;
  int64_t different = 0;
  for (size_t i = 0; i < expected.logits.size(); ++i) {
    different += actual.logits[i] != expected.logits[i];
  }
  if (different * 200 <= size) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << different << " of " << size << " logits differ, allowed is 1 in 200";
}

}  // namespace tokline::testing
