// Draws a model's weights on the device.
//
// Every matrix has random elements of about 1 / sqrt(inputs), so that products keep the scale of
// their input; norms weigh all elements alike, and biases are zero. What is left to choose is the
// scale of the logits, which the weight of the final norm determines. Logits of random weights are
// normally distributed. With a standard deviation s over V tokens, the most likely token has a
// probability near 0 if s is much below sqrt(2 ln V), and near 1 far above it.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "harness/engine/convert_elements.h"
#include "harness/engine/device_weights.h"
#include "harness/platform/random_values.h"

namespace tokline {
namespace {

// In units of sqrt(2 ln V). With this scale the mean probability of the most likely token is that
// of a trained model (docs/measuring.md).
constexpr double kLogitScale = 1.75;

// FillRandom's values are uniform in (-2, 2) times a power of two.
double StandardDeviation(int log2_scale) { return std::ldexp(2 / std::sqrt(3.0), log2_scale); }

// The scale whose standard deviation is nearest to 1 / sqrt(inputs).
int Log2Scale(int64_t inputs) {
  const double wanted =
      -0.5 * std::log2(static_cast<double>(inputs)) - std::log2(2 / std::sqrt(3.0));
  return std::clamp(static_cast<int>(std::lround(wanted)), kMinLog2Scale, kMaxLog2Scale);
}

// The elements that a rank holds of a matrix whose rows begin at row `begin` of a sequence.
RandomPieces PiecesOf(const TensorShard& shard, int64_t begin, int64_t columns) {
  RandomPieces pieces{.first = (begin + shard.rows.begin) * columns + shard.columns.begin,
                      .pieces = shard.rows.count,
                      .length = shard.columns.count,
                      .stride = columns};
  if (shard.columns.count == columns) pieces = {pieces.first, 1, pieces.Count(), 0};
  return pieces;
}

}  // namespace

void DeviceWeights::Draw(const ModelShard& shard, uint64_t seed, DType dtype, Backend& backend) {
  struct Part {  // of a tensor, above the next part
    int64_t rows = 0;
    TensorSharding sharding;
  };
  uint64_t tensor = 0;
  const auto draw = [&](std::byte* to, std::initializer_list<Part> parts, int64_t inputs,
                        int log2_scale) {
    if (to == nullptr) return;
    const uint64_t tensor_seed = RandomBits(seed, tensor++);
    int64_t begin = 0;
    for (const Part& part : parts) {
      if (part.rows == 0) continue;
      const RandomPieces pieces =
          PiecesOf(ShardOf(shard, part.sharding, part.rows, inputs), begin, inputs);
      backend.DrawWeights(dtype, to, pieces, tensor_seed, log2_scale);
      to += pieces.Count() * SizeOf(dtype);
      begin += part.rows;
    }
  };
  const auto rows_of = [](auto which, int64_t rows) { return Part{rows, ShardingOf(which)}; };
  const auto set_norm = [&](std::byte* to, int64_t size, double value) {
    if (to == nullptr) return;
    const std::vector<float> values(static_cast<size_t>(size), static_cast<float>(value));
    std::vector<std::byte> converted(static_cast<size_t>(size * SizeOf(dtype)));
    ConvertElements(DType::kF32, values.data(), dtype, converted.data(), size);
    backend.Upload(to, converted.data(), std::ssize(converted));
  };
  const ModelSpec& spec = shard.whole;
  const int64_t hidden = spec.hidden_size, inner = spec.intermediate_size;
  const int64_t q = spec.QSize(), kv = spec.KvSize();
  const bool gated = spec.mlp == ActivationKind::kGatedSilu;
  // The embedding is small, so that the sum of the layers' outputs outweighs the token itself.
  draw(embedding_, {rows_of(&ModelWeights::embedding, spec.vocab_size)}, hidden, kMinLog2Scale);
  draw(positions_, {rows_of(&ModelWeights::positions, spec.max_positions)}, hidden, kMinLog2Scale);
  if (lm_head_ != embedding_) {
    draw(lm_head_, {rows_of(&ModelWeights::lm_head, spec.vocab_size)}, hidden, Log2Scale(hidden));
  }
  const double head = StandardDeviation(lm_head_ == embedding_ ? kMinLog2Scale : Log2Scale(hidden));
  const double logits =
      kLogitScale *
      std::sqrt(2 * std::log(static_cast<double>(std::max<int64_t>(spec.vocab_size, 2))));
  set_norm(final_norm_, hidden, logits / (head * std::sqrt(static_cast<double>(hidden))));
  for (const DeviceLayerWeights& layer : layers_) {
    set_norm(layer.input_norm, hidden, 1);
    draw(layer.qkv,
         {rows_of(&LayerWeights::q, q), rows_of(&LayerWeights::k, kv),
          rows_of(&LayerWeights::v, kv)},
         hidden, Log2Scale(hidden));
    set_norm(layer.q_norm, spec.head_dim, 1);
    set_norm(layer.k_norm, spec.head_dim, 1);
    draw(layer.o, {rows_of(&LayerWeights::o, hidden)}, q, Log2Scale(q));
    set_norm(layer.post_norm, hidden, 1);
    draw(layer.up,
         {rows_of(&LayerWeights::gate, gated ? inner : 0), rows_of(&LayerWeights::up, inner)},
         hidden, Log2Scale(hidden));
    draw(layer.down, {rows_of(&LayerWeights::down, hidden)}, inner, Log2Scale(inner));
  }
}

}  // namespace tokline
