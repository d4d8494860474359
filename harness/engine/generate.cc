// Runs a decoder with one sequence until it ends, and collects what it generates.
#include "harness/engine/generate.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "harness/engine/scoped_sequence.h"

namespace tokline {
namespace {

// Collects the residual stream, the queries and the keys of a decoder that has one sequence.
class HiddenStates : public OpObserver {
 public:
  explicit HiddenStates(Decoder& decoder) : decoder_(decoder), observed_(decoder, this) {
    decoder_.DropGraphs();  // a replayed graph calls no observer
  }

  bool NeedsChain() const override { return true; }
  void Begin(StepOp op, std::string_view) override {
    if (op == StepOp::kChunkDecode || op == StepOp::kPagedPrefill)
      queries_.push_back(decoder_.Queries());
    ends_a_state_ =
        decoder_.Options().ranks > 1
            ? op == StepOp::kAllReduce
            : op == StepOp::kEmbedding || op == StepOp::kAttentionOutput || op == StepOp::kDown;
  }
  void End() override {
    if (ends_a_state_) states_.push_back(decoder_.Hidden());
  }
  // Appends the states of the newest step, and the queries without keys to `heads`.
  void MoveTo(GenerateResult& result) {
    AppendByToken(states_, decoder_.Spec().hidden_size, result.hidden);
    AppendByToken(queries_, QueryWidth(), result.heads);
  }
  // Inserts the keys of the cache after the queries of each token and layer.
  void AddKeys(SequenceId id, std::vector<float>& heads) const {
    const int64_t layers = decoder_.Spec().num_layers, width = QueryWidth();
    std::vector<std::vector<float>> keys;
    for (int64_t layer = 0; layer < layers; ++layer) keys.push_back(decoder_.ReadKv(id, layer).k);
    const int64_t tokens = std::ssize(heads) / (layers * width);
    const int64_t key_width = std::ssize(keys.front()) / tokens;
    std::vector<float> both;
    for (int64_t row = 0; row < tokens * layers; ++row) {
      both.insert(both.end(), heads.begin() + row * width, heads.begin() + (row + 1) * width);
      const auto key = keys[row % layers].begin() + row / layers * key_width;
      both.insert(both.end(), key, key + key_width);
    }
    heads = std::move(both);
  }

 private:
  int64_t QueryWidth() const { return decoder_.Spec().QSize() / decoder_.Options().ranks; }
  // Appends the rows of each of `parts`, [rows, width], by token.
  static void AppendByToken(std::vector<std::vector<float>>& parts, int64_t width,
                            std::vector<float>& tokens) {
    for (int64_t at = 0; !parts.empty() && at < std::ssize(parts.front()); at += width) {
      for (const std::vector<float>& part : parts) {
        tokens.insert(tokens.end(), part.begin() + at, part.begin() + at + width);
      }
    }
    parts.clear();
  }

  Decoder& decoder_;
  bool ends_a_state_ = false;
  std::vector<std::vector<float>> states_;   // each [rows, hidden_size]
  std::vector<std::vector<float>> queries_;  // each [rows, QueryWidth()]
  ObservedScope<Decoder> observed_;          // last: by this object, which is whole then
};

}  // namespace

GenerateResult Generate(Decoder& decoder, std::span<const int32_t> prompt,
                        const GenerateOptions& options) {
  GenerateResult result;
  result.times = TokenTimes(Clock::now());
  const ScopedSequence sequence(decoder,
                                decoder.AddSequence({.prompt = {prompt.begin(), prompt.end()},
                                                     .rule = options.rule,
                                                     .max_new_tokens = options.max_new_tokens,
                                                     .shifted = options.shifted,
                                                     .shifted_after = options.shifted_after}));
  // Logits can be read, and tokens replaced, only if the host does not work a step ahead, which
  // would also read a token that ends the text.
  const bool in_step = options.want_logits || options.want_hidden || !options.force_ids.empty();
  std::optional<HiddenStates> hidden;
  if (options.want_hidden) hidden.emplace(decoder);
  const auto take = [&](std::span<const NewToken> tokens) {
    for (const NewToken& token : tokens) {
      if (token.sequence != sequence.id() || result.stopped) continue;
      result.times.Add(Clock::now());
      result.tokens.push_back(token.token);
      result.stopped = std::ranges::find(options.stop_ids, token.token) != options.stop_ids.end();
      if (options.on_token && !options.on_token(token.token)) result.stopped = true;
    }
  };
  const auto interrupted = [&options] {
    return options.interrupted != nullptr && options.interrupted->load();
  };
  int64_t computed = 0;
  while (!result.stopped && !interrupted() && decoder.HasWork()) {
    const size_t before = result.tokens.size();
    const StepReport step = decoder.Step();
    if (interrupted()) break;
    if (hidden) hidden->MoveTo(result);
    computed += step.prefill_tokens;
    if (step.prefill_tokens > 0 && options.on_prefill) options.on_prefill(computed);
    take(step.tokens);
    if (in_step) take(decoder.Flush());
    if (in_step && result.tokens.size() > before) {
      if (options.want_logits) result.logits.push_back(decoder.Logits(sequence.id()));
      if (before < options.force_ids.size()) {
        decoder.ReplaceNewestToken(sequence.id(), options.force_ids[before]);
      }
    }
  }
  const std::span<const NewToken> last = decoder.Flush();
  const bool unfinished = !result.stopped && std::ssize(result.tokens) < options.max_new_tokens;
  result.interrupted = unfinished && interrupted();
  if (!result.interrupted) take(last);
  if (hidden && !result.interrupted) hidden->AddKeys(sequence.id(), result.heads);
  return result;
}

}  // namespace tokline
