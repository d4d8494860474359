// paged_gather on the device: rows have the bits of the reference in every layout, for thousands of
// sequences, and from pages beyond 4 GiB.
#include <gmock/gmock.h>

#include <utility>

#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/kernels/device_table.h"
#include "harness/tests/kernels/paged_gather_case.h"
#include "reference/paged_gather.h"

namespace tokline {
namespace {

using testing::DeviceTable;
using testing::HostTensor;
using testing::PagedGatherCase;
using testing::PagedGatherShape;

class PagedGatherCudaTest : public testing::CudaTest {};

// K and V as gathered by the device.
std::pair<HostTensor, HostTensor> RunOnDevice(PagedGatherCase& c) {
  const DeviceTable table(c.table.View());
  const DeviceBuffer pool = testing::ToDevice(c.pool), indptr(c.token_indptr);
  DeviceBuffer k_out = testing::ToDevice(c.k_out), v_out = testing::ToDevice(c.v_out);
  k_out.Fill(0xff);
  v_out.Fill(0xff);
  PagedGatherParams params = c.Params();
  params.table = table.View();
  params.token_indptr = indptr.as<int32_t>();
  params.kv = pool.data();
  params.k_out = k_out.data();
  params.v_out = v_out.data();
  Launch(params, {});
  return {testing::ToHost(k_out, c.shape.dtype), testing::ToHost(v_out, c.shape.dtype)};
}

void ExpectMatchesReference(const PagedGatherShape& shape) {
  PagedGatherCase c(shape);
  const auto [k, v] = RunOnDevice(c);
  PagedGatherReference(c.Params());
  EXPECT_TRUE(k.bytes() == c.k_out.bytes());
  EXPECT_TRUE(v.bytes() == c.v_out.bytes());
}

TEST_F(PagedGatherCudaTest, EveryLayoutIsBitwise) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
      for (const int32_t head_dim : {64, 128}) {
        for (const int32_t page_size : {16, 64, 256}) {
          for (const int32_t heads : {1, 3, 8, 40}) {
            SCOPED_TRACE(StrCat(Name(dtype), " order ", static_cast<int>(order), " head_dim ",
                                head_dim, " page_size ", page_size, " heads ", heads));
            ExpectMatchesReference({.dtype = dtype,
                                    .num_kv_heads = heads,
                                    .head_dim = head_dim,
                                    .page_size = page_size,
                                    .order = order});
          }
        }
      }
    }
  }
}

TEST_F(PagedGatherCudaTest, ThousandsOfSequencesMostlyEmptyAreFound) {
  PagedGatherShape shape{.num_kv_heads = 1, .head_dim = 64};
  shape.sequences.clear();
  for (int32_t s = 0; s < 3000; ++s) {
    if (s % 5 == 0) {
      shape.sequences.push_back({s % 7, 0, s % 3});
    } else {
      shape.sequences.emplace_back();
    }
  }
  ExpectMatchesReference(shape);
}

TEST_F(PagedGatherCudaTest, SequenceOfHundredsOfChunksIsWalked) {
  PagedGatherShape shape{.num_kv_heads = 2};
  shape.sequences = {{3}, {}, {9}};
  for (int32_t i = 0; i < 500; ++i) shape.sequences[1].push_back(i % 4 == 0 ? 0 : i % 23);
  ExpectMatchesReference(shape);
}

TEST_F(PagedGatherCudaTest, SharedChunkIsCopiedForEachReader) {
  PagedGatherShape shape;
  shape.sequences = {{300}, {-1, 5}, {7, -1}, {-1, -1}};
  ExpectMatchesReference(shape);
}

TEST_F(PagedGatherCudaTest, EmptyBatchLaunchesNothing) {
  PagedGatherCase c({.sequences = {{}, {0}}});
  EXPECT_NO_THROW(RunOnDevice(c));
}

// int32 page offsets: pages beyond 2 and 4 GiB and at the end of the pool.
TEST_F(PagedGatherCudaTest, FarEndOfAPoolOverFourGibibytesIsRead) {
  PagedKvLayout layout{.num_kv_heads = 8, .page_size = 256, .head_dim = 128};
  const int64_t page_bytes = layout.PageStride() * 2;
  layout.num_pages = (int64_t{5} << 30) / page_bytes;
  const int64_t pool_bytes = layout.num_pages * page_bytes;
  size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  if (static_cast<int64_t>(free) < pool_bytes + (int64_t{256} << 20)) {
    GTEST_SKIP() << "a pool of " << pool_bytes << " bytes does not fit into " << free << " free";
  }
  const std::vector<int32_t> pages = {static_cast<int32_t>(layout.num_pages - 1),
                                      static_cast<int32_t>((int64_t{2} << 30) / page_bytes),
                                      static_cast<int32_t>((int64_t{4} << 30) / page_bytes), 0};
  DeviceBuffer pool(pool_bytes);
  pool.Fill(0xff);
  const int64_t page_elements = layout.PageStride();
  const HostTensor contents =
      testing::RandomTensor(DType::kBf16, page_elements * static_cast<int64_t>(pages.size()), 5);
  for (size_t p = 0; p < pages.size(); ++p) {
    pool.CopyFrom(&contents.bytes()[p * static_cast<size_t>(page_bytes)], page_bytes,
                  pages[p] * page_bytes);
  }
  ChunkTable host_table;
  host_table.AddSequence(std::vector<int32_t>{host_table.AddChunk(pages, 4 * 256)});
  const DeviceTable table(host_table.View());
  const DeviceBuffer indptr(std::vector<int32_t>{0, 4 * 256});
  const DeviceBuffer k_out(page_elements * 4), v_out(page_elements * 4);
  Launch({.layout = layout,
          .table = table.View(),
          .total_tokens = 4 * 256,
          .token_indptr = indptr.as<int32_t>(),
          .kv = pool.data(),
          .k_out = k_out.data(),
          .v_out = v_out.data()},
         {});
  const HostTensor k = testing::ToHost(k_out, DType::kBf16),
                   v = testing::ToHost(v_out, DType::kBf16);
  for (int64_t p = 0; p < 4; ++p) {
    for (int64_t t = 0; t < 256; ++t) {
      for (int64_t h = 0; h < 8; ++h) {
        for (int64_t i = 0; i < 128; ++i) {
          const int64_t at = ((p * 256 + t) * 8 + h) * 128 + i;
          const int64_t source = p * page_elements + (h * 256 + t) * 128 + i;
          ASSERT_EQ(k[at], contents[source]) << "page " << pages[p] << " token " << t;
          ASSERT_EQ(v[at], contents[source + page_elements / 2]);
        }
      }
    }
  }
}

TEST_F(PagedGatherCudaTest, F32IsRefused) {
  PagedGatherCase c({.dtype = DType::kF32});
  EXPECT_THAT([&] { Launch(c.Params(), {}); },
              ::testing::ThrowsMessage<InvalidArgument>(
                  ::testing::HasSubstr("supported on CUDA are bf16, f16")));
}

}  // namespace
}  // namespace tokline
