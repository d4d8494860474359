// Benches all_reduce_norm ("all_reduce") with all ranks in one grid on one GPU, which measures the
// kernel without links. With --gpus N it measures N GPUs instead: benches/peer_ranks.h.
#include <cstdio>
#include <cstring>

#include "benches/bench_case.h"
#include "benches/peer_ranks.h"
#include "kernels/all_reduce_norm/all_reduce_norm.h"
#include "reference/all_reduce_norm.h"

namespace tokline::bench {
namespace {

constexpr float kNormEps = 1e-6f;
// The kernel adds in fp32, the reference in double. If the terms of a sum cancel, the fp32
// roundings remain; otherwise the rounded sums are equal or neighbours, as long as no more than
// kMaxRanks + 1 terms are added.
constexpr Tolerance kSum{2, 0x1p-19};
// If a sum is rounded to its neighbour, its norm moves by up to two units more than kElementwise
// allows.
constexpr Tolerance kNormOfSum{kElementwise.ulps + 2, 0x1p-19};

class VirtualRanksCase final : public BenchCase {
 public:
  VirtualRanksCase(int32_t ranks, int64_t tokens, int64_t hidden, const CaseContext& context)
      : ranks_(ranks), tokens_(tokens), hidden_(hidden), dtype_(context.dtype) {
    residual_ = tensors_.Random(dtype_, tokens, hidden);
    weight_ = tensors_.Random(dtype_, 1, hidden);
    for (int32_t r = 0; r < ranks; ++r) {
      partials_.push_back(tensors_.Random(dtype_, tokens, hidden));
      residuals_out_.push_back(tensors_.Output(dtype_, tokens, hidden, kSum));
      outs_.push_back(tensors_.Output(dtype_, tokens, hidden, kNormOfSum));
    }
    if (!context.device) return;
    buffer_bytes_ = AllReduceNormBufferBytes(ranks, tokens, hidden);
    for (int32_t r = 0; r < ranks; ++r) buffers_.push_back(tensors_.Workspace(buffer_bytes_));
  }

  // The ranks share one residual and one weight.
  Cost GetCost() const override {
    Cost cost = CostOf(Bind(SymbolicSet(tensors_), 0));
    const double shared =
        static_cast<double>(SizeOf(dtype_)) * static_cast<double>((tokens_ + 1) * hidden_);
    cost.read_bytes = ranks_ * (cost.read_bytes - shared) + shared;
    cost.write_bytes *= ranks_;
    cost.flops *= ranks_;
    return cost;
  }
  void RunReference(const TensorSet& host) const override {
    for (int32_t r = 0; r < ranks_; ++r) AllReduceNormReference(Bind(host, r));
  }
  void LaunchCuda([[maybe_unused]] const TensorSet& device,
                  [[maybe_unused]] const LaunchOptions& options) const override {
#if TOKLINE_HAS_CUDA
    std::vector<AllReduceNormParams> ranks;
    for (int32_t r = 0; r < ranks_; ++r) ranks.push_back(Bind(device, r));
    LaunchVirtualRanks(ranks, options);
#endif
  }

  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> rows = PickIndices(tokens_, 16, seed);
    SampledCase sampled(std::make_unique<VirtualRanksCase>(
        ranks_, static_cast<int64_t>(rows.size()), hidden_, CaseContext{.dtype = dtype_}));
    sampled.maps[residual_].rows = rows;
    for (const std::vector<int>* tensors : {&partials_, &residuals_out_, &outs_}) {
      for (const int tensor : *tensors) sampled.maps[tensor].rows = rows;
    }
    return sampled;
  }

 private:
  AllReduceNormParams Bind(const TensorSet& set, int32_t rank) const {
    const auto at = [&](const std::vector<int>& tensors) {
      return set.At(tensors[static_cast<size_t>(rank)]);
    };
    AllReduceNormParams params{
        .dtype = dtype_,
        .num_tokens = tokens_,
        .hidden_size = hidden_,
        .eps = kNormEps,
        .partial_stride = hidden_,
        .residual = set.At(residual_),
        .residual_stride = hidden_,
        .weight = set.At(weight_),
        .residual_out = at(residuals_out_),
        .residual_out_stride = hidden_,
        .out = at(outs_),
        .out_stride = hidden_,
        .peers = {.world_size = ranks_, .rank = rank, .bytes = buffer_bytes_}};
    for (size_t r = 0; r < partials_.size(); ++r) params.partials[r] = set.At(partials_[r]);
    for (size_t r = 0; r < buffers_.size(); ++r) params.peers.buffers[r] = set.At(buffers_[r]);
    return params;
  }

  int32_t ranks_;
  int64_t tokens_;
  int64_t hidden_;
  DType dtype_;
  int64_t buffer_bytes_ = 0;
  int residual_, weight_;
  std::vector<int> partials_, residuals_out_, outs_, buffers_;
};

void AddCases(ShapeReader& shape, const CaseContext&, std::vector<CaseSpec>& cases) {
  const auto ranks = static_cast<int32_t>(shape.Int("ranks", {1, kMaxRanks}));
  const int64_t hidden = shape.Int("hidden");
  for (const int64_t tokens : shape.Ints("tokens")) {
    CaseSpec& spec = cases.emplace_back();
    spec.shape = {{"name", shape.name()}, {"ranks", ranks}, {"tokens", tokens}, {"hidden", hidden}};
    spec.variant = "tokens:" + std::to_string(tokens);
    spec.implementation = "virtual_ranks";
    spec.make = [=](const CaseContext& context) -> std::unique_ptr<BenchCase> {
      return std::make_unique<VirtualRanksCase>(ranks, tokens, hidden, context);
    };
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  using namespace tokline::bench;
  if (argc >= 2 && std::strcmp(argv[1], "--gpus") == 0) {
#if TOKLINE_HAS_CUDA
    return PeerRanksMain(argc, argv);
#else
    std::fprintf(stderr, "%s: --gpus: this build has no CUDA\n", argv[0]);
    return 2;
#endif
  }
  return BenchMain(
      argc, argv, {.kernel = "all_reduce_norm", .families = {"all_reduce"}, .add_cases = AddCases});
}
