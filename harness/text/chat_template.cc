// Loads the template and special tokens of a checkpoint, and renders conversations with them.
#include "harness/text/chat_template.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "harness/platform/json_file.h"
#include "harness/platform/json_node.h"
#include "harness/platform/mapped_file.h"
#include "harness/text/utf8.h"

namespace tokline {
namespace {

constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;

// Stands for an answer. No template strips it or looks for it.
constexpr std::string_view kStandIn = "\x02";

std::string ReadTemplateFile(const std::filesystem::path& path) {
  const MappedFile file(path);
  if (file.Size() > kMaxTemplateBytes) {
    throw RuntimeFailure(StrCat(path.string(), ": the file has ", file.Size(), " bytes; at most ",
                                kMaxTemplateBytes, " are allowed"));
  }
  std::string text = file.Read(0, file.Size());
  if (const std::optional<Utf8Fault> fault = FindUtf8Fault(text)) {
    throw RuntimeFailure(
        StrCat(path.string(), ": the file is not valid UTF-8: ", FaultText(text, *fault)));
  }
  return text;
}

// `chat_template` is one template, or a list of named ones from which the library takes "default".
std::optional<std::string> ConfigTemplate(const JsonNode& root) {
  const std::optional<JsonNode> node = root.Find("chat_template");
  if (!node) return std::nullopt;
  if (!node->Value().is_array()) return node->Text();
  for (const JsonNode& item : node->Items(64)) {
    if (item.TextOf("name") == "default") return item.TextOf("template");
  }
  node->Refuse("one of them must be named \"default\"");
}

// The keys such as "bos_token", whose values are texts or objects with the text as `content`.
ChatTemplate::SpecialTokens ConfigTokens(const JsonNode& root) {
  ChatTemplate::SpecialTokens tokens;
  for (const auto& [key, value] : root.Value().items()) {
    if (!key.ends_with("_token")) continue;
    if (value.is_string()) tokens.emplace_back(key, value.get<std::string>());
    if (value.is_object()) tokens.emplace_back(key, root.Member(key).TextOf("content"));
  }
  return tokens;
}

}  // namespace

std::tm LocalTime() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

ChatTemplate::ChatTemplate(std::string_view program, std::string where,
                           SpecialTokens special_tokens)
    : program_(program, where),
      where_(std::move(where)),
      special_tokens_(std::move(special_tokens)) {}

std::optional<ChatTemplate> ChatTemplate::Load(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "chat_template.jinja";
  const std::filesystem::path config = folder / "tokenizer_config.json";
  std::optional<std::string> program;
  std::string where = file.string();
  if (std::filesystem::exists(file)) program = ReadTemplateFile(file);
  SpecialTokens tokens;
  if (std::filesystem::exists(config)) {
    const nlohmann::json json = ReadJsonFile(config);
    const JsonNode root(json, config.string());
    if (json.is_object()) tokens = ConfigTokens(root);
    if (!program) {
      program = ConfigTemplate(root);
      where = config.string() + ": chat_template";
    }
  }
  if (!program) return std::nullopt;
  return ChatTemplate(*program, std::move(where), std::move(tokens));
}

std::optional<std::string> ChatTemplate::SpecialToken(std::string_view name) const {
  const auto found = std::ranges::find(special_tokens_, name, &SpecialTokens::value_type::first);
  if (found == special_tokens_.end()) return std::nullopt;
  return found->second;
}

std::vector<TextPart> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                           const ChatOptions& options) const {
  Require(!messages.empty(), "a conversation needs at least one message");
  jinja::List list;
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    Require(role == "system" || role == "user" || role == "assistant", "message ", i,
            " has the role \"", role, "\"; supported: system, user, assistant");
    Require(role != "system" || i == 0, "message ", i,
            " is a system message; only the first of a conversation may be");
    RequireUtf8(content, StrCat("message ", i));
    jinja::Dict message;
    message.Put(MarkedText("role"), role);
    message.Put(MarkedText("content"), MarkedText(content, /*of_message=*/true));
    list.items.emplace_back(std::move(message));
  }
  RequireUtf8(options.date, "the date");
  // The variables that transformers gives to a template.
  jinja::Program::Variables variables = {{"messages", std::move(list)},
                                         {"add_generation_prompt", options.add_generation_prompt},
                                         {"tools", jinja::None{}},
                                         {"documents", jinja::None{}}};
  for (const auto& [name, spelling] : special_tokens_) variables.emplace_back(name, spelling);
  if (!options.enable_thinking) variables.emplace_back("enable_thinking", false);
  if (!options.date.empty()) {
    variables.emplace_back("date_string", MarkedText(options.date, /*of_message=*/true));
  }
  return program_.Run(variables, options.now ? *options.now : LocalTime()).Parts();
}

std::string ChatTemplate::AfterAnswer() const {
  const std::vector<ChatMessage> messages = {{"user", "a"}, {"assistant", std::string(kStandIn)}};
  const std::string text = JoinText(Render(messages, {.add_generation_prompt = false}));
  const size_t answer = text.rfind(kStandIn);
  return answer == text.npos ? "" : text.substr(answer + kStandIn.size());
}

std::string OpenedThoughts(std::string_view generation_prompt) {
  const size_t begin = generation_prompt.rfind(kThoughts);
  if (begin == generation_prompt.npos) return "";
  const std::string_view opened = generation_prompt.substr(begin);
  return opened.find(kEndOfThoughts) == opened.npos ? std::string(opened) : "";
}

std::string CloseThoughts(std::string answer) {
  const size_t begin = jinja::Stripped(answer, true, false).first;
  const bool thinks = std::string_view(answer).substr(begin).starts_with(kThoughts);
  if (thinks && answer.find(kEndOfThoughts) == answer.npos) answer += kEndOfThoughts;
  return answer;
}

std::string JoinText(std::span<const TextPart> parts) {
  std::string text;
  for (const TextPart& part : parts) text += part.text;
  return text;
}

}  // namespace tokline
