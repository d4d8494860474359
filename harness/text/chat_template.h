// The chat templates of the model families: a conversation to the text that the model continues.
//
// A checkpoint brings its template as a Jinja program. That is not run: the text is recognised by
// its hash, and a C++ function renders what the program renders (for conversations in text, without
// tools). A template that is not known is refused, not guessed.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/text/tokenizer.h"

namespace tokline {

struct ChatMessage {
  std::string role;  // "system" (the first only), "user" or "assistant"
  std::string content;
};

struct ChatOptions {
  bool add_generation_prompt = true;  // the begin of the assistant's turn
  bool enable_thinking = true;        // Qwen3: false puts an empty <think> block before the answer
  // Llama 3.1 and 3.2 write a date, as "26 Jul 2024". Empty: what the template takes by itself,
  // which is that day for 3.1 and today for 3.2.
  std::string date = {};
};

class ChatTemplate {
 public:
  // Of a model's folder: chat_template.jinja, else `chat_template` of tokenizer_config.json.
  // Nothing if it has none, as base models and GPT-2. Throws RuntimeFailure for a template that is
  // not known.
  static std::optional<ChatTemplate> Load(const std::filesystem::path& folder);
  // `where` stands for the file in the message.
  static ChatTemplate Recognise(std::string_view text, const std::string& where);
  // By the SHA-256 of the text, less a newline at its end, which Jinja drops.
  static std::optional<ChatTemplate> ByHash(std::string_view sha256);

  std::string_view Name() const { return name_; }
  // The special token that ends a turn, as the tokenizer spells it.
  std::string_view EndOfTurn() const { return end_of_turn_; }

  // The parts of the text, to be encoded with add_special_tokens = false: the markup may spell
  // special tokens, what the messages say may not. Throws InvalidArgument for no messages, a role
  // that is not known, a system message that is not the first, or content that is not UTF-8.
  std::vector<TextPart> Render(std::span<const ChatMessage> messages,
                               const ChatOptions& options = {}) const;

 private:
  using Parts = std::vector<TextPart>;
  using Renderer = void (*)(std::span<const ChatMessage>, const ChatOptions&, Parts&);
  struct Known;
  static const Known kKnown[];

  std::string_view name_;
  std::string_view end_of_turn_;
  Renderer renderer_ = nullptr;
};

// An answer as a template that drops earlier thoughts is to see it: one that was cut short within
// its thoughts gets their end, for a template takes thoughts without it for the answer itself.
std::string CloseThoughts(std::string answer);

// The parts in one string, as transformers' apply_chat_template(tokenize=False) gives it.
std::string JoinText(std::span<const TextPart> parts);

}  // namespace tokline
