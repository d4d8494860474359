// all_reduce_norm on one device, with all ranks in one grid or on streams of their own.
#include "kernels/all_reduce_norm/all_reduce_norm.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "harness/tests/kernels/all_reduce_norm_case.h"
#include "harness/tests/kernels/all_reduce_norm_cuda_case.h"
#include "harness/tests/kernels/cuda_test.h"
#include "kernels/all_reduce_norm/all_reduce_norm_plan.h"
#include "kernels/common/error.h"

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

// A kernel that is loaded when it is first launched may wait for those that run, which wait for it.
[[maybe_unused]] const int kLoadEverythingFirst = ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);

constexpr DType kDTypes[] = {DType::kBf16, DType::kF16};
constexpr Variant kPacketVariants[] = {Variant::kOneShot, Variant::kTwoShot};
constexpr Variant kVariants[] = {Variant::kOneShot, Variant::kTwoShot, Variant::kSlabs};

// All ranks of a case on one device.
class VirtualRanks {
 public:
  VirtualRanks(const AllReduceCase& c, const Exchange& exchange, int64_t rounds = 1)
      : case_(c), exchange_(exchange) {
    for (int32_t r = 0; r < c.setup.ranks; ++r) {
      tensors_.push_back(std::make_unique<RankTensors>(c, r, rounds));
    }
    SetRound(0);
  }

  // Launches that follow write the outputs of this round.
  void SetRound(int64_t round) {
    params_.clear();
    for (int32_t r = 0; r < case_.setup.ranks; ++r) {
      params_.push_back(tensors(r).Params(case_, exchange_.Peers(r), round));
    }
  }

  std::vector<AllReduceNormParams>& params() { return params_; }
  RankTensors& tensors(int32_t rank) { return *tensors_[static_cast<size_t>(rank)]; }
  void Launch(const LaunchOptions& options = {}) const { LaunchVirtualRanks(params_, options); }
  ::testing::AssertionResult Check() const {
    for (const auto& rank : tensors_) {
      if (const auto result = rank->Check(case_); !result) return result;
    }
    return ::testing::AssertionSuccess();
  }

 private:
  const AllReduceCase& case_;
  const Exchange& exchange_;
  std::vector<std::unique_ptr<RankTensors>> tensors_;
  std::vector<AllReduceNormParams> params_;
};

class AllReduceNormCudaTest : public testing::CudaTest {
 protected:
  static ::testing::AssertionResult RunAndCheck(const AllReduceSetup& setup) {
    const AllReduceCase c(setup);
    const Exchange exchange(setup.ranks, setup.tokens, setup.hidden);
    const VirtualRanks ranks(c, exchange);
    ranks.Launch();
    return ranks.Check();
  }
};

// Vectors and single elements, one packet a thread and several, rows that end within a packet.
TEST_F(AllReduceNormCudaTest, EveryHiddenSizeGivesTheExactSum) {
  for (const DType dtype : kDTypes) {
    for (const int32_t ranks : {1, 2, 3, 4, 8}) {
      for (const int64_t hidden : {1, 7, 64, 100, 1023, 1024, 2560, 2561, 4096, 5002, 8190, 8192}) {
        for (const int64_t pad : {0, 3, 8}) {
          EXPECT_TRUE(RunAndCheck(
              {.dtype = dtype, .ranks = ranks, .tokens = 2, .hidden = hidden, .pad = pad}))
              << "pad " << pad;
        }
      }
    }
  }
}

// Fewer rows than blocks, as many, and more, shared evenly by their owners and not.
TEST_F(AllReduceNormCudaTest, OneToFiveHundredTokensWithEveryVariant) {
  for (const int32_t ranks : {2, 3, 4, 8}) {
    for (const int64_t tokens : {1, 2, 3, 4, 8, 13, 64, 67, 131, 256, 512}) {
      for (const Variant variant : kVariants) {
        if (!Takes(variant, ranks, tokens)) continue;
        EXPECT_TRUE(
            RunAndCheck({.ranks = ranks, .tokens = tokens, .hidden = 1024, .variant = variant}));
      }
    }
  }
}

