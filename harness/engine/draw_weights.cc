// Draws a model's weights on the device.
//
// Every matrix has random elements of about 1 / sqrt(inputs), so that products keep the scale of
// their input; norms weigh all elements alike, and biases are zero. What is left to choose is the
// scale of the logits, which the weight of the final norm determines. Logits of random weights are
// normally distributed. With a standard deviation s over V tokens, the most likely token has a
// probability near 0 if s is much below sqrt(2 ln V), and near 1 far above it.
#include <algorithm>
#include <cmath>
#include <vector>

#include "harness/engine/convert_elements.h"
#include "harness/engine/device_weights.h"
#include "harness/platform/random_values.h"

namespace tokline {
namespace {

// In units of sqrt(2 ln V). With it the mean probability of the most likely token is that of a
// trained model (docs/measuring.md).
constexpr double kLogitScale = 1.75;

// FillRandom's values are uniform in (-2, 2) times a power of two.
double StandardDeviation(int log2_scale) { return std::ldexp(2 / std::sqrt(3.0), log2_scale); }

// The scale whose standard deviation is nearest to 1 / sqrt(inputs).
int Log2Scale(int64_t inputs) {
  const double wanted =
      -0.5 * std::log2(static_cast<double>(inputs)) - std::log2(2 / std::sqrt(3.0));
  return std::clamp(static_cast<int>(std::lround(wanted)), kMinLog2Scale, kMaxLog2Scale);
}

}  // namespace

void DeviceWeights::Draw(const ModelSpec& spec, uint64_t seed, DType dtype, Backend& backend) {
  uint64_t tensor = 0;
  const auto draw = [&](std::byte* to, int64_t rows, int64_t inputs, int log2_scale) {
    if (to == nullptr) return;
    backend.DrawWeights(dtype, to, rows * inputs, RandomBits(seed, tensor++), log2_scale);
  };
  const auto draw_matrix = [&](std::byte* to, int64_t rows, int64_t inputs) {
    draw(to, rows, inputs, Log2Scale(inputs));
  };
  const auto set_norm = [&](std::byte* to, int64_t size, double value) {
    if (to == nullptr) return;
    const std::vector<float> values(static_cast<size_t>(size), static_cast<float>(value));
    std::vector<std::byte> converted(static_cast<size_t>(size * SizeOf(dtype)));
    ConvertElements(DType::kF32, values.data(), dtype, converted.data(), size);
    backend.Upload(to, converted.data(), std::ssize(converted));
  };
  const int64_t hidden = spec.hidden_size;
  // Small, so that what the layers add outweighs the token itself.
  draw(embedding_, spec.vocab_size, hidden, kMinLog2Scale);
  draw(positions_, spec.max_positions, hidden, kMinLog2Scale);
  if (lm_head_ != embedding_) draw_matrix(lm_head_, spec.vocab_size, hidden);
  const double head = StandardDeviation(lm_head_ == embedding_ ? kMinLog2Scale : Log2Scale(hidden));
  const double logits =
      kLogitScale *
      std::sqrt(2 * std::log(static_cast<double>(std::max<int64_t>(spec.vocab_size, 2))));
  set_norm(final_norm_, hidden, logits / (head * std::sqrt(static_cast<double>(hidden))));
  for (const DeviceLayerWeights& layer : layers_) {
    set_norm(layer.input_norm, hidden, 1);
    draw_matrix(layer.qkv, spec.QSize() + 2 * spec.KvSize(), hidden);
    set_norm(layer.q_norm, spec.head_dim, 1);
    set_norm(layer.k_norm, spec.head_dim, 1);
    draw_matrix(layer.o, hidden, spec.QSize());
    set_norm(layer.post_norm, hidden, 1);
    draw_matrix(layer.up, spec.UpRows(), hidden);
    draw_matrix(layer.down, hidden, spec.intermediate_size);
  }
}

}  // namespace tokline
