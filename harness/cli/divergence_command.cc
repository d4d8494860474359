// tokline divergence: measures the effect of reusing chunks at positions other than those where
// they were computed.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "harness/cli/commands.h"
#include "harness/cli/model_run.h"
#include "harness/cli/output_file.h"
#include "harness/cli/text_input.h"
#include "harness/engine/make_decoder.h"
#include "harness/engine/shifted_copy.h"
#include "harness/measure/divergence.h"
#include "harness/platform/interrupt.h"
#include "harness/platform/printable.h"
#include "harness/text/tokenizer.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

// A piece of the prompt: the name of a file, a text, or ids.
struct Piece {
  enum class Kind : uint8_t { kFile, kText, kIds } kind;
  std::string_view flag;
  std::string text;
};

struct DivergenceFlags {
  RunFlags run;
  std::vector<Piece> prefix;  // at most one
  std::vector<Piece> chunks;
  std::vector<Piece> prompts;
  int64_t max_new_tokens = 64;
  std::filesystem::path json;

  std::vector<Flag> Table() {
    using enum Piece::Kind;
    const auto append = [](Piece::Kind kind, std::vector<Piece>& to) {
      return [kind, &to](std::string_view flag, std::string_view text) {
        to.push_back({kind, flag, std::string(text)});
      };
    };
    std::vector<Flag> flags = {
        {"--chunk", "FILE", "text that is computed once and reused; may be repeated",
         append(kFile, chunks), /*repeats=*/true},
        {"--chunk-ids", "1,2,3", "a chunk as token ids; may be repeated", append(kIds, chunks),
         /*repeats=*/true},
        {"--prompt", "TEXT", "text that follows the chunks; may be repeated",
         append(kText, prompts), /*repeats=*/true},
        {"--prompt-ids", "1,2,3", "a prompt as token ids; may be repeated", append(kIds, prompts),
         /*repeats=*/true},
        {"--prefix", "FILE", "text before the chunks, after which each is computed (default: none)",
         append(kFile, prefix)},
        {"--prefix-ids", "1,2,3", "the prefix as token ids", append(kIds, prefix)},
        {"--max-new-tokens", "N", "maximum number of tokens per answer (default: 64)",
         IntegerInto(max_new_tokens, 1, INT32_MAX)}};
    run.AddTo(flags);
    run.AddRanksTo(flags);
    flags.push_back({"--json", "FILE", "write every token's divergence", TextInto(json)});
    return flags;
  }

  bool HasText() const {
    const auto is_text = [](const Piece& piece) { return piece.kind != Piece::Kind::kIds; };
    return std::ranges::any_of(chunks, is_text) || std::ranges::any_of(prompts, is_text) ||
           std::ranges::any_of(prefix, is_text);
  }
};

class Encoder {
 public:
  Encoder(const LoadedModel& model, bool has_text) : vocab_size_(model.spec.vocab_size) {
    if (has_text) tokenizer_.emplace(Tokenizer::Load(model.checkpoint.Dir()));
  }

  // Returns the ids that the tokenizer puts before every text.
  Ids Start() const { return tokenizer_ ? tokenizer_->Encode("") : Ids(); }
  Ids Encode(const Piece& piece) const {
    Ids ids;
    switch (piece.kind) {
      case Piece::Kind::kIds: {
        const std::vector<int64_t> numbers =
            ParseIntegers(piece.flag, piece.text, 0, vocab_size_ - 1);
        ids.assign(numbers.begin(), numbers.end());
        break;
      }
      case Piece::Kind::kFile:
        ids = Encode(ReadText(piece.text) + "\n");  // what follows starts a new line
        break;
      case Piece::Kind::kText:
        ids = Encode(piece.text);
    }
    Require(!ids.empty(), piece.flag, " ", Quoted(piece.text), " has no tokens");
    return ids;
  }
  std::string Decode(const Ids& ids) const {
    if (tokenizer_) return Json(tokenizer_->Decode(ids, {.skip_special = true})).dump();
    std::string text;
    for (const int32_t id : ids) text += StrCat(text.empty() ? "" : " ", id);
    return text;
  }

 private:
  Ids Encode(const std::string& text) const {
    return tokenizer_->Encode(text, {.add_special_tokens = false});
  }

  int64_t vocab_size_;
  std::optional<Tokenizer> tokenizer_;
};

std::vector<Request> MakeRequests(const DivergenceFlags& flags, const Encoder& encoder,
                                  const ModelSpec& spec) {
  Request request{.prompt = encoder.Start(),
                  .max_new_tokens = flags.max_new_tokens,
                  .stop_ids = spec.eos_token_ids};
  const auto append = [&request, &encoder](const Piece& piece) {
    const Ids ids = encoder.Encode(piece);
    request.prompt.insert(request.prompt.end(), ids.begin(), ids.end());
  };
  for (const Piece& piece : flags.prefix) append(piece);
  request.shifted_after = static_cast<int64_t>(request.prompt.size());
  for (const Piece& piece : flags.chunks) {
    const auto begin = static_cast<int64_t>(request.prompt.size());
    append(piece);
    request.shifted.push_back({begin, static_cast<int64_t>(request.prompt.size())});
  }
  std::vector<Request> requests;
  const Ids context = request.prompt;
  for (const Piece& piece : flags.prompts) {
    request.prompt = context;
    append(piece);
    requests.push_back(request);
  }
  return requests;
}