// Rows of one vector, of less and more than a warp loads at once, and of several times that; slabs
// of 4 and of 16 rows, as many as ranks and more than blocks.
TEST_F(AllReduceNormCudaTest, SlabsOfEveryWidthGiveTheExactSum) {
  for (const DType dtype : kDTypes) {
    for (const int32_t ranks : {2, 3, 8}) {
      for (const int64_t hidden : {8, 264, 1000, 1024, 2560, 8192}) {
        for (const int64_t tokens : {29, 120, 2100}) {
          if (tokens * hidden > 300'000) continue;
          for (const int64_t pad : {0, 8}) {
            EXPECT_TRUE(RunAndCheck({.dtype = dtype,
                                     .ranks = ranks,
                                     .tokens = tokens,
                                     .hidden = hidden,
                                     .pad = pad,
                                     .variant = Variant::kSlabs}))
                << "pad " << pad;
          }
        }
      }
    }
  }
  EXPECT_TRUE(RunAndCheck({.tokens = 20'000, .hidden = 64, .variant = Variant::kSlabs}));
}

// Large numbers of two ranks cancel in every element, so that the sum depends on the order.
TEST_F(AllReduceNormCudaTest, EveryRankAddsInTheOrderOfTheRanks) {
  constexpr int64_t kTokens = 32, kHidden = 1024;
  for (const Variant variant : kVariants) {
    for (const int32_t ranks : {3, 4, 8}) {
      AllReduceCase c({.ranks = ranks, .tokens = kTokens, .hidden = kHidden, .variant = variant});
      for (int64_t i = 0; i < kTokens * kHidden; ++i) {
        const int64_t plus = i % ranks, minus = (plus + 1 + i / ranks % (ranks - 1)) % ranks;
        c.partials[static_cast<size_t>(plus)].Set(i, 0x1p24);
        c.partials[static_cast<size_t>(minus)].Set(i, -0x1p24);
      }
      const Exchange exchange(ranks, kTokens, kHidden);
      const VirtualRanks all(c, exchange);
      all.Launch();
      EXPECT_TRUE(all.Check()) << ranks << " ranks, " << Name(variant);
    }
  }
}

TEST_F(AllReduceNormCudaTest, ResidualAndNormMayBeLeftOut) {
  for (const Variant variant : kVariants) {
    for (const bool residual : {false, true}) {
      for (const bool norm : {false, true}) {
        EXPECT_TRUE(RunAndCheck({.ranks = 4,
                                 .tokens = 19,
                                 .hidden = 2560,
                                 .residual = residual,
                                 .norm = norm,
                                 .variant = variant}));
      }
    }
  }
}

TEST_F(AllReduceNormCudaTest, ResidualOutMayBeTheResidualOrThePartial) {
  for (const Variant variant : kVariants) {
    for (const int64_t hidden : {2560, 8191}) {
      if (variant == Variant::kSlabs && hidden == 8191) continue;
      const AllReduceCase c({.ranks = 4, .tokens = 150, .hidden = hidden, .variant = variant});
      for (const bool is_residual : {false, true}) {
        const Exchange exchange(4, 150, hidden);
        VirtualRanks ranks(c, exchange);
        for (int32_t r = 0; r < 4; ++r) {
          const RankTensors& tensors = ranks.tensors(r);
          ranks.params()[static_cast<size_t>(r)].residual_out =
              (is_residual ? tensors.residual : tensors.partial).data();
        }
        ranks.Launch();
        for (int32_t r = 0; r < 4; ++r) {
          const RankTensors& tensors = ranks.tensors(r);
          EXPECT_TRUE(
              c.Check(ToHost(is_residual ? tensors.residual : tensors.partial, DType::kBf16),
                      ToHost(tensors.out, DType::kBf16)))
              << "residual_out is " << (is_residual ? "residual" : "partial");
        }
      }
    }
  }
}

// A graph of many launches of different shapes and variants, replayed with other inputs: a packet
// of an earlier launch or replay would give an earlier sum.
TEST_F(AllReduceNormCudaTest, ReplaysOfAGraphSumWhatIsThereNow) {
  constexpr int kRounds = 15;
  for (const int32_t ranks : {2, 8}) {
    const Exchange exchange(ranks, 40, 2560);
    std::vector<AllReduceCase> cases;
    for (const AllReduceSetup& shape :
         {AllReduceSetup{.tokens = 1, .hidden = 2560},
          AllReduceSetup{.tokens = 40, .hidden = 1024, .variant = Variant::kTwoShot},
          AllReduceSetup{.tokens = 3, .hidden = 999},
          AllReduceSetup{.tokens = 40, .hidden = 2560, .variant = Variant::kOneShot},
          AllReduceSetup{.tokens = 37, .hidden = 2560, .variant = Variant::kSlabs}}) {
      cases.emplace_back(shape).setup.ranks = ranks;
    }
    std::vector<std::unique_ptr<VirtualRanks>> groups;
    const UniqueStream stream = MakeStream();
    UniqueGraphExec graph;
    for (uint64_t replay = 0; replay < 12; ++replay) {
      for (size_t i = 0; i < cases.size(); ++i) {
        AllReduceSetup setup = cases[i].setup;
        setup.seed = 100 * replay + 10 * i;
        cases[i] = AllReduceCase(setup);
        if (replay == 0) {
          groups.push_back(std::make_unique<VirtualRanks>(cases[i], exchange, kRounds));
        }
        for (int32_t r = 0; r < ranks; ++r) {
          RankTensors& to = groups[i]->tensors(r);
          const auto copy = [](const HostTensor& from, DeviceBuffer& buffer) {
            buffer.CopyFrom(from.data(), buffer.bytes());
          };
          copy(cases[i].partials[static_cast<size_t>(r)], to.partial);
          copy(cases[i].residual, to.residual);
          copy(cases[i].weight, to.weight);
          to.ClearOutputs();
        }
      }
      if (replay == 0) {
        graph = CaptureGraph(stream.get(), [&] {
          for (int round = 0; round < kRounds; ++round) {
            for (const auto& group : groups) {
              group->SetRound(round);
              group->Launch({.stream = stream.get(), .dependent = round % 2 == 1});
            }
          }
        });
      }
      ASSERT_EQ(cudaGraphLaunch(graph.get(), stream.get()), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
      for (const auto& group : groups) EXPECT_TRUE(group->Check()) << "replay " << replay;
    }
    EXPECT_NO_THROW(RequireAllReduced(exchange.Peers(ranks - 1), stream.get()));
  }
}

// Inboxes full of packets whose numbers are those of launches before and after, or half right.
TEST_F(AllReduceNormCudaTest, PacketsOfOtherLaunchesAreNotTaken) {
  constexpr uint32_t kLaunch = 1000;
  for (const Variant variant : kPacketVariants) {
    for (const uint32_t number : {0u, kLaunch - 2, kLaunch - 1, kLaunch + 1, kLaunch + 2, ~0u}) {
      for (const int fresh_half : {-1, 0, 1}) {  // -1: none
        const AllReduceCase c({.ranks = 4, .tokens = 6, .hidden = 1024, .variant = variant});
        Exchange exchange(4, 6, 1024);
        for (int32_t r = 0; r < 4; ++r) {
          std::vector<uint32_t> words(static_cast<size_t>(exchange.Buffer(r).bytes() / 4));
          for (size_t i = 0; i < words.size(); i += 4) {
            words[i] = words[i + 2] = 0x42004200;  // data
            words[i + 1] = fresh_half == 0 ? kLaunch : number;
            words[i + 3] = fresh_half == 1 ? kLaunch : number;
          }
          exchange.Buffer(r).CopyFrom(words.data(), exchange.Buffer(r).bytes());
          exchange.SetHeader(r, {.launches = kLaunch - 1});
        }
        const VirtualRanks ranks(c, exchange);
        ranks.Launch();
        EXPECT_TRUE(ranks.Check())
            << "stale packets of number " << number << ", fresh half " << fresh_half;
        EXPECT_EQ(exchange.Header(2).launches, kLaunch);
      }
    }
  }
}

// Places of slabs full of data, and flags of launches before and after.
TEST_F(AllReduceNormCudaTest, FlagsOfOtherLaunchesAreNotTaken) {
  constexpr uint32_t kLaunch = 1000;
  for (const uint32_t number : {0u, kLaunch - 2, kLaunch - 1, kLaunch + 1, kLaunch + 2, ~0u}) {
    const AllReduceCase c({.ranks = 4, .tokens = 40, .hidden = 1024, .variant = Variant::kSlabs});
    Exchange exchange(4, 40, 1024);
    for (int32_t r = 0; r < 4; ++r) {
      const PeerBuffers peers = exchange.Peers(r);
      std::vector<uint32_t> words(static_cast<size_t>(exchange.Buffer(r).bytes() / 4), 0x42004200);
      std::fill_n(words.begin() + (peers.bytes - peers.slab_bytes) / 4, 2 * kAllReduceSlabFlags,
                  number);
      exchange.Buffer(r).CopyFrom(words.data(), exchange.Buffer(r).bytes());
      exchange.SetHeader(r, {.launches = kLaunch - 1});
    }
    const VirtualRanks ranks(c, exchange);
    ranks.Launch();
    EXPECT_TRUE(ranks.Check()) << "stale flags of number " << number;
    EXPECT_EQ(exchange.Header(2).launches, kLaunch);
  }
}

// A launch writes packets to its own inbox alone, and slabs and flags to its own places.
TEST_F(AllReduceNormCudaTest, InboxesTakeTurnsAndNothingLiesBehindThem) {
  for (const int32_t ranks : {2, 3, 4, 8}) {
    for (const Variant variant : kVariants) {
      const bool slabs = variant == Variant::kSlabs;
      const int64_t tokens = slabs ? 33 : 9, hidden = slabs ? 1024 : 1023;
      const AllReduceCase c(
          {.ranks = ranks, .tokens = tokens, .hidden = hidden, .variant = variant});
      Exchange exchange(ranks, tokens, hidden);
      const VirtualRanks group(c, exchange);
      const auto [bytes, slab_bytes] =
          std::pair(exchange.Peers(0).bytes, exchange.Peers(0).slab_bytes);
      const int64_t packets = bytes - slab_bytes;
      const int64_t inbox = AllReduceInboxCapacity(packets) * kAllReducePacketBytes;
      constexpr int64_t kFlags = kAllReduceSlabFlags * int64_t{sizeof(uint32_t)};
      const int64_t room = (slab_bytes - 2 * kFlags) / 2 / 16 * 16;
      for (const int64_t launch : {1, 2}) {
        group.Launch();
        for (int32_t r = 0; r < ranks; ++r) {
          const auto all = exchange.Buffer(r).ToHost<char>();
          const auto is_zero = [&](int64_t at, int64_t count) {
            return std::all_of(all.begin() + at, all.begin() + at + count,
                               [](char byte) { return byte == 0; });
          };
          if (slabs) {
            EXPECT_TRUE(is_zero(kAllReduceHeaderBytes, packets - kAllReduceHeaderBytes));
            EXPECT_EQ(is_zero(packets, kFlags), launch == 1) << "rank " << r;
            EXPECT_FALSE(is_zero(packets + kFlags, kFlags)) << "rank " << r;
            EXPECT_EQ(is_zero(packets + 2 * kFlags, room), launch == 1) << "rank " << r;
            EXPECT_FALSE(is_zero(packets + 2 * kFlags + room, room)) << "rank " << r;
          } else {
            EXPECT_EQ(is_zero(kAllReduceHeaderBytes, inbox), launch == 1) << "rank " << r;
            EXPECT_FALSE(is_zero(kAllReduceHeaderBytes + inbox, inbox)) << "rank " << r;
            EXPECT_TRUE(is_zero(packets, slab_bytes)) << "rank " << r;
          }
          EXPECT_TRUE(is_zero(bytes, Exchange::kBytesBehind)) << "rank " << r;
        }
      }
    }
  }
}

// 0 is left out, because fresh inboxes are full of it, and the inboxes go on taking turns.
TEST_F(AllReduceNormCudaTest, NumbersOfLaunchesWrap) {
  const AllReduceCase c({.ranks = 2, .tokens = 5, .hidden = 1024});
  Exchange exchange(2, 5, 1024);
  for (int32_t r = 0; r < 2; ++r) exchange.SetHeader(r, {.launches = 0xfffffffd});
  for (const uint32_t number : {0xfffffffeu, 0xffffffffu, 2u, 3u}) {
    const VirtualRanks ranks(c, exchange);
    ranks.Launch();
    EXPECT_TRUE(ranks.Check()) << "launch " << number;
    EXPECT_EQ(exchange.Header(0).launches, number);
    EXPECT_EQ(exchange.Header(1).launches, number);
  }
}

// CUDA_LAUNCH_BLOCKING=1 keeps a launch from returning before its kernel has ended, and so may a
// tool that watches the program.
bool LaunchesReturnAtOnce() {
  const AllReduceCase c({.ranks = 2});
  const Exchange exchange(2, 1, 64);
  VirtualRanks ranks(c, exchange);
  ranks.params()[0].time_limit_ms = 300;
  Launch(ranks.params()[0], {});
  const cudaError_t state = cudaStreamQuery(nullptr);
  cudaGetLastError();  // clears cudaErrorNotReady
  return state == cudaErrorNotReady;
}

// Each rank on a stream of its own. All blocks of 5 ranks with 5 rows are resident at once, as they
// are far fewer than the SMs of any device; streams that the device runs one after another would
// show as a rank that gives up.
TEST_F(AllReduceNormCudaTest, ALateRankIsWaitedFor) {
  if (!LaunchesReturnAtOnce()) GTEST_SKIP() << "here a launch returns when its kernel has ended";
  const auto check = [](const AllReduceSetup& setup, int32_t late) {
    const AllReduceCase c(setup);
    const Exchange exchange(setup.ranks, setup.tokens, setup.hidden);
    VirtualRanks ranks(c, exchange);
    std::vector<UniqueStream> streams;
    for (int32_t r = 0; r < setup.ranks; ++r) streams.push_back(MakeStream());
    const auto launch = [&](int32_t r) {
      Launch(ranks.params()[static_cast<size_t>(r)], {.stream = streams[r].get()});
    };
    for (int32_t r = 0; r < setup.ranks; ++r) {
      if (r != late) launch(r);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    launch(late);
    for (int32_t r = 0; r < setup.ranks; ++r) {
      EXPECT_NO_THROW(RequireAllReduced(exchange.Peers(r), streams[r].get()));
    }
    EXPECT_TRUE(ranks.Check()) << "rank " << late << " is late";
  };
  for (const DType dtype : kDTypes) {
    for (const Variant variant : kVariants) {
      for (const int32_t ranks : {2, 3, 5}) {
        for (const int64_t hidden : {2560, 2561}) {
          for (const int32_t late : {0, ranks - 1}) {
            const bool slabs = variant == Variant::kSlabs;
            if (slabs && hidden == 2561) continue;
            check({.dtype = dtype,
                   .ranks = ranks,
                   .tokens = slabs ? 20 : 5,
                   .hidden = hidden,
                   .variant = variant},
                  late);
          }
        }
      }
    }
  }
}

TEST_F(AllReduceNormCudaTest, AMissingRankEndsTheGroupWithAnError) {
  for (const Variant variant : kVariants) {
    const AllReduceCase c({.ranks = 3, .tokens = 12, .hidden = 2560, .variant = variant});
    const Exchange exchange(3, 12, 2560);
    VirtualRanks ranks(c, exchange);
    for (AllReduceNormParams& params : ranks.params()) params.time_limit_ms = 50;
    EXPECT_EQ(ErrorOf(exchange.Peers(0)), "nothing was thrown");
    Launch(ranks.params()[0], {});
    EXPECT_THAT(ErrorOf(exchange.Peers(0)),
                HasSubstr("rank 0 gave up its all-reduce number 1: rank "));
    EXPECT_THAT(ErrorOf(exchange.Peers(1)), HasSubstr("rank 1 ended its all-reduces: rank 0"));
    // Later launches do not wait, neither here nor at the peers.
    for (AllReduceNormParams& params : ranks.params()) params.time_limit_ms = 60'000;
    const auto begin = std::chrono::steady_clock::now();
    for (int32_t r = 0; r < 2; ++r) Launch(ranks.params()[static_cast<size_t>(r)], {});
    EXPECT_THAT(ErrorOf(exchange.Peers(2)), HasSubstr("rank 2 ended its all-reduces: rank 0"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
}

// Reveals a dependent launch that reads too early.
TEST_F(AllReduceNormCudaTest, DependentChainEqualsPlainChain) {
  const AllReduceCase c({.ranks = 2, .tokens = 40, .hidden = 2048, .norm = false});
  const auto chain = [&](bool dependent) {
    const Exchange exchange(2, 40, 2048);
    VirtualRanks ranks(c, exchange);
    for (int32_t r = 0; r < 2; ++r) {
      AllReduceNormParams& params = ranks.params()[static_cast<size_t>(r)];
      params.residual_out = ranks.tensors(r).residual.data();
      params.residual = params.residual_out;
    }
    for (int layer = 0; layer < 30; ++layer) ranks.Launch({.dependent = dependent});
    return ToHost(ranks.tensors(1).residual, DType::kBf16);
  };
  const HostTensor plain = chain(false);
  for (int repeat = 0; repeat < 3; ++repeat) EXPECT_TRUE(chain(true) == plain);
}

TEST_F(AllReduceNormCudaTest, WhatIsNotSupportedIsRefused) {
  EXPECT_THROW(Launch(AllReduceNormParams{.dtype = DType::kF32, .hidden_size = 8}, {}),
               InvalidArgument);
  const AllReduceCase c({.ranks = 3});
  const Exchange exchange(3, 1, 64);
  VirtualRanks ranks(c, exchange);
  EXPECT_THROW(LaunchVirtualRanks({}, {}), InvalidArgument);
  EXPECT_THROW(LaunchVirtualRanks(std::span(ranks.params()).first(2), {}), InvalidArgument);
  std::swap(ranks.params()[0], ranks.params()[1]);
  EXPECT_THROW(ranks.Launch(), InvalidArgument);
}

TEST_F(AllReduceNormCudaTest, NoTokensLaunchNothing) {
  EXPECT_NO_THROW(Launch(AllReduceNormParams{.hidden_size = 8}, {}));
}

}  // namespace
}  // namespace tokline
