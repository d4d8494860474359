// Benches chunk_decode on batches of sequences ("decode") and on sequences that share a chunk
// ("cascade").
#include <cmath>

#include "benches/bench_case.h"
#include "benches/paged_batch.h"
#include "kernels/chunk_decode/chunk_decode.h"
#include "reference/chunk_decode.h"

namespace tokline::bench {
namespace {

class DecodeCase : public KernelCase<ChunkDecodeParams> {
 public:
  DecodeCase(PagedBatch batch, int32_t num_q_heads, const CaseContext& context)
      : KernelCase(ChunkDecodeReference),
        batch_(std::move(batch)),
        num_q_heads_(num_q_heads),
        dtype_(context.dtype) {
    const int64_t rows = batch_.NumSeqs() * num_q_heads;
    const int32_t head_dim = batch_.layout.head_dim;
    q_ = tensors_.Random(dtype_, rows, head_dim);
    kv_ = tensors_.Random(dtype_, batch_.PoolRows(), head_dim);
    out_ = tensors_.Output(dtype_, rows, head_dim, SumTolerance(dtype_));
    const ChunkTable table = batch_.Table();
    table_ = TableTensors(tensors_, table);
    if (!context.device) return;
    const std::vector<SharedRun> runs =
        SharedRunsOfTable(table.View(), num_q_heads / batch_.layout.num_kv_heads);
    const ChunkDecodePlan plan = PlanChunkDecode(
        table.View(), batch_.layout, num_q_heads, *context.device,
        ChooseChunkDecodeSharing(table.View(), runs, batch_.layout, num_q_heads, *context.device));
    plan_room_ = plan.size;
    plan_ = tensors_.Table(plan.block);
    max_partials_ = plan.num_partials;
    workspace_bytes_ =
        ChunkDecodeWorkspaceBytes(table.View().num_seqs, max_partials_, num_q_heads, batch_.layout);
    workspace_ = tensors_.Workspace(workspace_bytes_);
  }

  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> seqs = PickIndices(batch_.NumSeqs(), 3, seed);
    const std::vector<int64_t> kv_heads = PickKvHead(batch_.layout.num_kv_heads, seed);
    std::vector<Prefix> prefixes;
    for (const int64_t seq : seqs) prefixes.push_back({seq, batch_.SequenceLength(seq)});
    PagedSample sample = SamplePrefixes(batch_, prefixes, kv_heads);
    const int32_t group = num_q_heads_ / batch_.layout.num_kv_heads;
    SampledCase sampled(
        std::make_unique<DecodeCase>(std::move(sample.batch), group, CaseContext{.dtype = dtype_}));
    sampled.maps[q_].rows = HeadRows(seqs, num_q_heads_, ExpandGroups(kv_heads, group));
    sampled.maps[kv_].rows = std::move(sample.pool_rows);
    sampled.maps[out_].rows = sampled.maps[q_].rows;
    return sampled;
  }

 protected:
  ChunkDecodeParams Bind(const TensorSet& set) const override {
    const int32_t head_dim = batch_.layout.head_dim;
    return {.dtype = dtype_,
            .num_q_heads = num_q_heads_,
            .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
            .layout = batch_.layout,
            .table = table_.Bind(set),
            .q = set.At(q_),
            .q_stride = int64_t{num_q_heads_} * head_dim,
            .kv = set.At(kv_),
            .out = set.At(out_),
            .out_stride = int64_t{num_q_heads_} * head_dim,
            .plan = plan_room_.View(set.At<std::byte>(plan_)),
            .workspace = set.At(workspace_),
            .workspace_bytes = workspace_bytes_,
            .max_partials = max_partials_};
  }

 private:
  PagedBatch batch_;
  int32_t num_q_heads_;
  DType dtype_;
  TableTensors table_;
  int q_, kv_, out_;
  int plan_ = -1;
  int workspace_ = -1;
  ChunkDecodePlanRoom plan_room_;
  int64_t max_partials_ = 0;
  int64_t workspace_bytes_ = 0;
};

void AddCases(ShapeReader& shape, const CaseContext&, std::vector<CaseSpec>& cases) {
  const auto [hq, hk] = shape.QueryAndKvHeads();
  PagedKvLayout layout = shape.Layout();
  nlohmann::ordered_json described{{"name", shape.name()}};
  std::vector<int64_t> chunk_lengths;
  std::vector<std::vector<int32_t>> seq_chunks;
  if (shape.family() == "cascade") {
    chunk_lengths = shape.EqualLengths("unique");
    const int64_t batch = std::ssize(chunk_lengths);
    chunk_lengths.insert(chunk_lengths.begin(), shape.Int("shared", kTokens));
    for (int32_t seq = 0; seq < batch; ++seq) seq_chunks.push_back({0, seq + 1});
    described.update(
        {{"batch", batch}, {"shared", chunk_lengths[0]}, {"unique", chunk_lengths[1]}});
  } else {
    chunk_lengths = shape.Lengths("lens", "len");
    for (size_t i = 0; i < chunk_lengths.size(); ++i) {
      seq_chunks.push_back({static_cast<int32_t>(i)});
    }
    DescribeLengths(described, "len", chunk_lengths);
  }
  described.update({{"hq", hq}, {"hk", hk}});
  DescribeLayout(described, layout);
  for (const int64_t page_size : shape.IntsOr("pages", {256}, kPageSizes)) {
    layout.page_size = static_cast<int32_t>(page_size);
    CaseSpec& spec = cases.emplace_back();
    spec.shape = described;
    spec.shape["page_size"] = page_size;
    spec.variant = "page:" + std::to_string(page_size);
    spec.make = [=, hq = hq](const CaseContext& context) -> std::unique_ptr<BenchCase> {
      return std::make_unique<DecodeCase>(ShuffledBatch(layout, chunk_lengths, seq_chunks), hq,
                                          context);
    };
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(argc, argv,
                                   {.kernel = "chunk_decode",
                                    .families = {"decode", "cascade"},
                                    .add_cases = tokline::bench::AddCases});
}
