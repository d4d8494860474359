#include "harness/decoder/device_weights.h"

#include <initializer_list>

#include "harness/decoder/carver.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

class CopyList {
 public:
  explicit CopyList(DType dtype) : dtype_(dtype) {}

  // Copies the parts one after the other to `device`; parts that the model lacks take no room.
  void Add(std::byte* device, std::initializer_list<const TensorView*> parts) {
    for (const TensorView* part : parts) {
      if (part->data == nullptr) continue;
      const int64_t count = part->bytes / SizeOf(part->dtype);
      copies_.push_back({.device = device,
                         .host = part->data,
                         .count = count,
                         .from = part->dtype,
                         .to = dtype_});
      device += count * SizeOf(dtype_);
    }
  }
  const std::vector<WeightCopy>& copies() const { return copies_; }

 private:
  DType dtype_;
  std::vector<WeightCopy> copies_;
};

}  // namespace

DeviceWeights::DeviceWeights(const ModelSpec& spec, const ModelWeights& weights, DType dtype,
                             Backend& backend) {
  Require(static_cast<int64_t>(weights.layers.size()) == spec.num_layers, "weights of ",
          weights.layers.size(), " layers for a model of ", spec.num_layers);
  memory_ = backend.Allocate(Bytes(spec, dtype));
  Place(spec, dtype, memory_.data());

  CopyList list(dtype);
  list.Add(embedding_, {&weights.embedding});
  list.Add(final_norm_, {&weights.final_norm});
  if (lm_head_ != embedding_) list.Add(lm_head_, {&weights.lm_head});
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    const DeviceLayerWeights& to = layers_[i];
    list.Add(to.input_norm, {&from.input_norm});
    list.Add(to.qkv, {&from.q, &from.k, &from.v});
    list.Add(to.qkv_bias, {&from.q_bias, &from.k_bias, &from.v_bias});
    list.Add(to.q_norm, {&from.q_norm});
    list.Add(to.k_norm, {&from.k_norm});
    list.Add(to.o, {&from.o});
    list.Add(to.o_bias, {&from.o_bias});
    list.Add(to.post_norm, {&from.post_norm});
    list.Add(to.gate_up, {&from.gate, &from.up});
    list.Add(to.down, {&from.down});
  }
  backend.UploadWeights(list.copies());
}

int64_t DeviceWeights::Bytes(const ModelSpec& spec, DType dtype) {
  return DeviceWeights().Place(spec, dtype, nullptr);
}

int64_t DeviceWeights::Place(const ModelSpec& spec, DType dtype, std::byte* base) {
  Carver carver(base);
  const auto take = [&](int64_t count) { return carver.TakeBytes(count * SizeOf(dtype)); };
  const int64_t hidden = spec.hidden_size, qkv = spec.QSize() + 2 * spec.KvSize();
  embedding_ = take(spec.vocab_size * hidden);
  final_norm_ = take(hidden);
  lm_head_ = spec.tied_embeddings ? embedding_ : take(spec.vocab_size * hidden);
  layers_.resize(static_cast<size_t>(spec.num_layers));
  for (DeviceLayerWeights& layer : layers_) {
    layer.input_norm = take(hidden);
    layer.qkv = take(qkv * hidden);
    layer.qkv_bias = take(spec.qkv_bias ? qkv : 0);
    layer.q_norm = take(spec.qk_norm ? spec.head_dim : 0);
    layer.k_norm = take(spec.qk_norm ? spec.head_dim : 0);
    layer.o = take(hidden * spec.QSize());
    layer.o_bias = take(spec.output_bias ? hidden : 0);
    layer.post_norm = take(hidden);
    layer.gate_up = take(2 * spec.intermediate_size * hidden);
    layer.down = take(hidden * spec.intermediate_size);
  }
  return carver.Size();
}

}  // namespace tokline
