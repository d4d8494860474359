// wgmma: matrix products of a warpgroup with operands in swizzled shared memory (sm_90a).
// Accumulator d[i] of lane l of warp w holds row 16 (w % 4) + l / 4 + 8 (i / 2 % 2), column 8 (i /
// 4) + 2 (l % 4) + i % 2.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace tokline::ptx {

// Orders earlier accesses to registers that the next wgmma reads or accumulates into.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending of the most recent groups are unfinished.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accesses to accumulators across this point. It emits no
// instruction.
template <int kCount>
__device__ __forceinline__ void PinRegisters(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Makes the descriptor of a tile in panels with the 128-byte swizzle, whose rows have 64 elements.
// Eight rows take 1,024 bytes, to which tiles are aligned; a step of 16 elements along a row adds
// 32 bytes. `panel_bytes` is the distance to the next 64 columns if the columns are the N
// dimension.
__device__ __forceinline__ uint64_t WgmmaDescriptor(uint32_t shared, uint32_t panel_bytes = 0) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | uint64_t{panel_bytes >> 4} << 16 | (shared & 0x3ffff) >> 4;
}

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
// `operands` names a and b, `last` is what follows them in the instruction.
#define TOKLINE_WGMMA(columns, type, count, before, operands, last, ...)                   \
  asm volatile(before "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type \
               " {" TOKLINE_NAMES##count "}, " operands ", " last                           \
               : TOKLINE_D##count(0) : __VA_ARGS__)
#define TOKLINE_WGMMA_SHARED(columns, type, count, a_name, b_name, add_name)               \
  TOKLINE_WGMMA(columns, type, count,                                                      \
                "{\n.reg .pred add;\nsetp.ne.b32 add, " add_name ", 0;\n",                 \
                a_name ", " b_name, "add, 1, 1, 0, 0;\n}", "l"(a), "l"(b), "r"(accumulate))
#define TOKLINE_WGMMA_REGISTERS(columns, type, count, a_names, b_name)                     \
  TOKLINE_WGMMA(columns, type, count, "", "{" a_names "}, " b_name, "1, 1, 1, 1;",          \
                "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
// clang-format on

// d (64 x 2 kCount) = a (64 x 16) * b (16 x 2 kCount), plus d if `accumulate` is 1. a and b are
// WgmmaDescriptor()s of K-major tiles; the rows of b's tile are its columns.
template <typename T, int kCount>
__device__ __forceinline__ void WgmmaK16(float (&d)[kCount], uint64_t a, uint64_t b,
                                         int accumulate) {
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kBf16 || std::is_same_v<T, __half>);
  if constexpr (kCount == 8 && kBf16) {
    TOKLINE_WGMMA_SHARED(16, "bf16", 8, "%8", "%9", "%10");
  } else if constexpr (kCount == 8 && !kBf16) {
    TOKLINE_WGMMA_SHARED(16, "f16", 8, "%8", "%9", "%10");
  } else if constexpr (kCount == 16 && kBf16) {
    TOKLINE_WGMMA_SHARED(32, "bf16", 16, "%16", "%17", "%18");
  } else if constexpr (kCount == 16 && !kBf16) {
    TOKLINE_WGMMA_SHARED(32, "f16", 16, "%16", "%17", "%18");
  } else if constexpr (kCount == 24 && kBf16) {
    TOKLINE_WGMMA_SHARED(48, "bf16", 24, "%24", "%25", "%26");
  } else if constexpr (kCount == 24 && !kBf16) {
    TOKLINE_WGMMA_SHARED(48, "f16", 24, "%24", "%25", "%26");
  } else if constexpr (kCount == 32 && kBf16) {
    TOKLINE_WGMMA_SHARED(64, "bf16", 32, "%32", "%33", "%34");
  } else if constexpr (kCount == 32 && !kBf16) {
    TOKLINE_WGMMA_SHARED(64, "f16", 32, "%32", "%33", "%34");
  } else if constexpr (kCount == 40 && kBf16) {
    TOKLINE_WGMMA_SHARED(80, "bf16", 40, "%40", "%41", "%42");
  } else if constexpr (kCount == 40 && !kBf16) {
    TOKLINE_WGMMA_SHARED(80, "f16", 40, "%40", "%41", "%42");
  } else if constexpr (kCount == 48 && kBf16) {
    TOKLINE_WGMMA_SHARED(96, "bf16", 48, "%48", "%49", "%50");
  } else if constexpr (kCount == 48 && !kBf16) {
    TOKLINE_WGMMA_SHARED(96, "f16", 48, "%48", "%49", "%50");
  } else if constexpr (kCount == 64 && kBf16) {
    TOKLINE_WGMMA_SHARED(128, "bf16", 64, "%64", "%65", "%66");
  } else if constexpr (kCount == 64 && !kBf16) {
    TOKLINE_WGMMA_SHARED(128, "f16", 64, "%64", "%65", "%66");
  } else if constexpr (kCount == 80 && kBf16) {
    TOKLINE_WGMMA_SHARED(160, "bf16", 80, "%80", "%81", "%82");
  } else if constexpr (kCount == 80 && !kBf16) {
    TOKLINE_WGMMA_SHARED(160, "f16", 80, "%80", "%81", "%82");
  } else {
    static_assert(kCount == 0, "no wgmma of so many columns");
  }
}

// d (64 x 2 kCount) += a (64 x 16) * b (16 x 2 kCount) with a in registers, as for mma.sync
// m16n8k16. b is the WgmmaDescriptor() of an N-major tile.
template <typename T, int kCount>
__device__ __forceinline__ void WgmmaK16(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b) {
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kBf16 || std::is_same_v<T, __half>);
  if constexpr (kCount == 32 && kBf16) {
    TOKLINE_WGMMA_REGISTERS(64, "bf16", 32, "%32, %33, %34, %35", "%36");
  } else if constexpr (kCount == 32 && !kBf16) {
    TOKLINE_WGMMA_REGISTERS(64, "f16", 32, "%32, %33, %34, %35", "%36");
  } else if constexpr (kCount == 64 && kBf16) {
    TOKLINE_WGMMA_REGISTERS(128, "bf16", 64, "%64, %65, %66, %67", "%68");
  } else if constexpr (kCount == 64 && !kBf16) {
    TOKLINE_WGMMA_REGISTERS(128, "f16", 64, "%64, %65, %66, %67", "%68");
  } else {
    static_assert(kCount == 0, "no wgmma of so many columns");
  }
}

#undef TOKLINE_WGMMA_REGISTERS
#undef TOKLINE_WGMMA_SHARED
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
