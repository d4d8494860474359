// Benches rmsnorm_qkv ("qkv"): norm and projection alone, and with QK-norm, RoPE and KV append.
#include <algorithm>

#include "benches/append_batch.h"
#include "benches/bench_case.h"
#include "benches/linear_variants.h"
#include "benches/paged_batch.h"
#include "benches/shared_matmul.h"
#include "kernels/rmsnorm_qkv/rmsnorm_qkv.h"
#include "reference/rmsnorm_qkv.h"

namespace tokline::bench {
namespace {

constexpr float kNormEps = 1e-6f;
constexpr int32_t kPageSize = 256;

struct QkvShape {
  int64_t hidden = 0;
  int32_t hq = 0;
  bool append = false;
  int64_t rope_rows = 0;
  LinearVariant variant = LinearVariant::kAuto;
};

class QkvCase final : public KernelCase<RmsNormQkvParams> {
 public:
  // The batch determines the number of tokens, and their slots if they are appended.
  QkvCase(AppendBatch batch, const QkvShape& shape, const CaseContext& context)
      : KernelCase(RmsNormQkvReference),
        batch_(std::move(batch)),
        shape_(shape),
        dtype_(context.dtype) {
    const int32_t head_dim = batch_.layout.head_dim;
    x_ = tensors_.Random(dtype_, batch_.NumTokens(), shape.hidden);
    norm_ = tensors_.Random(dtype_, 1, shape.hidden);
    weight_ = tensors_.Random(dtype_, OutFeatures(), shape.hidden, WeightLog2Scale(shape.hidden));
    // After an append, K and V are in the pool, and their columns of qkv are unspecified.
    qkv_ = tensors_.Output(dtype_, batch_.NumTokens(), OutFeatures(), FusedSumTolerance(dtype_),
                           shape.append ? int64_t{shape.hq} * head_dim : -1);
    if (shape.append) {
      kv_ = tensors_.Output(dtype_, batch_.PoolRows(), head_dim, FusedSumTolerance(dtype_));
      q_norm_ = tensors_.Random(dtype_, 1, head_dim);
      k_norm_ = tensors_.Random(dtype_, 1, head_dim);
      slots_ = tensors_.Table(batch_.slots);
      positions_ = tensors_.Table(batch_.positions);
      rope_ = tensors_.Table(RopeTable(shape.rope_rows, head_dim));
    }
    if (!context.device) return;
    matmul_ = SharedMatmul();
    workspace_bytes_ = LinearWorkspaceBytes(Bind(SymbolicSet(tensors_)).projection);
    workspace_ = tensors_.Workspace(workspace_bytes_);
  }

  SampledCase Sample(uint64_t seed) const override {
    const int32_t head_dim = batch_.layout.head_dim;
    const int32_t num_kv_heads = batch_.layout.num_kv_heads;
    const std::vector<int64_t> kv_heads = PickKvHead(num_kv_heads, seed);
    // Picks a KV head and its query heads from the weight's rows and qkv's columns, in the order Q,
    // K, V.
    std::vector<int64_t> heads = ExpandGroups(kv_heads, shape_.hq / num_kv_heads);
    QkvShape reduced = shape_;
    reduced.hq = static_cast<int32_t>(heads.size());
    for (const int64_t head : kv_heads) heads.push_back(shape_.hq + head);
    for (const int64_t head : kv_heads) heads.push_back(shape_.hq + num_kv_heads + head);
    AppendSample sample = SamplePages(batch_, kv_heads, seed);
    SampledCase sampled(
        std::make_unique<QkvCase>(std::move(sample.batch), reduced, CaseContext{.dtype = dtype_}));
    sampled.maps[x_].rows = sample.tokens;
    sampled.maps[weight_].rows = ExpandGroups(heads, head_dim);
    sampled.maps[qkv_] = {.rows = sample.tokens, .cols = sampled.maps[weight_].rows};
    if (shape_.append) sampled.maps[kv_].rows = std::move(sample.pool_rows);
    return sampled;
  }

