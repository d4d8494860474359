// Benches paged_gather on ragged batches ("gather").
#include "benches/bench_case.h"
#include "benches/paged_batch.h"
#include "kernels/paged_gather/paged_gather.h"
#include "reference/paged_gather.h"

namespace tokline::bench {
namespace {

class GatherCase : public KernelCase<PagedGatherParams> {
 public:
  GatherCase(PagedBatch batch, const CaseContext& context)
      : KernelCase(PagedGatherReference), batch_(std::move(batch)), dtype_(context.dtype) {
    token_indptr_host_ = PrefixSums(batch_.SequenceLengths());
    const int64_t rows = int64_t{token_indptr_host_.back()} * batch_.layout.num_kv_heads;
    kv_ = tensors_.Random(dtype_, batch_.PoolRows(), batch_.layout.head_dim);
    k_out_ = tensors_.Output(dtype_, rows, batch_.layout.head_dim, kExact);
    v_out_ = tensors_.Output(dtype_, rows, batch_.layout.head_dim, kExact);
    table_ = TableTensors(tensors_, batch_.Table());
    token_indptr_ = tensors_.Table(token_indptr_host_);
  }

  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> kv_heads = PickKvHead(batch_.layout.num_kv_heads, seed);
    std::vector<Prefix> prefixes;
    std::vector<int64_t> tokens;
    for (const int64_t seq : PickSequences(batch_.SequenceLengths(), 3, seed)) {
      prefixes.push_back({seq, batch_.SequenceLength(seq)});
      for (int64_t i = 0; i < prefixes.back().length; ++i) {
        tokens.push_back(token_indptr_host_[static_cast<size_t>(seq)] + i);
      }
    }
    PagedSample sample = SamplePrefixes(batch_, prefixes, kv_heads);
    SampledCase sampled(
        std::make_unique<GatherCase>(std::move(sample.batch), CaseContext{.dtype = dtype_}));
    sampled.maps[kv_].rows = std::move(sample.pool_rows);
    sampled.maps[k_out_].rows = HeadRows(tokens, batch_.layout.num_kv_heads, kv_heads);
    sampled.maps[v_out_].rows = sampled.maps[k_out_].rows;
    return sampled;
  }

 protected:
  PagedGatherParams Bind(const TensorSet& set) const override {
    return {.dtype = dtype_,
            .layout = batch_.layout,
            .table = table_.Bind(set),
            .total_tokens = token_indptr_host_.back(),
            .token_indptr = set.At<int32_t>(token_indptr_),
            .kv = set.At(kv_),
            .k_out = set.At(k_out_),
            .v_out = set.At(v_out_)};
  }

 private:
  PagedBatch batch_;
  DType dtype_;
  std::vector<int32_t> token_indptr_host_;
  TableTensors table_;
  int kv_, k_out_, v_out_, token_indptr_;
};

void AddCases(ShapeReader& shape, const CaseContext&, std::vector<CaseSpec>& cases) {
  PagedKvLayout layout = shape.Layout();
  const std::vector<int64_t> lengths = shape.Lengths("lens", "len");
  nlohmann::ordered_json described{{"name", shape.name()}};
  DescribeLengths(described, "len", lengths);
  described["hk"] = layout.num_kv_heads;
  DescribeLayout(described, layout);
  for (const int64_t page_size : shape.IntsOr("pages", {256}, kPageSizes)) {
    layout.page_size = static_cast<int32_t>(page_size);
    CaseSpec& spec = cases.emplace_back();
    spec.shape = described;
    spec.shape["page_size"] = page_size;
    spec.variant = "page:" + std::to_string(page_size);
    spec.make = [=](const CaseContext& context) -> std::unique_ptr<BenchCase> {
      return std::make_unique<GatherCase>(ShuffledBatch(layout, lengths), context);
    };
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv,
      {.kernel = "paged_gather", .families = {"gather"}, .add_cases = tokline::bench::AddCases});
}
