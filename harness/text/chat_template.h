// Chat templates turn a conversation into the text that a model continues. A checkpoint brings its
// template as a Jinja program, which jinja.h runs.
#pragma once

#include <ctime>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/text/jinja.h"
#include "harness/text/tokenizer.h"

namespace tokline {

struct ChatMessage {
  std::string role;  // "system" (only for the first message), "user" or "assistant"
  std::string content;
};

std::tm LocalTime();  // now

struct ChatOptions {
  bool add_generation_prompt = true;  // append the start of the assistant's turn
  // If false, the program receives it as enable_thinking. If true, it receives nothing and decides.
  bool enable_thinking = true;
  // The value that the program receives as date_string, such as "26 Jul 2024"; nothing if it is
  // empty.
  std::string date = {};
  std::optional<std::tm> now = {};  // the time for programs that ask for it; if empty, the clock's
};

class ChatTemplate {
 public:
  // Names and spellings of special tokens, such as ("bos_token", "<s>").
  using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

  // Loads the program from a model's folder: chat_template.jinja, otherwise `chat_template` in
  // tokenizer_config.json, which also names the special tokens. Returns nothing if the model has
  // no template, as is the case for base models and GPT-2. Throws RuntimeFailure, with the file and
  // the line, if the program is not Jinja or not supported, and with the file and the offset if it
  // is not UTF-8.
  static std::optional<ChatTemplate> Load(const std::filesystem::path& folder);
  // `where` names the source in error messages.
  ChatTemplate(std::string_view program, std::string where, SpecialTokens special_tokens = {});

  const std::string& Where() const { return where_; }
  // How the model's tokenizer_config.json spells a special token; nothing if it names none.
  std::optional<std::string> SpecialToken(std::string_view name) const;

  // Returns the text in parts, which are to be encoded with add_special_tokens = false. The program
  // may spell special tokens; the contents of the messages, and texts derived from them, may not.
  // Throws InvalidArgument if there are no messages, if a role is unknown, if a system message is
  // not the first message, if content is not UTF-8, or if the program refuses the conversation; and
  // RuntimeFailure if it does something that is not supported.
  std::vector<TextPart> Render(std::span<const ChatMessage> messages,
                               const ChatOptions& options = {}) const;

  // What the program writes after an answer that ends the conversation.
  std::string AfterAnswer() const;

 private:
  jinja::Program program_;
  std::string where_;
  SpecialTokens special_tokens_;
};

inline constexpr std::string_view kThoughts = "<think>";
inline constexpr std::string_view kEndOfThoughts = "</think>";

// The part of an answer's thoughts that a generation prompt writes, such as "<think>\n", and that
// the model then continues. Empty if the prompt opens no thoughts, or closes them.
std::string OpenedThoughts(std::string_view generation_prompt);

// Prepares an answer for a template that drops earlier thoughts. An answer that was cut off inside
// its thoughts gets their end tag, because without it a template takes the thoughts for the answer.
std::string CloseThoughts(std::string answer);

// Joins the parts into one string, which equals apply_chat_template(tokenize=False) in
// transformers.
std::string JoinText(std::span<const TextPart> parts);

}  // namespace tokline
