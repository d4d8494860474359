// The `decoder` of tokenizer.json: turns tokens back into text, all at once or one by one.
//
// A decoder is a chain: steps on each token (Replace, Metaspace, Strip), then ByteFallback, then
// Fuse and a Strip of the start of the whole text; or it is ByteLevel alone. Other chains are
// refused.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "harness/platform/json_node.h"
#include "harness/text/pattern.h"

namespace tokline {

class TokenDecoder {
 public:
  TokenDecoder() = default;  // like the library without a decoder: tokens separated by spaces
  static TokenDecoder Read(const JsonNode& node);

 private:
  friend class TokenText;
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Metaspace {
    std::string replacement;
    bool drop_first = true;  // in the first token, drop it instead of replacing it by a space
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

  std::vector<Step> steps_;  // applied to each token
  std::optional<Strip> strip_text_;
  bool joined_by_spaces_ = true;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fused_ = false;
};

// Builds the text of one sequence of tokens.
class TokenText {
 public:
  enum class Bytes {
    kWhole,  // a run of byte tokens is text only if all of it is valid UTF-8, as in the library
    kAsTheyCome,  // each code point of a run is text as soon as it is complete
  };
  // `decoder` must outlive this object.
  TokenText(const TokenDecoder& decoder, Bytes bytes) : decoder_(&decoder), bytes_(bytes) {}

  // Returns the text that this token completes. It never ends inside a code point.
  std::string Push(std::string_view token);
  // Returns the rest, with U+FFFD for incomplete code points. Further tokens start a new text.
  std::string Finish();

 private:
  std::string PushToken(std::string_view token);
  std::string TakeWhole();  // takes complete text and faults from the front of pending_
  std::string FinishByteRun();
  std::string StripStart(std::string text);

  const TokenDecoder* decoder_;
  Bytes bytes_;
  std::string pending_;  // bytes that do not form text yet
  bool first_ = true;
  size_t stripped_ = 0;      // how often `content` was stripped from the start of the text
  bool start_over_ = false;  // whether the start of the text has been passed
};

}  // namespace tokline
