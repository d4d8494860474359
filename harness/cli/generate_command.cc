// tokline generate: continues one prompt, given as text or as token ids.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "harness/cli/commands.h"
#include "harness/cli/model_run.h"
#include "harness/cli/output_file.h"
#include "harness/cli/sampling_flags.h"
#include "harness/cli/status_line.h"
#include "harness/cli/text_input.h"
#include "harness/engine/generate.h"
#include "harness/engine/make_decoder.h"
#include "harness/platform/interrupt.h"
#include "harness/platform/printable.h"
#include "harness/text/stop_strings.h"
#include "harness/text/tokenizer.h"
#include "harness/text/utf8.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxId = INT32_MAX;

// Prompt that `tokline generate` uses without arguments to demonstrate the embedded model; it lies
// beside the model's weights.
constexpr char kExamplePromptFile[] = "example_prompt.txt";
constexpr int64_t kNewTextTokens = 256;

struct GenerateFlags {
  RunFlags run;
  std::vector<int32_t> prompt_ids;
  std::optional<std::string> prompt_text;
  std::string prompt_file;
  bool allow_special = false;
  std::vector<std::string> stops;
  std::vector<int32_t> force_ids;
  std::optional<int64_t> max_new_tokens;
  SamplingRule rule;
  bool ignore_eos = false;
  std::filesystem::path json;
  std::filesystem::path logits;
  std::filesystem::path hidden;
  std::filesystem::path heads;

  std::vector<Flag> Table() {
    const auto ids_into = [](std::vector<int32_t>& target) {
      return [&target](std::string_view flag, std::string_view text) {
        const std::vector<int64_t> ids = ParseIntegers(flag, text, 0, kMaxId);
        target.assign(ids.begin(), ids.end());
      };
    };
    std::vector<Flag> flags = {
        {"--prompt", "TEXT", "text to continue; -: standard input (default: an example)",
         [this](auto flag, auto text) {
           RequireUtf8(text, flag);
           prompt_text = text;
         }},
        {"--prompt-file", "FILE", "file with the text to continue", TextInto(prompt_file)},
        {"--prompt-ids", "1,2,3", "token ids to continue; the output is ids too",
         ids_into(prompt_ids)},
        {"--allow-special", "", "treat special tokens spelled in the prompt as tokens, not text",
         SwitchInto(allow_special)},
        {"--stop", "TEXT", "end the output before this text; may be repeated",
         [this](auto, auto text) { stops.emplace_back(text); }, /*repeats=*/true},
        {"--max-new-tokens", "N",
         "maximum number of tokens to generate (default: 256 with text, 16 with ids)",
         IntegerInto(max_new_tokens, 1, kMaxId)}};
    run.AddTo(flags);
    run.AddRanksTo(flags);
    AddSamplingFlags(rule, flags);
    flags.insert(
        flags.end(),
        {{"--ignore-eos", "", "continue after an end-of-sequence token", SwitchInto(ignore_eos)},
         {"--force-ids", "a,b,c", "feed these tokens instead of the drawn ones (teacher forcing)",
          ids_into(force_ids)},
         {"--json", "FILE", "write the tokens and how they were made", TextInto(json)},
         {"--logits", "FILE",
          "write the logits of each token, little-endian f32 [tokens, vocabulary]",
          TextInto(logits)},
         {"--hidden", "FILE",
          "write each token's residual stream after the embedding, every attention and every MLP, "
          "little-endian f32 [tokens, 2 * layers + 1, hidden size]",
          TextInto(hidden)},
         {"--heads", "FILE",
          "write each token's queries and keys as attention reads them, little-endian f32 [tokens, "
          "layers, (query heads + KV heads) * head_dim]; with --tp, of the heads of rank 0",
          TextInto(heads)}});
    return flags;
  }

