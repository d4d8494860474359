// Benches norm ("norm"): RMSNorm, alone and after adding a residual, and LayerNorm.
#include "benches/bench_case.h"
#include "kernels/norm/norm.h"
#include "reference/norm.h"

namespace tokline::bench {
namespace {

constexpr float kNormEps = 1e-6f;
// LayerNorm's result is rounded once, from fp32 values that are not quite those of the reference:
// it may be off by one unit if the two lie on either side of a boundary, and by two if the boundary
// is a power of two. If product and bias cancel, a unit of the result is small compared with the
// errors of the product: with statistics that are off by up to 2^-21 and a product of up to four
// root mean squares of its row, the error is 2^-19 of one root mean square.
constexpr Tolerance kCancelling{2, 0x1p-19};

class NormCase : public KernelCase<NormParams> {
 public:
  NormCase(NormKind kind, int64_t tokens, int64_t hidden, bool add, const CaseContext& context)
      : KernelCase(NormReference),
        kind_(kind),
        tokens_(tokens),
        hidden_(hidden),
        add_given_(add),
        dtype_(context.dtype) {
    x_ = tensors_.Random(dtype_, tokens, hidden);
    weight_ = tensors_.Random(dtype_, 1, hidden);
    const bool layer = kind == NormKind::kLayer;
    if (layer) bias_ = tensors_.Random(dtype_, 1, hidden);
    out_ = tensors_.Output(dtype_, tokens, hidden, layer ? kCancelling : kElementwise);
    if (!add) return;
    add_ = tensors_.Random(dtype_, tokens, hidden);
    residual_out_ = tensors_.Output(dtype_, tokens, hidden, kExact);
  }

  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> tokens = PickIndices(tokens_, 32, seed);
    SampledCase sampled(std::make_unique<NormCase>(kind_, static_cast<int64_t>(tokens.size()),
                                                   hidden_, add_given_,
                                                   CaseContext{.dtype = dtype_}));
    sampled.maps[x_].rows = sampled.maps[out_].rows = tokens;
    if (add_given_) sampled.maps[add_].rows = sampled.maps[residual_out_].rows = tokens;
    return sampled;
  }

 protected:
  NormParams Bind(const TensorSet& set) const override {
    return {.kind = kind_,
            .dtype = dtype_,
            .num_tokens = tokens_,
            .hidden_size = hidden_,
            .eps = kNormEps,
            .x = set.At(x_),
            .x_stride = hidden_,
            .add = set.At(add_),
            .add_stride = add_given_ ? hidden_ : 0,
            .weight = set.At(weight_),
            .bias = set.At(bias_),
            .residual_out = set.At(residual_out_),
            .residual_out_stride = add_given_ ? hidden_ : 0,
            .out = set.At(out_),
            .out_stride = hidden_};
  }

 private:
  NormKind kind_;
  int64_t tokens_;
  int64_t hidden_;
  bool add_given_;
  DType dtype_;
  int x_, weight_, out_;
  int bias_ = -1, add_ = -1, residual_out_ = -1;
};

void AddCases(ShapeReader& shape, const CaseContext&, std::vector<CaseSpec>& cases) {
  const NormKind kind = shape.OneOf("kind", {NormKind::kRms, NormKind::kLayer});
  const int64_t hidden = shape.Int("hidden");
  const bool add = shape.Flag("add");
  if (add && kind == NormKind::kLayer) shape.Fail("'add' is 1; layernorm adds no residual");
  for (const int64_t tokens : shape.Ints("tokens")) {
    CaseSpec& spec = cases.emplace_back();
    spec.shape = {{"name", shape.name()},
                  {"kind", Name(kind)},
                  {"tokens", tokens},
                  {"hidden", hidden},
                  {"add", add}};
    spec.variant = "tokens:" + std::to_string(tokens);
    spec.make = [=](const CaseContext& context) -> std::unique_ptr<BenchCase> {
      return std::make_unique<NormCase>(kind, tokens, hidden, add, context);
    };
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv, {.kernel = "norm", .families = {"norm"}, .add_cases = tokline::bench::AddCases});
}
