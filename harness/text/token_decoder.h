// The `decoder` of tokenizer.json: tokens back to text, all at once or as they come.
//
// A decoder is a chain: steps on each token (Replace, Metaspace, Strip), then ByteFallback, then
// Fuse and a Strip of the whole text's start; or ByteLevel alone. Chains of another shape are
// refused.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "harness/text/json_node.h"
#include "harness/text/pattern.h"

namespace tokline {

class TokenDecoder {
 public:
  TokenDecoder() = default;  // as the library without a decoder: tokens with a space between
  static TokenDecoder Read(const JsonNode& node);

 private:
  friend class TokenText;
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Metaspace {
    std::string replacement;
    bool drop_first = true;  // in the first token it is dropped, not made a space
  };
  struct Strip {
    std::string content;
    size_t start = 0;
    size_t stop = 0;
  };
  using Step = std::variant<Replace, Metaspace, Strip>;

  void Add(const JsonNode& node, int depth);
  void AddStrip(const JsonNode& node);
  std::string Apply(const Step& step, std::string_view token, bool first) const;

  std::vector<Step> steps_;  // on each token
  std::optional<Strip> strip_text_;
  bool joined_by_spaces_ = true;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fused_ = false;
};

// The text of one sequence of tokens.
class TokenText {
 public:
  enum class Bytes {
    kWhole,  // a run of byte tokens is text if all of it is valid UTF-8, as the library decides
    kAsTheyCome,  // each code point of a run is text as soon as it is whole
  };
  // `decoder` outlives this.
  TokenText(const TokenDecoder& decoder, Bytes bytes) : decoder_(&decoder), bytes_(bytes) {}

  // The text that became whole with this token; it never ends inside a code point.
  std::string Push(std::string_view token);
  // The rest: U+FFFD for what is not whole. Further tokens start a new text.
  std::string Finish();

 private:
  std::string PushToken(std::string_view token);
  std::string TakeWhole();  // valid text and faults from the front of pending_
  std::string FinishByteRun();
  std::string StripStart(std::string text);

  const TokenDecoder* decoder_;
  Bytes bytes_;
  std::string pending_;  // bytes that are not text yet
  bool first_ = true;
  size_t stripped_ = 0;      // of the whole text's start
  bool start_over_ = false;  // something else than what is stripped has come
};

}  // namespace tokline
