// Benches kv_append ("append"): plain, and with QK-norm and RoPE if the shape has "hq".
#include <algorithm>

#include "benches/append_batch.h"
#include "benches/bench_case.h"
#include "benches/paged_batch.h"
#include "kernels/kv_append/kv_append.h"
#include "reference/kv_append.h"

namespace tokline::bench {
namespace {

constexpr float kNormEps = 1e-6f;

class AppendCase : public KernelCase<KvAppendParams> {
 public:
  // If num_q_heads is 0, K and V are stored unchanged.
  AppendCase(AppendBatch batch, int32_t num_q_heads, int64_t rope_rows, const CaseContext& context)
      : KernelCase(KvAppendReference),
        batch_(std::move(batch)),
        num_q_heads_(num_q_heads),
        rope_rows_(rope_rows),
        dtype_(context.dtype) {
    const int64_t tokens = batch_.NumTokens();
    const int32_t head_dim = batch_.layout.head_dim;
    const int64_t kv_rows = tokens * batch_.layout.num_kv_heads;
    const bool fused = num_q_heads > 0;
    k_ = tensors_.Random(dtype_, kv_rows, head_dim);
    v_ = tensors_.Random(dtype_, kv_rows, head_dim);
    kv_ = tensors_.Output(dtype_, batch_.PoolRows(), head_dim,
                          fused ? FusedSumTolerance(dtype_) : kExact);
    slots_ = tensors_.Table(batch_.slots);
    if (!fused) return;
    q_ = tensors_.Random(dtype_, tokens * num_q_heads, head_dim);
    q_out_ = tensors_.Output(dtype_, tokens * num_q_heads, head_dim, FusedSumTolerance(dtype_));
    q_norm_ = tensors_.Random(dtype_, 1, head_dim);
    k_norm_ = tensors_.Random(dtype_, 1, head_dim);
    positions_ = tensors_.Table(batch_.positions);
    rope_ = tensors_.Table(RopeTable(rope_rows, head_dim));
  }

  SampledCase Sample(uint64_t seed) const override {
    const int32_t num_kv_heads = batch_.layout.num_kv_heads;
    const std::vector<int64_t> kv_heads = PickKvHead(num_kv_heads, seed);
    const int32_t group = num_q_heads_ / num_kv_heads;
    AppendSample sample = SamplePages(batch_, kv_heads, seed);
    SampledCase sampled(std::make_unique<AppendCase>(std::move(sample.batch), group, rope_rows_,
                                                     CaseContext{.dtype = dtype_}));
    sampled.maps[k_].rows = HeadRows(sample.tokens, num_kv_heads, kv_heads);
    sampled.maps[v_].rows = sampled.maps[k_].rows;
    sampled.maps[kv_].rows = std::move(sample.pool_rows);
    if (num_q_heads_ > 0) {
      sampled.maps[q_].rows = HeadRows(sample.tokens, num_q_heads_, ExpandGroups(kv_heads, group));
      sampled.maps[q_out_].rows = sampled.maps[q_].rows;
    }
    return sampled;
  }

 protected:
  KvAppendParams Bind(const TensorSet& set) const override {
    const int32_t head_dim = batch_.layout.head_dim;
    const int64_t kv_stride = int64_t{batch_.layout.num_kv_heads} * head_dim;
    const int64_t q_stride = int64_t{num_q_heads_} * head_dim;
    return {.dtype = dtype_,
            .num_tokens = batch_.NumTokens(),
            .num_q_heads = num_q_heads_,
            .layout = batch_.layout,
            .q_in = set.At(q_),
            .q_in_stride = q_stride,
            .q_out = set.At(q_out_),
            .q_out_stride = q_stride,
            .k = set.At(k_),
            .k_stride = kv_stride,
            .v = set.At(v_),
            .v_stride = kv_stride,
            .kv = set.At(kv_),
            .slots = set.At<int64_t>(slots_),
            .q_norm_weight = set.At(q_norm_),
            .k_norm_weight = set.At(k_norm_),
            .norm_eps = kNormEps,
            .positions = set.At<int32_t>(positions_),
            .rope_cos_sin = set.At<float>(rope_),
            .rope_rows = rope_rows_};
  }

 private:
  AppendBatch batch_;
  int32_t num_q_heads_;
  int64_t rope_rows_;
  DType dtype_;
  int k_, v_, kv_, slots_;
  int q_ = -1, q_out_ = -1, q_norm_ = -1, k_norm_ = -1, positions_ = -1, rope_ = -1;
};

void AddCases(ShapeReader& shape, const CaseContext&, std::vector<CaseSpec>& cases) {
  const int64_t tokens = shape.Int("tokens", kTokens);
  const bool one = shape.Flag("one");
  const auto hq = static_cast<int32_t>(shape.IntOr("hq", 0, {0, kHeads.most}));
  if (hq > 0) shape.QueryAndKvHeads();  // refuses numbers that do not fit each other
  PagedKvLayout layout = shape.Layout();
  nlohmann::ordered_json described{{"name", shape.name()},
                                   {"tokens", tokens},
                                   {"sequences", one ? 1 : tokens},
                                   {"hq", hq},
                                   {"hk", layout.num_kv_heads}};
  DescribeLayout(described, layout);
  described["qk_norm_rope"] = hq > 0;
  for (const int64_t page_size : shape.IntsOr("pages", {256}, kPageSizes)) {
    layout.page_size = static_cast<int32_t>(page_size);
    CaseSpec& spec = cases.emplace_back();
    spec.shape = described;
    spec.shape["page_size"] = page_size;
    spec.variant = "page:" + std::to_string(page_size);
    spec.make = [=](const CaseContext& context) -> std::unique_ptr<BenchCase> {
      AppendBatch batch = one ? OneSequence(layout, tokens) : ManySequences(layout, tokens);
      int64_t rope_rows = 0;
      if (hq > 0) {
        rope_rows = 1 + *std::max_element(batch.positions.begin(), batch.positions.end());
      }
      return std::make_unique<AppendCase>(std::move(batch), hq, rope_rows, context);
    };
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv,
      {.kernel = "kv_append", .families = {"append"}, .add_cases = tokline::bench::AddCases});
}
