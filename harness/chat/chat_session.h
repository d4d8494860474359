// Runs a conversation on a decoder. Each turn streams its tokens and reports how much it reused and
// how long it took.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/chat/conversation.h"
#include "harness/engine/decoder.h"
#include "harness/engine/token_times.h"

namespace tokline {

using PrefillObserver = std::function<void(int64_t computed, int64_t all)>;

struct TurnOptions {
  int64_t max_new_tokens = 16;
  SamplingRule rule = {};
  std::vector<int32_t> stop_ids = {};   // in addition to the template's end of turn
  std::vector<std::string> stops = {};  // texts before which the answer ends
  // Ends the answer once it is true. Tokens drawn after that are dropped.
  const std::atomic<bool>* interrupted = nullptr;
  std::function<void(std::string_view)> on_text = {};  // gets the answer in whole code points
  // Called after each step of the prefill with the tokens computed so far and those to compute.
  PrefillObserver on_prefill = {};
};

struct TurnResult {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;  // as drawn
  std::string text;             // as shown
  std::string stop;             // the stop text that ended the answer; empty if none did
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;  // prompt tokens found in the cache and not computed
  TokenTimes times;
  // Estimated time that computing the reused tokens would have taken, at the highest prefill rate
  // seen so far. The estimate tends to be too low.
  double saved_s = 0;
  bool stopped = false;      // ended by a stop id, and not by the token limit or an interruption
  bool at_context = false;   // ended because the context is full
  bool interrupted = false;  // the turn is dropped if it has no tokens; otherwise they are kept
};

class ChatSession {
 public:
  // Keeps references to both. The decoder must have been made with DecoderOptions::reuse, and with
  // pinned_pages as returned by PagesToPin.
  ChatSession(Conversation& conversation, Decoder& decoder);
  ~ChatSession();
  ChatSession(const ChatSession&) = delete;
  ChatSession& operator=(const ChatSession&) = delete;

  // Number of pages of `page_size` tokens that the prefix takes, cut into its chunks.
  static int64_t PagesToPin(const Conversation& conversation, int32_t page_size);

  // Computes the prefix, if there is one, and keeps it in the cache from then on. Returns the
  // seconds taken, or 0 if interrupted. Throws InvalidArgument if the prefix does not fit the
  // context or the KV cache.
  double ComputePrefix(const std::atomic<bool>* interrupted = nullptr,
                       const PrefillObserver& on_prefill = {});

  // Answers one turn. Throws InvalidArgument, with the values, if the turn does not fit the context
  // or the KV cache; the conversation is then unchanged.
  TurnResult Answer(std::string_view user, const Tokenizer& tokenizer, const TurnOptions& options);

 private:
  void CountPrefill(int64_t tokens, double seconds);

  Conversation& conversation_;
  Decoder& decoder_;
  Scheduler::Pinned pinned_;
  double prefill_tokens_per_s_ = 0;  // the highest rate so far
};

}  // namespace tokline
