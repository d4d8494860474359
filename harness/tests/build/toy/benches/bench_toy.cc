// toy ("toy"): the product of a vector and a number.
#include "benches/bench_case.h"
#include "reference/toy.h"

namespace tokline::bench {
namespace {

class ToyCase : public KernelCase<ToyParams> {
 public:
  ToyCase(int64_t size, DType dtype) : KernelCase(ToyReference), size_(size), dtype_(dtype) {
    x_ = tensors_.Random(dtype, 1, size);
    y_ = tensors_.Output(dtype, 1, size, kElementwise);
  }

  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> picked = PickIndices(size_, 64, seed);
    SampledCase sampled(std::make_unique<ToyCase>(static_cast<int64_t>(picked.size()), dtype_));
    sampled.maps[x_].cols = sampled.maps[y_].cols = picked;
    return sampled;
  }

 protected:
  ToyParams Bind(const TensorSet& set) const override {
    return {.dtype = dtype_, .size = size_, .scale = 3, .x = set.At(x_), .y = set.At(y_)};
  }

 private:
  int64_t size_;
  DType dtype_;
  int x_, y_;
};

void AddCases(ShapeReader& shape, const CaseContext&, std::vector<CaseSpec>& cases) {
  const int64_t size = shape.Int("size");
  cases.push_back({.shape = {{"name", shape.name()}, {"size", size}},
                   .variant = "size:" + std::to_string(size),
                   .make = [size](const CaseContext& context) {
                     return std::make_unique<ToyCase>(size, context.dtype);
                   }});
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv, {.kernel = "toy", .families = {"toy"}, .add_cases = tokline::bench::AddCases});
}
