// tokline chat: holds a conversation on standard input and output, with chunks of context that are
// computed once and reused in every turn.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "harness/chat/chat_session.h"
#include "harness/cli/commands.h"
#include "harness/cli/kv_size.h"
#include "harness/cli/model_run.h"
#include "harness/cli/output_file.h"
#include "harness/cli/sampling_flags.h"
#include "harness/cli/status_line.h"
#include "harness/cli/text_input.h"
#include "harness/cli/turn_reader.h"
#include "harness/engine/make_decoder.h"
#include "harness/platform/interrupt.h"
#include "harness/platform/printable.h"
#include "harness/text/stop_strings.h"
#include "harness/text/utf8.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using Json = nlohmann::ordered_json;

// Only whole pages of a conversation are reused, so smaller pages waste less.
constexpr int32_t kPageSize = 64;

struct ChatFlags {
  RunFlags run{.page_size = kPageSize};
  std::string system_file;
  std::vector<std::string> chunk_files;
  int64_t context = 0;  // 0 means all positions of the model
  int64_t max_new_tokens = 512;
  bool think = true;
  std::vector<std::string> stops;
  std::filesystem::path json;
  SamplingRule rule;

  std::vector<Flag> Table() {
    std::vector<Flag> flags = {
        {"--system", "FILE", "system text, which tells the model how to behave",
         TextInto(system_file)},
        {"--chunk", "FILE", "text for the model to know, computed once; may be repeated",
         [this](auto, auto text) { chunk_files.emplace_back(text); }, /*repeats=*/true},
        {"--max-new-tokens", "N", "maximum number of tokens per answer (default: 512)",
         IntegerInto(max_new_tokens, 1, INT32_MAX)},
        {"--context", "N", "maximum number of tokens per conversation (default: the model's)",
         IntegerInto(context, 1)},
        {"--no-think", "", "Qwen3: answer without thoughts", SwitchInto(think, false)},
        {"--stop", "TEXT", "end an answer before this text; may be repeated",
         [this](auto, auto text) { stops.emplace_back(text); }, /*repeats=*/true},
        {"--json", "FILE", "write the ids and the text of each turn's prompt and answer",
         TextInto(json)}};
    AddSamplingFlags(rule, flags);
    run.AddTo(flags);
    run.AddRanksTo(flags);
    return flags;
  }
};

Conversation::Options ReadContext(const ChatFlags& flags) {
  Conversation::Options options{.chat = {.enable_thinking = flags.think}};
  if (!flags.system_file.empty()) options.system = ReadText(flags.system_file);
  for (const std::string& file : flags.chunk_files) {
    std::string text = ReadText(file);
    Require(!text.empty(), "--chunk ", file, " is empty; a chunk needs at least one character");
    options.context.push_back(
        {.name = std::filesystem::path(file).filename().string(), .text = std::move(text)});
  }
  return options;
}

ChatTemplate LoadTemplate(const LoadedModel& model) {
  const std::filesystem::path& folder = model.checkpoint.Dir();
  std::optional<ChatTemplate> found = ChatTemplate::Load(folder);
  if (!found) {
    throw RuntimeFailure(StrCat(
        model.Name(), " has no chat template: there is neither ",
        (folder / "chat_template.jinja").string(), " nor a chat_template in ",
        (folder / "tokenizer_config.json").string(), "; use tokline generate for a base model"));
  }
  return *std::move(found);
}

// Breaks down the first `reused` tokens: "(system 20, notes.md 800, history 34)".
std::string ReusedParts(const Conversation& conversation, int64_t reused) {
  std::string parts;
  const auto add = [&parts](std::string_view name, int64_t tokens) {
    if (tokens > 0) parts += StrCat(parts.empty() ? "" : ", ", name, " ", Grouped(tokens));
  };
  for (const TokenSpan& span : conversation.Spans()) {
    add(span.name, std::clamp<int64_t>(reused - span.begin, 0, span.Tokens()));
  }
  add("history", reused - std::ssize(conversation.Prefix()));
  return parts.empty() ? "" : StrCat(" (", parts, ")");
}

// The loop that reads turns and commands and shows the answers.
class Chat {
 public:
  Chat(Conversation& conversation, Decoder& decoder, const Tokenizer& tokenizer,
       const TurnOptions& options, ProgressLine& progress)
      : conversation_(conversation),
        decoder_(decoder),
        session_(conversation, decoder),
        tokenizer_(tokenizer),
        options_(options),
        progress_(progress) {}

