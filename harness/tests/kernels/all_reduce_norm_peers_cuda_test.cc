// all_reduce_norm on several devices.
#include <gmock/gmock.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <thread>

#include "harness/platform/cuda_handles.h"
#include "harness/platform/peer_access.h"
#include "harness/tests/kernels/all_reduce_norm_case.h"
#include "harness/tests/kernels/all_reduce_norm_cuda_case.h"
#include "harness/tests/kernels/cuda_test.h"
#include "kernels/common/error.h"
#include "kernels/device/nccl_library.h"

namespace tokline {
namespace {

using testing::AllReduceCase;
using testing::AllReduceSetup;
using testing::ErrorOf;
using Exchange = testing::AllReduceExchange;
using RankTensors = testing::AllReduceRankTensors;
using ::testing::HasSubstr;
using testing::HostTensor;
using testing::Takes;
using testing::ToHost;
using Variant = AllReduceNormVariant;

// One device a rank, one host thread and one stream each.
class AllReduceNormPeersCudaTest : public testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    devices_ = std::min(CudaDeviceCount(), static_cast<int>(kMaxRanks));
    if (devices_ < 2) GTEST_SKIP() << "needs two GPUs; this process sees " << devices_;
    EnablePeerAccess(devices_);
  }
  void TearDown() override {
    if (devices_ >= 2) {
      for (int d = 0; d < devices_; ++d) {
        EXPECT_EQ(cudaSetDevice(d), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      }
      EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    }
    CudaTest::TearDown();
  }

  // Runs work(rank, allocated) on a thread for each rank, whose current device is that of the rank.
  // Each calls allocated() once, before it launches, since an allocation may wait for kernels of
  // other devices. It waits for the ranks that have not failed.
  static void OnEveryRank(int32_t ranks,
                          const std::function<void(int32_t, const std::function<void()>&)>& work) {
    std::barrier barrier(ranks);
    std::vector<std::jthread> threads;
    for (int32_t r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        try {
          TOKLINE_CUDA(cudaSetDevice(r));
          work(r, [&] { barrier.arrive_and_wait(); });
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << r << ": " << error.what();
        }
        barrier.arrive_and_drop();
      });
    }
  }

  int devices_ = 0;
};

TEST_F(AllReduceNormPeersCudaTest, EveryShapeGivesTheExactSumOnEveryDevice) {
  const auto check = [](const AllReduceSetup& setup, const Exchange& exchange) {
    const AllReduceCase c(setup);
    OnEveryRank(setup.ranks, [&](int32_t r, const std::function<void()>& allocated) {
      const RankTensors tensors(c, r);
      const UniqueStream stream = MakeStream();
      allocated();
      Launch(tensors.Params(c, exchange.Peers(r)), {.stream = stream.get()});
      EXPECT_NO_THROW(RequireAllReduced(exchange.Peers(r), stream.get()));
      EXPECT_TRUE(tensors.Check(c)) << "rank " << r;
    });
  };
  for (int32_t ranks = 2; ranks <= devices_; ranks *= 2) {
    // Slabs of 16 rows of several vectors per lane.
    check({.ranks = ranks, .tokens = 2100, .hidden = 2560, .variant = Variant::kSlabs},
          Exchange(ranks, 2100, 2560, true));
    const Exchange exchange(ranks, 512, 8192, true);
    for (const DType dtype : {DType::kBf16, DType::kF16}) {
      for (const Variant variant : {Variant::kAuto, Variant::kTwoShot, Variant::kSlabs}) {
        for (const int64_t hidden : {1024, 2560, 4096, 5003, 8192}) {
          for (const int64_t tokens : {1, 8, 64, 512}) {
            if (!Takes(variant, ranks, tokens)) continue;
            if (variant == Variant::kSlabs && hidden == 5003) continue;
            if (tokens == 512 && hidden > 2560 && dtype == DType::kF16) continue;
            check({.dtype = dtype,
                   .ranks = ranks,
                   .tokens = tokens,
                   .hidden = hidden,
                   .variant = variant},
                  exchange);
          }
        }
      }
    }
  }
}

