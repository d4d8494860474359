// Tests memory, copies and the order of work of the CUDA backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "harness/engine/backend.h"
#include "harness/engine/convert_elements.h"
#include "harness/platform/staged_copy.h"
#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/message_of.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CudaBackendTest : public testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) backend_ = MakeCudaBackend();
  }

  std::vector<std::byte> DownloadAll(const Memory& memory) {
    std::vector<std::byte> host(static_cast<size_t>(memory.bytes()));
    backend_->Download(host.data(), memory.data(), memory.bytes());
    return host;
  }

  std::unique_ptr<Backend> backend_;
};

// Covers sources that are longer than a staging buffer, end inside one, or start at an odd byte.
TEST_F(CudaBackendTest, WeightsOfAnySizeArriveConverted) {
  std::mt19937_64 rng(9);
  const int64_t counts[] = {1, 129, (int64_t{16} << 20) / 2, (int64_t{40} << 20) + 3, 5'000'001};
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  for (const DType from : {DType::kBf16, DType::kF32}) {
    std::vector<char> source(static_cast<size_t>(total * SizeOf(from)) + 1);
    for (size_t i = 0; i + 8 <= source.size(); i += 8) {
      // Clears a bit of each exponent, so that there is no NaN, whose payload a conversion may
      // change.
      const uint64_t bits = rng() & 0xbf7fbf7fbf7fbf7fu;
      std::memcpy(source.data() + i, &bits, sizeof(bits));
    }
    Memory device = backend_->Allocate(total * SizeOf(DType::kBf16));
    std::vector<WeightCopy> copies;
    int64_t at = 0;
    for (const int64_t count : counts) {
      copies.push_back({.device = device.data() + at * SizeOf(DType::kBf16),
                        .host = source.data() + 1 + at * SizeOf(from),
                        .rows = 1,
                        .columns = count,
                        .from = from,
                        .to = DType::kBf16});
      at += count;
    }
    backend_->UploadWeights(copies);
    std::vector<std::byte> expected(static_cast<size_t>(device.bytes()));
    ConvertElements(from, source.data() + 1, DType::kBf16, expected.data(), total);
    EXPECT_TRUE(DownloadAll(device) == expected) << "from " << Name(from);
  }
}

// Covers slices and transposes that are longer than a staging buffer.
TEST_F(CudaBackendTest, StridedWeightsArriveDense) {
  constexpr int64_t kRows = 3001, kColumns = 4099;
  std::vector<uint16_t> source(static_cast<size_t>(kRows * kColumns));
  std::mt19937_64 rng(10);
  for (uint16_t& bits : source) bits = static_cast<uint16_t>(rng() & 0xbf7f);
  struct Part {
    int64_t first, rows, columns, row_stride, column_stride;
  };
  for (const Part& part : {Part{0, kColumns, kRows, 1, kColumns},  // the whole, transposed
                           Part{7, 2050, kRows, 1, kColumns},      // some columns
                           Part{kColumns, kRows / 2, kColumns, 2 * kColumns, 1}}) {  // odd rows
    Memory device = backend_->Allocate(part.rows * part.columns * SizeOf(DType::kF16));
    const WeightCopy copy{.device = device.data(),
                          .host = source.data() + part.first,
                          .rows = part.rows,
                          .columns = part.columns,
                          .row_stride = part.row_stride,
                          .column_stride = part.column_stride,
                          .from = DType::kBf16,
                          .to = DType::kF16};
    backend_->UploadWeights({&copy, 1});
    std::vector<std::byte> expected(static_cast<size_t>(device.bytes()));
    ConvertMatrix(DType::kBf16, copy.host, part.row_stride, part.column_stride, DType::kF16,
                  expected.data(), part.rows, part.columns);
    EXPECT_TRUE(DownloadAll(device) == expected) << "from element " << part.first;
  }
}

TEST_F(CudaBackendTest, MemoryStartsAsZerosAndTooMuchOfItIsRefusedWithTheValues) {
  for (int round = 0; round < 2; ++round) {  // in round 1, the memory was written before
    Memory memory = backend_->Allocate(1 << 20);
    EXPECT_TRUE(DownloadAll(memory) == std::vector<std::byte>(1 << 20));
    const std::vector<std::byte> ones(1 << 20, std::byte{0xff});
    backend_->Upload(memory.data(), ones.data(), memory.bytes());
  }
  const int64_t too_much = backend_->FreeBytes() * 2 + (int64_t{1} << 40);
  EXPECT_THAT(testing::MessageOf<RuntimeFailure>([&] { backend_->Allocate(too_much); }),
              AllOf(HasSubstr(std::to_string(too_much)), HasSubstr("are free")));
  EXPECT_EQ(DownloadAll(backend_->Allocate(16)), std::vector<std::byte>(16));  // still usable
}

