// A conversation as token ids. The model's input in a turn begins with everything that it read and
// generated before, so that the KV cache can be reused.
//
// Every prompt begins with the prefix: the system text, then the pieces of context. Each is encoded
// separately, so that its ids do not depend on what surrounds it. After the prefix come segments:
// the user's text with its markup, and answers with the ids that were drawn. A turn renders the
// whole conversation, keeps the segments that the rendered text still begins with, and encodes only
// the rest. So a prompt begins, token by token, with the previous prompt and its answer as long as
// the template does not rewrite the history; from the first place that it rewrites, everything is
// encoded again.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/scheduler/request.h"
#include "harness/text/chat_template.h"
#include "harness/text/tokenizer.h"

namespace tokline {

// A named text that all turns share, such as a file that the model should know.
struct ContextPiece {
  std::string name;
  std::string text;
};

// The position of a part of the prefix in every prompt: tokens [begin, end).
struct TokenSpan {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t Tokens() const { return end - begin; }
};

class Conversation {
 public:
  struct Options {
    std::string system;  // empty if there is none
    std::vector<ContextPiece> context;
    ChatOptions chat;  // add_generation_prompt is not used; without `now`, the time of construction
  };

  // Keeps references to both. Throws InvalidArgument for text that is not UTF-8, and RuntimeFailure
  // if no token ends a turn, or if the template has no fixed place for the system text and there is
  // one.
  Conversation(const Tokenizer& tokenizer, const ChatTemplate& chat_template, Options options);

  // The start of every prompt, up to the end of the last piece; empty if there is no system text
  // and no context.
  const std::vector<int32_t>& Prefix() const { return prefix_; }
  // The parts of the prefix in order, without gaps: "system" (with the markup before it), then the
  // pieces.
  std::span<const TokenSpan> Spans() const { return spans_; }
  // The positions in the prefix where chunks end: after each piece, or after the system text if
  // there are no pieces.
  std::vector<int64_t> PrefixCuts() const;
  int32_t EndOfTurn() const { return end_of_turn_; }

  // Begins a turn and returns its request: its prompt, where to cut it and whether to keep it; the
  // caller sets the other members. The turn must be ended or dropped. Throws InvalidArgument for
  // text that is not UTF-8, and whatever ChatTemplate::Render throws; then no turn has begun.
  Request BeginTurn(std::string_view user);
  // Ends the turn with the ids of its answer as they were drawn. `stopped` means that the last id
  // is a stop id, which is not text. If the template drops thoughts, nothing remains of an answer
  // that was cut off inside its thoughts.
  void EndTurn(std::span<const int32_t> answer, bool stopped);
  // Ends the turn with a text that differs from the drawn one, such as a text that was cut at a
  // stop text. The next turn encodes it.
  void EndTurn(std::string text);
  // Undoes BeginTurn.
  void DropTurn();
  // Forgets all turns.
  void Reset();

  // Whether the template reproduces earlier answers as they were drawn. Qwen3's does not: it drops
  // their thoughts.
  bool KeepsAnswers() const { return keeps_answers_; }

 private:
  struct Segment {
    std::string text;  // as rendered by the template
    std::vector<int32_t> ids;
  };
  // Renders the conversation and returns what follows the prefix.
  std::vector<TextPart> RenderTurns(std::span<const ChatMessage> messages, bool prompt) const;
  // Makes the segments and the request of the turn whose message is the last one.
  Request RequestAnswer();
  void MakePrefix();
  void ProbeTemplate();
  // Adds an answer to the history, together with the thoughts that the prompt opened.
  void AddAnswer(std::string answer, bool finished);
  // Encodes parts of a prompt that follow the prefix and then these ids.
  std::vector<int32_t> EncodeAfter(std::span<const int32_t> before,
                                   std::span<const TextPart> parts) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate& template_;
  Options options_;
  int32_t end_of_turn_ = 0;
  std::string head_;  // what the template writes before the system text
  std::vector<int32_t> prefix_;
  std::vector<TokenSpan> spans_;
  bool keeps_answers_ = true;
  std::string opened_thoughts_;        // the part of an answer in the history that the prompt
                                       // writes
  std::vector<ChatMessage> messages_;  // begin with the placeholder if there is a prefix
  std::vector<Segment> segments_;
  size_t segments_before_turn_ = 0;
};

}  // namespace tokline