  // Returns the text of the prompt, wherever it comes from, or nothing if it is given as ids.
  std::optional<std::string> ReadPrompt() const {
    const int given = static_cast<int>(prompt_text.has_value()) +
                      static_cast<int>(!prompt_file.empty()) +
                      static_cast<int>(!prompt_ids.empty());
    Require(given <= 1, "only one of --prompt, --prompt-file and --prompt-ids may be given");
    if (!prompt_ids.empty()) {
      Require(stops.empty(), "--stop needs a prompt of text, not --prompt-ids");
      Require(!allow_special, "--allow-special needs a prompt of text, not --prompt-ids");
      return std::nullopt;
    }
    if (prompt_text && *prompt_text != "-") return prompt_text;
    std::string file = prompt_text ? *prompt_text : prompt_file;
    if (given == 0) {
      Require(run.model == DefaultModelDir(),
              "no prompt; give one of --prompt, --prompt-file and --prompt-ids");
      file = (run.model / kExamplePromptFile).string();
    }
    std::string text = ReadText(file);
    Require(!text.empty(), file == "-" ? "standard input" : file,
            " is empty; a prompt needs at least one character");
    return text;
  }
};

// Prints the text of tokens as they are drawn, up to a stop string.
class TextOutput {
 public:
  TextOutput(const Tokenizer& tokenizer, const std::vector<std::string>& stops)
      : stream_(tokenizer.Stream({.skip_special = true})), stops_(stops) {}

  // Returns false after a stop string.
  bool Push(int32_t token) {
    Show(stops_.Push(stream_.Push(token)));
    return stops_.Found().empty();
  }
  void Finish() {
    Show(stops_.Push(stream_.Finish()));
    Show(stops_.Finish());
  }
  const std::string& Text() const { return text_; }
  const std::string& StopFound() const { return stops_.Found(); }

 private:
  void Show(const std::string& piece) {
    if (!piece.empty()) Print(piece);
    text_ += piece;
  }

  TextStream stream_;
  StopStrings stops_;
  std::string text_;
};

void CheckIds(std::string_view flag, const std::vector<int32_t>& ids, int64_t vocab_size) {
  for (const int32_t id : ids) {
    Require(id < vocab_size, flag, " has ", id, "; the model's vocabulary has ids 0 to ",
            vocab_size - 1);
  }
}

Json Report(const GenerateFlags& flags, const LoadedModel& model, const DecoderOptions& options,
            const GenerateResult& result) {
  return {{"model", model.Name()},
          {"device", Name(options.device)},
          {"dtype", Name(options.dtype)},
          {"ablated", flags.run.ablated},
          {"temperature", flags.rule.temperature},
          {"top_k", flags.rule.top_k},
          {"top_p", flags.rule.top_p},
          {"seed", flags.rule.seed},
          {"prompt", flags.prompt_ids},
          {"forced", flags.force_ids},
          {"tokens", result.tokens},
          {"stopped", result.stopped},
          {"interrupted", result.interrupted},
          {"prefill_s", result.times.FirstTokenS()},
          {"decode_s", result.times.DecodeS()}};
}

}  // namespace

std::string GenerateHelp() {
  GenerateFlags flags;
  return StrCat(FlagHelp(flags.Table()), RunFlags::AblationHelp(), R"(
Examples:
  tokline generate
  tokline generate --model Qwen3-0.6B --prompt "The capital of France is" --stop .
  tokline generate --model DIR --prompt - --temperature 0.7 --json out.json < prompt.txt
  tokline generate --model DIR --prompt-ids 1,2,3
)");
}

