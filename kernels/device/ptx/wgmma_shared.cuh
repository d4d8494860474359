// wgmma with both operands in shared memory, for 16 to 160 columns (sm_90a). Accumulators lie as
// wgmma.cuh says.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace tokline::ptx {

// The first accumulators as operands, and their names in the instruction.
// clang-format off
#define TOKLINE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TOKLINE_D8(i) TOKLINE_D4(i), TOKLINE_D4(i + 4)
#define TOKLINE_D16(i) TOKLINE_D8(i), TOKLINE_D8(i + 8)
#define TOKLINE_D32(i) TOKLINE_D16(i), TOKLINE_D16(i + 16)
#define TOKLINE_D24(i) TOKLINE_D16(i), TOKLINE_D8(i + 16)
#define TOKLINE_D40(i) TOKLINE_D32(i), TOKLINE_D8(i + 32)
#define TOKLINE_D48(i) TOKLINE_D32(i), TOKLINE_D16(i + 32)
#define TOKLINE_D80(i) TOKLINE_D64(i), TOKLINE_D16(i + 64)
#define TOKLINE_D64(i) TOKLINE_D32(i), TOKLINE_D32(i + 32)
#define TOKLINE_NAMES4 "%0, %1, %2, %3"
#define TOKLINE_NAMES8 TOKLINE_NAMES4 ", %4, %5, %6, %7"
#define TOKLINE_NAMES16 TOKLINE_NAMES8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TOKLINE_NAMES32 TOKLINE_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TOKLINE_NAMES64 TOKLINE_NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TOKLINE_NAMES24 TOKLINE_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TOKLINE_NAMES40 TOKLINE_NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TOKLINE_NAMES48 TOKLINE_NAMES40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TOKLINE_NAMES80 TOKLINE_NAMES64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TOKLINE_WGMMA(columns, type, count, a_name, b_name, add_name)                      \
  asm volatile(                                                                            \
      "{\n.reg .pred add;\nsetp.ne.b32 add, " add_name ", 0;\n"                            \
      "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {"           \
      TOKLINE_NAMES##count "}, " a_name ", " b_name ", add, 1, 1, 0, 0;\n}"                \
      : TOKLINE_D##count(0) : "l"(a), "l"(b), "r"(accumulate))
// clang-format on

// d (64 x 2 kCount) = a (64 x 16) * b (16 x 2 kCount), plus d if `accumulate` is 1. a and b are
// WgmmaDescriptor()s of K-major tiles; the rows of b's tile are its columns.
template <typename T, int kCount>
__device__ __forceinline__ void WgmmaK16(float (&d)[kCount], uint64_t a, uint64_t b,
                                         int accumulate) {
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kBf16 || std::is_same_v<T, __half>);
  if constexpr (kCount == 8 && kBf16) {
    TOKLINE_WGMMA(16, "bf16", 8, "%8", "%9", "%10");
  } else if constexpr (kCount == 8 && !kBf16) {
    TOKLINE_WGMMA(16, "f16", 8, "%8", "%9", "%10");
  } else if constexpr (kCount == 16 && kBf16) {
    TOKLINE_WGMMA(32, "bf16", 16, "%16", "%17", "%18");
  } else if constexpr (kCount == 16 && !kBf16) {
    TOKLINE_WGMMA(32, "f16", 16, "%16", "%17", "%18");
  } else if constexpr (kCount == 24 && kBf16) {
    TOKLINE_WGMMA(48, "bf16", 24, "%24", "%25", "%26");
  } else if constexpr (kCount == 24 && !kBf16) {
    TOKLINE_WGMMA(48, "f16", 24, "%24", "%25", "%26");
  } else if constexpr (kCount == 32 && kBf16) {
    TOKLINE_WGMMA(64, "bf16", 32, "%32", "%33", "%34");
  } else if constexpr (kCount == 32 && !kBf16) {
    TOKLINE_WGMMA(64, "f16", 32, "%32", "%33", "%34");
  } else if constexpr (kCount == 40 && kBf16) {
    TOKLINE_WGMMA(80, "bf16", 40, "%40", "%41", "%42");
  } else if constexpr (kCount == 40 && !kBf16) {
    TOKLINE_WGMMA(80, "f16", 40, "%40", "%41", "%42");
  } else if constexpr (kCount == 48 && kBf16) {
    TOKLINE_WGMMA(96, "bf16", 48, "%48", "%49", "%50");
  } else if constexpr (kCount == 48 && !kBf16) {
    TOKLINE_WGMMA(96, "f16", 48, "%48", "%49", "%50");
  } else if constexpr (kCount == 64 && kBf16) {
    TOKLINE_WGMMA(128, "bf16", 64, "%64", "%65", "%66");
  } else if constexpr (kCount == 64 && !kBf16) {
    TOKLINE_WGMMA(128, "f16", 64, "%64", "%65", "%66");
  } else if constexpr (kCount == 80 && kBf16) {
    TOKLINE_WGMMA(160, "bf16", 80, "%80", "%81", "%82");
  } else if constexpr (kCount == 80 && !kBf16) {
    TOKLINE_WGMMA(160, "f16", 80, "%80", "%81", "%82");
  } else {
    static_assert(kCount == 0, "no wgmma of so many columns");
  }
}

#undef TOKLINE_WGMMA
#undef TOKLINE_NAMES24
#undef TOKLINE_D24
#undef TOKLINE_NAMES40
#undef TOKLINE_D40
#undef TOKLINE_NAMES48
#undef TOKLINE_D48
#undef TOKLINE_NAMES80
#undef TOKLINE_D80
#undef TOKLINE_NAMES4
#undef TOKLINE_D4
#undef TOKLINE_NAMES8
#undef TOKLINE_D8
#undef TOKLINE_NAMES16
#undef TOKLINE_D16
#undef TOKLINE_NAMES32
#undef TOKLINE_D32
#undef TOKLINE_NAMES64
#undef TOKLINE_D64

}  // namespace tokline::ptx
