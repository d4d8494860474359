// Applies the steps of a normalizer. NFC comes from utf8proc, and skips the code points that the
// library's older Unicode version does not know.
#include "harness/text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "harness/text/newer_code_points.h"
#include "harness/text/sequence_steps.h"
#include "harness/text/utf8.h"

namespace tokline {
namespace {

// Appends the NFC of a section that utf8proc and the library normalize in the same way.
void AppendComposed(std::string_view section, std::string& text) {
  utf8proc_uint8_t* result = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(section.data()),
                   static_cast<utf8proc_ssize_t>(section.size()), &result,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (size < 0) {
    throw RuntimeFailure(
        StrCat("cannot normalise ", section.size(), " bytes of text: ", utf8proc_errmsg(size)));
  }
  text.append(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
}

std::string ToNfc(std::string_view text) {
  const bool ascii = std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
  if (ascii) return std::string(text);  // already NFC
  std::string composed;
  size_t section = 0;
  for (size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, Utf8Length(text[at]));
    if (NewerThanNfc(DecodeUtf8(character))) {
      AppendComposed(text.substr(section, at - section), composed);
      composed += character;
      section = at + character.size();
    }
    at += character.size();
  }
  AppendComposed(text.substr(section), composed);
  return composed;
}

std::string WithPrefix(const std::string& prefix, const std::string& text, size_t max_bytes) {
  if (prefix.size() + text.size() > max_bytes) {
    throw RuntimeFailure(StrCat("a Prepend of the tokenizer makes more than ", max_bytes,
                                " bytes, the most that are allowed, of a text of ", text.size()));
  }
  return prefix + text;
}

std::string WithoutSpace(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const size_t length = Utf8Length(text[0]);
    if (!IsWhiteSpace(DecodeUtf8(text.substr(0, length)))) break;
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    const size_t last = LastCodePoint(text);
    if (!IsWhiteSpace(DecodeUtf8(text.substr(last)))) break;
    text = text.substr(0, last);
  }
  return std::string(text);
}

template <class... Visitors>
struct Overload : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overload(Visitors...) -> Overload<Visitors...>;

}  // namespace

Normalizer Normalizer::Read(const JsonNode& node) {
  Normalizer normalizer;
  normalizer.Add(node, 0);
  return normalizer;
}

void Normalizer::Add(const JsonNode& node, int depth) {
  const JsonNode type_node = node.Member("type");
  const std::string& type = type_node.Text();
  if (type == "NFC") {
    node.AllowKeys({"type"});
    steps_.emplace_back(Nfc{});
  } else if (type == "Prepend") {
    node.AllowKeys({"type", "prepend"});
    steps_.emplace_back(Prepend{node.TextOf("prepend")});
  } else if (type == "Replace") {
    node.AllowKeys({"type", "pattern", "content"});
    steps_.emplace_back(Replace{Pattern::Read(node.Member("pattern")), node.TextOf("content")});
  } else if (type == "Strip") {
    node.AllowKeys({"type", "strip_left", "strip_right"});
    steps_.emplace_back(Strip{node.FlagOf("strip_left", true), node.FlagOf("strip_right", true)});
  } else if (type == "Sequence") {
    for (const JsonNode& step : SequenceSteps(node, "normalizers", depth)) Add(step, depth + 1);
  } else {
    type_node.Refuse("supported normalizers: NFC, Prepend, Replace, Sequence, Strip");
  }
}

std::string Normalizer::Apply(std::string_view text, bool prepend, size_t max_bytes) const {
  std::string current(text);
  for (const Step& step : steps_) {
    current = std::visit(
        Overload{
            [&](const Nfc&) { return ToNfc(current); },
            [&](const Prepend& prefix) {
              return current.empty() || !prepend ? current
                                                 : WithPrefix(prefix.text, current, max_bytes);
            },
            [&](const Replace& replace) {
              return replace.pattern.Replace(current, replace.content, max_bytes);
            },
            [&](const Strip& strip) { return WithoutSpace(current, strip.left, strip.right); }},
        step);
  }
  return current;
}

}  // namespace tokline
