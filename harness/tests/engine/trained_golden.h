// Compares a decoder that runs the trained weights of `scripts/model smollm2-135m` with what
// transformers computes with them (format: harness/tests/golden/README.md). The weights are not
// committed: where nobody has made them, the tests are skipped.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/engine/generate.h"
#include "harness/models/model_location.h"
#include "kernels/common/error.h"

namespace tokline::testing {

inline nlohmann::json ReadTrainedGolden() {
  std::ifstream file(TOKLINE_SOURCE_DIR "/harness/tests/golden/smollm2-135m.json");
  nlohmann::json json = nlohmann::json::parse(file);
  if (json.at("format") != 1) throw std::runtime_error("smollm2-135m.json: unknown format");
  return json;
}

// The folder of the weights that the golden file was made with, if they are here.
inline std::optional<std::filesystem::path> TrainedModel(const nlohmann::json& golden) {
  const std::filesystem::path folder = MadeModelsFolder() / golden.at("model").get<std::string>();
  std::ifstream origin(folder / "origin.json");
  if (!origin || nlohmann::json::parse(origin) != golden.at("origin")) return std::nullopt;
  return folder;
}

constexpr const char* kNoTrainedModel =
    "the trained weights are not here: scripts/model smollm2-135m makes them";

struct TrainedParity {
  int64_t compared = 0;    // tokens whose margin exceeds the noise
  int64_t different = 0;   // of these
  double logit_error = 0;  // largest distance of one of the best logits
};

// Decodes one case along the golden tokens for `steps` steps.
inline void CompareCase(Decoder& decoder, const nlohmann::json& one, size_t steps, double noise,
                        TrainedParity& parity) {
  const auto margins = one.at("margins").get<std::vector<double>>();
  GenerateOptions options;
  options.force_ids = one.at("tokens").get<std::vector<int32_t>>();
  options.force_ids.resize(std::min(steps, options.force_ids.size()));
  options.max_new_tokens = std::ssize(options.force_ids);
  options.want_logits = true;
  const GenerateResult result =
      Generate(decoder, one.at("prompt_ids").get<std::vector<int32_t>>(), options);
  ASSERT_EQ(result.tokens.size(), options.force_ids.size());
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    const auto ids = one.at("top_ids").at(i).get<std::vector<size_t>>();
    const auto logits = one.at("top_logits").at(i).get<std::vector<double>>();
    for (size_t j = 0; j < ids.size(); ++j) {
      parity.logit_error =
          std::max(parity.logit_error, std::abs(result.logits[i].at(ids[j]) - logits[j]));
    }
    if (margins[i] <= noise) continue;
    ++parity.compared;
    if (result.tokens[i] == options.force_ids[i]) continue;
    ++parity.different;
    ADD_FAILURE() << "step " << i << " of " << one.at("prompt_ids").dump() << " draws "
                  << result.tokens[i] << "; transformers " << options.force_ids[i]
                  << " with a margin of " << margins[i] << ", above the noise of " << noise;
  }
}

}  // namespace tokline::testing
