// Linear without a device: validation, cost, and the layout of fragments.
#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <string>

#include "harness/tests/kernels/linear_case.h"
#include "harness/tests/message_of.h"
#include "kernels/common/error.h"
#include "kernels/common/peer_buffers.h"
#include "kernels/kv_append/kv_append.h"
#include "kernels/linear/linear_plan.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::HostTensor;
using testing::LinearCase;
using testing::LinearSetup;
using testing::MessageOf;

// The message with which Validate rejects a valid problem of 2 tokens after one field has changed.
std::string RefusalOf(const std::function<void(LinearParams&)>& change) {
  const LinearCase c({.tokens = 2, .bias = true, .residual = true});
  HostTensor out = c.NewOut();
  LinearParams params = c.Params(out.data());
  Validate(params);
  change(params);
  return MessageOf([&] { Validate(params); });
}

TEST(LinearTest, ValidateStatesWhatIsWrong) {
  using P = LinearParams;
  EXPECT_THAT(RefusalOf([](P& p) { p.num_tokens = -1; }), HasSubstr("num_tokens is -1"));
  EXPECT_THAT(RefusalOf([](P& p) { p.in_features = 12; }),
              HasSubstr("in_features is 12; it must be a multiple of 8"));
  EXPECT_THAT(RefusalOf([](P& p) { p.out_features = 0; }), HasSubstr("out_features is 0"));
  EXPECT_THAT(RefusalOf([](P& p) { p.gated_silu = true; }),
              HasSubstr("gated_silu and residual exclude each other"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.residual = nullptr;
                p.gated_silu = true;
                p.out_features = 60;
              }),
              HasSubstr("out_features is 60; with gated_silu"));
  EXPECT_THAT(RefusalOf([](P& p) { p.out_f32 = true; }), HasSubstr("out_f32 goes neither"));
  const KvAppendParams append{.num_q_heads = 2,
                              .layout = {.num_pages = 1, .num_kv_heads = 1, .head_dim = 64}};
  const auto refused_append = [&](const std::function<void(LinearParams&)>& change) {
    return RefusalOf([&](P& p) {
      p.residual = nullptr;
      p.append = &append;
      p.out_features = p.out_stride = 4 * 64;
      change(p);
    });
  };
  EXPECT_EQ(refused_append([](P&) {}), "nothing was thrown");
  EXPECT_THAT(
      refused_append([](P& p) { p.out_features = p.out_stride = 5 * 64; }),
      HasSubstr("out_features is 320; append takes 2 heads of q, at least one, and 1 of k"));
  float squares = 0;
  EXPECT_THAT(refused_append([&](P& p) { p.out_squares = &squares; }),
              HasSubstr("out_squares goes with none of gated_silu, out_f32 and append"));
  PeerBuffers peers{.world_size = 2, .bytes = 1 << 20};
  for (void*& buffer : peers.buffers) buffer = reinterpret_cast<void*>(0x1000);
  EXPECT_THAT(RefusalOf([&](P& p) { p.send = &peers; }), HasSubstr("send goes with none of"));
  const auto refused_send = [&](const std::function<void(PeerBuffers&)>& change) {
    PeerBuffers changed = peers;
    change(changed);
    return RefusalOf([&](P& p) {
      p.residual = nullptr;
      p.send = &changed;
    });
  };
  EXPECT_EQ(refused_send([](PeerBuffers&) {}), "nothing was thrown");
  EXPECT_THAT(refused_send([](PeerBuffers& b) { b.world_size = 1; }),
              HasSubstr("rank 0 of 1; there must be 2 to 8 ranks"));
  EXPECT_THAT(refused_send([](PeerBuffers& b) { b.rank = 2; }), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(refused_send([](PeerBuffers& b) { b.bytes = 512; }), HasSubstr("it has 128"));
  EXPECT_THAT(refused_send([](PeerBuffers& b) { b.buffers[1] = nullptr; }),
              HasSubstr("buffers[1] of send is"));
  EXPECT_THAT(RefusalOf([&](P& p) {
                p.residual = nullptr;
                p.out_features = 60;
                p.send = &peers;
              }),
              HasSubstr("a multiple of 8; it is 60"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.norm_weight = p.weight;
                p.norm_eps = -1;
              }),
              HasSubstr("norm_eps is -1"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.variant = LinearVariant::kSkinny;
                p.num_tokens = 17;
              }),
              HasSubstr("num_tokens is 17; kSkinny takes at most 16"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.variant = LinearVariant::kWgmma;
                p.num_tokens = 65;
              }),
              HasSubstr("num_tokens is 65; kWgmma takes at most 64"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.variant = LinearVariant::kTile;
                p.num_tokens = 257;
              }),
              HasSubstr("num_tokens is 257; kTile takes at most 256"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.variant = LinearVariant::kHead;
                p.num_tokens = 129;
              }),
              HasSubstr("num_tokens is 129; kHead takes at most 128"));
  EXPECT_THAT(RefusalOf([](P& p) { p.variant = LinearVariant::kHead; }),
              HasSubstr("out_f32 is 0 and bias is"));
  const int32_t flag = 1;
  EXPECT_THAT(RefusalOf([&](P& p) { p.only_best = &flag; }), HasSubstr("only_best needs best"));
  EXPECT_THAT(RefusalOf([](P& p) { p.variant = LinearVariant::kNormThenSkinny; }),
              HasSubstr("kNormThenSkinny needs a norm_weight"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.variant = LinearVariant::kSkinny;
                p.num_tokens = 16;
                p.in_features = p.x_stride = 16384;
              }),
              HasSubstr("needs more than the 163840 B of shared memory"));
  EXPECT_THAT(RefusalOf([](P& p) { p.x_squares = reinterpret_cast<const float*>(uintptr_t{36}); }),
              HasSubstr("x_squares is at 0x24; it must be 16 B aligned"));
  EXPECT_THAT(RefusalOf([](P& p) { p.prefetch_bytes = 16; }),
              HasSubstr("with 16 bytes; it must be 16 B aligned, or null with 0 bytes"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.prefetch = static_cast<const char*>(p.weight) + 8;
                p.prefetch_bytes = 16;
              }),
              HasSubstr("it must be 16 B aligned"));
  EXPECT_THAT(RefusalOf([](P& p) { p.weight = nullptr; }), HasSubstr("must not be null"));
  EXPECT_THAT(RefusalOf([](P& p) { p.x = static_cast<const char*>(p.x) + 2; }),
              HasSubstr("it must be 16 B aligned"));
  EXPECT_THAT(RefusalOf([](P& p) { p.out = const_cast<void*>(p.x); }),
              HasSubstr("must not overlap"));
  EXPECT_THAT(RefusalOf([](P& p) { p.x_stride = 68; }), HasSubstr("x_stride is 68"));
  EXPECT_THAT(RefusalOf([](P& p) { p.x_stride = 56; }), HasSubstr("x_stride is 56"));
  EXPECT_THAT(RefusalOf([](P& p) { p.out_stride = 63; }), HasSubstr("out_stride is 63"));
  EXPECT_THAT(RefusalOf([](P& p) { p.residual_stride = 63; }), HasSubstr("residual_stride is 63"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.residual = p.out;
                p.residual_stride = 72;
              }),
              HasSubstr("residual and out are one tensor, but have strides 72 and 64"));
}

