// The times at which the tokens of a sequence reached the host: the only definition of the time to
// the first token, of the time between tokens, and of tokens per second.
#pragma once

#include <cstdint>

#include "harness/platform/clock.h"

namespace tokline {

// Tokens per second. It is 0 if no token was drawn or no time has passed.
inline double TokenRate(int64_t tokens, double seconds) {
  return tokens > 0 && seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

class TokenTimes {
 public:
  // `begin` is the time at which the decoder was given the prompt as token ids.
  explicit TokenTimes(Clock::time_point begin) : begin_(begin), newest_(begin) {}
  TokenTimes() = default;

  // Call it when the host gets the next token. Returns the seconds since the previous token, or
  // since the beginning.
  double Add(Clock::time_point now) {
    const double seconds = SecondsBetween(newest_, now);
    newest_ = now;
    if (tokens_++ == 0) first_ = now;
    return seconds;
  }

  int64_t Tokens() const { return tokens_; }
  // From the beginning to the first token.
  double FirstTokenS() const { return tokens_ > 0 ? SecondsBetween(begin_, first_) : 0; }
  // From the first token to the newest. Work after the newest token does not count.
  double DecodeS() const { return tokens_ > 0 ? SecondsBetween(first_, newest_) : 0; }
  double EndToEndS() const { return SecondsBetween(begin_, newest_); }
  // The mean time between tokens; 0 if there are fewer than two.
  double MeanBetweenS() const {
    return tokens_ > 1 ? DecodeS() / static_cast<double>(tokens_ - 1) : 0;
  }
  // The tokens after the first, in the time that they took; 0 if there are fewer than two tokens.
  double TokensPerSecond() const { return TokenRate(tokens_ - 1, DecodeS()); }

 private:
  Clock::time_point begin_, first_, newest_;
  int64_t tokens_ = 0;
};

}  // namespace tokline
