#include "harness/measure/text_judge.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "harness/engine/generate.h"
#include "harness/engine/make_decoder.h"
#include "harness/measure/text_regret.h"

namespace tokline {
namespace {

constexpr size_t kJudgedTokens = 64;  // per text

DecoderOptions PlainOptions(const ModelSpec& spec, DecoderOptions options) {
  options.max_batch = 1;
  options.kv_pages = 0;
  options.reuse = false;
  options.delayed.reset();
  options.keep_logits = true;
  const AblationSet given = options.ablate;
  for (const AblationEntry& entry : AllAblations()) options.ablate.Add(entry.ablation);
  if (options.ranks == 1) return options;
  // If there is room, a single rank judges, which cannot share a mistake in the division of the
  // model.
  DecoderOptions one_rank = options;
  one_rank.ranks = 1;
  const std::unique_ptr<Backend> backend = MakeBackend(options.device);
  const int64_t needed = MemoryNeedsOf(spec, one_rank, backend->facts()).Total();
  if (needed <= backend->FreeBytes()) return one_rank;
  if (options.Processes() == nullptr || options.device == Device::kCpu) return options;
  // Over NCCL each sum needs the norm that follows.
  options.ablate = given;
  for (const AblationEntry& entry : AllAblations()) {
    if (entry.ablation != Ablation::kRmsNormQkv && entry.ablation != Ablation::kFusedMlp) {
      options.ablate.Add(entry.ablation);
    }
  }
  return options;
}

}  // namespace

TextJudge::TextJudge(const LoadedModel& model, DecoderOptions options)
    : plain_(MakeDecoder(model, PlainOptions(model.spec, options))) {}

Judgement TextJudge::Judge(std::span<const BenchText> texts, const std::atomic<bool>* interrupted) {
  std::vector<std::vector<float>> logits;
  std::vector<int32_t> tokens;
  std::vector<SamplingRule> rules;
  for (const BenchText& text : texts) {
    const auto judged =
        text.tokens.end() - static_cast<int64_t>(std::min(kJudgedTokens, text.tokens.size()));
    if (judged == text.tokens.end()) continue;
    std::vector<int32_t> known = text.prompt;
    known.insert(known.end(), text.tokens.begin(), judged);
    for (auto at = judged; at != text.tokens.end(); ++at) {
      rules.push_back(text.rule);
      // The random draw depends on the position of its token.
      rules.back().offset = text.prompt.size() + static_cast<uint64_t>(at - text.tokens.begin());
    }
    GenerateResult result = Generate(plain_, known,
                                     {.max_new_tokens = text.tokens.end() - judged,
                                      .force_ids = {judged, text.tokens.end()},
                                      .want_logits = true,
                                      .interrupted = interrupted});
    if (result.interrupted) return {};
    tokens.insert(tokens.end(), judged, text.tokens.end());
    std::ranges::move(result.logits, std::back_inserter(logits));
  }
  if (tokens.empty()) return {};
  return {static_cast<int64_t>(tokens.size()), MeanRegret(logits, tokens, rules)};
}

}  // namespace tokline
