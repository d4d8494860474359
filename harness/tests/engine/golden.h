// Loads the committed tiny checkpoints and what transformers computes with them (format:
// harness/tests/golden/README.md).
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/engine/generate.h"
#include "harness/models/checkpoint.h"
#include "harness/models/model_spec.h"
#include "harness/models/model_weights.h"

namespace tokline::testing {

inline const std::vector<std::string>& GoldenNames() {
  static const std::vector<std::string> names{
      "qwen3_tiny",   "qwen3_untied_group3", "qwen3_sharded", "llama3_scaled", "llama_biased",
      "qwen2_group3", "ernie4_5_group7",     "gpt2_tiny",     "gpt2_bare"};
  return names;
}

struct GoldenCase {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  int64_t first_row = 0;
};

struct Golden {
  std::filesystem::path checkpoint;
  int64_t vocab_size = 0;
  std::vector<int64_t> logit_steps;
  std::vector<float> logits;  // [rows, vocab_size]
  double bf16_relative_l2 = 0;
  std::vector<GoldenCase> cases;

  std::span<const float> Row(const GoldenCase& of, size_t step_index) const {
    const auto row = static_cast<size_t>(of.first_row) + step_index;
    return std::span(logits).subspan(row * static_cast<size_t>(vocab_size),
                                     static_cast<size_t>(vocab_size));
  }
};

inline Golden ReadGolden(const std::string& name) {
  const std::filesystem::path root(TOKLINE_SOURCE_DIR);
  const std::filesystem::path folder = root / "harness/tests/golden";
  std::ifstream file(folder / (name + ".json"));
  const nlohmann::json json = nlohmann::json::parse(file);
  if (json.at("format") != 1) throw std::runtime_error(name + ": unknown format");
  Golden golden;
  golden.checkpoint = root / json.at("checkpoint").get<std::string>();
  golden.vocab_size = json.at("vocab_size");
  golden.logit_steps = json.at("logit_steps").get<std::vector<int64_t>>();
  golden.bf16_relative_l2 = json.at("bf16").at("relative_l2");
  golden.logits.resize(json.at("logits_rows").get<size_t>() *
                       static_cast<size_t>(golden.vocab_size));
  std::ifstream raw(folder / json.at("logits_file").get<std::string>(), std::ios::binary);
  raw.read(reinterpret_cast<char*>(golden.logits.data()),
           static_cast<std::streamsize>(golden.logits.size() * sizeof(float)));
  if (!raw || raw.peek() != std::ifstream::traits_type::eof()) {
    throw std::runtime_error(name + ": the logits have another size");
  }
  for (const nlohmann::json& one : json.at("cases")) {
    golden.cases.push_back({.prompt = one.at("prompt_ids").get<std::vector<int32_t>>(),
                            .tokens = one.at("tokens").get<std::vector<int32_t>>(),
                            .first_row = one.at("first_row")});
  }
  return golden;
}

// A checkpoint opened, checked and bound.
struct LoadedModel {
  explicit LoadedModel(const std::filesystem::path& dir)
      : spec(LoadModelSpec(dir)), checkpoint(dir), weights(BindWeights(checkpoint, spec)) {}

  ModelSpec spec;
  Checkpoint checkpoint;
  ModelWeights weights;
};

// Runs until nothing is left to do. Returns the texts by request, whatever happens to them on the
// way.
inline std::map<SequenceId, std::vector<int32_t>> RunAll(Decoder& decoder) {
  std::map<SequenceId, std::vector<int32_t>> texts;
  const auto take = [&](std::span<const NewToken> tokens) {
    for (const NewToken& token : tokens) texts[token.sequence].push_back(token.token);
  };
  while (decoder.HasWork()) take(decoder.Step().tokens);
  take(decoder.Flush());
  return texts;
}

inline LoadedModel LoadTinyModel() {
  return LoadedModel(std::filesystem::path(TOKLINE_SOURCE_DIR) / "harness/tests/golden/qwen3_tiny");
}

inline const LoadedModel& TinyModel() {
  static const LoadedModel model = LoadTinyModel();
  return model;
}

// Computes ||actual - expected|| / ||expected|| over everything that was added, in double.
class RelativeError {
 public:
  void Add(std::span<const float> actual, std::span<const float> expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      const double difference = double{actual[i]} - expected[i];
      difference_ += difference * difference;
      norm_ += double{expected[i]} * expected[i];
    }
  }
  double Value() const { return std::sqrt(difference_ / norm_); }

 private:
  double difference_ = 0;
  double norm_ = 0;
};

struct ParityResult {
  double relative_l2 = 0;        // over the stored rows of all cases
  int64_t different_tokens = 0;  // number of drawn tokens that differ from the golden ones
};

// Decodes every case along the golden tokens and compares what was drawn and the stored logits.
inline ParityResult CompareWithGolden(Decoder& decoder, const Golden& golden) {
  ParityResult parity;
  RelativeError error;
  for (const GoldenCase& one : golden.cases) {
    GenerateOptions options;
    options.max_new_tokens = static_cast<int64_t>(one.tokens.size());
    options.force_ids = one.tokens;
    options.want_logits = true;
    const GenerateResult result = Generate(decoder, one.prompt, options);
    EXPECT_EQ(result.tokens.size(), one.tokens.size());
    for (size_t i = 0; i < result.tokens.size(); ++i) {
      parity.different_tokens += result.tokens[i] != one.tokens[i];
    }
    for (size_t i = 0; i < golden.logit_steps.size(); ++i) {
      const auto step = static_cast<size_t>(golden.logit_steps[i]);
      error.Add(result.logits.at(step), golden.Row(one, i));
    }
  }
  parity.relative_l2 = error.Value();
  return parity;
}

}  // namespace tokline::testing
