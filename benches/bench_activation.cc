// Benches activation ("activation"): gated SiLU and GELU over rows.
#include "benches/bench_case.h"
#include "kernels/activation/activation.h"
#include "reference/activation.h"

namespace tokline::bench {
namespace {

class ActivationCase : public KernelCase<ActivationParams> {
 public:
  ActivationCase(ActivationKind kind, int64_t tokens, int64_t intermediate,
                 const CaseContext& context)
      : KernelCase(ActivationReference),
        kind_(kind),
        tokens_(tokens),
        intermediate_(intermediate),
        dtype_(context.dtype) {
    x_ = tensors_.Random(dtype_, tokens, InputWidth(), /*log2_scale=*/1);
    out_ = tensors_.Output(dtype_, tokens, intermediate, kElementwise);
  }

  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> tokens = PickIndices(tokens_, 32, seed);
    SampledCase sampled(std::make_unique<ActivationCase>(
        kind_, static_cast<int64_t>(tokens.size()), intermediate_, CaseContext{.dtype = dtype_}));
    sampled.maps[x_].rows = sampled.maps[out_].rows = tokens;
    return sampled;
  }

 protected:
  ActivationParams Bind(const TensorSet& set) const override {
    return {.kind = kind_,
            .dtype = dtype_,
            .num_tokens = tokens_,
            .intermediate_size = intermediate_,
            .x = set.At(x_),
            .x_stride = InputWidth(),
            .out = set.At(out_),
            .out_stride = intermediate_};
  }

 private:
  int64_t InputWidth() const {
    return InputSize({.kind = kind_, .intermediate_size = intermediate_});
  }

  ActivationKind kind_;
  int64_t tokens_;
  int64_t intermediate_;
  DType dtype_;
  int x_, out_;
};

void AddCases(ShapeReader& shape, const CaseContext&, std::vector<CaseSpec>& cases) {
  const ActivationKind kind =
      shape.OneOf("kind", {ActivationKind::kGatedSilu, ActivationKind::kGeluTanh});
  const int64_t intermediate = shape.Int("intermediate");
  for (const int64_t tokens : shape.Ints("tokens")) {
    CaseSpec& spec = cases.emplace_back();
    spec.shape = {{"name", shape.name()},
                  {"kind", Name(kind)},
                  {"tokens", tokens},
                  {"intermediate", intermediate}};
    spec.variant = "tokens:" + std::to_string(tokens);
    spec.make = [=](const CaseContext& context) -> std::unique_ptr<BenchCase> {
      return std::make_unique<ActivationCase>(kind, tokens, intermediate, context);
    };
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv,
      {.kernel = "activation", .families = {"activation"}, .add_cases = tokline::bench::AddCases});
}
