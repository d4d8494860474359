// Times repeats of a full batch of random prompts and computes the minimum cost of its decode step.
#include "harness/measure/throughput.h"

#include "harness/measure/batch_run.h"
#include "harness/measure/timing.h"
#include "kernels/common/error.h"
#include "kernels/common/rounding.h"

namespace tokline {

int64_t PrefillSteps(const BenchOptions& options, int64_t token_budget) {
  return DivideUp(options.batch * options.prompt_tokens, token_budget);
}

int64_t RepeatTokens(const BenchOptions& options) {
  return options.batch * (options.depth + options.prompt_tokens + options.new_tokens - 1);
}

int64_t BenchContextTokens(const BenchOptions& options, int64_t token_budget) {
  return options.depth + options.prompt_tokens + options.new_tokens +
         PrefillSteps(options, token_budget);
}

double DecodeStepLinkBytes(const ModelShard& shard, DType dtype, const BenchOptions& options) {
  const double sum = LinkBytesOf({.dtype = dtype,
                                  .num_tokens = options.batch,
                                  .hidden_size = shard.whole.hidden_size,
                                  .peers = {.world_size = shard.world_size}});
  const auto sums = static_cast<double>(2 * shard.whole.num_layers + 1);
  const auto logits = static_cast<double>(shard.whole.vocab_size - shard.local.vocab_size);
  return sums * sum + options.batch * logits * sizeof(float);
}

void RequireFits(const Decoder& decoder, const BenchOptions& options) {
  Require(options.batch >= 1 && options.batch <= decoder.Options().max_batch, "batch is ",
          options.batch, "; the decoder takes 1 to ", decoder.Options().max_batch);
  Require(options.depth >= 0, "depth is ", options.depth, "; it must be >= 0");
  Require(options.prompt_tokens >= 1, "prompt_tokens is ", options.prompt_tokens,
          "; it must be >= 1");
  Require(options.new_tokens >= 2, "new_tokens is ", options.new_tokens, "; it must be >= 2");
  const int64_t context = BenchContextTokens(options, decoder.Options().token_budget);
  Require(context <= decoder.Options().max_context, "the bench needs a context of ", context,
          " tokens; the decoder allows ", decoder.Options().max_context);
}

Cost DecodeStepCost(const ModelSpec& spec, int64_t parameters, DType dtype,
                    const BenchOptions& options) {
  const auto batch = static_cast<double>(options.batch);
  // The prefill produces the first new token; each of the new_tokens - 1 steps, numbered i, finds
  // depth + prompt + i tokens in the cache and appends one per sequence.
  const double cached = static_cast<double>(options.depth + options.prompt_tokens) +
                        static_cast<double>(options.new_tokens - 2) / 2;
  const auto table = static_cast<double>(spec.vocab_size * spec.hidden_size);
  const double element = SizeOf(dtype);
  const auto kv_bytes = static_cast<double>(spec.KvBytesPerToken(dtype));
  const auto layers = static_cast<double>(spec.num_layers);
  const auto matrices =
      static_cast<double>(spec.hidden_size * (2 * spec.QSize() + 2 * spec.KvSize() + spec.UpRows() +
                                              spec.intermediate_size));
  Cost cost;
  // a tied table is read in full by the LM head
  cost.read_bytes = static_cast<double>(parameters) * element;
  if (!spec.tied_embeddings) {
    cost.read_bytes += (batch * static_cast<double>(spec.hidden_size) - table) * element;
  }
  if (spec.position == PositionKind::kLearned) {  // one row per sequence
    cost.read_bytes += (batch - static_cast<double>(spec.max_positions)) *
                       static_cast<double>(spec.hidden_size) * element;
  }
  cost.read_bytes += batch * cached * kv_bytes;
  cost.write_bytes = batch * kv_bytes;
  cost.flops = 2 * batch * (layers * matrices + table);  // projections and LM head
  // q.k and p.v: one multiply-add per element each, over the context and the new token.
  cost.flops += 4 * batch * layers * (cached + 1) * static_cast<double>(spec.QSize());
  return cost;
}

std::optional<BenchRepeat> TimeRepeat(Decoder& decoder, const BenchOptions& options,
                                      uint64_t seed) {
  BatchRun run(decoder, options, seed);
  if (!run.FillDepth()) return std::nullopt;
  BenchSample sample;
  const auto prefill_begin = Clock::now();
  if (!run.Prefill()) return std::nullopt;
  sample.prefill_s = SecondsSince(prefill_begin);
  const double waited_s = decoder.WaitSeconds();
  const auto decode_begin = Clock::now();
  if (!run.Decode(options.new_tokens - 1)) return std::nullopt;
  sample.decode_s = SecondsSince(decode_begin);
  sample.decode_host_s = sample.decode_s - (decoder.WaitSeconds() - waited_s);
  return BenchRepeat{.sample = sample, .texts = run.TakeTexts(), .latencies = run.TakeLatencies()};
}

BenchResult RunBench(Decoder& decoder, const BenchOptions& options) {
  Require(options.repeats >= 1, "repeats is ", options.repeats, "; it must be >= 1");
  RequireFits(decoder, options);
  BenchResult result;
  result.options = options;
  const auto warm_up_begin = Clock::now();
  decoder.WarmUp();
  const int64_t graph_steps = decoder.GraphSteps();
  result.interrupted = !TimeRepeat(decoder, options, options.seed).has_value();
  result.graphs = decoder.GraphSteps() > graph_steps;
  result.warm_up_s = SecondsSince(warm_up_begin);
  TokenLatencies latencies;
  for (int32_t i = 0; i < options.repeats && !result.interrupted; ++i) {
    const uint64_t seed = options.seed + 1 + static_cast<uint64_t>(i);
    if (auto repeat = TimeRepeat(decoder, options, seed)) {
      result.samples.push_back(repeat->sample);
      result.texts = std::move(repeat->texts);
      latencies.Append(repeat->latencies);
    } else {
      result.interrupted = true;
    }
  }
  if (result.samples.empty()) return result;
  result.latencies = std::move(latencies).Figures();

  const auto median = [&](auto&& value) {
    std::vector<double> values;
    for (const BenchSample& sample : result.samples) values.push_back(value(sample));
    return Median(std::move(values));
  };
  const double steps = static_cast<double>(options.new_tokens - 1);
  const double decode_s = median([](const BenchSample& s) { return s.decode_s; });
  result.ms_per_step = 1e3 * decode_s / steps;
  result.host_share = median([](const BenchSample& s) { return s.decode_host_s / s.decode_s; });
  return result;
}

}  // namespace tokline
