// Submits each turn to the decoder, streams the answer and measures it. A turn that fails or has no
// tokens is dropped from the conversation.
#include "harness/chat/chat_session.h"

#include <algorithm>
#include <utility>

#include "harness/engine/scoped_sequence.h"
#include "harness/platform/clock.h"
#include "harness/scheduler/sequence_pages.h"
#include "harness/text/stop_strings.h"
#include "kernels/common/error.h"

namespace tokline {

ChatSession::ChatSession(Conversation& conversation, Decoder& decoder)
    : conversation_(conversation), decoder_(decoder) {}

ChatSession::~ChatSession() { decoder_.Unpin(pinned_); }

int64_t ChatSession::PagesToPin(const Conversation& conversation, int32_t page_size) {
  return SequencePages(page_size).PagesFor(std::ssize(conversation.Prefix()),
                                           conversation.PrefixCuts());
}

double ChatSession::ComputePrefix(const std::atomic<bool>* interrupted,
                                  const PrefillObserver& on_prefill) {
  const std::vector<int32_t>& prefix = conversation_.Prefix();
  if (prefix.empty()) return 0;
  const int64_t context = decoder_.Options().max_context;
  Require(std::ssize(prefix) < context, "the system text and the chunks have ", prefix.size(),
          " tokens; the context has ", context, ", and a turn needs some of them");
  const auto begin = Clock::now();
  const ScopedSequence sequence(decoder_, decoder_.Submit({.prompt = prefix,
                                                           .max_new_tokens = 1,
                                                           .cuts = conversation_.PrefixCuts(),
                                                           .keep = true}));
  int64_t computed = 0;
  while (decoder_.HasWork()) {
    computed += decoder_.Step().prefill_tokens;
    if (on_prefill) on_prefill(computed, std::ssize(prefix));
    if (interrupted != nullptr && interrupted->load()) return 0;
  }
  decoder_.Flush();
  const double seconds = SecondsSince(begin);
  CountPrefill(std::ssize(prefix), seconds);
  pinned_ = decoder_.Pin(prefix);
  return seconds;
}

void ChatSession::CountPrefill(int64_t tokens, double seconds) {
  prefill_tokens_per_s_ = std::max(prefill_tokens_per_s_, static_cast<double>(tokens) / seconds);
}

TurnResult ChatSession::Answer(std::string_view user, const Tokenizer& tokenizer,
                               const TurnOptions& options) {
  // Made first: nothing that throws may stand between Submit and ScopedSequence.
  TextStream stream = tokenizer.Stream({.skip_special = true});
  StopStrings stops(options.stops);
  Request request = conversation_.BeginTurn(user);
  TurnResult result;
  result.prompt = request.prompt;
  result.prompt_tokens = std::ssize(request.prompt);
  request.rule = options.rule;
  request.stop_ids = options.stop_ids;
  request.stop_ids.push_back(conversation_.EndOfTurn());
  const int64_t context = decoder_.Options().max_context;
  const int64_t left = context - result.prompt_tokens;
  request.max_new_tokens = std::min(options.max_new_tokens, left);
  const int64_t reused_before = decoder_.Schedule().Counts().reused_tokens;
  SequenceId id = 0;
  try {
    Require(left >= 1, "the context is full: with this turn the conversation has ",
            result.prompt_tokens, " tokens and needs at least one more; the context has ", context);
    result.times = TokenTimes(Clock::now());
    id = decoder_.Submit(std::move(request));
  } catch (...) {
    conversation_.DropTurn();
    throw;
  }
  const auto print = [&](const std::string& text) {
    result.text += text;
    if (!text.empty() && options.on_text) options.on_text(text);
  };
  const auto show = [&](const std::string& text) { print(stops.Push(text)); };
  bool finished = false;
  try {
    const ScopedSequence sequence(decoder_, id);
    const auto take = [&](std::span<const NewToken> tokens) {
      for (const NewToken& token : tokens) {
        result.times.Add(Clock::now());
        result.tokens.push_back(token.token);
        finished = token.finish != Finish::kNone;
        result.stopped = token.finish == Finish::kStop;
        if (!result.stopped) show(stream.Push(token.token));
        if (!stops.Found().empty()) {
          finished = true;
          return;
        }
      }
    };
    const auto interrupted = [&options] {
      return options.interrupted != nullptr && options.interrupted->load();
    };
    int64_t computed = 0;
    while (!finished && !interrupted()) {
      if (!decoder_.HasWork()) {
        take(decoder_.Flush());
        continue;
      }
      const StepReport step = decoder_.Step();
      if (interrupted()) break;
      computed += step.prefill_tokens;
      if (step.prefill_tokens > 0 && options.on_prefill) {
        const int64_t reused = decoder_.Schedule().Counts().reused_tokens - reused_before;
        options.on_prefill(computed, result.prompt_tokens - reused);
      }
      take(step.tokens);
    }
    result.interrupted = !finished && interrupted();
    show(stream.Finish());
    if (stops.Found().empty()) print(stops.Finish());
  } catch (...) {
    conversation_.DropTurn();
    throw;
  }
  result.reused_tokens = decoder_.Schedule().Counts().reused_tokens - reused_before;
  if (result.tokens.empty()) {
    conversation_.DropTurn();
    return result;
  }
  result.stop = stops.Found();
  if (result.stop.empty()) {
    conversation_.EndTurn(result.tokens, result.stopped);
  } else {
    conversation_.EndTurn(result.text);
  }
  result.at_context = !result.stopped && result.stop.empty() && std::ssize(result.tokens) == left;
  CountPrefill(result.prompt_tokens - result.reused_tokens, result.times.FirstTokenS());
  result.saved_s = static_cast<double>(result.reused_tokens) / prefill_tokens_per_s_;
  return result;
}

}  // namespace tokline
