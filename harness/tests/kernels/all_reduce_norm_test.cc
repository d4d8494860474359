// all_reduce_norm without a device: validation, cost, plan, buffers, and the reference.
#include "reference/all_reduce_norm.h"

#include <gmock/gmock.h>

#include <functional>

#include "harness/tests/kernels/all_reduce_norm_case.h"
#include "harness/tests/kernels/devices.h"
#include "harness/tests/message_of.h"
#include "kernels/all_reduce_norm/all_reduce_norm_plan.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::AllReduceCase;
using testing::Devices;
using ::testing::HasSubstr;
using testing::HostTensor;
using Params = AllReduceNormParams;
using Variant = AllReduceNormVariant;

constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16};

void AddSlabs(Params& params, int64_t tokens) {
  params.peers.slab_bytes =
      AllReduceNormSlabBytes(params.peers.world_size, tokens, params.hidden_size);
  params.peers.bytes += params.peers.slab_bytes;
}

// Params of this shape with addresses that must not be followed.
Params Shape(int32_t ranks, int64_t tokens, int64_t hidden, Variant variant = Variant::kAuto) {
  const auto address = [](int64_t n) { return reinterpret_cast<void*>(n << 20); };
  Params params{
      .variant = variant,
      .num_tokens = tokens,
      .hidden_size = hidden,
      .eps = 1e-6f,
      .partials = {address(1)},
      .partial_stride = hidden,
      .residual = address(2),
      .residual_stride = hidden,
      .weight = address(3),
      .residual_out = address(4),
      .residual_out_stride = hidden,
      .out = address(5),
      .out_stride = hidden,
      .peers = {.world_size = ranks, .bytes = AllReduceNormBufferBytes(ranks, tokens, hidden)}};
  if (variant == Variant::kSlabs) AddSlabs(params, tokens);
  for (int32_t r = 0; r < ranks; ++r) params.peers.buffers[r] = address(10 + r);
  return params;
}

TEST(AllReduceNormTest, PiecesOfRowsGiveWhatTheWholeGives) {
  for (const bool residual : {true, false}) {
    const AllReduceCase c(
        {.ranks = 3, .tokens = 5, .hidden = 24, .pad = 8, .residual = residual, .norm = residual});
    testing::HostTensor sum = c.NewOut(), out = c.NewOut();
    const Params whole = c.Params(1, sum.data(), out.data());
    for (const int64_t begin : {0, 2, 4}) {
      AllReduceNormReference(RowsOf(whole, begin, std::min<int64_t>(2, 5 - begin)));
    }
    EXPECT_TRUE(c.Check(sum, out));
  }
}

TEST(AllReduceNormTest, AHeaderThatTellsOfAMissingRankIsAnError) {
  const PeerBuffers peers{.world_size = 3, .rank = 1};
  const auto said = [&](const AllReduceHeader& header) {
    return testing::MessageOf<RuntimeFailure>([&] { RequireAllReduced(peers, header); });
  };
  EXPECT_EQ(said({.launches = 9}), "nothing was thrown");
  EXPECT_EQ(said({.gave_up = 1, .missing_rank = 2, .missing_launch = 7}),
            "rank 1 gave up its all-reduce number 7: rank 2 of 3 did not send in time");
  EXPECT_EQ(said({.peer_failed = 3}), "rank 1 ended its all-reduces: rank 2 gave up");
}

// The message with which a valid problem of 3 ranks is refused after `change`.
std::string RefusalOf(const std::function<void(Params&)>& change) {
  Params params = Shape(3, 4, 64);
  Validate(params);
  ValidateBuffers(params);
  change(params);
  return testing::MessageOf([&] {
    Validate(params);
    ValidateBuffers(params);
  });
}

