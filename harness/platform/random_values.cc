#include "harness/platform/random_values.h"

#include "kernels/common/error.h"

namespace tokline {

namespace {

// Stores elements [first, first + count). `group` returns the function from an element's place in
// its group to its bit pattern, of the group with this number.
template <typename Bits, typename Group>
void FillGroups(void* out, int64_t first, int64_t count, const Group& group) {
  auto* to = static_cast<Bits*>(out);
  for (int64_t i = 0; i < count;) {
    const uint64_t index = static_cast<uint64_t>(first + i);
    const auto element = group(index / kValuesPerHash);
    const auto begin = static_cast<int>(index % kValuesPerHash);
    if (begin == 0 && count - i >= kValuesPerHash) {
      for (int k = 0; k < kValuesPerHash; ++k) to[i + k] = element(k);
      i += kValuesPerHash;
    } else {
      for (int k = begin; k < kValuesPerHash && i < count; ++k) to[i++] = element(k);
    }
  }
}

uint32_t Bits16(uint64_t hash, int place) {
  return static_cast<uint32_t>(hash >> (16 * place)) & 0xffffu;
}

}  // namespace

void FillRandom(DType dtype, void* out, int64_t first, int64_t count, uint64_t seed,
                int log2_scale) {
  Require(log2_scale >= kMinLog2Scale && log2_scale <= kMaxLog2Scale, "log2_scale is ", log2_scale,
          "; it must be in [", kMinLog2Scale, ", ", kMaxLog2Scale, "]");
  if (dtype == DType::kF32) {
    return FillGroups<uint32_t>(out, first, count, [=](uint64_t group) {
      return [=, hash = RandomBits(seed, group),
              low = RandomBits(LowBitsSeed(seed), group)](int place) {
        return RandomElement32(Bits16(hash, place), Bits16(low, place), log2_scale);
      };
    });
  }
  FillGroups<uint16_t>(out, first, count, [=](uint64_t group) {
    return [=, hash = RandomBits(seed, group)](int place) {
      return RandomElement16(dtype, Bits16(hash, place), log2_scale);
    };
  });
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