 protected:
  RmsNormQkvParams Bind(const TensorSet& set) const override {
    RmsNormQkvParams params{.projection = {.dtype = dtype_,
                                           .variant = shape_.variant,
                                           .num_tokens = batch_.NumTokens(),
                                           .in_features = shape_.hidden,
                                           .out_features = OutFeatures(),
                                           .x = set.At(x_),
                                           .x_stride = shape_.hidden,
                                           .norm_weight = set.At(norm_),
                                           .norm_eps = kNormEps,
                                           .weight = set.At(weight_),
                                           .out = set.At(qkv_),
                                           .out_stride = OutFeatures(),
                                           .matmul = matmul_,
                                           .workspace = set.At(workspace_),
                                           .workspace_bytes = workspace_bytes_}};
    if (shape_.append) {
      params.append = {.num_q_heads = shape_.hq,
                       .layout = batch_.layout,
                       .kv = set.At(kv_),
                       .slots = set.At<int64_t>(slots_),
                       .q_norm_weight = set.At(q_norm_),
                       .k_norm_weight = set.At(k_norm_),
                       .norm_eps = kNormEps,
                       .positions = set.At<int32_t>(positions_),
                       .rope_cos_sin = set.At<float>(rope_),
                       .rope_rows = shape_.rope_rows};
    }
    return params;
  }

 private:
  int64_t OutFeatures() const {
    return int64_t{shape_.hq + 2 * batch_.layout.num_kv_heads} * batch_.layout.head_dim;
  }

  AppendBatch batch_;
  QkvShape shape_;
  DType dtype_;
  int x_, norm_, weight_, qkv_;
  int kv_ = -1, q_norm_ = -1, k_norm_ = -1, slots_ = -1, positions_ = -1, rope_ = -1;
  int workspace_ = -1;
  Matmul* matmul_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

void AddCases(ShapeReader& shape, const CaseContext& context, std::vector<CaseSpec>& cases) {
  const auto [hq, hk] = shape.QueryAndKvHeads();
  QkvShape qkv{.hidden = shape.Int("hidden"), .hq = hq};
  const PagedKvLayout layout{
      .num_kv_heads = hk,
      .page_size = kPageSize,
      .head_dim = static_cast<int32_t>(shape.IntOr("head_dim", 128, kHeadDims))};
  const std::vector<int64_t> append_options = shape.IntsOr("append", {0, 1}, {0, 1});
  for (const int64_t tokens : shape.Ints("tokens")) {
    for (const int64_t append : append_options) {
      const KvAppendParams heads{.layout = layout};
      const LinearParams projection{.num_tokens = tokens,
                                    .in_features = qkv.hidden,
                                    .out_features = int64_t{hq + 2 * hk} * layout.head_dim,
                                    .norm_weight = &kSomeNorm,
                                    .append = append != 0 ? &heads : nullptr};
      for (const auto [variant, chosen] : LinearVariantsOf(projection, context)) {
        qkv.append = append != 0;
        qkv.variant = variant;
        CaseSpec& spec = cases.emplace_back();
        spec.shape = {{"name", shape.name()},      {"tokens", tokens},
                      {"hidden", qkv.hidden},      {"hq", qkv.hq},
                      {"hk", layout.num_kv_heads}, {"head_dim", layout.head_dim},
                      {"append", qkv.append}};
        spec.variant = StrCat("tokens:", tokens, qkv.append ? "/append" : "");
        spec.implementation = Name(variant);
        spec.chosen = chosen;
        spec.make = [=](const CaseContext& ctx) -> std::unique_ptr<BenchCase> {
          AppendBatch batch = ManySequences(layout, tokens);
          QkvShape made = qkv;
          made.rope_rows = 1 + *std::max_element(batch.positions.begin(), batch.positions.end());
          return std::make_unique<QkvCase>(std::move(batch), made, ctx);
        };
      }
    }
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv,
      {.kernel = "rmsnorm_qkv", .families = {"qkv"}, .add_cases = tokline::bench::AddCases});
}