TEST(AllReduceNormTest, ValidateStatesWhatIsWrong) {
  const auto refused = [](const std::function<void(Params&)>& change, const char* says) {
    EXPECT_THAT(RefusalOf(change), HasSubstr(says));
  };
  refused([](Params& p) { p.num_tokens = -3; }, "num_tokens is -3");
  refused([](Params& p) { p.hidden_size = 0; }, "hidden_size is 0");
  refused([](Params& p) { p.eps = -1; }, "eps is -1");
  refused([](Params& p) { p.time_limit_ms = 0; }, "time_limit_ms is 0");
  refused([](Params& p) { p.time_limit_ms = int64_t{1} << 45; },  // wraps in nanoseconds
          "time_limit_ms is 35184372088832; it must be 1 to 31536000000");
  refused([](Params& p) { p.peers.world_size = 9; }, "world_size is 9; it must be 1 to 8");
  refused([](Params& p) { p.peers.world_size = 0; }, "world_size is 0");
  refused([](Params& p) { p.peers.rank = 3; }, "rank is 3; it must be 0 to 2");
  refused([](Params& p) { p.peers.rank = -1; }, "rank is -1");
  refused([](Params& p) { p.partials[0] = nullptr; }, "must not be null");
  refused([](Params& p) { p.residual_out = nullptr; }, "must not be null");
  refused([](Params& p) { p.weight = nullptr; }, "the norm needs both");
  refused([](Params& p) { p.out = nullptr; }, "the norm needs both");
  refused([](Params& p) { p.out = p.residual_out; }, "out must be none of");
  refused([](Params& p) { p.partial_stride = 63; }, "partial_stride is 63");
  refused([](Params& p) { p.residual_stride = 63; }, "residual_stride is 63");
  refused([](Params& p) { p.residual_out_stride = 0; }, "residual_out_stride is 0");
  refused([](Params& p) { p.out_stride = 1; }, "out_stride is 1");
  refused(
      [](Params& p) {
        p.residual_out = const_cast<void*>(p.residual);
        p.residual_out_stride = 72;
      },
      "residual and residual_out are one tensor, but have strides 64 and 72");
  refused(
      [](Params& p) {
        p.variant = Variant::kTwoShot;
        p.num_tokens = 2;
      },
      "two_shot needs a row for each of 3 ranks; num_tokens is 2");
  refused([](Params& p) { p.variant = Variant::kSlabs; },
          "a slab for each of them; 4 tokens have 1 for 3");
  refused(
      [](Params& p) {
        p.variant = Variant::kSlabs;
        p.num_tokens = 12;
        p.out_stride = 68;
      },
      "slabs needs rows of a multiple of 16 B");
}