std::string Figures(std::span<const double> kl, int64_t same_top) {
  const KlSummary summary = SummarizeKl(kl);
  return StrCat("KL mean ", summary.mean, ", p90 ", summary.p90, ", max ", summary.max,
                " nats; top-1 ", same_top, " of ", kl.size());
}

Json Report(const Divergence& one) {
  return {{"prompt_tokens", one.prompt_tokens},
          {"shifted_tokens", one.shifted_tokens},
          {"source_tokens", one.source_tokens},
          {"exact", one.exact},
          {"shifted", one.shifted},
          {"same_answer", one.SameAnswer()},
          {"same_top", one.same_top},
          {"kl", one.kl}};
}

}  // namespace

std::string DivergenceHelp() {
  DivergenceFlags flags;
  return FlagHelp(flags.Table()) + RunFlags::AblationHelp() +
         "\nThe first chunk is used at the position where it was computed. The others are shifted: "
         "their keys and\nvalues were computed without the chunks before them. Each prompt is "
         "answered with and without shifted\nchunks, and both are compared along the exact "
         "answer.\n";
}

int DivergenceCommand(const CommandLine& line) {
  DivergenceFlags flags;
  ParseFlags("tokline divergence", flags.Table(), line.args);
  Require(flags.chunks.size() >= 2, "the number of chunks is ", flags.chunks.size(),
          "; the first is never shifted, so at least two --chunk or --chunk-ids are needed");
  Require(!flags.prompts.empty(), "--prompt is missing; it is the text that follows the chunks");
  Require(flags.prefix.size() <= 1, "only one --prefix or --prefix-ids may be given");
  std::vector<NamedFile> inputs;
  for (const auto* pieces : {&flags.prefix, &flags.chunks}) {
    for (const Piece& piece : *pieces) {
      if (piece.kind == Piece::Kind::kFile) inputs.push_back({piece.flag, piece.text});
    }
  }
  RequireDistinct({{"--json", flags.json}}, inputs);
  OutputFile json_file(flags.json);
  const LoadedModel model = flags.run.Load();
  RequireShiftable(model.spec);
  const Encoder encoder(model, flags.HasText());
  const std::vector<Request> requests = MakeRequests(flags, encoder, model.spec);

  size_t longest = 0;
  for (const Request& request : requests) longest = std::max(longest, request.prompt.size());
  const int64_t context = static_cast<int64_t>(longest) + flags.max_new_tokens;
  Require(context <= model.spec.max_positions, "a prompt of ", longest, " tokens and ",
          flags.max_new_tokens, " new tokens exceed the model's ", model.spec.max_positions,
          " positions");
  DecoderOptions options = flags.run.Options(model.spec, 1, context);
  options.reuse = true;
  options.keep_logits = true;
  ApplyKvSize(flags.run.kv, model, options);
  // Room for the sequence and for the originals from which its chunks are copied.
  if (options.kv_pages == 0) {
    options.kv_pages =
        2 * DecoderConfig(model.spec, options, {}).max_pages +
        static_cast<int64_t>(flags.chunks.size()) *
            (PagesOfSize(options.page_size).PageOf(requests.front().shifted_after) + 2);
  }
  CatchInterrupts();
  Decoder decoder = MakeDecoder(model, options);
  decoder.WarmUp();

  Json reports = Json::array();
  std::vector<double> kl;
  int64_t same_top = 0, same_answers = 0;
  bool interrupted = false;
  for (const Request& request : requests) {
    const Divergence one = MeasureDivergence(decoder, request, InterruptFlag());
    interrupted = one.interrupted;
    if (interrupted) break;  // the prompts before it are kept
    if (std::ranges::any_of(one.kl, [](double kl) { return !std::isfinite(kl); })) {
      throw RuntimeFailure(StrCat("the logits of the prompt of ", one.prompt_tokens,
                                  " tokens are NaN or infinite in ", Name(options.dtype)));
    }
    Print(StrCat("prompt of ", one.prompt_tokens, " tokens: ", one.shifted_tokens, " shifted, ",
                 one.source_tokens, " computed for it\n  exact    ", encoder.Decode(one.exact),
                 "\n  shifted  ", encoder.Decode(one.shifted), "\n  ",
                 Figures(one.kl, one.same_top), "\n"));
    reports.push_back(Report(one));
    kl.insert(kl.end(), one.kl.begin(), one.kl.end());
    same_top += one.same_top;
    same_answers += one.SameAnswer();
  }
  if (reports.size() > 1) {
    Print(StrCat("all: ", Figures(kl, same_top), "; same answer ", same_answers, " of ",
                 reports.size(), interrupted ? "; interrupted\n" : "\n"));
  }
  json_file.CommitJson({{"model", model.Name()},
                        {"device", Name(options.device)},
                        {"dtype", Name(options.dtype)},
                        {"ablated", flags.run.ablated},
                        {"interrupted", interrupted},
                        {"prompts", reports}});
  return interrupted ? kInterruptedExit : kSuccess;
}

}  // namespace tokline
