// A conversation on a decoder: each turn's tokens as they come, what it reused and how long it
// took.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/chat/conversation.h"
#include "harness/engine/decoder.h"

namespace tokline {

struct TurnOptions {
  int64_t max_new_tokens = 16;
  SamplingRule rule = {};
  std::vector<int32_t> stop_ids = {};                  // besides the template's end of a turn
  const std::atomic<bool>* interrupted = nullptr;      // ends the answer when it becomes true
  std::function<void(std::string_view)> on_text = {};  // the answer as it comes, in code points
};

struct TurnResult {
  std::vector<int32_t> tokens;  // as drawn
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;  // of the prompt: found in the cache and not computed
  double first_token_s = 0;   // since the turn began
  double decode_s = 0;        // for all other tokens
  // What computing the reused tokens would have taken at the highest rate at which prompt tokens
  // were computed so far: an estimate, rather too low.
  double saved_s = 0;
  bool stopped = false;      // by a stop id; else by the number of tokens or by an interruption
  bool at_context = false;   // by the end of the context
  bool interrupted = false;  // a turn without a token is dropped, another stays as far as it came
};

class ChatSession {
 public:
  // Borrows both. The decoder has DecoderOptions::reuse, and pinned_pages as PagesToPin says.
  ChatSession(Conversation& conversation, Decoder& decoder);
  ~ChatSession();
  ChatSession(const ChatSession&) = delete;
  ChatSession& operator=(const ChatSession&) = delete;

  // Pages of `page_size` tokens that the prefix takes, with its chunks cut.
  static int64_t PagesToPin(const Conversation& conversation, int32_t page_size);

  // Computes the prefix, unless there is none, and keeps it from then on; returns the seconds, 0 if
  // it was interrupted. Throws InvalidArgument if it does not fit the context or the KV cache.
  double ComputePrefix(const std::atomic<bool>* interrupted = nullptr);

  // Answers. Throws InvalidArgument, with the values, if the turn does not fit the context or the
  // KV cache; the conversation is then as before.
  TurnResult Answer(std::string_view user, const Tokenizer& tokenizer, const TurnOptions& options);

 private:
  void CountPrefill(int64_t tokens, double seconds);

  Conversation& conversation_;
  Decoder& decoder_;
  Scheduler::Pinned pinned_;
  double prefill_tokens_per_s_ = 0;  // the highest rate so far
};

}  // namespace tokline
