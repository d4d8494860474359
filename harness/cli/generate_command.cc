// tokline generate: one prompt to its continuation.
#include <nlohmann/json.hpp>
#include <optional>

#include "harness/cli/commands.h"
#include "harness/cli/model_run.h"
#include "harness/cli/output_file.h"
#include "harness/core/interrupt.h"
#include "harness/decoder/generate.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxId = INT32_MAX;

std::vector<int32_t> ParseIds(std::string_view flag, std::string_view text) {
  const std::vector<int64_t> ids = ParseIntegers(flag, text, 0, kMaxId);
  return {ids.begin(), ids.end()};
}

struct GenerateFlags {
  RunFlags run;
  std::vector<int32_t> prompt;
  std::vector<int32_t> force_ids;
  std::optional<int64_t> max_new_tokens;
  SamplingRule rule;
  bool ignore_eos = false;
  std::filesystem::path json;
  std::filesystem::path logits;

  std::vector<Flag> Table() {
    std::vector<Flag> flags;
    flags.push_back(
        {.name = "--prompt-ids",
         .value = "1,2,3",
         .help = "token ids of the prompt (needed)",
         .set = [this](std::string_view text) { prompt = ParseIds("--prompt-ids", text); }});
    flags.push_back({.name = "--max-new-tokens",
                     .value = "N",
                     .help = "the most tokens to generate (default: 16)",
                     .set = [this](std::string_view text) {
                       max_new_tokens = ParseInteger("--max-new-tokens", text, 1, kMaxId);
                     }});
    run.AddTo(flags);
    flags.push_back({.name = "--temperature",
                     .value = "X",
                     .help = "0 takes the likeliest token (default: 0)",
                     .set = [this](std::string_view text) {
                       rule.temperature = static_cast<float>(ParseReal("--temperature", text));
                     }});
    flags.push_back({.name = "--top-k",
                     .value = "N",
                     .help = "draw from the N likeliest; 0: all (default: 0)",
                     .set = IntegerInto("--top-k", rule.top_k, 0)});
    flags.push_back({.name = "--top-p",
                     .value = "X",
                     .help = "draw from the likeliest that make up X (default: 1)",
                     .set = [this](std::string_view text) {
                       rule.top_p = static_cast<float>(ParseReal("--top-p", text));
                     }});
    flags.push_back(
        {.name = "--seed",
         .value = "N",
         .help = "of the draws (default: 0)",
         .set = [this](std::string_view text) { rule.seed = ParseSeed("--seed", text); }});
    flags.push_back({.name = "--ignore-eos",
                     .value = "",
                     .help = "go on after an end-of-sequence token",
                     .set = [this](std::string_view) { ignore_eos = true; }});
    flags.push_back(
        {.name = "--force-ids",
         .value = "a,b,c",
         .help = "feed these as the continuation, whatever is drawn (teacher forcing)",
         .set = [this](std::string_view text) { force_ids = ParseIds("--force-ids", text); }});
    flags.push_back({.name = "--json",
                     .value = "FILE",
                     .help = "write the tokens and how they were made",
                     .set = TextInto("--json", json)});
    flags.push_back(
        {.name = "--logits",
         .value = "FILE",
         .help = "write the logits of each token, little-endian f32 [tokens, vocabulary]",
         .set = TextInto("--logits", logits)});
    return flags;
  }
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
          {"prompt", flags.prompt},
          {"forced", flags.force_ids},
          {"tokens", result.tokens},
          {"stopped", result.stopped},
          {"interrupted", result.interrupted},
          {"prefill_s", result.prefill_s},
          {"decode_s", result.decode_s}};
}

}  // namespace

std::string GenerateHelp() {
  GenerateFlags flags;
  return FlagHelp(flags.Table()) + RunFlags::AblationHelp();
}

int GenerateCommand(const CommandLine& line) {
  GenerateFlags flags;
  ParseFlags("generate", flags.Table(), line.args);
  Require(!flags.prompt.empty(), "--prompt-ids is missing; it takes token ids such as 1,2,3");
  Validate(flags.rule);
  const auto forced = static_cast<int64_t>(flags.force_ids.size());
  const int64_t new_tokens =
      flags.max_new_tokens.value_or(forced > 0 ? forced : GenerateOptions().max_new_tokens);
  Require(forced <= new_tokens, "--force-ids has ", forced, " ids; --max-new-tokens allows ",
          new_tokens);

  std::optional<OutputFile> json_file, logits_file;
  if (!flags.json.empty()) json_file.emplace(flags.json);
  if (!flags.logits.empty()) logits_file.emplace(flags.logits);
  const LoadedModel model(flags.run.model);
  CheckIds("--prompt-ids", flags.prompt, model.spec.vocab_size);
  CheckIds("--force-ids", flags.force_ids, model.spec.vocab_size);
  const auto prompt_tokens = static_cast<int64_t>(flags.prompt.size());
  Require(prompt_tokens + new_tokens <= model.spec.max_positions, "a prompt of ", prompt_tokens,
          " tokens and ", new_tokens, " new tokens exceed the model's ", model.spec.max_positions,
          " positions");

  CatchInterrupts();
  const DecoderOptions options = flags.run.Options(model.spec, 1, prompt_tokens + new_tokens);
  RequirePages(options);
  Decoder decoder = MakeDecoder(model, options);
  decoder.WarmUp();
  bool first = true;
  const GenerateResult result =
      Generate(decoder, flags.prompt,
               {.max_new_tokens = new_tokens,
                .rule = flags.rule,
                .stop_ids = flags.ignore_eos || forced > 0 ? std::vector<int32_t>{}
                                                           : model.spec.eos_token_ids,
                .force_ids = flags.force_ids,
                .want_logits = logits_file.has_value(),
                .on_token =
                    [&](int32_t token) {
                      Print(StrCat(first ? "" : " ", token));
                      first = false;
                    },
                .interrupted = InterruptFlag()});
  Print("\n");
  if (logits_file) {
    for (const std::vector<float>& row : result.logits) {
      logits_file->Write(row.data(), static_cast<int64_t>(row.size() * sizeof(float)));
    }
    logits_file->Commit();
  }
  if (json_file) {
    json_file->Write(Report(flags, model, options, result).dump() + "\n");
    json_file->Commit();
  }
  return result.interrupted ? kInterruptedExit : kSuccess;
}

}  // namespace tokline
