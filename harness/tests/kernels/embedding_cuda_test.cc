// Embedding on the device: rows, with or without positions, have the bits of the reference, even
// those beyond 2^31 elements of the table.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "harness/tests/kernels/cuda_test.h"
#include "kernels/common/error.h"
#include "reference/embedding.h"

namespace tokline {
namespace {

using testing::HostTensor;

class EmbeddingCudaTest : public testing::CudaTest {};

void ExpectMatchesReference(DType dtype, int64_t num_tokens, int64_t vocab_size,
                            int64_t hidden_size) {
  SCOPED_TRACE(StrCat(Name(dtype), " tokens ", num_tokens, " hidden_size ", hidden_size));
  const HostTensor table = testing::RandomTensor(dtype, vocab_size * hidden_size, 1);
  constexpr int32_t kFirstId = 40;
  std::mt19937_64 rng(2);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < num_tokens; ++t) {
    ids.push_back(kFirstId + static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab_size)));
  }
  if (num_tokens > 3) {  // outside the vocabulary
    ids[1] = kFirstId - 1;
    ids[2] = kFirstId + static_cast<int32_t>(vocab_size);
  }
  EmbeddingParams params{.dtype = dtype,
                         .num_tokens = num_tokens,
                         .vocab_size = vocab_size,
                         .hidden_size = hidden_size,
                         .first_id = kFirstId};
  // A guard row after the output must keep its NaN.
  HostTensor expected(dtype, (num_tokens + 1) * hidden_size);
  expected.FillNan();
  const DeviceBuffer device_out = testing::ToDevice(expected);
  params.token_ids = ids.data();
  params.table = table.data();
  params.out = expected.data();
  EmbeddingReference(params);

  const DeviceBuffer device_ids(ids), device_table = testing::ToDevice(table);
  params.token_ids = device_ids.as<int32_t>();
  params.table = device_table.data();
  params.out = device_out.data();
  Launch(params, {});
  EXPECT_TRUE(testing::ToHost(device_out, dtype).bytes() == expected.bytes());
}

TEST_F(EmbeddingCudaTest, RowsAreBitwise) {
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    for (const int64_t hidden_size : {8, 1016, 1024, 4096, 5120}) {
      for (const int64_t tokens : {1, 5, 300}) {
        ExpectMatchesReference(dtype, tokens, 97, hidden_size);
      }
    }
  }
}

// Launches of more than 16 MB take two short rows a block, the last of which may have one.
TEST_F(EmbeddingCudaTest, LongLaunchesAreBitwise) {
  for (const int64_t hidden_size : {1016, 1024, 2560, 4096}) {
    for (const int64_t tokens : {8000, 8001}) {
      ExpectMatchesReference(DType::kBf16, tokens, 97, hidden_size);
    }
  }
}

// Sums are rounded once, so they too must equal the reference bit by bit.
TEST_F(EmbeddingCudaTest, RowsWithPositionsAreBitwise) {
  constexpr int64_t kVocab = 97, kPositions = 41, kFirstId = 40;
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int64_t hidden_size : {8, 768, 1600, 5120}) {
      for (const int64_t tokens : {1, 5, 300}) {
        SCOPED_TRACE(StrCat(Name(dtype), " tokens ", tokens, " hidden_size ", hidden_size));
        const HostTensor table = testing::RandomTensor(dtype, kVocab * hidden_size, 1);
        const HostTensor places = testing::RandomTensor(dtype, kPositions * hidden_size, 2);
        std::vector<int32_t> ids, positions;
        for (int64_t t = 0; t < tokens; ++t) {  // some lie outside either table
          ids.push_back(static_cast<int32_t>(kFirstId + t * 31 % (kVocab + 2) - 1));
          positions.push_back(static_cast<int32_t>(t * 17 % (kPositions + 2) - 1));
        }
        ids[0] = static_cast<int32_t>(kFirstId + 7);
        positions[0] = 7;
        HostTensor expected(dtype, (tokens + 1) * hidden_size);
        expected.FillNan();  // the guard row keeps it
        const DeviceBuffer out = testing::ToDevice(expected), device_ids(ids);
        const DeviceBuffer device_positions(positions);
        const DeviceBuffer device_table = testing::ToDevice(table);
        const DeviceBuffer device_places = testing::ToDevice(places);
        EmbeddingParams params{.dtype = dtype,
                               .num_tokens = tokens,
                               .vocab_size = kVocab,
                               .hidden_size = hidden_size,
                               .first_id = kFirstId,
                               .token_ids = ids.data(),
                               .table = table.data(),
                               .num_positions = kPositions,
                               .positions = positions.data(),
                               .position_table = places.data(),
                               .out = expected.data()};
        EmbeddingReference(params);
        params.token_ids = device_ids.as<int32_t>();
        params.table = device_table.data();
        params.positions = device_positions.as<int32_t>();
        params.position_table = device_places.data();
        params.out = out.data();
        Launch(params, {});
        EXPECT_TRUE(testing::ToHost(out, dtype).bytes() == expected.bytes());
      }
    }
  }
}

TEST_F(EmbeddingCudaTest, PositionsOfF32AreRefused) {
  const HostTensor rows(DType::kF32, 8);
  HostTensor out(DType::kF32, 8);
  const int32_t zero = 0;
  const EmbeddingParams params{.dtype = DType::kF32,
                               .num_tokens = 1,
                               .vocab_size = 1,
                               .hidden_size = 8,
                               .token_ids = &zero,
                               .table = rows.data(),
                               .num_positions = 1,
                               .positions = &zero,
                               .position_table = rows.data(),
                               .out = out.data()};
  EXPECT_THAT([&] { Launch(params, {}); },
              ::testing::ThrowsMessage<InvalidArgument>(
                  ::testing::HasSubstr("supported on CUDA are bf16, f16")));
}

// A grid dimension over 65,535 is a silent no-op where tokens are mapped to y or z.
TEST_F(EmbeddingCudaTest, SeventyThousandTokensAreAllWritten) {
  ExpectMatchesReference(DType::kBf16, 70'000, 33, 16);
}

// int32 offsets: rows beyond 2^31 elements of the table.
TEST_F(EmbeddingCudaTest, FarEndOfATableOverFourGibibytesIsRead) {
  constexpr int64_t kHidden = 8192, kVocab = (int64_t{1} << 31) / kHidden + 1000;
  size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  if (static_cast<int64_t>(free) < kVocab * kHidden * 2 + (int64_t{256} << 20)) {
    GTEST_SKIP() << "a table of " << kVocab * kHidden * 2 << " bytes does not fit into " << free
                 << " free";
  }
  DeviceBuffer table(kVocab * kHidden * 2);
  table.Fill(0xff);
  const HostTensor row = testing::RandomTensor(DType::kBf16, kHidden, 3);
  table.CopyFrom(row.data(), kHidden * 2, (kVocab - 1) * kHidden * 2);
  const DeviceBuffer ids(std::vector<int32_t>{static_cast<int32_t>(kVocab - 1)}), out(kHidden * 2);
  Launch({.num_tokens = 1,
          .vocab_size = kVocab,
          .hidden_size = kHidden,
          .token_ids = ids.as<int32_t>(),
          .table = table.data(),
          .out = out.data()},
         {});
  EXPECT_TRUE(testing::ToHost(out, DType::kBf16) == row);
}

}  // namespace
}  // namespace tokline
