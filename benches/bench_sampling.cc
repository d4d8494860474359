// Benches sampling ("sampling"): greedy, and temperature with top-k and top-p.
#include "benches/bench_case.h"
#include "kernels/common/error.h"
#include "kernels/sampling/sampling.h"
#include "reference/sampling.h"

namespace tokline::bench {
namespace {

class SamplingCase : public KernelCase<SamplingParams> {
 public:
  SamplingCase(std::vector<SamplingRule> rules, int64_t vocab, const CaseContext& context)
      : KernelCase(SamplingReference), rules_host_(std::move(rules)), vocab_(vocab) {
    const auto rows = static_cast<int64_t>(rules_host_.size());
    logits_ = tensors_.Random(DType::kF32, rows, vocab, /*log2_scale=*/3);
    tokens_ = tensors_.OutputIds(rows);
    rules_ = tensors_.Table(rules_host_);
    if (!context.device) return;
    workspace_bytes_ = SamplingWorkspaceBytes(rows, vocab);
    workspace_ = tensors_.Workspace(workspace_bytes_);
  }

  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> rows =
        PickIndices(static_cast<int64_t>(rules_host_.size()), 8, seed);
    std::vector<SamplingRule> rules;
    for (const int64_t row : rows) rules.push_back(rules_host_[static_cast<size_t>(row)]);
    SampledCase sampled(std::make_unique<SamplingCase>(std::move(rules), vocab_, CaseContext{}));
    sampled.maps[logits_].rows = sampled.maps[tokens_].rows = rows;
    return sampled;
  }

 protected:
  SamplingParams Bind(const TensorSet& set) const override {
    return {.num_rows = static_cast<int64_t>(rules_host_.size()),
            .vocab_size = vocab_,
            .logits = set.At<float>(logits_),
            .logits_stride = vocab_,
            .rules = set.At<SamplingRule>(rules_),
            .tokens = set.At<int32_t>(tokens_),
            .workspace = set.At(workspace_),
            .workspace_bytes = workspace_bytes_};
  }

 private:
  std::vector<SamplingRule> rules_host_;
  int64_t vocab_;
  int logits_, tokens_, rules_;
  int workspace_ = -1;
  int64_t workspace_bytes_ = 0;
};

void AddCases(ShapeReader& shape, const CaseContext&, std::vector<CaseSpec>& cases) {
  const int64_t vocab = shape.Int("vocab");
  SamplingRule rule{.temperature = static_cast<float>(shape.NumberOr("temperature", 0)),
                    .top_k = static_cast<int32_t>(shape.IntOr("top_k", 0, {0, kExtents.most})),
                    .top_p = static_cast<float>(shape.NumberOr("top_p", 1)),
                    .seed = 5};
  try {
    Validate(rule);
  } catch (const InvalidArgument& error) {
    shape.Fail(error.what());
  }
  for (const int64_t rows : shape.Ints("rows")) {
    CaseSpec& spec = cases.emplace_back();
    spec.shape = {{"name", shape.name()}, {"rows", rows},
                  {"vocab", vocab},       {"temperature", rule.temperature},
                  {"top_k", rule.top_k},  {"top_p", rule.top_p}};
    spec.variant = "rows:" + std::to_string(rows);
    spec.make = [=](const CaseContext& context) -> std::unique_ptr<BenchCase> {
      std::vector<SamplingRule> rules(static_cast<size_t>(rows), rule);
      for (size_t i = 0; i < rules.size(); ++i) rules[i].offset = i;
      return std::make_unique<SamplingCase>(std::move(rules), vocab, context);
    };
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv,
      {.kernel = "sampling", .families = {"sampling"}, .add_cases = tokline::bench::AddCases});
}