TEST(LinearTest, ValidateLaunchStatesWhatCudaLacks) {
  const LinearCase c({.tokens = 40});
  HostTensor out = c.NewOut();
  LinearParams params = c.Params(out.data());
  const auto refusal = [&] {
    return MessageOf([&] { ValidateLaunch(params, LinearVariant::kMatmul); });
  };
  EXPECT_THAT(refusal(), HasSubstr("matmul is null; kMatmul (num_tokens 40) needs one"));
  params.matmul = reinterpret_cast<Matmul*>(out.data());
  params.workspace = reinterpret_cast<void*>(0x1010);
  EXPECT_THAT(refusal(), HasSubstr("kMatmul needs one, 256 B aligned"));
  EXPECT_THAT(MessageOf([&] { ValidateLaunch(params, LinearVariant::kNormThenSkinny); }),
              HasSubstr("kNormThenSkinny needs one, 256 B aligned"));
  params.workspace = reinterpret_cast<void*>(0x1000);
  params.workspace_bytes = LinearWorkspaceBytes(params) - 1;
  EXPECT_THAT(refusal(),
              HasSubstr(StrCat("LinearWorkspaceBytes asks for ", LinearWorkspaceBytes(params))));
  params.workspace_bytes += 1;
  EXPECT_EQ(refusal(), "nothing was thrown");
  const PeerBuffers peers{.world_size = 2};
  params.send = &peers;
  EXPECT_THAT(refusal(), HasSubstr("send with kMatmul; kWgmma and kTile alone send"));
  params.send = nullptr;
  uint64_t best = 0;
  params.best = &best;
  EXPECT_THAT(refusal(), HasSubstr("best with kMatmul; kHead alone finds it"));
  params.best = nullptr;
  params.dtype = DType::kF32;
  EXPECT_THAT(refusal(), HasSubstr("dtype is f32"));
}

