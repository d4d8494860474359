// The `normalizer` of tokenizer.json: how text is changed before it is split.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "harness/platform/json_node.h"
#include "harness/text/pattern.h"

namespace tokline {

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // Supports NFC, Prepend, Replace, Strip, and Sequence of these. Others are refused by name.
  static Normalizer Read(const JsonNode& node);

  bool Empty() const { return steps_.empty(); }
  static constexpr size_t kMaxBytes = size_t{256} << 20;
  // `text` must be valid UTF-8. Without `prepend`, Prepend does nothing. Throws RuntimeFailure,
  // with the sizes, if a Prepend or Replace would make more than `max_bytes` of it.
  std::string Apply(std::string_view text, bool prepend = true, size_t max_bytes = kMaxBytes) const;

 private:
  struct Nfc {};
  struct Prepend {
    std::string text;  // not added to an empty text
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Strip {  // of white space
    bool left = true;
    bool right = true;
  };
  using Step = std::variant<Nfc, Prepend, Replace, Strip>;

  void Add(const JsonNode& node, int depth);

  std::vector<Step> steps_;
};

}  // namespace tokline