  // What was said, for --json.
  const Json& Turns() const { return turns_; }

  int Run() {
    const double seconds = session_.ComputePrefix(InterruptFlag(), options_.on_prefill);
    progress_.Clear();
    if (InterruptRequested()) {
      PrintStatus("[interrupted before the context was computed]");
      return kInterruptedExit;
    }
    if (!conversation_.Prefix().empty()) {
      PrintStatus(StrCat("[context of ", Grouped(std::ssize(conversation_.Prefix())),
                         " tokens computed in ", Milliseconds(seconds), "]"));
    }
    for (int64_t number = 1;; ++number) {
      if (terminal_) Print("> ");
      const std::optional<std::string> line = reader_.Next(InterruptFlag());
      if (!line) {
        if (terminal_) Print("\n");
        return InterruptRequested() ? kInterruptedExit : kSuccess;
      }
      if (line->empty()) continue;
      if (line->starts_with('/') && !line->starts_with("//")) {
        if (*line == "/quit") return kSuccess;
        Command(*line);
        continue;
      }
      Turn(StrCat("turn ", number), line->starts_with('/') ? line->substr(1) : *line);
      if (!InterruptRequested()) continue;
      if (!terminal_ || InterruptSignal() != SIGINT) return kInterruptedExit;
      RearmInterrupts();
    }
  }

 private:
  // An error in a turn ends the program if it reads a pipe, but not if a user types at a terminal.
  void Refuse(const std::string& message) const {
    if (!terminal_) throw RuntimeFailure(message);
    PrintStatus(message);
  }

  void Command(const std::string& line) {
    if (line == "/reset") {
      conversation_.Reset();
      PrintStatus("[all turns are dropped, the chunks stay]");
    } else if (line == "/chunks") {
      const int64_t bytes = decoder_.Spec().KvBytesPerToken(decoder_.Options().dtype);
      for (const TokenSpan& span : conversation_.Spans()) {
        PrintStatus(StrCat("[", span.name, ": ", Grouped(span.Tokens()), " tokens, ",
                           BytesText(span.Tokens() * bytes), " of KV]"));
      }
      if (conversation_.Spans().empty()) PrintStatus("[no chunks]");
    } else if (line == "/help") {
      PrintStatus(
          "[/reset drops all turns, /chunks lists the chunks, /quit ends; write // for a turn "
          "that begins with /]");
    } else {
      Refuse(StrCat("unknown command ", Quoted(line), "; there are /reset, /chunks, /quit, /help"));
    }
  }

  void Turn(const std::string& name, const std::string& user) {
    TurnResult result;
    try {
      RequireUtf8(user, name);
    } catch (const InvalidArgument& error) {
      return Refuse(error.what());
    }
    try {
      result = session_.Answer(user, tokenizer_, options_);
    } catch (const InvalidArgument& error) {
      return Refuse(StrCat(name, ": ", error.what(), "; /reset drops all turns"));
    }
    progress_.Clear();
    if (!result.tokens.empty()) Print("\n");
    PrintStatus(Summary(result));
    if (!result.tokens.empty()) turns_.push_back(TurnJson(user, result));
  }

  Json TurnJson(const std::string& user, const TurnResult& result) const {
    return {{"user", user},
            {"prompt", result.prompt},
            {"prompt_text", tokenizer_.Decode(result.prompt)},
            {"tokens", result.tokens},
            {"text", result.text},
            {"stopped", result.stopped},
            {"stop", result.stop.empty() ? Json(nullptr) : Json(result.stop)},
            {"reused_tokens", result.reused_tokens}};
  }

  std::string Summary(const TurnResult& result) const {
    if (result.tokens.empty()) return "[interrupted before the first token, the turn is dropped]";
    std::string text =
        StrCat("[reused ", Grouped(result.reused_tokens), " of ", Grouped(result.prompt_tokens),
               " prompt tokens", ReusedParts(conversation_, result.reused_tokens));
    if (result.reused_tokens > 0) {
      text += StrCat(", saved about ", Milliseconds(result.saved_s), " by estimate");
    }
    const auto made = std::ssize(result.tokens);
    text += StrCat("; first token ", Milliseconds(result.times.FirstTokenS()), ", ", Tokens(made),
                   ", ", PerSecond(result.times.TokensPerSecond()), " tok/s");
    if (result.at_context) {
      text += StrCat("; the context of ", Grouped(decoder_.Options().max_context), " is full");
    } else if (result.interrupted) {
      text += "; interrupted";
    } else if (!result.stopped && result.stop.empty()) {
      text += StrCat("; cut short by --max-new-tokens ", options_.max_new_tokens);
    }
    return text + "]";
  }