int GenerateCommand(const CommandLine& line) {
  GenerateFlags flags;
  ParseFlags("tokline generate", flags.Table(), line.args);
  RequireDistinct({{"--json", flags.json},
                   {"--logits", flags.logits},
                   {"--hidden", flags.hidden},
                   {"--heads", flags.heads}},
                  {{"--prompt-file", flags.prompt_file}});
  const std::optional<std::string> prompt_text = flags.ReadPrompt();
  const StopStrings stops(flags.stops);  // refuses invalid stop strings before any work
  Validate(flags.rule);
  const auto forced = static_cast<int64_t>(flags.force_ids.size());
  const int64_t default_tokens = prompt_text ? kNewTextTokens : GenerateOptions().max_new_tokens;
  int64_t new_tokens = flags.max_new_tokens.value_or(forced > 0 ? forced : default_tokens);
  Require(forced <= new_tokens, "--force-ids has ", forced, " ids; --max-new-tokens allows ",
          new_tokens);

  OutputFile json_file(flags.json), logits_file(flags.logits), hidden_file(flags.hidden),
      heads_file(flags.heads);
  const LoadedModel model = flags.run.Load();
  std::optional<Tokenizer> tokenizer;
  if (prompt_text) {
    tokenizer = Tokenizer::Load(model.checkpoint.Dir());
    flags.prompt_ids = tokenizer->Encode(*prompt_text, {.allow_special = flags.allow_special});
  }
  CheckIds(prompt_text ? "the prompt" : "--prompt-ids", flags.prompt_ids, model.spec.vocab_size);
  CheckIds("--force-ids", flags.force_ids, model.spec.vocab_size);
  const auto prompt_tokens = static_cast<int64_t>(flags.prompt_ids.size());
  if (prompt_text && !flags.max_new_tokens && forced == 0) {
    new_tokens = std::clamp<int64_t>(model.spec.max_positions - prompt_tokens, 1, new_tokens);
  }
  Require(prompt_tokens + new_tokens <= model.spec.max_positions, "a prompt of ", prompt_tokens,
          " tokens and ", new_tokens, " new tokens exceed the model's ", model.spec.max_positions,
          " positions");
  ReportExtraTensors(model);

  CatchInterrupts();
  DecoderOptions options = flags.run.InteractiveOptions(model.spec, prompt_tokens + new_tokens);
  options.keep_logits = logits_file.IsGiven();
  SizeKvForBatch(flags.run.kv, model, options);
  Decoder decoder = MakeDecoder(model, options);
  decoder.WarmUp();
  std::optional<TextOutput> text;
  if (tokenizer) text.emplace(*tokenizer, flags.stops);
  const std::vector<int32_t>& eos = model.spec.eos_token_ids;
  const bool stops_at_eos = !flags.ignore_eos && forced == 0;
  bool first = true;
  ProgressLine progress;
  const auto show = [&](int32_t token) {
    progress.Clear();
    if (!text) {
      Print(StrCat(first ? "" : " ", token));
      first = false;
      return true;
    }
    return (stops_at_eos && std::ranges::count(eos, token) > 0) || text->Push(token);
  };
  const GenerateResult result =
      Generate(decoder, flags.prompt_ids,
               {.max_new_tokens = new_tokens,
                .rule = flags.rule,
                .stop_ids = stops_at_eos ? eos : std::vector<int32_t>{},
                .force_ids = flags.force_ids,
                .want_logits = logits_file.IsGiven(),
                .want_hidden = hidden_file.IsGiven() || heads_file.IsGiven(),
                .on_token = show,
                .on_prefill = [&](int64_t computed) { progress.Show(computed, prompt_tokens); },
                .interrupted = InterruptFlag()});
  progress.Clear();
  if (text) text->Finish();
  if (!result.tokens.empty() || !result.interrupted) Print("\n");
  const auto write = [](OutputFile& file, std::span<const std::vector<float>> rows) {
    for (const std::vector<float>& row : rows) {
      file.Write(row.data(), static_cast<int64_t>(row.size() * sizeof(float)));
    }
    file.Commit();
  };
  write(logits_file, result.logits);
  write(hidden_file, {&result.hidden, 1});
  write(heads_file, {&result.heads, 1});
  Json report = Report(flags, model, options, result);
  if (text) {
    report["prompt_text"] = *prompt_text;
    report["text"] = text->Text();
    report["stop"] = text->StopFound().empty() ? Json(nullptr) : Json(text->StopFound());
  }
  json_file.CommitJson(report);
  if (text) {
    const auto made = static_cast<int64_t>(result.tokens.size());
    std::string_view ending;
    if (result.interrupted) {
      ending = ", interrupted";
    } else if (!result.stopped) {
      ending = ", cut short by --max-new-tokens";
    }
    const std::string prompt =
        StrCat("[", Grouped(prompt_tokens), " prompt ", prompt_tokens == 1 ? "token" : "tokens");
    PrintStatus(made == 0
                    ? prompt + ", interrupted before the first token]"
                    : StrCat(prompt, ", first token ", Milliseconds(result.times.FirstTokenS()),
                             ", ", Tokens(made), ", ", PerSecond(result.times.TokensPerSecond()),
                             " tok/s", ending, "]"));
  }
  return result.interrupted ? kInterruptedExit : kSuccess;
}

}  // namespace tokline
