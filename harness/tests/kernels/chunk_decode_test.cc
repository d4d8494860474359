// What chunk_decode refuses, what it costs, and that its reference is right.
#include <gtest/gtest.h>

#include <set>

#include "harness/tests/kernels/chunk_decode_case.h"
#include "harness/tests/kernels/sequence_tokens.h"
#include "harness/tests/message_of.h"

namespace tokline::testing {
namespace {

ChunkDecodeParams ValidParams(DecodeCase& decode, HostTensor& out, std::vector<float>& lse) {
  out = HostTensor(decode.options.dtype, decode.q.size());
  lse.resize(static_cast<size_t>(decode.Rows()));
  return decode.Params(out, lse);
}

TEST(ChunkDecodeTest, ValidateStatesValuesAndWhatIsAllowed) {
  DecodeCase decode = MakeDecodeCase(WithLengths({}, {40}));
  HostTensor out(DType::kBf16, 0);
  std::vector<float> lse;
  const ChunkDecodeParams good = ValidParams(decode, out, lse);
  EXPECT_NO_THROW(Validate(good));
  const auto message = [&](auto&& change) -> std::string {
    ChunkDecodeParams params = good;
    change(params);
    return testing::MessageOf([&] { Validate(params); });
  };
  EXPECT_EQ(message([](auto& p) { p.num_q_heads = 7; }),
            "num_q_heads is 7; it must be 1 to 16 times num_kv_heads, which is 2");
  EXPECT_EQ(message([](auto& p) { p.num_q_heads = 34; }),
            "num_q_heads is 34; it must be 1 to 16 times num_kv_heads, which is 2");
  EXPECT_EQ(message([](auto& p) { p.layout.head_dim = 96; }),
            "head_dim is 96; supported are 64 and 128");
  EXPECT_EQ(message([](auto& p) { p.layout.page_size = 48; }),
            "page_size is 48; it must be a power of two from 16");
  EXPECT_EQ(message([](auto& p) { p.scale = -1; }), "scale is -1; it must be finite and > 0");
  EXPECT_EQ(message([](auto& p) { p.scale = std::numeric_limits<float>::infinity(); }),
            "scale is inf; it must be finite and > 0");
  EXPECT_NE(message([](auto& p) { p.q_stride = 1028; }).find("q_stride is 1028"),
            std::string::npos);
  EXPECT_NE(message([](auto& p) { p.out_stride = 8; }).find("out_stride is 8"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.rope_rows = 4; }).find("rope_rows is 4"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.q = static_cast<const char*>(p.q) + 2; }).find("16 B aligned"),
            std::string::npos);
}

TEST(ChunkDecodeTest, ShiftsWithoutAnglesAreRefused) {
  const PagedKvLayout layout{.num_pages = 1, .num_kv_heads = 1, .page_size = 16, .head_dim = 64};
  const auto message_of = [&](int32_t shift, int64_t rope_rows) {
    ChunkTable table;
    const std::vector<int32_t> page{0}, chunks{0, 0}, shifts{0, shift};
    table.AddChunk(page, 5);
    table.AddSequence(chunks);
    table.AddSequence(chunks, shifts);
    return testing::MessageOf([&] { ValidateShifts(table.View(), layout, rope_rows); });
  };
  EXPECT_EQ(message_of(3, 4), "nothing was thrown");
  EXPECT_EQ(message_of(-3, 4), "nothing was thrown");
  EXPECT_EQ(message_of(0, 0), "nothing was thrown");
  EXPECT_EQ(message_of(4, 4),
            "sequence 1 has shift 4 on chunk 0; with 4 rope_rows it must be -3 to 3");
  EXPECT_EQ(message_of(-4, 4),
            "sequence 1 has shift -4 on chunk 0; with 4 rope_rows it must be -3 to 3");
  EXPECT_EQ(message_of(1, 0),
            "sequence 1 has shift 1 on chunk 0; with 0 rope_rows it must be 0 to 0");
  EXPECT_EQ(message_of(INT32_MIN, 4),
            "sequence 1 has shift -2147483648 on chunk 0; with 4 rope_rows it must be -3 to 3");
}