TEST(LinearTest, CostMatchesBruteForceCount) {
  for (const LinearSetup& setup :
       {LinearSetup{.tokens = 3, .in = 16, .out = 5},
        LinearSetup{.tokens = 2, .in = 8, .out = 16, .norm = true, .gated = true, .bias = true},
        LinearSetup{.tokens = 1, .in = 24, .out = 7, .bias = true, .residual = true},
        LinearSetup{.dtype = DType::kF32, .tokens = 2, .in = 8, .out = 3, .out_f32 = true}}) {
    const LinearCase c(setup);
    HostTensor out = c.NewOut();
    double reads = 0, writes = 0, flops = 0;
    const double element = SizeOf(setup.dtype);
    for (int64_t row = 0; row < c.Rows(); ++row) {
      for (int64_t k = 0; k < setup.in; ++k) {
        reads += element;
        flops += 2.0 * setup.tokens;
      }
      if (setup.bias) {
        reads += element;
        flops += setup.tokens;
      }
    }
    for (int64_t t = 0; t < setup.tokens; ++t) {
      for (int64_t k = 0; k < setup.in; ++k) {
        reads += element;
        if (setup.norm) flops += 4;
        if (setup.norm && t == 0) reads += element;
      }
      for (int64_t i = 0; i < setup.out; ++i) {
        writes += SizeOf(c.OutType());
        if (setup.gated) flops += 4;
        if (setup.residual) {
          reads += element;
          flops += 1;
        }
      }
    }
    const Cost cost = CostOf(c.Params(out.data()));
    EXPECT_EQ(cost.read_bytes, reads);
    EXPECT_EQ(cost.write_bytes, writes);
    EXPECT_EQ(cost.flops, flops);
  }
  EXPECT_EQ(CostOf(LinearParams{.in_features = 8, .out_features = 8}).Bytes(), 0);
}

// mma.sync m16n8k16 with the fragment layout of the PTX manual, on lanes' registers of two
// elements: d += a b with a [16, 16], b [16, 8].
using Pair = std::array<double, 2>;
void EmulateMma(std::array<std::array<double, 4>, 32>& d,
                const std::array<std::array<Pair, 4>, 32>& a,
                const std::array<std::array<Pair, 2>, 32>& b) {
  double a_full[16][16], b_full[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      for (int e = 0; e < 2; ++e) a_full[g + r % 2 * 8][2 * t + e + r / 2 * 8] = a[lane][r][e];
    }
    for (int r = 0; r < 2; ++r) {
      for (int e = 0; e < 2; ++e) b_full[2 * t + e + 8 * r][g] = b[lane][r][e];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      for (int k = 0; k < 16; ++k) {
        d[lane][r] += a_full[g + r / 2 * 8][k] * b_full[k][2 * t + r % 2];
      }
    }
  }
}

TEST(LinearTest, SixteenByteLoadsAreTwoMmaFragmentsOfPermutedK) {
  constexpr int kTokens = 16, kRows = 8, kK = 32;
  const HostTensor x = testing::IntegerTensor(DType::kF32, kTokens * kK, 1, -9, 9);
  const HostTensor w = testing::IntegerTensor(DType::kF32, kRows * kK, 2, -9, 9);
  std::array<std::array<double, 4>, 32> d{};
  for (int half = 0; half < 2; ++half) {  // words 0 and 1 of a load, then 2 and 3
    std::array<std::array<Pair, 4>, 32> a;
    std::array<std::array<Pair, 2>, 32> b;
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const auto word = [&](const HostTensor& from, int row, int index) {
        const int64_t at = row * kK + t * 8 + index * 2;
        return Pair{from[at], from[at + 1]};
      };
      a[lane] = {word(x, g, 2 * half), word(x, g + 8, 2 * half), word(x, g, 2 * half + 1),
                 word(x, g + 8, 2 * half + 1)};
      b[lane] = {word(w, g, 2 * half), word(w, g, 2 * half + 1)};
    }
    EmulateMma(d, a, b);
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const int token = lane / 4 + r / 2 * 8, row = lane % 4 * 2 + r % 2;
      double expected = 0;
      for (int k = 0; k < kK; ++k) expected += x[token * kK + k] * w[row * kK + k];
      EXPECT_EQ(d[lane][r], expected);
    }
  }
}

}  // namespace
}  // namespace tokline
