// Benches paged_prefill on ragged batches of new tokens, with or without a past ("prefill").
#include <algorithm>
#include <cmath>
#include <iterator>

#include "benches/bench_case.h"
#include "benches/paged_batch.h"
#include "kernels/paged_prefill/paged_prefill.h"
#include "reference/paged_prefill.h"

namespace tokline::bench {
namespace {

class PrefillCase : public KernelCase<PagedPrefillParams> {
 public:
  // `new_tokens` holds the number of new tokens of each sequence, which are the last of its
  // context.
  PrefillCase(PagedBatch batch, std::vector<int64_t> new_tokens, int32_t num_q_heads,
              PagedPrefillVariant variant, const CaseContext& context)
      : KernelCase(PagedPrefillReference),
        batch_(std::move(batch)),
        new_tokens_(std::move(new_tokens)),
        q_indptr_host_(PrefixSums(new_tokens_)),
        num_q_heads_(num_q_heads),
        variant_(variant),
        dtype_(context.dtype) {
    const int32_t head_dim = batch_.layout.head_dim;
    const int64_t rows = int64_t{q_indptr_host_.back()} * num_q_heads;
    q_ = tensors_.Random(dtype_, rows, head_dim);
    kv_ = tensors_.Random(dtype_, batch_.PoolRows(), head_dim);
    out_ = tensors_.Output(dtype_, rows, head_dim, SumTolerance(dtype_));
    const ChunkTable table = batch_.Table();
    table_ = TableTensors(tensors_, table);
    q_indptr_ = tensors_.Table(q_indptr_host_);
    if (!context.device) return;
    const PagedPrefillPlan plan =
        PlanPagedPrefill(table.View(), q_indptr_host_.data(), batch_.layout, num_q_heads,
                         /*causal=*/true, *context.device, MaxPagedPrefillParts(*context.device));
    tile_tokens_ = plan.tile_tokens;
    num_blocks_ = plan.num_blocks;
    num_tiles_ = static_cast<int32_t>(plan.tiles.size());
    tiles_ = tensors_.Table(plan.tiles);
    if (plan.parts.empty()) return;
    num_parts_ = static_cast<int32_t>(plan.parts.size());
    parts_ = tensors_.Table(plan.parts);
    workspace_bytes_ = PagedPrefillWorkspaceBytes(head_dim, num_parts_);
    workspace_ = tensors_.Workspace(workspace_bytes_);
  }

  // New token i of n in a context of L sees the same tokens as a single new token in a context of
  // L - n + i + 1. A few rows of a huge problem are therefore a small problem.
  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> kv_heads = PickKvHead(batch_.layout.num_kv_heads, seed);
    std::vector<Prefix> prefixes;
    std::vector<int64_t> tokens;
    const std::vector<int64_t> seqs = PickSequences(new_tokens_, 3, seed);
    const int64_t rows_a_seq = 12 / std::max<int64_t>(1, std::ssize(seqs));
    for (const int64_t seq : seqs) {
      const int64_t count = new_tokens_[static_cast<size_t>(seq)];
      const int64_t past = batch_.SequenceLength(seq) - count;
      for (const int64_t row : PickIndices(count, rows_a_seq, seed)) {
        prefixes.push_back({seq, past + row + 1});
        tokens.push_back(q_indptr_host_[static_cast<size_t>(seq)] + row);
      }
    }
    PagedSample sample = SamplePrefixes(batch_, prefixes, kv_heads);
    const int32_t group = num_q_heads_ / batch_.layout.num_kv_heads;
    SampledCase sampled(std::make_unique<PrefillCase>(
        std::move(sample.batch), std::vector<int64_t>(prefixes.size(), 1), group, variant_,
        CaseContext{.dtype = dtype_}));
    sampled.maps[q_].rows = HeadRows(tokens, num_q_heads_, ExpandGroups(kv_heads, group));
    sampled.maps[kv_].rows = std::move(sample.pool_rows);
    sampled.maps[out_].rows = sampled.maps[q_].rows;
    return sampled;
  }

