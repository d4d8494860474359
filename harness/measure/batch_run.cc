// Schedules random prompts on a decoder and advances them phase by phase.
#include "harness/measure/batch_run.h"

#include <algorithm>
#include <random>

#include "harness/measure/delay.h"
#include "kernels/common/rounding.h"

namespace tokline {

BatchRun::BatchRun(Decoder& decoder, const BenchOptions& options, uint64_t seed)
    : decoder_(decoder), options_(options) {
  RequireFits(decoder, options);
  // Sequences that finish their prefill early keep decoding until the last prefill ends.
  const int64_t max_new_tokens =
      options.new_tokens + PrefillSteps(options, decoder.Options().token_budget);
  std::mt19937_64 rng(seed);
  std::uniform_int_distribution<int32_t> token(0,
                                               static_cast<int32_t>(decoder.Spec().vocab_size - 1));
  std::vector<int32_t> prompt(static_cast<size_t>(options.depth + options.prompt_tokens));
  for (int32_t i = 0; i < options.batch; ++i) {
    std::ranges::generate(prompt, [&] { return token(rng); });
    ids_.push_back(decoder.AddSequence(prompt, SamplingRule{}, max_new_tokens));
    if (i == 0 || i == options.batch - 1) {
      kept_.push_back(ids_.back());
      texts_.push_back({.prompt = prompt, .tokens = {}});
      texts_.back().tokens.reserve(static_cast<size_t>(max_new_tokens));
    }
  }
}

BatchRun::~BatchRun() {
  decoder_.LimitPrompts(INT64_MAX);
  for (const SequenceId id : ids_) decoder_.RemoveSequence(id);
}

bool BatchRun::FillDepth() {
  decoder_.LimitPrompts(options_.depth);
  return Steps(DivideUp(options_.batch * options_.depth, decoder_.Options().token_budget), 0);
}

bool BatchRun::Prefill() {
  const auto batch = static_cast<size_t>(options_.batch);
  latencies_.Reserve(batch, batch * static_cast<size_t>(options_.new_tokens - 1));
  decoder_.LimitPrompts(INT64_MAX);
  times_.assign(batch, TokenTimes(Clock::now()));
  return Steps(PrefillSteps(options_, decoder_.Options().token_budget), 0);
}

bool BatchRun::Decode(int64_t steps) { return Steps(steps, options_.host_delay_us); }

std::vector<BenchText> BatchRun::TakeTexts() {
  const auto most = static_cast<size_t>(options_.new_tokens);
  for (BenchText& text : texts_) text.tokens.resize(std::min(text.tokens.size(), most));
  return std::move(texts_);
}

bool BatchRun::Steps(int64_t count, double host_delay_us) {
  for (int64_t i = 0; i < count; ++i) {
    if (options_.interrupted != nullptr && options_.interrupted->load()) return false;
    const StepReport step = decoder_.Step();
    Keep(step.tokens);
    if (options_.on_step) options_.on_step(step.prefill_tokens + step.decode_rows);
    if (host_delay_us > 0) DelayHost({.us = host_delay_us});
  }
  Keep(decoder_.Flush());
  return true;
}

void BatchRun::Keep(std::span<const NewToken> tokens) {
  const auto now = Clock::now();
  for (const NewToken& token : tokens) {
    TokenTimes& times = times_[static_cast<size_t>(token.sequence - ids_.front())];
    // A sequence whose prefill ended early continues until the whole batch has all of its tokens.
    if (times.Tokens() < options_.new_tokens) {
      latencies_.Add(times, now);
      if (times.Tokens() == options_.new_tokens) latencies_.End(times);
    }
    for (size_t i = 0; i < kept_.size(); ++i) {
      if (token.sequence == kept_[i]) texts_[i].tokens.push_back(token.token);
    }
  }
}

}  // namespace tokline
