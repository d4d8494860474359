// Benches embedding ("embedding"): looks up table rows by token ids in random order, alone or with
// position rows added.
#include <map>

#include "benches/bench_case.h"
#include "benches/paged_batch.h"
#include "kernels/embedding/embedding.h"
#include "reference/embedding.h"

namespace tokline::bench {
namespace {

class EmbeddingCase : public KernelCase<EmbeddingParams> {
 public:
  // `positions` is the number of rows of the position table; 0 means that there is none. Token t is
  // at position t.
  EmbeddingCase(std::vector<int32_t> ids, int64_t vocab, int64_t hidden, int64_t positions,
                const CaseContext& context)
      : KernelCase(EmbeddingReference),
        ids_host_(std::move(ids)),
        vocab_(vocab),
        hidden_(hidden),
        positions_(positions),
        dtype_(context.dtype) {
    const auto tokens = static_cast<int64_t>(ids_host_.size());
    embeddings_ = tensors_.Random(dtype_, vocab, hidden);
    out_ = tensors_.Output(dtype_, tokens, hidden, kExact);
    ids_ = tensors_.Table(ids_host_);
    if (positions == 0) return;
    places_ = tensors_.Random(dtype_, positions, hidden);
    std::vector<int32_t> rows;
    for (int64_t t = 0; t < tokens; ++t) rows.push_back(static_cast<int32_t>(t % positions));
    rows_ = tensors_.Table(rows);
  }

  // Samples a few tokens, with tables that contain only the rows of these tokens.
  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> tokens =
        PickIndices(static_cast<int64_t>(ids_host_.size()), 64, seed);
    std::vector<int32_t> ids;
    std::vector<int64_t> table_rows;
    std::map<int32_t, int32_t> renumbered;
    for (const int64_t token : tokens) {
      const int32_t id = ids_host_[static_cast<size_t>(token)];
      const auto [entry, added] = renumbered.try_emplace(id, table_rows.size());
      if (added) table_rows.push_back(id);
      ids.push_back(entry->second);
    }
    SampledCase sampled(std::make_unique<EmbeddingCase>(
        std::move(ids), static_cast<int64_t>(table_rows.size()), hidden_,
        positions_ == 0 ? 0 : static_cast<int64_t>(tokens.size()), CaseContext{.dtype = dtype_}));
    sampled.maps[embeddings_].rows = std::move(table_rows);
    sampled.maps[out_].rows = tokens;
    if (positions_ > 0) {
      for (const int64_t token : tokens) sampled.maps[places_].rows.push_back(token % positions_);
    }
    return sampled;
  }

 protected:
  EmbeddingParams Bind(const TensorSet& set) const override {
    return {.dtype = dtype_,
            .num_tokens = static_cast<int64_t>(ids_host_.size()),
            .vocab_size = vocab_,
            .hidden_size = hidden_,
            .token_ids = set.At<int32_t>(ids_),
            .table = set.At(embeddings_),
            .num_positions = positions_,
            .positions = set.At<int32_t>(rows_),
            .position_table = set.At(places_),
            .out = set.At(out_)};
  }

 private:
  std::vector<int32_t> ids_host_;
  int64_t vocab_;
  int64_t hidden_;
  int64_t positions_;
  DType dtype_;
  int embeddings_, out_, ids_;
  int places_ = -1, rows_ = -1;
};

void AddCases(ShapeReader& shape, const CaseContext&, std::vector<CaseSpec>& cases) {
  const int64_t vocab = shape.Int("vocab");
  const int64_t hidden = shape.Int("hidden");
  const int64_t positions = shape.IntOr("positions", 0, {0, kExtents.most});
  for (const int64_t tokens : shape.Ints("tokens")) {
    CaseSpec& spec = cases.emplace_back();
    spec.shape = {{"name", shape.name()}, {"tokens", tokens}, {"vocab", vocab}, {"hidden", hidden}};
    if (positions > 0) spec.shape["positions"] = positions;
    spec.variant = "tokens:" + std::to_string(tokens);
    spec.make = [=](const CaseContext& context) -> std::unique_ptr<BenchCase> {
      // CostOf counts a row of the table for each token, so no row is looked up twice.
      return std::make_unique<EmbeddingCase>(DistinctIds(tokens, vocab), vocab, hidden, positions,
                                             context);
    };
  }
}

}  // namespace
}  // namespace tokline::bench

int main(int argc, char** argv) {
  return tokline::bench::BenchMain(
      argc, argv,
      {.kernel = "embedding", .families = {"embedding"}, .add_cases = tokline::bench::AddCases});
}
