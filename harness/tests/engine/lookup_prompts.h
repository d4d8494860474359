// Makes prompts for the embedded model: facts in plain English and questions about them, like
// scripts/python/lookup_task.py, with the expected answers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "harness/text/chat_template.h"
#include "harness/text/tokenizer.h"
#include "kernels/common/error.h"

namespace tokline::testing {

inline const std::filesystem::path& LookupModelFolder() {
  static const std::filesystem::path folder(TOKLINE_SOURCE_DIR "/models/qwen3-lookup");
  return folder;
}

struct LookupQuestion {
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;  // includes the end of the turn
  int64_t facts = 0;            // number of prompt tokens before the question
};

class LookupTask {
 public:
  // Draws `count` questions about one context. The context has as many facts as fit with a question
  // and its answer into `length` tokens, but at least one. The questions ask for facts at every
  // depth, from the first to the last.
  std::vector<LookupQuestion> Draw(std::mt19937& rng, int64_t length, bool chat, int count) const {
    const std::string between = rng() % 2 == 0 ? " " : "\n";
    std::vector<std::string> names = names_;
    std::ranges::shuffle(names, rng);
    std::vector<std::string> codes;
    std::string facts;
    for (;;) {
      std::string code = std::to_string(10'000 + rng() % 10'000).substr(1);
      const std::string& name = names.at(codes.size());
      const std::string longer = StrCat(facts, facts.empty() ? "" : between, Fact(name, code));
      const LookupQuestion question = Ask(longer, name, code, chat);
      const int64_t tokens = std::ssize(question.prompt) + std::ssize(question.answer);
      if (tokens > length && !codes.empty()) break;
      facts = longer;
      codes.push_back(std::move(code));
    }
    std::vector<LookupQuestion> questions;
    for (int i = 0; i < count; ++i) {
      const auto about = static_cast<size_t>(i) * codes.size() / static_cast<size_t>(count);
      questions.push_back(Ask(facts, names[about], codes[about], chat));
    }
    questions.back() = Ask(facts, names[codes.size() - 1], codes.back(), chat);
    return questions;
  }

  const Tokenizer& Text() const { return tokenizer_; }

 private:
  static std::string Fact(const std::string& name, const std::string& code) {
    return StrCat("The code of ", name, " is ", code, ".");
  }

  LookupQuestion Ask(const std::string& facts, const std::string& name, const std::string& code,
                     bool chat) const {
    const std::string question = StrCat("What is the code of ", name, "?");
    LookupQuestion asked;
    if (chat) {
      const std::vector<ChatMessage> messages{{"system", facts}, {"user", question}};
      asked.prompt =
          tokenizer_.Encode(template_.Render(messages), EncodeOptions{.add_special_tokens = false});
    } else {
      asked.prompt = tokenizer_.Encode(StrCat(facts, " ", question));
    }
    const std::vector<int32_t> tail = tokenizer_.Encode(chat ? question : StrCat(" ", question));
    const auto found = std::ranges::search(asked.prompt, tail);
    asked.facts = found.begin() - asked.prompt.begin();
    Require(!found.empty() && asked.facts > 0, "the question is not in its prompt");
    asked.answer = tokenizer_.Encode(StrCat(chat ? "" : " ", Fact(name, code)));
    asked.answer.push_back(tokenizer_.Find("<|im_end|>").value());
    return asked;
  }

  static std::vector<std::string> ReadNames() {
    std::ifstream file(TOKLINE_SOURCE_DIR "/scripts/python/lookup_names.txt");
    return {std::istream_iterator<std::string>(file), {}};
  }

  std::vector<std::string> names_ = ReadNames();
  Tokenizer tokenizer_ = Tokenizer::Load(LookupModelFolder());
  ChatTemplate template_ = ChatTemplate::Load(LookupModelFolder()).value();
};

}  // namespace tokline::testing
