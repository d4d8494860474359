// RMSNorm + QKV on the device: the projection within its bound, the append identical to kv_append.
#include <algorithm>

#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/kernels/linear_cuda_case.h"
#include "harness/tests/kernels/rmsnorm_qkv_case.h"
#include "kernels/device/current_device.h"
#include "kernels/kv_append/kv_append.h"
#include "kernels/rmsnorm_qkv/rmsnorm_qkv.h"

namespace tokline {
namespace {

using testing::HostTensor;
using testing::RmsNormQkvCase;
using testing::RmsNormQkvSetup;
using testing::ToDevice;
using testing::ToHost;

struct Outputs {
  HostTensor qkv, pool;
};

// The tensors of a case in device memory.
class DeviceCase {
 public:
  DeviceCase(RmsNormQkvCase& c, LinearVariant variant)
      : dtype_(c.setup.dtype),
        x_(ToDevice(c.projection.x)),
        norm_weight_(ToDevice(c.projection.norm_weight)),
        weight_(ToDevice(c.projection.weight)),
        bias_(ToDevice(c.projection.bias)),
        qkv_(ToDevice(c.projection.NewOut())),
        pool_(ToDevice(c.append.pool)),
        q_weight_(ToDevice(c.append.q_weight)),
        k_weight_(ToDevice(c.append.k_weight)),
        slots_(c.append.slots),
        positions_(c.append.positions),
        rope_(c.append.rope) {
    params = c.Params(qkv_.data());
    LinearParams& projection = params.projection;
    projection.variant = variant;
    projection.x = x_.data();
    projection.norm_weight = norm_weight_.data();
    projection.weight = weight_.data();
    if (projection.bias) projection.bias = bias_.data();
    workspace_ = DeviceBuffer(LinearWorkspaceBytes(projection));
    projection.matmul = &matmul_;
    projection.workspace = workspace_.data();
    projection.workspace_bytes = workspace_.bytes();
    if (!params.append) return;
    KvAppendParams& append = *params.append;
    append.kv = pool_.data();
    append.slots = slots_.as<int64_t>();
    append.positions = positions_.as<int32_t>();
    if (append.q_norm_weight) append.q_norm_weight = q_weight_.data();
    if (append.k_norm_weight) append.k_norm_weight = k_weight_.data();
    if (append.rope_cos_sin) append.rope_cos_sin = rope_.as<float>();
  }

  Outputs Read() const { return {ToHost(qkv_, dtype_), ToHost(pool_, dtype_)}; }

  RmsNormQkvParams params;

 private:
  DType dtype_;
  Matmul matmul_;
  DeviceBuffer x_, norm_weight_, weight_, bias_, qkv_, pool_, q_weight_, k_weight_, slots_,
      positions_, rope_, workspace_;
};

class RmsNormQkvCudaTest : public testing::CudaTest {};
class RmsNormQkvHopperCudaTest : public testing::HopperCudaTest {};

// Whether both have the same query columns. Those of k and v need not be written.
bool SameQueries(const RmsNormQkvCase& c, const Outputs& a, const Outputs& b) {
  const int64_t stride = c.projection.OutStride();
  const int64_t columns = int64_t{c.setup.num_q_heads} * c.setup.head_dim;
  for (int64_t i = 0; i < c.setup.tokens * stride; ++i) {
    if (i % stride < columns && a.qkv[i] != b.qkv[i]) return false;
  }
  return true;
}

bool Appends(const RmsNormQkvParams& params) {
  const KvAppendParams append = AppendOf(params.projection, *params.append);
  LinearParams projection = params.projection;
  projection.append = &append;
  return LinearAppends(projection, CurrentDeviceFacts());
}

constexpr LinearVariant kVariants[] = {LinearVariant::kSkinny, LinearVariant::kNormThenSkinny,
                                       LinearVariant::kWgmma, LinearVariant::kTile,
                                       LinearVariant::kMatmul};

TEST_F(RmsNormQkvCudaTest, ProjectionIsWithinItsBound) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const LinearVariant variant : kVariants) {
      if (!testing::HasCodeFor(variant)) continue;
      for (const int64_t tokens : {1, 8, 13}) {
        RmsNormQkvCase c({.dtype = dtype,
                          .tokens = tokens,
                          .hidden = 1024,
                          .bias = tokens == 8,
                          .append = false});
        DeviceCase device(c, variant);
        Launch(device.params, {});
        const Outputs out = device.Read();
        EXPECT_TRUE(c.projection.Check(out.qkv))
            << Name(variant) << ", " << Name(dtype) << ", tokens " << tokens;
        EXPECT_TRUE(out.pool == c.append.pool) << "append is off, but the pool changed";
      }
    }
  }
}