  Conversation& conversation_;
  Decoder& decoder_;
  ChatSession session_;
  const Tokenizer& tokenizer_;
  const TurnOptions& options_;
  ProgressLine& progress_;
  Json turns_ = Json::array();
  TurnReader reader_;
  const bool terminal_ = ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
};

// Runs the chat and writes its turns to the file, if there is one, including the turns before a
// failure.
int RunAndWrite(Chat& chat, const std::string& model, OutputFile& file) {
  const auto write = [&] { file.CommitJson({{"model", model}, {"turns", chat.Turns()}}); };
  int exit_code = kSuccess;
  try {
    exit_code = chat.Run();
  } catch (...) {
    if (!chat.Turns().empty()) write();
    throw;
  }
  write();
  return exit_code;
}

}  // namespace

std::string ChatHelp() {
  ChatFlags flags;
  return StrCat(FlagHelp(flags.Table()), RunFlags::AblationHelp(), R"(
On a terminal: /reset, /chunks, /quit, /help; Ctrl-C ends an answer, or the program at the prompt.
In a pipe: each line is a turn, and only the answers go to standard output.

Examples:
  tokline chat --model Qwen3-0.6B --chunk notes.md --chunk code.md
  tokline chat --model Qwen3-0.6B --no-think --temperature 0.7 < questions.txt
  echo Hello | tokline chat --max-new-tokens 1 --json turns.json    # the ids of a prompt
)");
}

int ChatCommand(const CommandLine& line) {
  ChatFlags flags;
  ParseFlags("tokline chat", flags.Table(), line.args);
  Validate(flags.rule);
  StopStrings{flags.stops};  // refuses invalid stop texts
  std::vector<NamedFile> inputs = {{"--system", flags.system_file}};
  for (const std::string& file : flags.chunk_files) inputs.push_back({"--chunk", file});
  RequireDistinct({{"--json", flags.json}}, inputs);
  OutputFile json_file(flags.json);
  Conversation::Options context = ReadContext(flags);
  const LoadedModel model = flags.run.Load();
  const ChatTemplate chat_template = LoadTemplate(model);
  const Tokenizer tokenizer = Tokenizer::Load(model.checkpoint.Dir());
  Conversation conversation(tokenizer, chat_template, std::move(context));
  const int64_t positions = model.spec.max_positions;
  Require(flags.context <= positions, "--context is ", flags.context, "; the model has ", positions,
          " positions");
  ReportExtraTensors(model);

  DecoderOptions options =
      flags.run.InteractiveOptions(model.spec, flags.context > 0 ? flags.context : positions);
  options.reuse = true;
  const int64_t pinned_pages = ChatSession::PagesToPin(conversation, options.page_size);
  ApplyKvSize(flags.run.kv, model, options);
  if (options.kv_pages == 0) {
    options.kv_pages = DecoderConfig(model.spec, options, {}).max_pages + pinned_pages;
  } else {
    Require(2 * pinned_pages < options.kv_pages, "the system text and the chunks take ",
            pinned_pages, " pages of ", options.page_size, " tokens; the KV cache has ",
            options.kv_pages, "; it must have at least ", 2 * pinned_pages + 1,
            ", because they count once as kept and once as part of a turn");
  }
  options.pinned_pages = pinned_pages;
  CatchInterrupts();
  Decoder decoder = MakeDecoder(model, options);
  decoder.WarmUp();
  ProgressLine progress;
  const TurnOptions turns{
      .max_new_tokens = flags.max_new_tokens,
      .rule = flags.rule,
      .stop_ids = model.spec.eos_token_ids,
      .stops = flags.stops,
      .interrupted = InterruptFlag(),
      .on_text =
          [&progress](std::string_view text) {
            progress.Clear();
            Print(text);
          },
      .on_prefill = [&progress](int64_t computed, int64_t all) { progress.Show(computed, all); }};
  Chat chat(conversation, decoder, tokenizer, turns, progress);
  return RunAndWrite(chat, model.Name(), json_file);
}

}  // namespace tokline
