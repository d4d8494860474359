// Projections that send their outputs to other ranks as partials of the next sum.
#include <memory>
#include <vector>

#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/kernels/linear_case.h"
#include "harness/tests/kernels/linear_cuda_case.h"
#include "kernels/all_reduce_norm/all_reduce_norm.h"
#include "kernels/common/error.h"
#include "kernels/device/current_device.h"
#include "kernels/linear/linear.h"

namespace tokline {
namespace {

using testing::HostTensor;
using testing::LinearCase;
using DeviceCase = testing::LinearDeviceCase;
using testing::LinearHopperCudaTest;
using testing::LinearSetup;
using testing::MaxTokens;
using testing::ToDevice;
using testing::ToHost;

// Ranks of a group on one device, whose projections send their outputs to each other.
class SendingRanks {
 public:
  SendingRanks(const LinearSetup& setup, int32_t ranks) : setup_(setup) {
    peers_.world_size = ranks;
    peers_.bytes = AllReduceNormBufferBytes(ranks, setup.tokens, setup.out);
    for (int32_t r = 0; r < ranks; ++r) {
      buffers_.emplace_back(std::vector<char>(static_cast<size_t>(peers_.bytes)));
      peers_.buffers[r] = buffers_.back().data();
    }
  }

  // Multiplies new operands on every rank, and returns how many sums are not those of the outputs.
  int64_t WrongSums(LinearVariant variant, bool send = true) {
    const int32_t ranks = peers_.world_size;
    std::vector<std::unique_ptr<LinearCase>> cases;
    std::vector<std::unique_ptr<DeviceCase>> projections;
    std::vector<DeviceBuffer> sums;
    std::vector<AllReduceNormParams> all;
    std::vector<HostTensor> partials;
    for (int32_t r = 0; r < ranks; ++r) {
      LinearSetup setup = setup_;
      setup.seed = ++seed_;
      cases.push_back(std::make_unique<LinearCase>(setup));
      projections.push_back(std::make_unique<DeviceCase>(*cases.back(), variant));
      LinearParams& params = projections.back()->params;
      PeerBuffers peers = peers_;
      peers.rank = r;
      EXPECT_TRUE(LinearSends(params, CurrentDeviceFacts()));
      if (send) params.send = &peers;
      partials.push_back(projections.back()->Run());
      sums.push_back(ToDevice(cases.back()->NewOut()));
      all.push_back({.dtype = setup.dtype,
                     .variant = AllReduceNormVariant::kOneShot,
                     .num_tokens = setup.tokens,
                     .hidden_size = setup.out,
                     .partial_stride = params.out_stride,
                     .sent = true,
                     .residual_out = sums.back().data(),
                     .residual_out_stride = params.out_stride,
                     .peers = peers,
                     .time_limit_ms = 2000});
      all.back().partials[r] = params.out;
    }
    LaunchVirtualRanks(all, {});
    for (const AllReduceNormParams& rank : all) RequireAllReduced(rank.peers, nullptr);
    int64_t wrong = 0;
    for (const DeviceBuffer& buffer : sums) {
      const HostTensor got = ToHost(buffer, setup_.dtype);
      const int64_t stride = cases.front()->OutStride();
      for (int64_t i = 0; i < setup_.tokens * stride; ++i) {
        if (i % stride >= setup_.out) continue;
        auto sum = static_cast<float>(partials[0][i]);
        for (int32_t r = 1; r < ranks; ++r) sum += static_cast<float>(partials[r][i]);
        if (got[i] != RoundTo(setup_.dtype, sum)) ++wrong;
      }
    }
    return wrong;
  }

 private:
  LinearSetup setup_;
  PeerBuffers peers_;
  std::vector<DeviceBuffer> buffers_;
  uint64_t seed_ = 0;
};

// Every tile and split, with the inboxes of three launches, which take turns.
TEST_F(LinearHopperCudaTest, SentOutputsAreThePartialsOfTheNextSum) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const LinearVariant variant : {LinearVariant::kWgmma, LinearVariant::kTile}) {
      for (const int64_t tokens : {1, 2, 5, 8, 13, 16, 17, 33, 64, 65, 128}) {
        if (tokens > MaxTokens(variant)) continue;
        for (const auto& [in, out] : {std::pair{256, 136}, std::pair{1024, 512}}) {
          for (const int32_t ranks : {2, 3, 8}) {
            if (ranks == 8 && (in > 256 || tokens % 16 != 1)) continue;
            SendingRanks group({.dtype = dtype,
                                .tokens = tokens,
                                .in = in,
                                .out = out,
                                .bias = ranks == 3,
                                .pad = 8},
                               ranks);
            for (int round = 0; round < 3; ++round) {
              EXPECT_EQ(group.WrongSums(variant), 0)
                  << Name(variant) << ", " << Name(dtype) << ", tokens " << tokens << ", " << in
                  << " to " << out << ", " << ranks << " ranks, round " << round;
            }
          }
        }
      }
    }
  }
}

