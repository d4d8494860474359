#include "harness/decoder/throughput.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "harness/core/timing.h"
#include "kernels/common/error.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int64_t PrefillSteps(const BenchOptions& options, int64_t token_budget) {
  return DivideUp(options.batch * options.prompt_tokens, token_budget);
}

class BatchRun {
 public:
  BatchRun(Decoder& decoder, const BenchOptions& options) : decoder_(decoder), options_(options) {}
  ~BatchRun() {
    for (const SequenceId id : ids_) decoder_.RemoveSequence(id);
  }
  BatchRun(const BatchRun&) = delete;
  BatchRun& operator=(const BatchRun&) = delete;

  // False if it was interrupted.
  bool Run(uint64_t seed, BenchSample& sample) {
    const int64_t prefill_steps = PrefillSteps(options_, decoder_.Options().token_budget);
    AddSequences(seed, options_.new_tokens + prefill_steps);
    const auto prefill_begin = Clock::now();
    if (!Steps(prefill_steps)) return false;
    sample.prefill_s = SecondsSince(prefill_begin);

    const HostTimes before = decoder_.Times();
    const auto decode_begin = Clock::now();
    if (!Steps(options_.new_tokens - 1)) return false;
    sample.decode_s = SecondsSince(decode_begin);
    const HostTimes after = decoder_.Times();
    sample.decode_host_s = (after.total_s - before.total_s) - (after.wait_s - before.wait_s);
    return true;
  }
  // Of the first and the last sequence, each once, cut to new_tokens.
  std::vector<BenchText> TakeTexts() {
    const auto most = static_cast<size_t>(options_.new_tokens);
    for (BenchText& text : texts_) text.tokens.resize(std::min(text.tokens.size(), most));
    return std::move(texts_);
  }

 private:
  void AddSequences(uint64_t seed, int64_t max_new_tokens) {
    std::mt19937_64 rng(seed);
    std::uniform_int_distribution<int32_t> token(
        0, static_cast<int32_t>(decoder_.Spec().vocab_size - 1));
    std::vector<int32_t> prompt(static_cast<size_t>(options_.prompt_tokens));
    for (int32_t i = 0; i < options_.batch; ++i) {
      std::ranges::generate(prompt, [&] { return token(rng); });
      ids_.push_back(decoder_.AddSequence(prompt, SamplingRule{}, max_new_tokens));
      if (i == 0 || i == options_.batch - 1) {
        kept_.push_back(ids_.back());
        texts_.push_back({.prompt = prompt, .tokens = {}});
        texts_.back().tokens.reserve(static_cast<size_t>(max_new_tokens));
      }
    }
  }
  void Keep(std::span<const NewToken> tokens) {
    for (const NewToken& token : tokens) {
      for (size_t i = 0; i < kept_.size(); ++i) {
        if (token.sequence == kept_[i]) texts_[i].tokens.push_back(token.token);
      }
    }
  }
  bool Steps(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (options_.interrupted != nullptr && options_.interrupted->load()) return false;
      Keep(decoder_.Step().tokens);
    }
    Keep(decoder_.Flush());
    return true;
  }

  Decoder& decoder_;
  const BenchOptions& options_;
  std::vector<SequenceId> ids_;
  std::vector<SequenceId> kept_;  // whose texts are
  std::vector<BenchText> texts_;
};

}  // namespace

int64_t BenchContextTokens(const BenchOptions& options, int64_t token_budget) {
  return options.prompt_tokens + options.new_tokens + PrefillSteps(options, token_budget);
}

Cost DecodeStepCost(const ModelSpec& spec, int64_t parameters, DType dtype,
                    const BenchOptions& options) {
  const auto batch = static_cast<double>(options.batch);
  // The first new token is drawn by the prefill; step i of new_tokens - 1 finds prompt + i tokens
  // in the cache and appends one a sequence.
  const double cached =
      static_cast<double>(options.prompt_tokens) + static_cast<double>(options.new_tokens - 2) / 2;
  const auto table = static_cast<double>(spec.vocab_size * spec.hidden_size);
  const double element = SizeOf(dtype);
  const auto kv_bytes = static_cast<double>(spec.KvBytesPerToken(dtype));
  const auto layers = static_cast<double>(spec.num_layers);
  const auto matrices = static_cast<double>(
      spec.hidden_size * (2 * spec.QSize() + 2 * spec.KvSize() + 3 * spec.intermediate_size));
  Cost cost;
  cost.read_bytes = static_cast<double>(parameters) * element;  // a tied table is read as LM head
  if (!spec.tied_embeddings) {
    cost.read_bytes += (batch * static_cast<double>(spec.hidden_size) - table) * element;
  }
  cost.read_bytes += batch * cached * kv_bytes;
  cost.write_bytes = batch * kv_bytes;
  cost.flops = 2 * batch * (layers * matrices + table);  // projections and LM head
  // q.k and p.v, each a multiply-add an element, over the context and the new token.
  cost.flops += 4 * batch * layers * (cached + 1) * static_cast<double>(spec.QSize());
  return cost;
}

BenchResult RunBench(Decoder& decoder, const BenchOptions& options) {
  Require(options.batch >= 1 && options.batch <= decoder.Options().max_batch, "batch is ",
          options.batch, "; the decoder takes 1 to ", decoder.Options().max_batch);
  Require(options.prompt_tokens >= 1, "prompt_tokens is ", options.prompt_tokens,
          "; it must be >= 1");
  Require(options.new_tokens >= 2, "new_tokens is ", options.new_tokens, "; it must be >= 2");
  Require(options.repeats >= 1, "repeats is ", options.repeats, "; it must be >= 1");
  const int64_t context = BenchContextTokens(options, decoder.Options().token_budget);
  Require(context <= decoder.Options().max_context, "the bench needs a context of ", context,
          " tokens; the decoder allows ", decoder.Options().max_context);

  BenchResult result;
  result.options = options;
  const auto warm_up_begin = Clock::now();
  decoder.WarmUp();
  BenchSample uncounted;
  const int64_t graph_steps = decoder.GraphSteps();
  result.interrupted = !BatchRun(decoder, options).Run(options.seed, uncounted);
  result.graphs = decoder.GraphSteps() > graph_steps;
  result.warm_up_s = SecondsSince(warm_up_begin);
  for (int32_t i = 0; i < options.repeats && !result.interrupted; ++i) {
    BenchSample sample;
    BatchRun run(decoder, options);
    if (run.Run(options.seed + 1 + static_cast<uint64_t>(i), sample)) {
      result.samples.push_back(sample);
      result.texts = run.TakeTexts();
    } else {
      result.interrupted = true;
    }
  }
  if (result.samples.empty()) return result;

  const auto median = [&](auto&& value) {
    std::vector<double> values;
    for (const BenchSample& sample : result.samples) values.push_back(value(sample));
    return Median(std::move(values));
  };
  const double steps = static_cast<double>(options.new_tokens - 1);
  const double decode_s = median([](const BenchSample& s) { return s.decode_s; });
  result.prefill_tokens_per_s = static_cast<double>(options.batch * options.prompt_tokens) /
                                median([](const BenchSample& s) { return s.prefill_s; });
  result.decode_tokens_per_s = options.batch * steps / decode_s;
  result.ms_per_step = 1e3 * decode_s / steps;
  result.host_share = median([](const BenchSample& s) { return s.decode_host_s / s.decode_s; });
  return result;
}

}  // namespace tokline