TEST_F(RmsNormQkvCudaTest, ManyTokensAreWithinTheirBound) {
  RmsNormQkvCase c({.tokens = 50, .hidden = 256, .append = false});
  DeviceCase device(c, LinearVariant::kAuto);
  Launch(device.params, {});
  EXPECT_TRUE(c.projection.Check(device.Read().qkv));
}

TEST_F(RmsNormQkvCudaTest, EqualsProjectionThenAppend) {
  for (const LinearVariant variant : kVariants) {
    if (!testing::HasCodeFor(variant)) continue;
    for (const bool transform : {false, true}) {
      for (const int64_t tokens : {1, 7, 16}) {
        for (const bool norm : {true, false}) {
          if (!norm && variant == LinearVariant::kNormThenSkinny) continue;
          SCOPED_TRACE(StrCat(tokens, " tokens, transform ", transform, ", norm ", norm));
          RmsNormQkvCase c(
              {.tokens = tokens, .hidden = 512, .head_dim = 128, .transform = transform});
          DeviceCase fused(c, variant), parts(c, variant);
          if (!norm) {
            fused.params.projection.norm_weight = parts.params.projection.norm_weight = nullptr;
          }
          Launch(fused.params, {});
          Launch(parts.params.projection, {});
          if (norm) {
            EXPECT_TRUE(c.projection.Check(parts.Read().qkv));
          }
          Launch(AppendOf(parts.params.projection, *parts.params.append), {});
          const Outputs a = fused.Read(), b = parts.Read();
          EXPECT_TRUE(SameQueries(c, a, b));
          EXPECT_TRUE(a.pool == b.pool);
          EXPECT_FALSE(a.pool == c.append.pool) << "nothing was appended";
        }
      }
    }
  }
}

// The projection's kernel appends by itself: heads of one and of two tiles, shares of K from 1 to
// 4, tokens for some and for all blocks of a cluster, all kinds of heads with and without bias.
TEST_F(RmsNormQkvHopperCudaTest, AppendInsideTheProjectionEqualsKvAppend) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int32_t head_dim : {64, 128}) {
      for (const int64_t tokens : {1, 2, 5, 8, 16, 17, 20, 25, 31, 32}) {
        // K is shared alike with and without the append, by 1 to 4 blocks.
        const int64_t hidden = tokens % 5 == 0 ? 320 : head_dim == 64 ? 1024 : 640;
        const bool transform = tokens % 3 != 0;
        RmsNormQkvCase c({.dtype = dtype,
                          .tokens = tokens,
                          .hidden = hidden,
                          .head_dim = head_dim,
                          .bias = tokens % 2 == 1,
                          .transform = transform});
        // Tokens without a slot write nothing, least of all to slot 0.
        std::ranges::replace(c.append.slots, 0, -1);
        if (tokens > 1) c.append.slots[static_cast<size_t>(tokens / 2)] = -1;
        DeviceCase fused(c, LinearVariant::kWgmma), parts(c, LinearVariant::kWgmma);
        ASSERT_TRUE(Appends(fused.params));
        Launch(fused.params, {});
        Launch(parts.params.projection, {});
        Launch(AppendOf(parts.params.projection, *parts.params.append), {});
        const Outputs a = fused.Read(), b = parts.Read();
        EXPECT_TRUE(SameQueries(c, a, b)) << tokens << " tokens, head_dim " << head_dim;
        EXPECT_TRUE(a.pool == b.pool) << tokens << " tokens, head_dim " << head_dim;
        EXPECT_FALSE(a.pool == c.append.pool) << "nothing was appended";
      }
    }
  }
}

TEST_F(RmsNormQkvCudaTest, DependentLaunchesEqualPlainOnes) {
  for (const LinearVariant variant : kVariants) {
    if (!testing::HasCodeFor(variant)) continue;
    RmsNormQkvCase c({.tokens = 4, .hidden = 1024});
    DeviceCase plain(c, variant), dependent(c, variant);
    Launch(plain.params, {});
    for (int repeat = 0; repeat < 20; ++repeat) Launch(dependent.params, {.dependent = true});
    const Outputs a = plain.Read(), b = dependent.Read();
    EXPECT_TRUE(SameQueries(c, a, b));
    EXPECT_TRUE(a.pool == b.pool);
  }
}

TEST_F(RmsNormQkvCudaTest, NoTokensLaunchNothing) {
  RmsNormQkvCase c({});
  DeviceCase device(c, LinearVariant::kAuto);
  device.params.projection.num_tokens = 0;
  EXPECT_NO_THROW(Launch(device.params, {}));
  EXPECT_TRUE(device.Read().pool == c.append.pool);
}

}  // namespace
}  // namespace tokline
