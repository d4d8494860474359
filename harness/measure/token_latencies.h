// How long sequences waited for their tokens: collected from TokenTimes, and as percentiles.
#pragma once

#include <optional>
#include <vector>

#include "harness/engine/token_times.h"
#include "harness/measure/timing.h"

namespace tokline {

// Each is empty if nothing of its kind was measured, such as the time between tokens of sequences
// of one token.
struct LatencyFigures {
  std::optional<Percentiles> first_token_s{}, between_tokens_s{}, end_to_end_s{};
};

// Latencies in seconds of all sequences and runs that were added.
struct TokenLatencies {
  std::vector<double> first_s{};    // one value per sequence
  std::vector<double> between_s{};  // one value per token but the first
  std::vector<double>
      end_to_end_s{};  // one value per sequence, from its beginning to its last token

  // Fills the memory in advance, so that a run never touches one of its pages for the first time.
  void Reserve(size_t sequences, size_t tokens) {
    for (auto [values, count] : {std::pair(&first_s, sequences), std::pair(&between_s, tokens),
                                 std::pair(&end_to_end_s, sequences)}) {
      values->assign(count, 0);
      values->clear();
    }
  }
  // The host gets the next token of a sequence.
  void Add(TokenTimes& times, Clock::time_point now) {
    const double seconds = times.Add(now);
    (times.Tokens() == 1 ? first_s : between_s).push_back(seconds);
  }
  // The token that was added last was the last one of its sequence.
  void End(const TokenTimes& times) { end_to_end_s.push_back(times.EndToEndS()); }

  void Append(const TokenLatencies& other) {
    first_s.insert(first_s.end(), other.first_s.begin(), other.first_s.end());
    between_s.insert(between_s.end(), other.between_s.begin(), other.between_s.end());
    end_to_end_s.insert(end_to_end_s.end(), other.end_to_end_s.begin(), other.end_to_end_s.end());
  }
  LatencyFigures Figures() && {
    return {.first_token_s = PercentilesOf(std::move(first_s)),
            .between_tokens_s = PercentilesOf(std::move(between_s)),
            .end_to_end_s = PercentilesOf(std::move(end_to_end_s))};
  }
};

}  // namespace tokline
