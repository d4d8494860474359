// The chat templates of the model families. A template turns a conversation into the text that the
// model continues.
//
// A checkpoint contains its template as a Jinja program, which is not executed: the program is
// recognized by its hash, and a C++ function renders the same text (for text conversations without
// tools). An unknown template is refused; nothing is guessed.
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
  std::string role;  // "system" (only for the first message), "user" or "assistant"
  std::string content;
};

struct ChatOptions {
  bool add_generation_prompt = true;  // append the start of the assistant's turn
  bool enable_thinking = true;        // Qwen3: if false, an empty <think> block precedes the answer
  // The date that Llama 3.1 and 3.2 write, such as "26 Jul 2024". If empty, the template's default
  // is used: that day for 3.1, today for 3.2.
  std::string date = {};
};

class ChatTemplate {
 public:
  // Loads the template from a model's folder: chat_template.jinja, otherwise `chat_template` in
  // tokenizer_config.json. Returns nothing if the model has no template, as is the case for base
  // models and GPT-2. Throws RuntimeFailure if the template is unknown.
  static std::optional<ChatTemplate> Load(const std::filesystem::path& folder);
  // `where` names the source in the error message.
  static ChatTemplate Recognise(std::string_view text, const std::string& where);
  // Looks the template up by the SHA-256 of its text without a final newline, which Jinja drops.
  static std::optional<ChatTemplate> ByHash(std::string_view sha256);

  std::string_view Name() const { return name_; }
  // The special token that ends a turn, as spelled by the tokenizer.
  std::string_view EndOfTurn() const { return end_of_turn_; }

  // Returns the text in parts, which are to be encoded with add_special_tokens = false. The markup
  // may spell special tokens; the contents of the messages may not. Throws InvalidArgument if there
  // are no messages, if a role is unknown, if a system message is not the first message, or if
  // content is not UTF-8.
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

// Prepares an answer for a template that drops earlier thoughts. An answer that was cut off inside
// its thoughts gets their end tag, because without it a template takes the thoughts for the answer.
std::string CloseThoughts(std::string answer);

// Joins the parts into one string, which equals apply_chat_template(tokenize=False) in
// transformers.
std::string JoinText(std::span<const TextPart> parts);

}  // namespace tokline
