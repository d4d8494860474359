// The known chat templates: for each, its hash and the function that renders the same text as its
// Jinja program.
#include "harness/text/chat_template.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iterator>
#include <utility>

#include "harness/platform/json_file.h"
#include "harness/platform/json_node.h"
#include "harness/platform/mapped_file.h"
#include "harness/text/sha256.h"
#include "harness/text/utf8.h"

namespace tokline {
namespace {

using Parts = std::vector<TextPart>;
using Messages = std::span<const ChatMessage>;

constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;
constexpr std::string_view kThoughts = "<think>";
constexpr std::string_view kEndOfThoughts = "</think>";

void Append(Parts& parts, std::string_view text, bool markup) {
  if (text.empty()) return;
  if (!parts.empty() && parts.back().allow_special == markup) {
    parts.back().text += text;
  } else {
    parts.push_back({std::string(text), markup});
  }
}
void Markup(Parts& parts, std::string_view text) { Append(parts, text, true); }
void Content(Parts& parts, std::string_view text) { Append(parts, text, false); }

// Same as Python's str.isspace().
bool IsPythonSpace(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Jinja's `trim` filter.
std::string_view Trim(std::string_view text) {
  while (!text.empty()) {
    const std::string_view first = text.substr(0, Utf8Length(text[0]));
    if (!IsPythonSpace(DecodeUtf8(first))) break;
    text.remove_prefix(first.size());
  }
  while (!text.empty()) {
    size_t at = text.size() - 1;
    while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (!IsPythonSpace(DecodeUtf8(text.substr(at)))) break;
    text = text.substr(0, at);
  }
  return text;
}

std::string_view TrimNewlines(std::string_view text, bool left, bool right) {
  while (left && text.starts_with('\n')) text.remove_prefix(1);
  while (right && text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

std::string Today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm local{};
  localtime_r(&now, &local);
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  return StrCat(local.tm_mday < 10 ? "0" : "", local.tm_mday, " ", kMonths[local.tm_mon], " ",
                local.tm_year + 1900);
}

void Llama3Turn(Parts& parts, std::string_view role, std::string_view content) {
  Markup(parts, StrCat("<|start_header_id|>", role, "<|end_header_id|>\n\n"));
  Content(parts, Trim(content));
  Markup(parts, "<|eot_id|>");
}

void Llama3Turns(Messages messages, const ChatOptions& options, Parts& parts) {
  for (const ChatMessage& message : messages) Llama3Turn(parts, message.role, message.content);
  if (options.add_generation_prompt) {
    Markup(parts, "<|start_header_id|>assistant<|end_header_id|>\n\n");
  }
}

void RenderLlama3(Messages messages, const ChatOptions& options, Parts& parts) {
  Markup(parts, "<|begin_of_text|>");
  Llama3Turns(messages, options, parts);
}

// Llama 3.1 and 3.2: the system turn states dates, and is there even without a system message.
void RenderDated(Messages messages, const ChatOptions& options, std::string_view date,
                 Parts& parts) {
  Markup(parts,
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
         "Cutting Knowledge Date: December 2023\nToday Date: ");
  Content(parts, date);
  Markup(parts, "\n\n");
  if (messages[0].role == "system") {
    Content(parts, Trim(messages[0].content));
    messages = messages.subspan(1);
  }
  Markup(parts, "<|eot_id|>");
  Llama3Turns(messages, options, parts);
}

void RenderLlama31(Messages messages, const ChatOptions& options, Parts& parts) {
  RenderDated(messages, options, options.date.empty() ? "26 Jul 2024" : options.date, parts);
}

void RenderLlama32(Messages messages, const ChatOptions& options, Parts& parts) {
  RenderDated(messages, options, options.date.empty() ? Today() : options.date, parts);
}

void QwenTurn(Parts& parts, std::string_view role, std::string_view content) {
  Markup(parts, StrCat("<|im_start|>", role, "\n"));
  Content(parts, content);
  Markup(parts, "<|im_end|>\n");
}

void RenderQwen25(Messages messages, const ChatOptions& options, Parts& parts) {
  if (messages[0].role != "system") {
    Markup(parts,
           "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
           "assistant.<|im_end|>\n");
  }
  for (const ChatMessage& message : messages) QwenTurn(parts, message.role, message.content);
  if (options.add_generation_prompt) Markup(parts, "<|im_start|>assistant\n");
}

void RenderSmolLm2(Messages messages, const ChatOptions& options, Parts& parts) {
  if (messages[0].role != "system") {
    Markup(parts,
           "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
           "Face<|im_end|>\n");
  }
  for (const ChatMessage& message : messages) QwenTurn(parts, message.role, message.content);
  if (options.add_generation_prompt) Markup(parts, "<|im_start|>assistant\n");
}

void RenderChatMl(Messages messages, const ChatOptions& options, Parts& parts) {
  for (const ChatMessage& message : messages) QwenTurn(parts, message.role, message.content);
  if (options.add_generation_prompt) Markup(parts, "<|im_start|>assistant\n");
}

// Splits an assistant's message into its thoughts, without their tags, and its answer.
std::pair<std::string_view, std::string_view> SplitThinking(std::string_view content) {
  const size_t end = content.find(kEndOfThoughts);
  if (end == content.npos) return {"", content};
  const std::string_view answer = TrimNewlines(
      content.substr(content.rfind(kEndOfThoughts) + kEndOfThoughts.size()), true, false);
  std::string_view thought = TrimNewlines(content.substr(0, end), false, true);
  if (const size_t begin = thought.rfind(kThoughts); begin != thought.npos) {
    thought.remove_prefix(begin + kThoughts.size());
  }
  return {TrimNewlines(thought, true, false), answer};
}

bool IsToolResponse(std::string_view content) {
  return content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
}

void RenderQwen3(Messages messages, const ChatOptions& options, Parts& parts) {
  // Thoughts are kept only in messages after the last question.
  size_t last_question = messages.size() - 1;
  for (size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role == "user" && !IsToolResponse(messages[i].content)) {
      last_question = i;
      break;
    }
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") {
      QwenTurn(parts, messages[i].role, messages[i].content);
      continue;
    }
    const auto [thought, answer] = SplitThinking(messages[i].content);
    if (i <= last_question || (i + 1 != messages.size() && thought.empty())) {
      QwenTurn(parts, "assistant", answer);
      continue;
    }
    Markup(parts, "<|im_start|>assistant\n<think>\n");
    Content(parts, TrimNewlines(thought, true, true));
    Markup(parts, "\n</think>\n\n");
    Content(parts, TrimNewlines(answer, true, false));
    Markup(parts, "<|im_end|>\n");
  }
  if (!options.add_generation_prompt) return;
  Markup(parts, "<|im_start|>assistant\n");
  if (!options.enable_thinking) Markup(parts, "<think>\n\n</think>\n\n");
}

void RenderErnie45(Messages messages, const ChatOptions& options, Parts& parts) {
  Markup(parts, "<|begin_of_sentence|>");
  for (const ChatMessage& message : messages) {
    if (message.role == "user") Markup(parts, "User: ");
    if (message.role == "assistant") Markup(parts, "Assistant: ");
    Content(parts, message.content);
    Markup(parts, message.role == "assistant" ? "<|end_of_sentence|>" : "\n");
  }
  if (options.add_generation_prompt) Markup(parts, "Assistant: ");
}

std::string ReadTemplateFile(const std::filesystem::path& path) {
  const MappedFile file(path);
  if (file.Size() > kMaxTemplateBytes) {
    throw RuntimeFailure(StrCat(path.string(), ": the file has ", file.Size(), " bytes; at most ",
                                kMaxTemplateBytes, " are allowed"));
  }
  return file.Read(0, file.Size());
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

}  // namespace

struct ChatTemplate::Known {
  std::string_view name;
  std::string_view sha256;
  std::string_view end_of_turn;
  Renderer renderer;
};

// A name appears twice if the template's text was changed but renders the same.
const ChatTemplate::Known ChatTemplate::kKnown[] = {
    {"Llama 3", "ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122", "<|eot_id|>",
     RenderLlama3},
    {"Llama 3.1", "93c0e9aa3629bbd77e68dbc0f5621f6e6b23aa8d74b932595cdb8d64684526d7", "<|eot_id|>",
     RenderLlama31},
    {"Llama 3.2", "d82792f95932f1c9cef5c4bd992f171225e3bf8c7b609b4557c9e1ec96be819f", "<|eot_id|>",
     RenderLlama32},
    {"Qwen2.5", "55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a", "<|im_end|>",
     RenderQwen25},
    {"Qwen3", "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8", "<|im_end|>",
     RenderQwen3},
    {"Qwen3", "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5", "<|im_end|>",
     RenderQwen3},
    {"Qwen3 Instruct 2507", "64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326",
     "<|im_end|>", RenderChatMl},
    {"SmolLM2", "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788", "<|im_end|>",
     RenderSmolLm2},
    {"ChatML", "4f05b98fc0a9dde9a39d4b6e17f3bf427b1eea5b95776755fd5d05cda72a3b35", "<|im_end|>",
     RenderChatMl},
    {"ERNIE 4.5", "471fb571976770318fe6f27749e37940be8d29c0a7770558140f141f5906f2a2",
     "<|end_of_sentence|>", RenderErnie45},
    {"ERNIE 4.5", "493661f3b4f51ff6e0ae169a487c72e2dda0a3f0e3632a237bafc455d0c8a4f8",
     "<|end_of_sentence|>", RenderErnie45},
};

std::optional<ChatTemplate> ChatTemplate::ByHash(std::string_view sha256) {
  const auto* known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                   [&](const Known& one) { return one.sha256 == sha256; });
  if (known == std::end(kKnown)) return std::nullopt;
  ChatTemplate found;
  found.name_ = known->name;
  found.end_of_turn_ = known->end_of_turn;
  found.renderer_ = known->renderer;
  return found;
}

ChatTemplate ChatTemplate::Recognise(std::string_view text, const std::string& where) {
  const std::string hash = Sha256Hex(text.ends_with('\n') ? text.substr(0, text.size() - 1) : text);
  if (std::optional<ChatTemplate> found = ByHash(hash)) return *std::move(found);
  std::string names;
  std::string_view last;
  for (const Known& known : kKnown) {
    if (known.name != last) names += StrCat(last.empty() ? "" : ", ", known.name);
    last = known.name;
  }
  throw RuntimeFailure(StrCat(where, ": this chat template of ", text.size(), " bytes, SHA-256 ",
                              hash, ", is not known; known are those of ", names));
}

std::optional<ChatTemplate> ChatTemplate::Load(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "chat_template.jinja";
  if (std::filesystem::exists(file)) return Recognise(ReadTemplateFile(file), file.string());
  const std::filesystem::path config = folder / "tokenizer_config.json";
  if (!std::filesystem::exists(config)) return std::nullopt;
  const nlohmann::json json = ReadJsonFile(config);
  const std::optional<std::string> text = ConfigTemplate(JsonNode(json, config.string()));
  if (!text) return std::nullopt;
  return Recognise(*text, config.string() + ": chat_template");
}

std::vector<TextPart> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                           const ChatOptions& options) const {
  Require(!messages.empty(), "a conversation needs at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    Require(role == "system" || role == "user" || role == "assistant", "message ", i,
            " has the role \"", role, "\"; supported: system, user, assistant");
    Require(role != "system" || i == 0, "message ", i,
            " is a system message; only the first of a conversation may be");
    RequireUtf8(messages[i].content, StrCat("message ", i));
  }
  RequireUtf8(options.date, "the date");
  Parts parts;
  renderer_(messages, options, parts);
  return parts;
}

std::string CloseThoughts(std::string answer) {
  const bool thinks = Trim(answer).starts_with(kThoughts);
  if (thinks && answer.find(kEndOfThoughts) == answer.npos) answer += kEndOfThoughts;
  return answer;
}

std::string JoinText(std::span<const TextPart> parts) {
  std::string text;
  for (const TextPart& part : parts) text += part.text;
  return text;
}

}  // namespace tokline
