#include "harness/decoder/throughput.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "kernels/common/error.h"

namespace tokline {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int64_t PrefillSteps(const BenchOptions& options, int64_t token_budget) {
  return (options.batch * options.prompt_tokens + token_budget - 1) / token_budget;
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
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

 private:
  void AddSequences(uint64_t seed, int64_t max_new_tokens) {
    std::mt19937_64 rng(seed);
    std::uniform_int_distribution<int32_t> token(
        0, static_cast<int32_t>(decoder_.Spec().vocab_size - 1));
    std::vector<int32_t> prompt(static_cast<size_t>(options_.prompt_tokens));
    for (int32_t i = 0; i < options_.batch; ++i) {
      std::ranges::generate(prompt, [&] { return token(rng); });
      ids_.push_back(decoder_.AddSequence(prompt, SamplingRule{}, max_new_tokens));
    }
  }
  bool Steps(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (options_.interrupted != nullptr && options_.interrupted->load()) return false;
      decoder_.Step();
    }
    decoder_.Flush();
    return true;
  }

  Decoder& decoder_;
  const BenchOptions& options_;
  std::vector<SequenceId> ids_;
};

}  // namespace

int64_t BenchContextTokens(const BenchOptions& options, int64_t token_budget) {
  return options.prompt_tokens + options.new_tokens + PrefillSteps(options, token_budget);
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
    if (BatchRun(decoder, options).Run(options.seed + 1 + static_cast<uint64_t>(i), sample)) {
      result.samples.push_back(sample);
    } else {
      result.interrupted = true;
    }
  }
  if (result.samples.empty()) return result;

  const auto median = [&](auto&& value) {
    std::vector<double> values;
    for (const BenchSample& sample : result.samples) values.push_back(value(sample));
    return Median(values);
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
