// The end of Linear's kernel for sm_90a where its outputs are heads of Q, K and V: QK-norm, RoPE
// and the append to the cache, as kv_append does them.
//
// A cluster has all rows of one head. head_dim / 8 lanes finish a token's head as one row.
#pragma once

#include "kernels/device/head_row.cuh"
#include "kernels/linear/wgmma_epilogue_device.cuh"

namespace tokline {

template <typename Policy>
class HeadEpilogue {
 public:
  __device__ __forceinline__ HeadEpilogue(const WgmmaAppendArgs& args, const WgmmaShare& share,
                                          const PartialSums& layout)
      : params_(args.params),
        append_(args.append),
        layout_(layout),
        splits_(args.plan.splits),
        head_(share.cluster),
        is_query_(head_ < append_.num_q_heads),
        is_value_(head_ >= append_.num_q_heads + append_.layout.num_kv_heads) {}

  // Loads the data for the first rows that no earlier kernel writes.
  __device__ __forceinline__ void Prefetch() {
    const void* const weight = is_query_   ? append_.q_norm_weight
                               : is_value_ ? nullptr
                                           : append_.k_norm_weight;
    has_norm_ = weight != nullptr;
    if (has_norm_) norm_weight_ = Row::Load(weight, Lane());
    next_ = Locate(Group());
  }

  __device__ __forceinline__ void LoadFirst() {}

  __device__ __forceinline__ void Finish(const float* partials) {
#pragma unroll 1
    for (int token = Group(); token / kWarpGroups * kWarpGroups < layout_.num_tokens;
         token += kGroups) {
      const Place place = next_;
      next_ = Locate(token + kGroups);
      FinishRow(token, place, partials);
    }
  }

 private:
  using T = typename Policy::Type;
  using Row = HeadRow<T, Policy::kHeadDim>;
  static constexpr int kLanes = Row::kLanes;
  static constexpr int kGroups = kWgmmaConsumers / kLanes, kWarpGroups = 32 / kLanes;

  __device__ __forceinline__ int Lane() const { return threadIdx.x % kLanes; }
  __device__ __forceinline__ int Group() const { return threadIdx.x / kLanes; }

  // What a token's row needs besides the sums.
  struct Place {
    T* to = nullptr;       // null: the row is not stored
    float4 table[2] = {};  // of RoPE
  };

  __device__ __forceinline__ Place Locate(int token) const {
    Place place;
    if (token >= layout_.num_tokens) return place;
    const int at = layout_.first_token + token;
    if (is_query_) {
      place.to = static_cast<T*>(append_.q_out) + at * append_.q_out_stride +
                 int64_t{head_} * Policy::kHeadDim;
    } else if (const int64_t slot = append_.slots[at]; slot >= 0) {
      const PagedKvLayout& kv = append_.layout;
      const int64_t page = kv.Pages().PageOf(slot);
      const int32_t row = kv.Pages().RowOf(slot);
      const int kv_head = (head_ - append_.num_q_heads) % kv.num_kv_heads;
      place.to = static_cast<T*>(append_.kv) + (is_value_ ? kv.ValueOffset(page, kv_head, row)
                                                          : kv.KeyOffset(page, kv_head, row));
    }
    if (append_.rope_cos_sin != nullptr && !is_value_) {
      Row::LoadTable(append_.rope_cos_sin, append_.positions[at], Lane(), place.table);
    }
    return place;
  }

  // The lane's elements of the projection, rounded.
  __device__ __forceinline__ uint4 Project(int token, const float* partials) const {
    const int stride = layout_.At(1, 0, 0), next_row = layout_.Pitch();
    const int rows[2] = {Lane() * 4, Policy::kHeadDim / 2 + Lane() * 4};
    const float* const halves[2] = {partials + layout_.At(0, rows[0], token),
                                    partials + layout_.At(0, rows[1], token)};
    float values[8] = {};
#pragma unroll 2
    for (int split = 0; split < splits_; ++split) {
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] += halves[i / 4][split * stride + i % 4 * next_row];
    }
    if (params_.bias != nullptr) {
      const T* const bias = static_cast<const T*>(params_.bias) + head_ * Policy::kHeadDim;
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] += ToFloat(bias[rows[i / 4] + i % 4]);
    }
    return Row::Pack(values);
  }

  // All lanes of a warp call this, including those without a token.
  __device__ __forceinline__ void FinishRow(int token, const Place& place,
                                            const float* partials) const {
    uint4 row{};
    if (token < layout_.num_tokens) row = Project(token, partials);
    row = Row::Norm(row, norm_weight_, append_.norm_eps, has_norm_);
    if (append_.rope_cos_sin != nullptr && !is_value_) row = Row::Rotate(row, place.table);
    if (place.to != nullptr) Row::Store(place.to, Lane(), row);
  }

  const LinearParams& params_;
  const KvAppendParams& append_;
  const PartialSums& layout_;
  const int splits_, head_;
  const bool is_query_, is_value_;
  bool has_norm_ = false;
  uint4 norm_weight_ = {};
  Place next_;  // of the row that the thread finishes next
};

}  // namespace tokline
