// layernorm ("layernorm"): rows alone.
#include "benches/bench_case.h"
#include "kernels/layernorm/layernorm.h"
#include "reference/layernorm.h"

namespace tokline::bench {
namespace {

constexpr float kNormEps = 1e-5f;
// Where a product and its bias cancel, what is left holds the fp32 roundings of both.
constexpr Tolerance kCancelling{2, 0x1p-19};

class LayerNormCase : public KernelCase<LayerNormParams> {
 public:
  LayerNormCase(int64_t tokens, int64_t hidden, const CaseContext& context)
      : KernelCase(LayerNormReference), tokens_(tokens), hidden_(hidden), dtype_(context.dtype) {
    x_ = tensors_.Random(dtype_, tokens, hidden);
    weight_ = tensors_.Random(dtype_, 1, hidden);
    bias_ = tensors_.Random(dtype_, 1, hidden);
    out_ = tensors_.Output(dtype_, tokens, hidden, kCancelling);
  }

  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> tokens = PickIndices(tokens_, 32, seed);
    SampledCase sampled{.problem =
                            std::make_unique<LayerNormCase>(static_cast<int64_t>(tokens.size()),
                                                            hidden_, CaseContext{.dtype = dtype_})};
    sampled.maps.resize(tensors_.specs().size());
    sampled.maps[x_].rows = sampled.maps[out_].rows = tokens;
    return sampled;
  }

 protected:
  LayerNormParams Bind(const TensorSet& set) const override {
    return {.dtype = dtype_,
            .num_tokens = tokens_,
            .hidden_size = hidden_,
            .eps = kNormEps,
            .x = set.At(x_),
            .x_stride = hidden_,
            .weight = set.At(weight_),
            .bias = set.At(bias_),
            .out = set.At(out_),
            .out_stride = hidden_};
  }

 private:
  int64_t tokens_;
  int64_t hidden_;
  DType dtype_;
  int x_, weight_, bias_, out_;
};

void AddCases(ShapeReader& shape, const CaseContext&, std::vector<CaseSpec>& cases) {
  const int64_t hidden = shape.Int("hidden");
  for (const int64_t tokens : shape.Ints("tokens")) {
    CaseSpec& spec = cases.emplace_back();
    spec.shape = {{"name", shape.name()}, {"tokens", tokens}, {"hidden", hidden}};
    spec.variant = "tokens:" + std::to_string(tokens);
    spec.implementation = "cuda";
    spec.make = [=](const CaseContext& context) -> std::unique_ptr<BenchCase> {
      return std::make_unique<LayerNormCase>(tokens, hidden, context);
    };
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv,
      {.kernel = "layernorm", .families = {"layernorm"}, .add_cases = tokline::bench::AddCases});
}
