// gelu ("gelu"): the tanh form of GELU over rows.
#include "benches/bench_case.h"
#include "kernels/gelu/gelu.h"
#include "reference/gelu.h"

namespace tokline::bench {
namespace {

class GeluCase : public KernelCase<GeluParams> {
 public:
  GeluCase(int64_t tokens, int64_t intermediate, const CaseContext& context)
      : KernelCase(GeluReference),
        tokens_(tokens),
        intermediate_(intermediate),
        dtype_(context.dtype) {
    x_ = tensors_.Random(dtype_, tokens, intermediate, /*log2_scale=*/1);
    out_ = tensors_.Output(dtype_, tokens, intermediate, kElementwise);
  }

  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> tokens = PickIndices(tokens_, 32, seed);
    SampledCase sampled{.problem = std::make_unique<GeluCase>(static_cast<int64_t>(tokens.size()),
                                                              intermediate_,
                                                              CaseContext{.dtype = dtype_})};
    sampled.maps.resize(tensors_.specs().size());
    sampled.maps[x_].rows = sampled.maps[out_].rows = tokens;
    return sampled;
  }

 protected:
  GeluParams Bind(const TensorSet& set) const override {
    return {.dtype = dtype_,
            .num_tokens = tokens_,
            .intermediate_size = intermediate_,
            .x = set.At(x_),
            .x_stride = intermediate_,
            .out = set.At(out_),
            .out_stride = intermediate_};
  }

 private:
  int64_t tokens_;
  int64_t intermediate_;
  DType dtype_;
  int x_, out_;
};

void AddCases(ShapeReader& shape, const CaseContext&, std::vector<CaseSpec>& cases) {
  const int64_t intermediate = shape.Int("intermediate");
  for (const int64_t tokens : shape.Ints("tokens")) {
    CaseSpec& spec = cases.emplace_back();
    spec.shape = {{"name", shape.name()}, {"tokens", tokens}, {"intermediate", intermediate}};
    spec.variant = "tokens:" + std::to_string(tokens);
    spec.implementation = "cuda";
    spec.make = [=](const CaseContext& context) -> std::unique_ptr<BenchCase> {
      return std::make_unique<GeluCase>(tokens, intermediate, context);
    };
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv, {.kernel = "gelu", .families = {"gelu"}, .add_cases = tokline::bench::AddCases});
}
