// Philox 4x32-10 (Salmon et al., SC 2011), the counter-based generator behind every draw. The
// kernel and the reference share it, so both draw the same number.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TOKLINE_PHILOX_FUNCTION __host__ __device__
#else
#define TOKLINE_PHILOX_FUNCTION
#endif

namespace tokline {

struct Philox4x32 {
  uint32_t word[4];
};

TOKLINE_PHILOX_FUNCTION constexpr Philox4x32 Philox(Philox4x32 counter, uint32_t key0,
                                                    uint32_t key1) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter.word[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0,
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// 64 uniform bits that depend only on seed and offset.
TOKLINE_PHILOX_FUNCTION constexpr uint64_t DrawBits(uint64_t seed, uint64_t offset) {
  const Philox4x32 out =
      Philox({{static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32), 0, 0}},
             static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return out.word[0] | uint64_t{out.word[1]} << 32;
}

}  // namespace tokline
