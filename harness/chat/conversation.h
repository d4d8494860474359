// A conversation as token ids: what the model reads at each turn, such that it begins with what it
// read and wrote before.
//
// Every prompt begins with the prefix: the system text, then the pieces of context, each encoded by
// itself, so that its ids are the same wherever it stands. Behind it come segments: the user's
// words with their markup, and answers as their ids were drawn. A turn renders the whole
// conversation, keeps the segments that the rendered text still begins with, and encodes only what
// follows. So a prompt begins with the one before and its answer, token by token, as long as the
// template writes the history as it was; where it does not, from there on all is encoded anew.
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

// A named text that all turns share, as a file that the model is to know.
struct ContextPiece {
  std::string name;
  std::string text;
};

// Where a part of the prefix lies in every prompt: tokens [begin, end).
struct TokenSpan {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t Tokens() const { return end - begin; }
};

class Conversation {
 public:
  struct Options {
    std::string system;  // empty: none
    std::vector<ContextPiece> context;
    ChatOptions chat;  // add_generation_prompt is not used
  };

  // Borrows both. Throws InvalidArgument for text that is not UTF-8, RuntimeFailure if the
  // tokenizer lacks the token that ends a turn.
  Conversation(const Tokenizer& tokenizer, const ChatTemplate& chat_template, Options options);

  // What every prompt begins with, up to the end of the last piece; empty without any.
  const std::vector<int32_t>& Prefix() const { return prefix_; }
  // The prefix in order, without gaps: "system" (with the markup before it), then the pieces.
  std::span<const TokenSpan> Spans() const { return spans_; }
  // Where chunks end in it: after the system text or after each piece.
  std::vector<int64_t> PrefixCuts() const;
  int32_t EndOfTurn() const { return end_of_turn_; }

  // The next turn's request: its prompt, where to cut it and whether to keep it. Its other members
  // are the caller's. The turn has begun and must be ended or dropped. Throws InvalidArgument for
  // text that is not UTF-8; then no turn has begun.
  Request BeginTurn(std::string_view user);
  // The answer's ids as they were drawn. `stopped`: the last one is a stop id, and so no text. Of
  // one that was cut short within its thoughts nothing stays where the template drops thoughts.
  void EndTurn(std::span<const int32_t> answer, bool stopped);
  // As if the turn had not been.
  void DropTurn();
  // Forgets all turns.
  void Reset();

  // Whether the template writes earlier answers as they were drawn. Qwen3's drops their thoughts.
  bool KeepsAnswers() const { return keeps_answers_; }

 private:
  struct Segment {
    std::string text;  // that the template has for it
    std::vector<int32_t> ids;
  };
  // The rendered conversation after the prefix.
  std::vector<TextPart> RenderTurns(std::span<const ChatMessage> messages, bool prompt) const;
  void MakePrefix();
  bool ProbeTemplate() const;
  std::vector<int32_t> Encode(std::span<const TextPart> parts) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate& template_;
  Options options_;
  int32_t end_of_turn_ = 0;
  std::vector<int32_t> prefix_;
  std::vector<TokenSpan> spans_;
  bool keeps_answers_ = true;
  std::vector<ChatMessage> messages_;  // the system's stand-in first, if there is a prefix
  std::vector<Segment> segments_;
  size_t segments_before_turn_ = 0;
};

}  // namespace tokline