// By a kernel up to kMaxStagedCopyBytes, with and without vectors, by the copy engine above it.
TEST_F(CudaBackendTest, StagedCopiesMoveTheirBytesAndNoOthers) {
  constexpr int64_t kAround = 64;
  const int64_t most = kMaxStagedCopyBytes;
  Memory staging = backend_->AllocateStaging(most + 16 + 2 * kAround);
  Memory back = backend_->AllocateStaging(staging.bytes());
  Memory device = backend_->Allocate(staging.bytes());
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{4}, int64_t{16}, int64_t{100},
                              int64_t{70'001}, most - 1, most, most + 1}) {
    for (const auto& [from, to] : {std::pair{64, 64}, std::pair{68, 68}, std::pair{64, 69}}) {
      for (int64_t i = 0; i < staging.bytes(); ++i) {
        staging.data()[i] = static_cast<std::byte>(i * 7 % 251);
        back.data()[i] = std::byte{0xee};
      }
      backend_->Zero(device.data(), device.bytes());
      backend_->CopyToDevice(device.data() + to, staging.data() + from, bytes);
      backend_->CopyToHost(back.data() + from, device.data() + to, bytes);
      const auto fence = backend_->MakeFence();
      fence->Record();
      fence->Wait();
      const std::vector<std::byte> on_device = DownloadAll(device);
      const auto at = [](const std::byte* begin, int64_t count, std::byte value) {
        return std::all_of(begin, begin + count, [=](std::byte b) { return b == value; });
      };
      SCOPED_TRACE(::testing::Message() << bytes << " bytes from " << from << " to " << to);
      EXPECT_EQ(std::memcmp(on_device.data() + to, staging.data() + from, bytes), 0);
      EXPECT_EQ(std::memcmp(back.data() + from, staging.data() + from, bytes), 0);
      EXPECT_TRUE(at(on_device.data(), to, std::byte{0}));
      EXPECT_TRUE(at(on_device.data() + to + bytes, device.bytes() - to - bytes, std::byte{0}));
      EXPECT_TRUE(at(back.data(), from, std::byte{0xee}));
      EXPECT_TRUE(at(back.data() + from + bytes, back.bytes() - from - bytes, std::byte{0xee}));
    }
  }
  EXPECT_THROW(CopyStaged(device.data(), staging.data(), most + 1, backend_->stream()),
               InvalidArgument);
}

// As many bytes, up to whole vectors, as the block itself says at each replay.
TEST_F(CudaBackendTest, AReplayOfACountedCopyTakesTheBytesThatThereAre) {
  for (const int64_t most : {int64_t{16}, int64_t{16'000}, int64_t{400'000}}) {
    Memory staging = backend_->AllocateStaging(most);
    Memory device = backend_->Allocate(most);
    const auto graph =
        backend_->Capture([&] { backend_->CopyCounted(device.data(), staging.data(), most); });
    for (const int64_t bytes : {int64_t{8}, int64_t{100}, int64_t{9'000}, int64_t{16'384},
                                int64_t{131'100}, int64_t{399'990}, most}) {
      if (bytes > most) continue;
      for (int64_t i = 0; i < most; ++i) staging.data()[i] = static_cast<std::byte>(i * 7 % 251);
      std::memcpy(staging.data(), &bytes, sizeof(bytes));
      backend_->Zero(device.data(), most);
      graph->Enqueue();
      const std::vector<std::byte> on_device = DownloadAll(device);
      const auto copied = static_cast<size_t>((bytes + 15) / 16 * 16);
      EXPECT_EQ(std::memcmp(on_device.data(), staging.data(), copied), 0)
          << bytes << " of " << most;
      EXPECT_TRUE(std::all_of(on_device.begin() + static_cast<std::ptrdiff_t>(copied),
                              on_device.end(), [](std::byte b) { return b == std::byte{0}; }))
          << bytes << " of " << most;
    }
  }
  EXPECT_THROW(CopyCounted(nullptr, nullptr, 7, backend_->stream()), InvalidArgument);
}

TEST_F(CudaBackendTest, CapturedWorkRunsWhenEnqueuedAndOnEveryEnqueue) {
  const int32_t sentinel = 7, zero = 0;
  Memory memory = backend_->Allocate(sizeof(sentinel));
  backend_->Upload(memory.data(), &sentinel, sizeof(sentinel));
  const auto graph = backend_->Capture([&] { backend_->Zero(memory.data(), memory.bytes()); });
  ASSERT_NE(graph, nullptr);
  const auto value = [&] {
    int32_t host = -1;
    backend_->Download(&host, memory.data(), sizeof(host));
    return host;
  };
  EXPECT_EQ(value(), sentinel);
  for (int round = 0; round < 2; ++round) {
    graph->Enqueue();
    EXPECT_EQ(value(), zero);
    backend_->Upload(memory.data(), &sentinel, sizeof(sentinel));
  }
}

TEST_F(CudaBackendTest, FailedCaptureLeavesTheBackendUsable) {
  EXPECT_THROW(backend_->Capture([] { throw InvalidArgument("not like this"); }), InvalidArgument);
  EXPECT_EQ(DownloadAll(backend_->Allocate(16)), std::vector<std::byte>(16));
}

}  // namespace
}  // namespace tokline