 protected:
  PagedPrefillParams Bind(const TensorSet& set) const override {
    const int32_t head_dim = batch_.layout.head_dim;
    return {.dtype = dtype_,
            .num_q_heads = num_q_heads_,
            .causal = true,
            .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
            .layout = batch_.layout,
            .table = table_.Bind(set),
            .total_tokens = q_indptr_host_.back(),
            .q_indptr = set.At<int32_t>(q_indptr_),
            .q = set.At(q_),
            .q_stride = int64_t{num_q_heads_} * head_dim,
            .kv = set.At(kv_),
            .out = set.At(out_),
            .out_stride = int64_t{num_q_heads_} * head_dim,
            .variant = variant_,
            .tile_tokens = tile_tokens_,
            .num_blocks = num_blocks_,
            .num_tiles = num_tiles_,
            .tiles = set.At<PagedPrefillTile>(tiles_),
            .num_parts = num_parts_,
            .parts = set.At<PagedPrefillPart>(parts_),
            .workspace = set.At(workspace_),
            .workspace_bytes = workspace_bytes_};
  }

 private:
  PagedBatch batch_;
  std::vector<int64_t> new_tokens_;
  std::vector<int32_t> q_indptr_host_;
  int32_t num_q_heads_;
  PagedPrefillVariant variant_;
  DType dtype_;
  TableTensors table_;
  int q_, kv_, out_, q_indptr_;
  int tiles_ = -1, parts_ = -1, workspace_ = -1;
  int32_t tile_tokens_ = 0;
  int32_t num_blocks_ = 0;
  int32_t num_tiles_ = 0;
  int32_t num_parts_ = 0;
  int64_t workspace_bytes_ = 0;
};

void AddCases(ShapeReader& shape, const CaseContext&, std::vector<CaseSpec>& cases) {
  const auto [hq, hk] = shape.QueryAndKvHeads();
  PagedKvLayout layout = shape.Layout();
  const std::vector<int64_t> new_tokens = shape.Lengths("q", "q_len");
  const std::vector<int64_t> contexts = shape.Lengths("kv", "kv_len");
  if (new_tokens.size() != contexts.size()) {
    shape.Fail(StrCat("q has ", new_tokens.size(), " sequences, kv has ", contexts.size()));
  }
  for (size_t i = 0; i < contexts.size(); ++i) {
    if (new_tokens[i] > contexts[i]) {
      shape.Fail(StrCat("sequence ", i, " has ", new_tokens[i], " new tokens in a context of ",
                        contexts[i]));
    }
  }
  const bool portable = shape.Flag("portable");
  const auto variant = portable ? PagedPrefillVariant::kPortable : PagedPrefillVariant::kAuto;
  nlohmann::ordered_json described{{"name", shape.name()}};
  DescribeLengths(described, "q_len", new_tokens);
  DescribeLengths(described, "kv_len", contexts);
  described.update({{"hq", hq}, {"hk", hk}});
  DescribeLayout(described, layout);
  described["causal"] = true;
  if (portable) described["portable"] = 1;
  for (const int64_t page_size : shape.IntsOr("pages", {256}, kPageSizes)) {
    layout.page_size = static_cast<int32_t>(page_size);
    CaseSpec& spec = cases.emplace_back();
    spec.shape = described;
    spec.shape["page_size"] = page_size;
    spec.variant = "page:" + std::to_string(page_size);
    spec.make = [=, hq = hq](const CaseContext& context) -> std::unique_ptr<BenchCase> {
      return std::make_unique<PrefillCase>(ShuffledBatch(layout, contexts), new_tokens, hq, variant,
                                           context);
    };
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv,
      {.kernel = "paged_prefill", .families = {"prefill"}, .add_cases = tokline::bench::AddCases});
}
