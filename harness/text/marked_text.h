// A text that knows which of its bytes come from messages. A chat template's own text may spell
// special tokens; what it takes from messages, however it cuts and joins it, may not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/text/tokenizer.h"

namespace tokline {

class MarkedText {
 public:
  MarkedText() = default;
  explicit MarkedText(std::string bytes, bool of_message = false)
      : bytes_(std::move(bytes)), marks_(of_message ? bytes_.size() : 0, '\1') {}

  const std::string& Bytes() const { return bytes_; }
  size_t Size() const { return bytes_.size(); }
  bool OfMessage(size_t at) const { return !marks_.empty() && marks_[at] != '\0'; }

  void Append(std::string_view bytes, bool of_message = false) {
    if (of_message || !marks_.empty()) {
      marks_.resize(bytes_.size(), '\0');
      marks_.append(bytes.size(), of_message ? '\1' : '\0');
    }
    bytes_ += bytes;
  }
  // Appends bytes [begin, end) of another text with their marks.
  void Append(const MarkedText& from, size_t begin, size_t end) {
    if (!from.marks_.empty() || !marks_.empty()) {
      marks_.resize(bytes_.size(), '\0');
      if (from.marks_.empty()) {
        marks_.append(end - begin, '\0');
      } else {
        marks_.append(from.marks_, begin, end - begin);
      }
    }
    bytes_.append(from.bytes_, begin, end - begin);
  }
  void Append(const MarkedText& from) { Append(from, 0, from.Size()); }
  MarkedText Part(size_t begin, size_t end) const {
    MarkedText part;
    part.Append(*this, begin, end);
    return part;
  }

  std::vector<TextPart> Parts() const {
    std::vector<TextPart> parts;
    for (size_t at = 0; at < bytes_.size();) {
      size_t end = at + 1;
      while (end < bytes_.size() && OfMessage(end) == OfMessage(at)) ++end;
      parts.push_back({bytes_.substr(at, end - at), !OfMessage(at)});
      at = end;
    }
    return parts;
  }

 private:
  std::string bytes_;
  std::string marks_;  // one for each byte, or none at all if no byte comes from a message
};

}  // namespace tokline
