// Tensor maps: they tell the copy engine how to load boxes of a tensor (sm_90).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/error.h"
#include "kernels/common/paged_kv_layout.h"
#include "kernels/device/cuda_check.h"

namespace tokline {

// Sizes are in elements and start at the innermost dimension, which is contiguous. Strides are in
// bytes, start at the second dimension, and are multiples of 16.
template <size_t kRank>
struct BoxedTensor {
  DType dtype = DType::kBf16;  // kBf16 or kF16
  const void* data = nullptr;  // 16 B aligned
  std::array<uint64_t, kRank> sizes = {};
  std::array<uint64_t, kRank - 1> strides = {};
  std::array<uint32_t, kRank> box = {};  // 64 elements in the innermost dimension
};

// Makes a map whose boxes arrive in the 128-byte swizzle, with zeros for elements outside the
// tensor. Throws RuntimeFailure if the driver lacks tensor maps or rejects this one.
template <size_t kRank>
CUtensorMap MakeTensorMap(const BoxedTensor<kRank>& tensor) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    constexpr unsigned kSince = 12000;
    TOKLINE_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince,
                                                  cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) {
      throw RuntimeFailure("the driver has no cuTensorMapEncodeTiled; it needs CUDA 12 or later");
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  int device = 0;
  TOKLINE_CUDA(cudaGetDevice(&device));
  TOKLINE_CUDA(cudaSetDevice(device));  // creates the context, which a thread that has only called
                                        // the driver lacks
  std::array<uint32_t, kRank> steps;
  steps.fill(1);
  CUtensorMap map;
  const CUresult result = encode(
      &map,
      tensor.dtype == DType::kBf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      kRank, const_cast<void*>(tensor.data), tensor.sizes.data(), tensor.strides.data(),
      tensor.box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw RuntimeFailure(StrCat("cuTensorMapEncodeTiled failed with ", static_cast<int>(result),
                                " for a tensor at ", tensor.data));
  }
  return map;
}

// The map of a row-major matrix, [panel, row, 64], with boxes of `box_rows` rows of a panel of 64
// columns. `row_stride` is in elements.
inline CUtensorMap PanelMap(DType dtype, const void* data, int64_t rows, int64_t columns,
                            int64_t row_stride, int64_t box_rows) {
  return MakeTensorMap<3>(
      {.dtype = dtype,
       .data = data,
       .sizes = {64, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns) / 64},
       .strides = {2 * static_cast<uint64_t>(row_stride), 128},
       .box = {64, static_cast<uint32_t>(box_rows), 1}});
}

// The map of queries, [row, head, head_dim], with boxes of 64 columns of `box_heads` heads of
// `box_rows` rows. `row_stride` is in elements.
inline CUtensorMap QueryMap(DType dtype, const void* q, int32_t head_dim, int32_t heads,
                            int64_t rows, int64_t row_stride, int32_t box_heads, int32_t box_rows) {
  return MakeTensorMap<3>(
      {.dtype = dtype,
       .data = q,
       .sizes = {static_cast<uint64_t>(head_dim), static_cast<uint64_t>(heads),
                 static_cast<uint64_t>(rows)},
       .strides = {static_cast<uint64_t>(2 * head_dim), static_cast<uint64_t>(2 * row_stride)},
       .box = {64, static_cast<uint32_t>(box_heads), static_cast<uint32_t>(box_rows)}});
}

// The map of a layer's pool, [page, K or V, KV head, token, head_dim], with boxes of 64 columns of
// `box_tokens` tokens of a page. Pages that do not exist arrive as zeros.
inline CUtensorMap PagedKvMap(DType dtype, const void* kv, const PagedKvLayout& layout,
                              int32_t box_tokens) {
  const auto bytes = [](int64_t elements) { return static_cast<uint64_t>(2 * elements); };
  return MakeTensorMap<5>(
      {.dtype = dtype,
       .data = kv,
       .sizes = {static_cast<uint64_t>(layout.head_dim), static_cast<uint64_t>(layout.page_size),
                 static_cast<uint64_t>(layout.num_kv_heads), 2,
                 static_cast<uint64_t>(std::max<int64_t>(layout.num_pages, 1))},
       .strides = {bytes(layout.RowStride()), bytes(layout.HeadStride()), bytes(layout.KvStride()),
                   bytes(layout.PageStride())},
       .box = {64, static_cast<uint32_t>(box_tokens), 1, 1, 1}});
}

}  // namespace tokline
