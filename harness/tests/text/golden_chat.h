// Loads chat.json: published chat templates, conversations, and what transformers renders of them
// (format: harness/tests/text/golden/README.md).
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "harness/tests/text/golden_text.h"
#include "harness/text/chat_template.h"

namespace tokline::testing {

struct ChatRendering {
  ChatOptions options;
  std::string text;  // or "error"
};

class ChatGolden {
 public:
  ChatGolden() : json_(ReadGolden("chat.json")) {
    for (const auto& [name, entry] : json_.at("templates").items()) names_.push_back(name);
    for (const auto& chat : json_.at("conversations")) {
      std::vector<ChatMessage>& messages = conversations_.emplace_back();
      for (const auto& message : chat) {
        messages.push_back({message.at("role"), message.at("content")});
      }
    }
  }

  const std::vector<std::string>& Names() const { return names_; }
  const std::vector<std::vector<ChatMessage>>& Conversations() const { return conversations_; }

  ChatTemplate Template(const std::string& name) const {
    ChatTemplate::SpecialTokens tokens;
    for (const auto& [token, spelling] : json_.at("special_tokens").items()) {
      tokens.emplace_back(token, spelling.get<std::string>());
    }
    return ChatTemplate(json_.at("templates").at(name).at("template").get<std::string>(), name,
                        std::move(tokens));
  }

  // The time that the programs were told.
  std::tm Now() const {
    const auto now = json_.at("now").get<std::vector<int>>();
    std::tm time = {};
    time.tm_year = now[0] - 1900;
    time.tm_mon = now[1] - 1;
    time.tm_mday = now[2];
    time.tm_hour = now[3];
    time.tm_min = now[4];
    time.tm_sec = now[5];
    mktime(&time);  // the day of the week
    return time;
  }

  std::vector<ChatRendering> Renderings(const std::string& name, size_t conversation) const {
    const auto& texts = json_.at("templates").at(name).at("texts").at(conversation);
    const std::string plain = Text(texts.at("text"), "");
    const std::string prompt = Text(texts.at("prompt"), plain);
    const std::string no_think =
        texts.contains("no_think") ? Text(texts.at("no_think"), plain) : prompt;
    const std::string dated = texts.contains("dated") ? Text(texts.at("dated"), plain) : plain;
    std::vector<ChatRendering> renderings(4);
    renderings[0].options.add_generation_prompt = false;
    renderings[0].text = plain;
    renderings[1].text = prompt;
    renderings[2].options.enable_thinking = false;
    renderings[2].text = no_think;
    renderings[3].options.add_generation_prompt = false;
    renderings[3].options.date = json_.at("date").get<std::string>();
    renderings[3].text = dated;
    return renderings;
  }

 private:
  // A list has what is added to the plain text.
  static std::string Text(const nlohmann::json& text, const std::string& plain) {
    if (text.is_object()) return "error";
    return text.is_array() ? plain + text.at(0).get<std::string>() : text.get<std::string>();
  }

  nlohmann::json json_;
  std::vector<std::string> names_;
  std::vector<std::vector<ChatMessage>> conversations_;
};

}  // namespace tokline::testing