// Reveals a sum that takes packets of an earlier one, or reads too early. Layers write to two
// tensors in turn, since a sum writes its outputs while the projection may still read.
TEST_F(LinearHopperCudaTest, DependentChainOfSentSumsEqualsAPlainOne) {
  constexpr int32_t kRanks = 2;
  constexpr int64_t kHidden = 512;
  for (const auto& [tokens, variant] :
       {std::pair{1, LinearVariant::kWgmma}, std::pair{16, LinearVariant::kWgmma},
        std::pair{17, LinearVariant::kWgmma}, std::pair{32, LinearVariant::kWgmma},
        std::pair{33, LinearVariant::kWgmma}, std::pair{8, LinearVariant::kTile},
        std::pair{16, LinearVariant::kTile}, std::pair{64, LinearVariant::kTile},
        std::pair{128, LinearVariant::kTile}}) {
    const LinearSetup shape{.tokens = tokens, .in = kHidden, .out = kHidden};
    const LinearCase c(shape), other({.tokens = tokens, .in = kHidden, .out = kHidden, .seed = 2});
    const DeviceBuffer norm = ToDevice(c.norm_weight);
    const auto chain = [&](bool send, bool dependent) {
      PeerBuffers peers{.world_size = kRanks,
                        .bytes = AllReduceNormBufferBytes(kRanks, tokens, kHidden)};
      std::vector<DeviceBuffer> buffers, residuals, normed;
      std::vector<std::unique_ptr<DeviceCase>> projections;
      for (int32_t r = 0; r < kRanks; ++r) {
        buffers.emplace_back(std::vector<char>(static_cast<size_t>(peers.bytes)));
        peers.buffers[r] = buffers.back().data();
        projections.push_back(std::make_unique<DeviceCase>(r == 0 ? c : other, variant));
        residuals.push_back(ToDevice(c.x));
        for (int turn = 0; turn < 2; ++turn) normed.push_back(ToDevice(c.x));
      }
      TOKLINE_CUDA(cudaDeviceSynchronize());
      for (int layer = 0; layer < 40; ++layer) {
        std::vector<AllReduceNormParams> all;
        for (int32_t r = 0; r < kRanks; ++r) {
          PeerBuffers own = peers;
          own.rank = r;
          LinearParams params = projections[r]->params;
          params.x = normed[2 * r + layer % 2].data();
          params.x_stride = kHidden;
          params.send = send ? &own : nullptr;
          Launch(params, {.dependent = dependent});
          all.push_back({.variant = AllReduceNormVariant::kOneShot,
                         .num_tokens = tokens,
                         .hidden_size = kHidden,
                         .eps = 1e-5f,
                         .partial_stride = params.out_stride,
                         .sent = send,
                         .residual = residuals[r].data(),
                         .residual_stride = kHidden,
                         .weight = norm.data(),
                         .residual_out = residuals[r].data(),
                         .residual_out_stride = kHidden,
                         .out = normed[2 * r + (layer + 1) % 2].data(),
                         .out_stride = kHidden,
                         .peers = own});
          all.back().partials[r] = params.out;
        }
        LaunchVirtualRanks(all, {.dependent = dependent});
      }
      return std::pair{ToHost(normed[0], DType::kBf16), ToHost(normed[2], DType::kBf16)};
    };
    const auto plain = chain(false, false);
    for (int repeat = 0; repeat < 3; ++repeat) {
      EXPECT_TRUE(chain(true, true) == plain) << tokens << " tokens, " << Name(variant);
    }
  }
}

TEST_F(LinearHopperCudaTest, WhatWasNotSentIsMissed) {
  for (const int64_t tokens : {8, 32}) {
    SendingRanks group({.tokens = tokens, .in = 256, .out = 512}, 2);
    EXPECT_THROW(group.WrongSums(LinearVariant::kWgmma, false), RuntimeFailure) << tokens;
  }
}

}  // namespace
}  // namespace tokline
