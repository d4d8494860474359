// Lays out the weights on the device and lists the copies that fuse and reorder them.
#include "harness/engine/device_weights.h"

#include <initializer_list>

#include "harness/engine/carver.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

class CopyList {
 public:
  explicit CopyList(DType dtype) : dtype_(dtype) {}

  // Copies the parts one after another to `device`. Parts that the model lacks take no room.
  void Add(std::byte* device, std::initializer_list<const TensorView*> parts) {
    for (const TensorView* part : parts) {
      device = AddRows(device, *part, 0, part->Rows(), 1);
    }
  }

  // Same as Add, for parts whose rows belong to heads. Puts them into the order that RoPE needs:
  // unchanged, or each head's even rows before its odd rows. Returns the end.
  std::byte* AddHeads(std::byte* device, std::initializer_list<const TensorView*> parts,
                      int32_t head_dim, RopePairing pairing) {
    for (const TensorView* part : parts) {
      if (pairing == RopePairing::kHalf) {
        device = AddRows(device, *part, 0, part->Rows(), 1);
        continue;
      }
      for (int64_t head = 0; head < part->Rows(); head += head_dim) {
        device = AddRows(device, *part, head, head_dim / 2, 2);
        device = AddRows(device, *part, head + 1, head_dim / 2, 2);
      }
    }
    return device;
  }

  const std::vector<WeightCopy>& copies() const { return copies_; }

 private:
  // Copies `count` rows: `first` and every `step`-th row after it.
  std::byte* AddRows(std::byte* device, const TensorView& part, int64_t first, int64_t count,
                     int64_t step) {
    if (part.data == nullptr) return device;
    copies_.push_back({.device = device,
                       .host = static_cast<const std::byte*>(part.data) +
                               first * part.row_stride * SizeOf(part.dtype),
                       .rows = count,
                       .columns = part.Columns(),
                       .row_stride = step * part.row_stride,
                       .column_stride = part.column_stride,
                       .from = part.dtype,
                       .to = dtype_});
    return device + count * part.Columns() * SizeOf(dtype_);
  }

  DType dtype_;
  std::vector<WeightCopy> copies_;
};

}  // namespace

DeviceWeights::DeviceWeights(const ModelShard& shard, const ModelWeights& whole, DType dtype,
                             Backend& backend) {
  const ModelSpec& spec = shard.local;
  Require(whole.random_seed || std::ssize(whole.layers) == spec.num_layers, "weights of ",
          whole.layers.size(), " layers for a model of ", spec.num_layers);
  memory_ = backend.Allocate(Bytes(spec, dtype));
  Place(spec, dtype, memory_.data());
  if (whole.random_seed) {
    Draw(shard, *whole.random_seed, dtype, backend);
    return;
  }

  const ModelWeights weights = ShardWeights(whole, shard);
  CopyList list(dtype);
  list.Add(embedding_, {&weights.embedding});
  list.Add(positions_, {&weights.positions});
  list.Add(final_norm_, {&weights.final_norm});
  list.Add(final_norm_bias_, {&weights.final_norm_bias});
  if (lm_head_ != embedding_) list.Add(lm_head_, {&weights.lm_head});
  const auto add_heads = [&](std::byte* to, std::initializer_list<const TensorView*> parts) {
    return list.AddHeads(to, parts, spec.head_dim, spec.rope_pairing);
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    const DeviceLayerWeights& to = layers_[i];
    list.Add(to.input_norm, {&from.input_norm});
    list.Add(to.input_norm_bias, {&from.input_norm_bias});
    list.Add(add_heads(to.qkv, {&from.q, &from.k}), {&from.v});
    list.Add(add_heads(to.qkv_bias, {&from.q_bias, &from.k_bias}), {&from.v_bias});
    add_heads(to.q_norm, {&from.q_norm});
    add_heads(to.k_norm, {&from.k_norm});
    list.Add(to.o, {&from.o});
    list.Add(to.o_bias, {&from.o_bias});
    list.Add(to.post_norm, {&from.post_norm});
    list.Add(to.post_norm_bias, {&from.post_norm_bias});
    list.Add(to.up, {&from.gate, &from.up});
    list.Add(to.up_bias, {&from.gate_bias, &from.up_bias});
    list.Add(to.down, {&from.down});
    list.Add(to.down_bias, {&from.down_bias});
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
  const auto take_if = [&](bool there, int64_t count) { return there ? take(count) : nullptr; };
  const bool norm_bias = spec.norm == NormKind::kLayer;
  embedding_ = take(spec.vocab_size * hidden);
  positions_ = take_if(spec.position == PositionKind::kLearned, spec.max_positions * hidden);
  final_norm_ = take(hidden);
  final_norm_bias_ = take_if(norm_bias, hidden);
  lm_head_ = spec.tied_embeddings ? embedding_ : take(spec.vocab_size * hidden);
  layers_.resize(static_cast<size_t>(spec.num_layers));
  for (DeviceLayerWeights& layer : layers_) {
    layer_stride_bytes_ = carver.Size();
    layer.input_norm = take(hidden);
    layer.input_norm_bias = take_if(norm_bias, hidden);
    layer.qkv = take(qkv * hidden);
    layer.qkv_bias = take_if(spec.qkv_bias, qkv);
    layer.q_norm = take_if(spec.qk_norm, spec.head_dim);
    layer.k_norm = take_if(spec.qk_norm, spec.head_dim);
    layer.o = take(hidden * spec.QSize());
    layer.o_bias = take_if(spec.output_bias, hidden);
    layer.post_norm = take(hidden);
    layer.post_norm_bias = take_if(norm_bias, hidden);
    layer.up = take(spec.UpRows() * hidden);
    layer.up_bias = take_if(spec.mlp_bias, spec.UpRows());
    layer.down = take(hidden * spec.intermediate_size);
    layer.down_bias = take_if(spec.mlp_bias, hidden);
    layer_stride_bytes_ = carver.Size() - layer_stride_bytes_;
  }
  return carver.Size();
}

}  // namespace tokline