TEST(ChunkDecodeTest, TableWithAPageOutsideThePoolIsRefused) {
  ChunkTable table;
  const std::vector<int32_t> pages{3, 8};
  table.AddChunk(pages, 20);
  const PagedKvLayout layout{.num_pages = 8, .num_kv_heads = 1, .page_size = 16, .head_dim = 64};
  EXPECT_EQ(testing::MessageOf([&] { Validate(table.View(), layout); }),
            "chunk 0 lists page 8; the pool has pages 0 to 7");
}

TEST(ChunkDecodeTest, MoreTokensThanTilesOfInt32HoldAreRefused) {
  const PagedKvLayout layout{
      .num_pages = 1, .num_kv_heads = 1, .page_size = 1 << 20, .head_dim = 64};
  const auto message_of = [&](int64_t tokens) {
    ChunkTable table;
    const int32_t chunk =
        table.AddChunk(std::vector<int32_t>(2048, 0), static_cast<int32_t>(tokens));
    table.AddSequence({&chunk, 1});
    return testing::MessageOf([&] { Validate(table.View(), layout); });
  };
  EXPECT_EQ(message_of(kMaxSequenceTokens), "nothing was thrown");
  EXPECT_EQ(message_of(kMaxSequenceTokens + 1),
            "sequence 0 has 2147483521 tokens; at most 2147483520 are supported");
}

TEST(ChunkDecodeTest, CostMatchesBruteForceCount) {
  DecodeCaseOptions options;
  options.chunk_lengths = {100, 37, 0, 64};
  options.sequences = {{0, 1}, {0, 3}, {}, {2}};
  DecodeCase decode = MakeDecodeCase(options);
  HostTensor out(DType::kBf16, 0);
  std::vector<float> lse;
  const ChunkDecodeParams params = ValidParams(decode, out, lse);
  // Count element by element what the definition touches.
  std::set<int64_t> kv_elements;
  double flops = 0;
  const ChunkTableView table = params.table;
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    for (int32_t h = 0; h < params.num_q_heads; ++h) {
      ForEachTokenOf(table, s, 16, [&](const SequenceToken& token) {
        for (int32_t d = 0; d < 128; ++d) {
          kv_elements.insert(decode.layout.KeyOffset(token.page, h / 4, token.row) + d);
          kv_elements.insert(decode.layout.ValueOffset(token.page, h / 4, token.row) + d);
          flops += 4;
        }
      });
    }
  }
  const Cost cost = CostOf(params);
  EXPECT_EQ(cost.flops, flops);
  EXPECT_EQ(cost.read_bytes, 2.0 * static_cast<double>(kv_elements.size()) + 2 * 4 * 8 * 128);
  EXPECT_EQ(cost.write_bytes, 2 * 4 * 8 * 128 + 4 * 4 * 8);
}

TEST(ChunkDecodeReferenceTest, UniformScoresGiveTheMeanExactly) {
  DecodeCase decode = MakeDecodeCase(WithLengths({}, {64, 16, 0}));
  decode.q = HostTensor(DType::kBf16, decode.q.size());  // zero queries: equal scores
  ForEachToken(decode, [&](int32_t, int32_t token, int64_t page, int32_t row) {
    for (int32_t h = 0; h < 2; ++h) {
      for (int32_t d = 0; d < 128; ++d) {
        decode.kv.Set(decode.layout.ValueOffset(page, h, row) + d, token + d % 4);
      }
    }
  });
  const DecodeResult result = RunReference(decode);
  for (int64_t i = 0; i < 8 * 128; ++i) {
    EXPECT_EQ(result.out[i], RoundTo(DType::kBf16, 31.5 + i % 4));
    EXPECT_EQ(result.out[8 * 128 + i], 7.5 + i % 4);
    EXPECT_EQ(result.out[2 * 8 * 128 + i], 0);  // an empty sequence
  }
  EXPECT_NEAR(result.lse[0], std::log(64.0), 1e-6);
  EXPECT_EQ(result.lse[16], -std::numeric_limits<float>::infinity());
}

