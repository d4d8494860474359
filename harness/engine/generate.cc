#include "harness/engine/generate.h"

#include <algorithm>

#include "harness/engine/scoped_sequence.h"

namespace tokline {

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
  // Logits can be read, and tokens replaced, only if the host does not work a step ahead.
  const bool in_step = options.want_logits || !options.force_ids.empty();
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
  return result;
}

}  // namespace tokline
