// Submits each turn to the decoder, streams the answer and measures it. A turn that fails or has no
// tokens is dropped from the conversation.
#include "harness/chat/chat_session.h"

#include <algorithm>
#include <utility>

#include "harness/engine/scoped_sequence.h"
#include "harness/platform/clock.h"
#include "harness/scheduler/sequence_pages.h"
#include "kernels/common/error.h"

namespace tokline {

ChatSession::ChatSession(Conversation& conversation, Decoder& decoder)
    : conversation_(conversation), decoder_(decoder) {}

ChatSession::~ChatSession() { decoder_.Unpin(pinned_); }

int64_t ChatSession::PagesToPin(const Conversation& conversation, int32_t page_size) {
  return SequencePages(page_size).PagesFor(std::ssize(conversation.Prefix()),
                                           conversation.PrefixCuts());
}

double ChatSession::ComputePrefix(const std::atomic<bool>* interrupted) {
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
  while (decoder_.HasWork()) {
    decoder_.Step();
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
  const auto begin = Clock::now();
  Request request = conversation_.BeginTurn(user);
  TurnResult result;
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
    id = decoder_.Submit(std::move(request));
  } catch (...) {
    conversation_.DropTurn();
    throw;
  }
  TextStream stream = tokenizer.Stream({.skip_special = true});
  const auto show = [&](const std::string& text) {
    if (!text.empty() && options.on_text) options.on_text(text);
  };
  bool finished = false;
  auto first_token = begin;
  try {
    const ScopedSequence sequence(decoder_, id);
    const auto take = [&](std::span<const NewToken> tokens) {
      for (const NewToken& token : tokens) {
        if (result.tokens.empty()) first_token = Clock::now();
        result.tokens.push_back(token.token);
        finished = token.finish != Finish::kNone;
        result.stopped = token.finish == Finish::kStop;
        if (!result.stopped) show(stream.Push(token.token));
      }
    };
    while (!finished) {
      take(decoder_.HasWork() ? decoder_.Step().tokens : decoder_.Flush());
      result.interrupted = options.interrupted != nullptr && options.interrupted->load();
      if (result.interrupted) break;
    }
    result.interrupted = result.interrupted && !finished;
    show(stream.Finish());
  } catch (...) {
    conversation_.DropTurn();
    throw;
  }
  const auto end = Clock::now();
  result.reused_tokens = decoder_.Schedule().Counts().reused_tokens - reused_before;
  if (result.tokens.empty()) {
    conversation_.DropTurn();
    return result;
  }
  conversation_.EndTurn(result.tokens, result.stopped);
  result.first_token_s = SecondsBetween(begin, first_token);
  result.decode_s = SecondsBetween(first_token, end);
  result.at_context = !result.stopped && std::ssize(result.tokens) == left;
  CountPrefill(result.prompt_tokens - result.reused_tokens, result.first_token_s);
  result.saved_s = static_cast<double>(result.reused_tokens) / prefill_tokens_per_s_;
  return result;
}

}  // namespace tokline
