#include "harness/platform/random_values.h"

#include "kernels/common/error.h"

namespace tokline {

void FillRandom(DType dtype, void* out, int64_t first, int64_t count, uint64_t seed,
                int log2_scale) {
  Require(log2_scale >= kMinLog2Scale && log2_scale <= kMaxLog2Scale, "log2_scale is ", log2_scale,
          "; it must be in [", kMinLog2Scale, ", ", kMaxLog2Scale, "]");
  uint64_t hash = 0;
  uint64_t low_hash = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t index = static_cast<uint64_t>(first + i);
    const auto shift = static_cast<int>(16 * (index % kValuesPerHash));
    if (i == 0 || shift == 0) {
      hash = RandomBits(seed, index / kValuesPerHash);
      if (dtype == DType::kF32) low_hash = RandomBits(LowBitsSeed(seed), index / kValuesPerHash);
    }
    const auto bits = static_cast<uint32_t>(hash >> shift) & 0xffffu;
    if (dtype == DType::kF32) {
      const auto low = static_cast<uint32_t>(low_hash >> shift) & 0xffffu;
      static_cast<uint32_t*>(out)[i] = RandomElement32(bits, low, log2_scale);
    } else {
      static_cast<uint16_t*>(out)[i] = RandomElement16(dtype, bits, log2_scale);
    }
  }
}

void Validate(const RandomPieces& pieces) {
  const bool aligned = pieces.first % kValuesPerHash == 0 && pieces.stride % kValuesPerHash == 0 &&
                       (pieces.pieces <= 1 || pieces.length % kValuesPerHash == 0);
  Require(pieces.first >= 0 && pieces.pieces >= 0 && pieces.length >= 0 && aligned, pieces.pieces,
          " pieces of ", pieces.length, " elements, ", pieces.stride, " apart, from ", pieces.first,
          "; all must be multiples of ", kValuesPerHash);
}

void FillRandom(DType dtype, void* out, const RandomPieces& pieces, uint64_t seed, int log2_scale) {
  Validate(pieces);
  for (int64_t i = 0; i < pieces.pieces; ++i) {
    FillRandom(dtype, static_cast<char*>(out) + i * pieces.length * SizeOf(dtype),
               pieces.first + i * pieces.stride, pieces.length, seed, log2_scale);
  }
}

}  // namespace tokline
