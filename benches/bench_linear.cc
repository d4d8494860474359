// Benches linear ("linear"): projections, gated MLP and LM head, with each variant that supports
// the number of tokens.
#include <cmath>

#include "benches/bench_case.h"
#include "benches/linear_variants.h"
#include "benches/shared_matmul.h"
#include "kernels/linear/linear.h"
#include "reference/linear.h"

namespace tokline::bench {
namespace {

constexpr float kNormEps = 1e-6f;

struct LinearShape {
  int64_t tokens = 0;
  int64_t in = 0;
  int64_t out = 0;
  bool norm = false;
  bool gated = false;
  bool residual = false;
  bool out_f32 = false;
  LinearVariant variant = LinearVariant::kAuto;
};

class LinearCase final : public KernelCase<LinearParams> {
 public:
  LinearCase(const LinearShape& shape, const CaseContext& context)
      : KernelCase(LinearReference), shape_(shape), dtype_(context.dtype) {
    x_ = tensors_.Random(dtype_, shape.tokens, shape.in);
    weight_ = tensors_.Random(dtype_, (shape.gated ? 2 : 1) * shape.out, shape.in,
                              WeightLog2Scale(shape.in));
    out_ = tensors_.Output(shape.out_f32 ? DType::kF32 : dtype_, shape.tokens, shape.out,
                           FusedSumTolerance(dtype_));
    if (shape.norm) norm_ = tensors_.Random(dtype_, 1, shape.in);
    if (shape.residual) residual_ = tensors_.Random(dtype_, shape.tokens, shape.out);
    if (!context.device) return;
    matmul_ = SharedMatmul();
    workspace_bytes_ = LinearWorkspaceBytes(Bind(SymbolicSet(tensors_)));
    workspace_ = tensors_.Workspace(workspace_bytes_);
  }

  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> tokens = PickIndices(shape_.tokens, 4, seed);
    // Gated shapes need a multiple of 8.
    std::vector<int64_t> features = PickIndices(shape_.out, 512, seed);
    LinearShape reduced = shape_;
    reduced.tokens = static_cast<int64_t>(tokens.size());
    reduced.out = static_cast<int64_t>(features.size());
    SampledCase sampled(std::make_unique<LinearCase>(reduced, CaseContext{.dtype = dtype_}));
    sampled.maps[x_].rows = tokens;
    sampled.maps[out_] = {.rows = tokens, .cols = features};
    if (shape_.residual) sampled.maps[residual_] = sampled.maps[out_];
    std::vector<int64_t>& weight_rows = sampled.maps[weight_].rows;
    weight_rows = features;
    if (shape_.gated) {
      for (const int64_t feature : features) weight_rows.push_back(shape_.out + feature);
    }
    return sampled;
  }

 protected:
  LinearParams Bind(const TensorSet& set) const override {
    return {.dtype = dtype_,
            .out_f32 = shape_.out_f32,
            .gated_silu = shape_.gated,
            .variant = shape_.variant,
            .num_tokens = shape_.tokens,
            .in_features = shape_.in,
            .out_features = shape_.out,
            .x = set.At(x_),
            .x_stride = shape_.in,
            .norm_weight = set.At(norm_),
            .norm_eps = kNormEps,
            .weight = set.At(weight_),
            .residual = set.At(residual_),
            .residual_stride = shape_.residual ? shape_.out : 0,
            .out = set.At(out_),
            .out_stride = shape_.out,
            .matmul = matmul_,
            .workspace = set.At(workspace_),
            .workspace_bytes = workspace_bytes_};
  }

 private:
  LinearShape shape_;
  DType dtype_;
  int x_, weight_, out_;
  int norm_ = -1, residual_ = -1, workspace_ = -1;
  Matmul* matmul_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

void AddCases(ShapeReader& shape, const CaseContext& context, std::vector<CaseSpec>& cases) {
  LinearShape linear{.in = shape.Int("in"),
                     .out = shape.Int("out"),
                     .norm = shape.Flag("norm"),
                     .gated = shape.Flag("gated"),
                     .residual = shape.Flag("residual"),
                     .out_f32 = shape.Flag("out_f32")};
  for (const int64_t tokens : shape.Ints("tokens")) {
    const LinearParams projection{.out_f32 = linear.out_f32,
                                  .gated_silu = linear.gated,
                                  .num_tokens = tokens,
                                  .in_features = linear.in,
                                  .out_features = linear.out,
                                  .norm_weight = linear.norm ? &kSomeNorm : nullptr};
    for (const auto [variant, chosen] : LinearVariantsOf(projection, context)) {
      linear.tokens = tokens;
      linear.variant = variant;
      CaseSpec& spec = cases.emplace_back();
      spec.shape = {
          {"name", shape.name()},        {"tokens", tokens},         {"in", linear.in},
          {"out", linear.out},           {"norm", linear.norm},      {"gated", linear.gated},
          {"residual", linear.residual}, {"out_f32", linear.out_f32}};
      spec.variant = "tokens:" + std::to_string(tokens);
      spec.implementation = Name(variant);
      spec.chosen = chosen;
      spec.make = [linear](const CaseContext& ctx) -> std::unique_ptr<BenchCase> {
        return std::make_unique<LinearCase>(linear, ctx);
      };
    }
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv,
      {.kernel = "linear", .families = {"linear"}, .add_cases = tokline::bench::AddCases});
}