// Hundreds of launches in graphs that the ranks replay at their own pace.
TEST_F(AllReduceNormPeersCudaTest, GraphsOfManyRoundsGiveTheExactSum) {
  constexpr int kRounds = 50;
  for (const bool dependent : {false, true}) {
    const Exchange exchange(devices_, 64, 4096, true);
    const AllReduceSetup shape{.ranks = devices_};
    std::vector<AllReduceCase> cases;
    for (const auto& [tokens, hidden, variant] :
         {std::tuple{1, 2560, Variant::kAuto}, std::tuple{64, 4096, Variant::kTwoShot},
          std::tuple{8, 4096, Variant::kOneShot}, std::tuple{61, 2560, Variant::kSlabs},
          std::tuple{40, 4096, Variant::kSlabs}}) {
      AllReduceSetup setup = shape;
      setup.tokens = tokens;
      setup.hidden = hidden;
      setup.variant = variant;
      cases.emplace_back(setup);
    }
    OnEveryRank(devices_, [&](int32_t r, const std::function<void()>& allocated) {
      const UniqueStream stream = MakeStream();
      std::vector<std::unique_ptr<RankTensors>> tensors;
      for (const AllReduceCase& c : cases) {
        tensors.push_back(std::make_unique<RankTensors>(c, r, kRounds));
      }
      const UniqueGraphExec graph = CaptureGraph(stream.get(), [&] {
        for (int round = 0; round < kRounds; ++round) {
          for (size_t i = 0; i < cases.size(); ++i) {
            Launch(tensors[i]->Params(cases[i], exchange.Peers(r), round),
                   {.stream = stream.get(), .dependent = dependent && round + i > 0});
          }
        }
      });
      TOKLINE_CUDA(cudaGraphUpload(graph.get(), stream.get()));
      TOKLINE_CUDA(cudaStreamSynchronize(stream.get()));
      allocated();
      for (int replay = 0; replay < 20; ++replay) {
        if (replay % 3 == r % 3) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        TOKLINE_CUDA(cudaGraphLaunch(graph.get(), stream.get()));
        RequireAllReduced(exchange.Peers(r), stream.get());
        for (size_t i = 0; i < cases.size(); ++i) {
          EXPECT_TRUE(tensors[i]->Check(cases[i])) << "rank " << r << ", replay " << replay;
          tensors[i]->ClearOutputs();
        }
      }
    });
  }
}

// Where NCCL is there. Of small integers all sums are exact, in whatever order NCCL adds.
TEST_F(AllReduceNormPeersCudaTest, NcclGivesTheSameSums) {
  // Sums inside the switches (NVLink multicast) are left alone.
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  try {
    NcclVersion();
  } catch (const CudaError&) {
    throw;
  } catch (const RuntimeFailure& error) {
    GTEST_SKIP() << error.what();
  }
  const std::vector<UniqueNcclComm> communicators = MakeNcclComms(2);
  AllReduceCase c({.ranks = 2, .tokens = 5, .hidden = 2560});
  for (int32_t r = 0; r < 2; ++r) {
    const HostTensor integers = testing::IntegerTensor(DType::kBf16, 5 * 2560, 7 + r, -40, 40);
    for (int64_t i = 0; i < integers.size(); ++i) c.partials[r].Set(i, integers[i]);
  }
  const HostTensor integers = testing::IntegerTensor(DType::kBf16, 5 * 2560, 9, -40, 40);
  for (int64_t i = 0; i < integers.size(); ++i) c.residual.Set(i, integers[i]);
  for (const bool in_place : {false, true}) {
    OnEveryRank(2, [&](int32_t r, const std::function<void()>& allocated) {
      const RankTensors tensors(c, r);
      const UniqueStream stream = MakeStream();
      AllReduceNormParams params = tensors.Params(c, {.world_size = 2, .rank = r});
      if (in_place) params.residual_out = tensors.residual.data();
      allocated();
      LaunchOverNccl(params, communicators[r].get(), {.stream = stream.get()});
      const DeviceBuffer& sums = in_place ? tensors.residual : tensors.residual_out;
      EXPECT_TRUE(c.Check(ToHost(sums, DType::kBf16), ToHost(tensors.out, DType::kBf16)))
          << "rank " << r << ", in place " << in_place;
    });
  }
}

TEST_F(AllReduceNormPeersCudaTest, AMissingRankEndsTheOthersWithAnError) {
  const Exchange exchange(2, 1, 2560, true);
  const AllReduceCase c({.ranks = 2, .hidden = 2560});
  const RankTensors tensors(c, 0);
  AllReduceNormParams params = tensors.Params(c, exchange.Peers(0));
  params.time_limit_ms = 50;
  Launch(params, {});
  EXPECT_THAT(ErrorOf(exchange.Peers(0)), HasSubstr("rank 1 of 2 did not send in time"));
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_THAT(ErrorOf(exchange.Peers(1)), HasSubstr("rank 0 gave up"));
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

}  // namespace
}  // namespace tokline
