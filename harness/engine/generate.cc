#include "harness/engine/generate.h"

#include <algorithm>

#include "harness/engine/scoped_sequence.h"
#include "harness/platform/clock.h"

namespace tokline {

GenerateResult Generate(Decoder& decoder, std::span<const int32_t> prompt,
                        const GenerateOptions& options) {
  GenerateResult result;
  const ScopedSequence sequence(decoder,
                                decoder.AddSequence({.prompt = {prompt.begin(), prompt.end()},
                                                     .rule = options.rule,
                                                     .max_new_tokens = options.max_new_tokens,
                                                     .shifted = options.shifted,
                                                     .shifted_after = options.shifted_after}));
  // Logits can be read, and tokens replaced, only if the host does not work a step ahead.
  const bool in_step = options.want_logits || !options.force_ids.empty();
  auto begin = Clock::now();
  const auto take = [&](std::span<const NewToken> tokens) {
    for (const NewToken& token : tokens) {
      if (token.sequence != sequence.id() || result.stopped) continue;
      if (result.tokens.empty()) {
        const auto now = Clock::now();
        result.prefill_s = SecondsBetween(begin, now);
        begin = now;
      }
      result.tokens.push_back(token.token);
      result.stopped = std::ranges::find(options.stop_ids, token.token) != options.stop_ids.end();
      if (options.on_token && !options.on_token(token.token)) result.stopped = true;
    }
  };
  while (!result.stopped && !result.interrupted && decoder.HasWork()) {
    const size_t before = result.tokens.size();
    take(decoder.Step().tokens);
    if (in_step) take(decoder.Flush());
    if (in_step && result.tokens.size() > before) {
      if (options.want_logits) result.logits.push_back(decoder.Logits(sequence.id()));
      if (before < options.force_ids.size()) {
        decoder.ReplaceNewestToken(sequence.id(), options.force_ids[before]);
      }
    }
    result.interrupted = options.interrupted != nullptr && options.interrupted->load();
  }
  take(decoder.Flush());
  if (!result.tokens.empty()) result.decode_s = SecondsSince(begin);
  return result;
}

}  // namespace tokline
