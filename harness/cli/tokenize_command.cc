// tokline tokenize: shows the token ids of a text, or the ids that the model gets in the first turn
// of a chat.
#include <optional>

#include "harness/chat/conversation.h"
#include "harness/cli/commands.h"
#include "harness/cli/model_run.h"
#include "harness/cli/text_input.h"
#include "harness/models/model_location.h"
#include "harness/platform/printable.h"
#include "harness/platform/standard_streams.h"
#include "harness/text/tokenizer.h"
#include "harness/text/utf8.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

struct TokenizeFlags {
  std::filesystem::path model = DefaultModelDir();
  std::optional<std::string> text;
  std::string file;
  bool allow_special = false;
  bool chat = false;
  bool pieces = false;

  std::vector<Flag> Table() {
    return {{"--model", "DIR|NAME",
             "folder, or ORG/NAME[@REV] in the Hugging Face cache (default: embedded)",
             [this](auto, auto value) { model = FindModel(value); }},
            {"--prompt", "TEXT", "the text; -: standard input",
             [this](auto flag, auto value) {
               RequireUtf8(value, flag);
               text = value;
             }},
            {"--prompt-file", "FILE", "file with the text", TextInto(file)},
            {"--allow-special", "", "treat special tokens spelled in the text as tokens, not text",
             SwitchInto(allow_special)},
            {"--chat", "", "the text is the first turn of a chat: apply the model's template",
             SwitchInto(chat)},
            {"--pieces", "", "a line for each token: its id and its spelling", SwitchInto(pieces)}};
  }

  std::string ReadPrompt() const {
    Require(text.has_value() != !file.empty(), "give either --prompt or --prompt-file");
    Require(!chat || !allow_special, "--allow-special cannot be used with --chat");
    return text && *text != "-" ? *text : ReadText(text ? *text : file);
  }
};

std::vector<int32_t> IdsOf(const TokenizeFlags& flags, const Tokenizer& tokenizer,
                           const std::string& text) {
  if (!flags.chat) return tokenizer.Encode(text, {.allow_special = flags.allow_special});
  const std::optional<ChatTemplate> chat_template = ChatTemplate::Load(flags.model);
  if (!chat_template) throw RuntimeFailure(StrCat(ModelName(flags.model), " has no chat template"));
  return Conversation(tokenizer, *chat_template, {}).BeginTurn(text).prompt;
}

}  // namespace

std::string TokenizeHelp() {
  TokenizeFlags flags;
  return StrCat(FlagHelp(flags.Table()), R"(
Examples:
  tokline tokenize --prompt "The capital of France is"     ids for tokline generate --prompt-ids
  tokline tokenize --model DIR --chat --pieces --prompt Hello
)");
}

int TokenizeCommand(const CommandLine& line) {
  TokenizeFlags flags;
  ParseFlags("tokline tokenize", flags.Table(), line.args);
  const std::string text = flags.ReadPrompt();
  const Tokenizer tokenizer = Tokenizer::Load(flags.model);
  const std::vector<int32_t> ids = IdsOf(flags, tokenizer, text);
  std::string shown;
  for (const int32_t id : ids) {
    if (flags.pieces) {
      shown += StrCat(id, "\t", Printable(tokenizer.Spelling(id).value_or("")), "\n");
    } else {
      shown += StrCat(shown.empty() ? "" : ",", id);
    }
  }
  Print(flags.pieces ? shown : shown + "\n");
  return kSuccess;
}

}  // namespace tokline