TEST(AllReduceNormTest, ValidateStatesWhatIsWrongWithTheBuffers) {
  EXPECT_THAT(RefusalOf([](Params& p) { p.peers.buffers[2] = nullptr; }), HasSubstr("buffers[2]"));
  EXPECT_THAT(RefusalOf([](Params& p) {
                p.peers.buffers[1] = static_cast<char*>(p.peers.buffers[1]) + 16;
              }),
              HasSubstr("a multiple of 256"));
  EXPECT_THAT(RefusalOf([](Params& p) { p.peers.bytes = 0; }), HasSubstr("buffers of 0 bytes"));
  EXPECT_THAT(RefusalOf([](Params& p) { p.num_tokens = 5; }),
              HasSubstr("5 x 64 with one_shot and 3 ranks takes 240"));
  const auto refused_slabs = [](int64_t slab_bytes, int64_t packet_bytes) {
    return RefusalOf([&](Params& p) {
      p.peers.slab_bytes = slab_bytes;
      p.peers.bytes = slab_bytes + packet_bytes;
    });
  };
  EXPECT_THAT(refused_slabs(100, 1 << 20), HasSubstr("slab_bytes is 100 of"));
  EXPECT_THAT(refused_slabs(-256, 1 << 20), HasSubstr("slab_bytes is -256 of"));
  EXPECT_THAT(refused_slabs(1 << 20, 0), HasSubstr("with 256 bytes or more before the slabs"));
  EXPECT_THAT(refused_slabs(1 << 20, (1 << 20) + 8), HasSubstr("both must be multiples of 256"));
  EXPECT_THAT(RefusalOf([](Params& p) {
                p.variant = Variant::kSlabs;
                p.num_tokens = 13;
                AddSlabs(p, 12);
              }),
              HasSubstr("13 x 64 with 3 ranks takes 75776"));
  EXPECT_THAT(RefusalOf([](Params& p) {
                p.variant = Variant::kSlabs;
                p.num_tokens = 100'000;
                AddSlabs(p, 100'000);
              }),
              HasSubstr("at most 8192 flags of 12502"));
}

TEST(AllReduceNormTest, BuffersHoldTheShapesThatTheyWereMadeFor) {
  for (int32_t ranks = 1; ranks <= kMaxRanks; ++ranks) {
    for (const int64_t most : {1, 8, 64, 513, 2049}) {
      for (const int64_t hidden : {1, 64, 2560, 8191}) {
        const int64_t bytes = AllReduceNormBufferBytes(ranks, most, hidden);
        for (const int64_t tokens : {int64_t{1}, most / 2, most - 1, most}) {
          for (const Variant variant :
               {Variant::kAuto, Variant::kOneShot, Variant::kTwoShot, Variant::kSlabs}) {
            if (variant == Variant::kTwoShot && tokens < ranks) continue;
            const bool slabs = variant == Variant::kSlabs;
            if (slabs && (SlabsOf(ranks, tokens).slabs < ranks || hidden % 8 != 0)) continue;
            Params params = Shape(ranks, tokens, hidden, variant);
            params.peers.bytes = bytes;
            params.peers.slab_bytes = 0;
            if (slabs) AddSlabs(params, most);
            EXPECT_NO_THROW(ValidateBuffers(params)) << ranks << " ranks, " << tokens;
          }
        }
      }
    }
  }
}

TEST(AllReduceNormTest, CostMatchesBruteForceCount) {
  for (const bool residual : {false, true}) {
    for (const bool norm : {false, true}) {
      const AllReduceCase c(
          {.ranks = 4, .tokens = 3, .hidden = 5, .residual = residual, .norm = norm});
      double reads = 0, writes = 0, flops = 0;
      for (int t = 0; t < 3; ++t) {
        for (int i = 0; i < 5; ++i) {
          reads += 2 + (residual ? 2 : 0) + (norm && t == 0 ? 2 : 0);
          writes += norm ? 4 : 2;
          flops += 3 + (residual ? 1 : 0) + (norm ? 4 : 0);
        }
      }
      const Cost cost = CostOf(c.Params(0, nullptr, nullptr));
      EXPECT_EQ(cost.read_bytes, reads);
      EXPECT_EQ(cost.write_bytes, writes);
      EXPECT_EQ(cost.flops, flops);
    }
  }
  EXPECT_EQ(CostOf(Params{.hidden_size = 8}).Bytes(), 0);
  // Of 8 rows a rank owns 2: it gets 3 partials of each, and the sums of the other 6.
  EXPECT_EQ(LinkBytesOf(Shape(4, 8, 10)), (3 * 2 + 6) * 10 * 2);
  EXPECT_EQ(LinkBytesOf(Shape(1, 8, 10)), 0);
}

TEST(AllReduceNormTest, PlanTakesTwoShotWhereItSavesBytes) {
  const DeviceFacts& device = testing::kH200;
  const auto variant = [&](int32_t ranks, int64_t tokens) {
    return PlanAllReduceNorm(Shape(ranks, tokens, 4096), device).variant;
  };
  EXPECT_EQ(variant(2, 512), Variant::kOneShot);
  EXPECT_EQ(variant(4, 64), Variant::kOneShot);
  EXPECT_EQ(variant(4, 65), Variant::kTwoShot);
  EXPECT_EQ(variant(8, 32), Variant::kOneShot);
  EXPECT_EQ(variant(8, 33), Variant::kTwoShot);
  // A wide row is one row still: nobody else could own any.
  EXPECT_EQ(PlanAllReduceNorm(Shape(8, 4, 1 << 20), device).variant, Variant::kOneShot);
}

// Three MiB of rows is where they begin to pay.
TEST(AllReduceNormTest, PlanTakesSlabsForManyRowsWhereTheyHaveRoom) {
  const auto variant = [&](int64_t tokens, int64_t hidden, int64_t slab_tokens) {
    Params params = Shape(2, tokens, hidden);
    if (slab_tokens > 0) AddSlabs(params, slab_tokens);
    return PlanAllReduceNorm(params, testing::kH200).variant;
  };
  EXPECT_EQ(variant(383, 4096, 1000), Variant::kOneShot);
  EXPECT_EQ(variant(384, 4096, 1000), Variant::kSlabs);
  EXPECT_EQ(variant(1000, 4096, 1000), Variant::kSlabs);
  EXPECT_EQ(variant(1008, 4096, 1000), Variant::kOneShot);
  EXPECT_EQ(variant(1000, 4096, 0), Variant::kOneShot);
  EXPECT_EQ(variant(1000, 4092, 1000), Variant::kOneShot);
  EXPECT_EQ(variant(1, 1 << 20, 1000), Variant::kOneShot);  // one slab, which a rank would lack
}

TEST(AllReduceNormTest, ALaunchTakesAsManyRowsAsFit) {
  const auto rows = [](int64_t tokens, int64_t hidden, Variant variant = Variant::kAuto) {
    Params params = Shape(4, 512, hidden);
    AddSlabs(params, 4096);
    params.variant = variant;
    params.num_tokens = tokens;
    const int64_t fit = RowsInOneLaunch(params);
    EXPECT_NO_THROW(ValidateBuffers(RowsOf(params, 0, fit))) << tokens << " x " << hidden;
    return fit;
  };
  EXPECT_EQ(rows(1, 4096), 1);
  EXPECT_EQ(rows(100, 4096), 100);
  EXPECT_EQ(rows(513, 4096), 513);
  EXPECT_EQ(rows(10'000, 4096), 4096);
  EXPECT_EQ(rows(10'000, 4096, Variant::kSlabs), 4096);
  EXPECT_EQ(rows(10'000, 4096, Variant::kOneShot), 512);
  EXPECT_GE(rows(10'000, 4094), 512);  // no vectors, so packets; two_shot needs fewer of them
  EXPECT_GE(rows(513, 8), 512);        // few bytes
  EXPECT_EQ(rows(0, 4096), 1);
  // two_shot holds 40 rows where one_shot, which fewer rows take, holds 16.
  Params params = Shape(8, 16, 4096);
  params.num_tokens = 40;
  EXPECT_EQ(RowsInOneLaunch(params), 40);
}

TEST(AllReduceNormTest, ASentPartialIsNotOverwrittenByItsSum) {
  EXPECT_THAT(RefusalOf([](Params& p) {
                p.sent = true;
                p.residual_out = const_cast<void*>(p.partials[p.peers.rank]);
              }),
              HasSubstr("may still write"));
}

TEST(AllReduceNormTest, SentPartialsNeedOneLaunchOfOneShot) {
  const auto takes = [](int32_t ranks, int64_t tokens, int64_t hidden,
                        Variant variant = Variant::kAuto) {
    Params params = Shape(ranks, 64, 4096);
    params.num_tokens = tokens;
    params.hidden_size = hidden;
    params.variant = variant;
    const bool can = TakesSentPartials(params);
    params.sent = true;
    if (can) {
      EXPECT_NO_THROW(ValidateBuffers(params));
    } else if (tokens > 0) {
      EXPECT_THROW(ValidateBuffers(params), InvalidArgument);
    }
    return can;
  };
  EXPECT_TRUE(takes(2, 1, 2560));
  EXPECT_TRUE(takes(2, 64, 4096));
  EXPECT_TRUE(takes(8, 8, 4096));
  EXPECT_FALSE(takes(1, 8, 2560));
  EXPECT_FALSE(takes(2, 0, 2560));
  EXPECT_FALSE(takes(2, 65, 4096));  // two launches
  EXPECT_FALSE(takes(2, 8, 2564));
  EXPECT_FALSE(takes(8, 64, 4096));  // two_shot
  EXPECT_TRUE(takes(8, 64, 4096, Variant::kOneShot));
  EXPECT_FALSE(takes(2, 8, 2560, Variant::kTwoShot));
}

// What they hold may differ; what they are must not.
TEST(AllReduceNormTest, RanksWithOtherAddressesTakeTheSameVariant) {
  Params params = Shape(2, 512, 4096);
  AddSlabs(params, 512);
  EXPECT_EQ(PlanAllReduceNorm(params, testing::kH200).variant, Variant::kSlabs);
  params.residual = static_cast<const char*>(params.residual) + 8;
  EXPECT_EQ(PlanAllReduceNorm(params, testing::kH200).variant, Variant::kSlabs);
  EXPECT_THROW(ValidateBuffers(params), InvalidArgument);
}

TEST(AllReduceNormTest, PlanTakesVectorsOnlyWhereEveryRowIsAligned) {
  const auto vectors = [](const std::function<void(Params&)>& change) {
    Params params = Shape(2, 2, 64);
    change(params);
    return PlanAllReduceNorm(params, testing::kH200).vectors;
  };
  EXPECT_TRUE(vectors([](Params&) {}));
  EXPECT_TRUE(vectors([](Params& p) { p.out_stride = 68; }));
  EXPECT_FALSE(vectors([](Params& p) { p.out_stride = 66; }));
  EXPECT_FALSE(vectors([](Params& p) { p.hidden_size = 63; }));
  EXPECT_FALSE(vectors([](Params& p) { p.residual = static_cast<const char*>(p.residual) + 2; }));
  EXPECT_FALSE(vectors([](Params& p) { p.weight = static_cast<const char*>(p.weight) + 4; }));
}

// Blocks wait for blocks of other ranks, so all of them must be resident: an SM may run just one.
TEST(AllReduceNormTest, PlansAreResidentOnEveryDevice) {
  for (const testing::NamedDevice& device : Devices()) {
    for (const int32_t ranks : {1, 2, 8}) {
      for (const int64_t tokens : {1, 7, 512, 100'000}) {
        for (const int64_t hidden : {1, 64, 2560, 8192, 100'000}) {
          const AllReduceNormPlan plan =
              PlanAllReduceNorm(Shape(ranks, tokens, hidden), device.facts, ranks);
          EXPECT_GE(plan.blocks, 1);
          EXPECT_LE(plan.blocks, tokens);
          EXPECT_LE(plan.blocks * ranks, device.facts.sm_count);
          EXPECT_GE(plan.threads, 32);
          EXPECT_LE(plan.threads, 1024);
          EXPECT_EQ(plan.threads % 32, 0);
          if (ranks == 1 || SlabsOf(ranks, tokens).slabs < ranks || hidden % 8 != 0) continue;
          const AllReduceNormPlan slabs =
              PlanAllReduceNorm(Shape(ranks, tokens, hidden, Variant::kSlabs), device.facts, ranks);
          EXPECT_GE(slabs.blocks, 1);
          EXPECT_LE(slabs.blocks, slabs.slabs.slabs);
          EXPECT_EQ(slabs.threads, 32 * slabs.slabs.rows);
          // 1,024 threads with 64 registers each
          EXPECT_LE(slabs.blocks * slabs.threads * ranks, device.facts.sm_count * 1024);
        }
      }
    }
  }
}

TEST(AllReduceNormReferenceTest, EveryRankGetsTheSumAndItsNorm) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int32_t ranks : {1, 2, 3, 4, 8}) {
      for (const bool residual : {false, true}) {
        for (const bool norm : {false, true}) {
          AllReduceCase c({.dtype = dtype,
                           .ranks = ranks,
                           .tokens = 3,
                           .hidden = 100,
                           .pad = 3,
                           .residual = residual,
                           .norm = norm});
          // Integers, whose sums are exact in fp32 and in double alike.
          for (HostTensor& partial : c.partials) {
            for (int64_t i = 0; i < partial.size(); ++i) {
              if (!std::isnan(partial[i])) partial.Set(i, std::round(8 * partial[i]));
            }
          }
          for (int64_t i = 0; i < c.residual.size(); ++i) {
            if (!std::isnan(c.residual[i])) c.residual.Set(i, std::round(8 * c.residual[i]));
          }
          for (int32_t rank = 0; rank < ranks; ++rank) {
            HostTensor residual_out = c.NewOut(), out = c.NewOut();
            AllReduceNormReference(c.Params(rank, residual_out.data(), out.data()));
            EXPECT_TRUE(c.Check(residual_out, out));
          }
        }
      }
    }
  }
}

// Against sums in double, the contract's sums in fp32 are off by the fp32 roundings alone.
TEST(AllReduceNormReferenceTest, SumsInFp32AreWithinTheirRoundings) {
  for (const DType dtype : kDTypes) {
    const AllReduceCase c({.dtype = dtype, .ranks = 8, .tokens = 4, .hidden = 500});
    HostTensor residual_out = c.NewOut(), out = c.NewOut();
    AllReduceNormReference(c.Params(0, residual_out.data(), out.data()));
    for (int64_t i = 0; i < 4 * 500; ++i) {
      double magnitude = std::abs(c.residual[i]);
      for (const HostTensor& partial : c.partials) magnitude += std::abs(partial[i]);
      const double expected = residual_out[i];
      EXPECT_NEAR(c.SumAt(i), expected,
                  2 * testing::HalfUlp(dtype, expected) + 8 * 0x1p-24 * magnitude)
          << Name(dtype) << ", index " << i;
    }
  }
}

TEST(AllReduceNormReferenceTest, APartialThatIsMissingIsNamed) {
  const AllReduceCase c({.ranks = 3});
  HostTensor residual_out = c.NewOut(), out = c.NewOut();
  Params params = c.Params(0, residual_out.data(), out.data());
  params.partials[2] = nullptr;
  EXPECT_THAT([&] { AllReduceNormReference(params); },
              ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("partials[2] is null")));
}

}  // namespace
}  // namespace tokline
