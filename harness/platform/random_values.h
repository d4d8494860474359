// Random tensor elements as a pure function of (seed, index): the device can fill gigabytes with
// them, while the host recomputes only the few that a verification needs.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/paged_kv_layout.h"  // TOKLINE_HOST_DEVICE

namespace tokline {

// Values are uniform in (-2, 2) times 2^log2_scale and never zero. In the 2-byte types they have 8
// significant bits, which both types hold exactly. fp16 lacks the exponents for a wider range of
// scales.
inline constexpr int kMinLog2Scale = -6;
inline constexpr int kMaxLog2Scale = 8;

// SplitMix64, a counter-based generator with full period.
TOKLINE_HOST_DEVICE constexpr uint64_t RandomBits(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// One 64-bit hash yields this many elements.
inline constexpr int kValuesPerHash = 4;

// Splits 16 random bits into sign, exponent and significand. The exponent is geometrically
// distributed, which makes the value uniform.
struct RandomValue {
  uint32_t sign;
  int32_t exponent;      // the value is 1.significand * 2^exponent
  uint32_t significand;  // 7 bits
};

TOKLINE_HOST_DEVICE constexpr RandomValue ToRandomValue(uint32_t bits16, int log2_scale) {
  const uint32_t low = (bits16 >> 8) | 0x100u;
#ifdef __CUDA_ARCH__
  const int zeros = __ffs(static_cast<int>(low)) - 1;
#else
  const int zeros = std::countr_zero(low);
#endif
  return {bits16 & 1u, log2_scale - zeros, (bits16 >> 1) & 0x7fu};
}

// The bit pattern of an element in a 2-byte type, in the low half.
TOKLINE_HOST_DEVICE constexpr uint16_t RandomElement16(DType dtype, uint32_t bits16,
                                                       int log2_scale) {
  const RandomValue v = ToRandomValue(bits16, log2_scale);
  if (dtype == DType::kF16) {
    return static_cast<uint16_t>((v.sign << 15) | (static_cast<uint32_t>(v.exponent + 15) << 10) |
                                 (v.significand << 3));
  }
  return static_cast<uint16_t>((v.sign << 15) | (static_cast<uint32_t>(v.exponent + 127) << 7) |
                               v.significand);
}

// The bit pattern of an element in fp32: the same value with 16 more bits of significand.
TOKLINE_HOST_DEVICE constexpr uint32_t RandomElement32(uint32_t bits16, uint32_t low16,
                                                       int log2_scale) {
  return (uint32_t{RandomElement16(DType::kBf16, bits16, log2_scale)} << 16) | low16;
}

// The seed for the low bits of fp32 elements.
TOKLINE_HOST_DEVICE constexpr uint64_t LowBitsSeed(uint64_t seed) { return ~seed; }

// Writes elements [first, first + count) of the sequence given by `seed` to host memory.
void FillRandom(DType dtype, void* out, int64_t first, int64_t count, uint64_t seed,
                int log2_scale);

// Pieces of a sequence, such as some rows or columns of a matrix.
struct RandomPieces {
  int64_t first = 0;  // element, a multiple of kValuesPerHash
  int64_t pieces = 1;
  int64_t length = 0;  // of each, a multiple of kValuesPerHash unless there is one
  int64_t stride = 0;  // from piece to piece, a multiple of kValuesPerHash

  int64_t Count() const { return pieces * length; }
};

// Throws InvalidArgument for other values.
void Validate(const RandomPieces& pieces);

// Writes the pieces one after another.
void FillRandom(DType dtype, void* out, const RandomPieces& pieces, uint64_t seed, int log2_scale);
// The same in device memory; returns as soon as the work is queued on WorkStream(). CUDA builds
// only.
void FillRandomOnDevice(DType dtype, void* out, const RandomPieces& pieces, uint64_t seed,
                        int log2_scale);
inline void FillRandomOnDevice(DType dtype, void* out, int64_t count, uint64_t seed,
                               int log2_scale) {
  FillRandomOnDevice(dtype, out, {.length = count}, seed, log2_scale);
}

}  // namespace tokline
