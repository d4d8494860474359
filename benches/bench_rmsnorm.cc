// rmsnorm ("rmsnorm"): rows alone, and with a residual added first.
#include "benches/bench_case.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "reference/rmsnorm.h"

namespace tokline::bench {
namespace {

constexpr float kNormEps = 1e-6f;

class RmsNormCase : public KernelCase<RmsNormParams> {
 public:
  RmsNormCase(int64_t tokens, int64_t hidden, bool add, const CaseContext& context)
      : KernelCase(RmsNormReference),
        tokens_(tokens),
        hidden_(hidden),
        add_given_(add),
        dtype_(context.dtype) {
    x_ = tensors_.Random(dtype_, tokens, hidden);
    weight_ = tensors_.Random(dtype_, 1, hidden);
    out_ = tensors_.Output(dtype_, tokens, hidden, kElementwise);
    if (!add) return;
    add_ = tensors_.Random(dtype_, tokens, hidden);
    residual_out_ = tensors_.Output(dtype_, tokens, hidden, kExact);
  }

  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> tokens = PickIndices(tokens_, 32, seed);
    SampledCase sampled{
        .problem = std::make_unique<RmsNormCase>(static_cast<int64_t>(tokens.size()), hidden_,
                                                 add_given_, CaseContext{.dtype = dtype_})};
    sampled.maps.resize(tensors_.specs().size());
    sampled.maps[x_].rows = sampled.maps[out_].rows = tokens;
    if (add_given_) sampled.maps[add_].rows = sampled.maps[residual_out_].rows = tokens;
    return sampled;
  }

 protected:
  RmsNormParams Bind(const TensorSet& set) const override {
    return {.dtype = dtype_,
            .num_tokens = tokens_,
            .hidden_size = hidden_,
            .eps = kNormEps,
            .x = set.At(x_),
            .x_stride = hidden_,
            .add = set.At(add_),
            .add_stride = add_given_ ? hidden_ : 0,
            .weight = set.At(weight_),
            .residual_out = set.At(residual_out_),
            .residual_out_stride = add_given_ ? hidden_ : 0,
            .out = set.At(out_),
            .out_stride = hidden_};
  }

 private:
  int64_t tokens_;
  int64_t hidden_;
  bool add_given_;
  DType dtype_;
  int x_, weight_, out_;
  int add_ = -1, residual_out_ = -1;
};

void AddCases(ShapeReader& shape, const CaseContext&, std::vector<CaseSpec>& cases) {
  const int64_t hidden = shape.Int("hidden");
  const bool add = shape.Flag("add");
  for (const int64_t tokens : shape.Ints("tokens")) {
    CaseSpec& spec = cases.emplace_back();
    spec.shape = {{"name", shape.name()}, {"tokens", tokens}, {"hidden", hidden}, {"add", add}};
    spec.variant = "tokens:" + std::to_string(tokens);
    spec.implementation = "cuda";
    spec.make = [=](const CaseContext& context) -> std::unique_ptr<BenchCase> {
      return std::make_unique<RmsNormCase>(tokens, hidden, add, context);
    };
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv,
      {.kernel = "rmsnorm", .families = {"rmsnorm"}, .add_cases = tokline::bench::AddCases});
}
