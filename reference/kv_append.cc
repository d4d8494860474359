// CPU reference of kv_append: transforms and stores one row at a time, rounding where the models
// do.
#include "reference/kv_append.h"

#include <array>
#include <cmath>
#include <cstring>

#include "reference/elements.h"

namespace tokline {
namespace {

constexpr int32_t kMaxHeadDim = 128;  // the maximum that PagedKvLayout allows

// Norm, RoPE and store for one head of one token. `out` may be `in`.
class RowTransform {
 public:
  explicit RowTransform(const KvAppendParams& params)
      : dtype_(params.dtype), head_dim_(params.layout.head_dim), eps_(params.norm_eps) {}

  void Apply(const void* in, const void* norm_weight, const float* cos_sin, void* out) {
    if (!norm_weight && !cos_sin) {
      std::memmove(out, in, static_cast<size_t>(head_dim_ * SizeOf(dtype_)));
      return;
    }
    for (int32_t i = 0; i < head_dim_; ++i) row_[i] = LoadElement(dtype_, in, i);
    if (norm_weight) Norm(norm_weight);
    if (cos_sin) Rotate(cos_sin);
    for (int32_t i = 0; i < head_dim_; ++i) StoreElement(dtype_, out, i, row_[i]);
  }

 private:
  void Norm(const void* weight) {
    double squares = 0;
    for (int32_t i = 0; i < head_dim_; ++i) squares += row_[i] * row_[i];
    const double scale = 1 / std::sqrt(squares / head_dim_ + eps_);
    for (int32_t i = 0; i < head_dim_; ++i) {
      const double normalised = RoundTo(dtype_, row_[i] * scale);
      row_[i] = RoundTo(dtype_, normalised * LoadElement(dtype_, weight, i));
    }
  }

  void Rotate(const float* cos_sin) {
    const int32_t half = head_dim_ / 2;
    for (int32_t i = 0; i < half; ++i) {
      const double c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
      const double low = row_[i], high = row_[i + half];
      row_[i] = low * c - high * s;
      row_[i + half] = high * c + low * s;
    }
  }

  DType dtype_;
  int32_t head_dim_;
  double eps_;
  std::array<double, kMaxHeadDim> row_{};
};

}  // namespace

void KvAppendReference(const KvAppendParams& params) {
  Validate(params);
  if (params.num_tokens == 0) return;
  ValidateSlots(params, params.slots, params.positions);
  const PagedKvLayout& layout = params.layout;
  const int64_t element = SizeOf(params.dtype), head_dim = layout.head_dim;
  const auto row_at = [element](const void* base, int64_t offset) {
    return static_cast<const char*>(base) + offset * element;
  };
  const auto out_at = [element](void* base, int64_t offset) {
    return static_cast<char*>(base) + offset * element;
  };

  RowTransform transform(params);
  for (int64_t t = 0; t < params.num_tokens; ++t) {
    const float* cos_sin =
        params.rope_cos_sin ? params.rope_cos_sin + params.positions[t] * head_dim : nullptr;
    for (int32_t h = 0; h < params.num_q_heads; ++h) {
      transform.Apply(row_at(params.q_in, t * params.q_in_stride + h * head_dim),
                      params.q_norm_weight, cos_sin,
                      out_at(params.q_out, t * params.q_out_stride + h * head_dim));
    }
    const int64_t slot = params.slots[t];
    if (slot < 0) continue;
    const int64_t page = layout.Pages().PageOf(slot);
    const int32_t row = layout.Pages().RowOf(slot);
    for (int32_t h = 0; h < layout.num_kv_heads; ++h) {
      transform.Apply(row_at(params.k, t * params.k_stride + h * head_dim), params.k_norm_weight,
                      cos_sin, out_at(params.kv, layout.KeyOffset(page, h, row)));
      transform.Apply(row_at(params.v, t * params.v_stride + h * head_dim), nullptr, nullptr,
                      out_at(params.kv, layout.ValueOffset(page, h, row)));
    }
  }
}

}  // namespace tokline