TEST(ChunkDecodeReferenceTest, ChunkingDoesNotChangeTheResult) {
  DecodeCaseOptions options;
  options.dtype = DType::kF32;
  options.page_size = 16;
  DecodeCase whole = MakeDecodeCase(WithLengths(options, {96}));
  // The same pages as three chunks of 32 tokens.
  DecodeCase parts = whole;
  parts.table.Clear();
  std::vector<int32_t> ids;
  for (int32_t c = 0; c < 3; ++c) {
    ids.push_back(parts.table.AddChunk({whole.table.View().chunk_pages + c * 2, 2}, 32));
  }
  parts.table.AddSequence(ids);
  const DecodeResult a = RunReference(whole), b = RunReference(parts);
  EXPECT_TRUE(WithinBound(
      a.out, b.out, a.out.size(), [](int64_t) { return 1e-6; }, 1));
}

TEST(ChunkDecodeReferenceTest, ShiftEqualsRotatedKeys) {
  DecodeCaseOptions options;
  options.dtype = DType::kF32;
  options.chunk_lengths = {30, 20};
  options.sequences = {{0, 1}};
  options.shifts = {{5, -3}};
  DecodeCase shifted = MakeDecodeCase(options);
  DecodeCase rotated = shifted;
  rotated.table.Clear();
  const ChunkTableView view = shifted.table.View();
  std::vector<int32_t> ids;
  for (int32_t c = 0; c < 2; ++c) {
    const int32_t begin = view.chunk_page_indptr[c];
    ids.push_back(rotated.table.AddChunk(
        {view.chunk_pages + begin, static_cast<size_t>(view.chunk_page_indptr[c + 1] - begin)},
        view.chunk_lengths[c]));
  }
  rotated.table.AddSequence(ids);
  ForEachToken(shifted, [&](int32_t chunk, int32_t, int64_t page, int32_t row) {
    const int32_t shift = chunk == 0 ? 5 : -3;
    for (int32_t h = 0; h < 2; ++h) {
      const int64_t at = shifted.layout.KeyOffset(page, h, row);
      for (int32_t i = 0; i < 64; ++i) {
        const double angle = shift * std::pow(1e4, -2.0 * i / 128);
        const double x = shifted.kv[at + i], y = shifted.kv[at + i + 64];
        rotated.kv.Set(at + i, x * std::cos(angle) - y * std::sin(angle));
        rotated.kv.Set(at + i + 64, y * std::cos(angle) + x * std::sin(angle));
      }
    }
  });
  const DecodeResult a = RunReference(shifted), b = RunReference(rotated);
  EXPECT_TRUE(WithinBound(
      a.out, b.out, a.out.size(), [](int64_t) { return 2e-5; }, 1));
}

TEST(ChunkDecodeBoundTest, AReplacedTailOfALongContextIsRejected) {
  DecodeCaseOptions options;
  options.num_kv_heads = 1;
  options.group = 2;
  options.page_size = 256;
  options.nan_in_dead_slots = false;
  DecodeCase decode = MakeDecodeCase(WithLengths(options, {131072}));
  const DecodeResult expected = RunReference(decode);
  EXPECT_TRUE(MatchesReference(expected, expected, decode));
  DecodeCase wrong = decode;
  std::mt19937_64 rng(77);
  std::normal_distribution<double> normal(0, 1);
  ForEachToken(wrong, [&](int32_t, int32_t token, int64_t page, int32_t row) {
    if (token < 131072 - 2048) return;
    for (int32_t d = 0; d < options.head_dim; ++d) {
      wrong.kv.Set(wrong.layout.ValueOffset(page, 0, row) + d, normal(rng));
    }
  });
  const auto verdict = MatchesReference(RunReference(wrong), expected, decode);
  EXPECT_FALSE(verdict);
  EXPECT_NE(std::string(verdict.message()).find("root mean square"), std::string::npos)
      << verdict.message();
}

}  // namespace
}  // namespace tokline::testing
