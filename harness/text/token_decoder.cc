// Reads a decoder and applies it token by token. Bytes are held back until they form whole code
// points or are known to be invalid.
#include "harness/text/token_decoder.h"

#include <charconv>

#include "harness/text/byte_alphabet.h"
#include "harness/text/sequence_steps.h"
#include "harness/text/utf8.h"

namespace tokline {
namespace {

constexpr size_t kMaxTokenText = size_t{64} << 10;  // bytes, if Replace made them

// Parses a byte token such as "<0x0A>".
std::optional<char> ByteOf(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  const char* const end = token.data() + 5;
  const auto [stop, error] = std::from_chars(token.data() + 3, end, value, 16);
  if (error != std::errc() || stop != end) return std::nullopt;
  return static_cast<char>(value);
}

std::string RequireCharacter(const JsonNode& node) {
  if (CountUtf8(node.Text()) != 1) node.Refuse("it must be one character");
  return node.Text();
}

}  // namespace

TokenDecoder TokenDecoder::Read(const JsonNode& node) {
  TokenDecoder decoder;
  decoder.joined_by_spaces_ = false;
  decoder.Add(node, 0);
  return decoder;
}

void TokenDecoder::Add(const JsonNode& node, int depth) {
  const JsonNode type_node = node.Member("type");
  const std::string& type = type_node.Text();
  const auto require = [&](bool ok, std::string_view order) {
    if (!ok) type_node.Refuse(order);
  };
  if (type != "Sequence") require(!byte_level_, "nothing may come after ByteLevel");
  if (type == "ByteLevel") {
    node.AllowKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    require(!byte_fallback_ && !fused_, "it may not come after ByteFallback or Fuse");
    byte_level_ = true;
  } else if (type == "ByteFallback") {
    node.AllowKeys({"type"});
    require(!byte_fallback_ && !fused_, "it may not come after ByteFallback or Fuse");
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    node.AllowKeys({"type"});
    fused_ = true;
  } else if (type == "Strip") {
    AddStrip(node);
  } else if (type == "Replace" || type == "Metaspace") {
    require(!byte_fallback_ && !fused_, "it may not come after ByteFallback or Fuse");
    if (type == "Replace") {
      node.AllowKeys({"type", "pattern", "content"});
      steps_.emplace_back(Replace{Pattern::Read(node.Member("pattern")), node.TextOf("content")});
    } else {
      node.AllowKeys(
          {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
      const std::optional<JsonNode> scheme = node.Find("prepend_scheme");
      const bool never = !node.FlagOf("add_prefix_space", true) ||
                         (scheme.has_value() && scheme->Text() == "never");
      steps_.emplace_back(Metaspace{RequireCharacter(node.Member("replacement")), !never});
    }
  } else if (type == "Sequence") {
    for (const JsonNode& step : SequenceSteps(node, "decoders", depth)) Add(step, depth + 1);
  } else {
    type_node.Refuse(
        "supported decoders: ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip");
  }
}

void TokenDecoder::AddStrip(const JsonNode& node) {
  node.AllowKeys({"type", "content", "start", "stop"});
  constexpr int64_t kMaxStripped = 1024;
  Strip strip{RequireCharacter(node.Member("content")),
              static_cast<size_t>(node.Member("start").Integer(0, kMaxStripped)),
              static_cast<size_t>(node.Member("stop").Integer(0, kMaxStripped))};
  if (!fused_) {
    if (byte_fallback_) node.Fail("Strip may not come between ByteFallback and Fuse");
    steps_.emplace_back(std::move(strip));
    return;
  }
  if (strip.stop != 0) node.Member("stop").Refuse("after Fuse it must be 0");
  if (strip_text_) node.Fail("Strip may come once after Fuse");
  strip_text_ = std::move(strip);
}

std::string TokenDecoder::Apply(const Step& step, std::string_view token, bool first) const {
  if (const auto* replace = std::get_if<Replace>(&step)) {
    return replace->pattern.Replace(token, replace->content, kMaxTokenText);
  }
  if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
    std::string text;
    for (size_t at = 0; at < token.size();) {
      const std::string_view character = token.substr(at, Utf8Length(token[at]));
      at += character.size();
      if (character != metaspace->replacement) {
        text += character;
      } else if (!first || !metaspace->drop_first) {
        text += ' ';
      }
    }
    return text;
  }
  const auto& strip = std::get<Strip>(step);
  for (size_t i = 0; i < strip.start && token.starts_with(strip.content); ++i) {
    token.remove_prefix(strip.content.size());
  }
  for (size_t i = 0; i < strip.stop && token.ends_with(strip.content); ++i) {
    token.remove_suffix(strip.content.size());
  }
  return std::string(token);
}

std::string TokenText::Push(std::string_view token) { return StripStart(PushToken(token)); }

std::string TokenText::PushToken(std::string_view token) {
  const bool first = first_;
  first_ = false;
  std::string text(token);
  for (const TokenDecoder::Step& step : decoder_->steps_) {
    text = decoder_->Apply(step, text, first);
  }
  if (decoder_->joined_by_spaces_) return first ? text : " " + text;
  if (decoder_->byte_level_) {
    std::optional<std::string> bytes = SpelledBytes(text);
    pending_ += bytes ? *bytes : text;
    return TakeWhole();
  }
  if (!decoder_->byte_fallback_) return text;
  if (const std::optional<char> byte = ByteOf(text)) {
    pending_ += *byte;
    return bytes_ == Bytes::kWhole ? std::string() : TakeWhole();
  }
  return FinishByteRun() + text;
}

std::string TokenText::TakeWhole() {
  std::string text;
  size_t done = 0;
  while (done < pending_.size()) {
    const std::optional<Utf8Fault> fault = FindUtf8Fault(pending_, done);
    const size_t valid_end = fault ? fault->offset : pending_.size();
    text.append(pending_, done, valid_end - done);
    done = valid_end;
    if (!fault || fault->Incomplete()) break;
    // At byte level, a fault becomes one U+FFFD; with byte tokens, each of its bytes becomes one.
    for (size_t i = 0; i < (decoder_->byte_level_ ? 1 : fault->bytes); ++i) {
      text += kReplacementCharacter;
    }
    done += fault->bytes;
  }
  pending_.erase(0, done);
  return text;
}

std::string TokenText::FinishByteRun() {
  std::string text;
  if (!FindUtf8Fault(pending_)) {
    text.swap(pending_);
  } else {
    for (size_t i = 0; i < pending_.size(); ++i) text += kReplacementCharacter;
    pending_.clear();
  }
  return text;
}

std::string TokenText::StripStart(std::string text) {
  if (!decoder_->strip_text_ || start_over_) return text;
  const TokenDecoder::Strip& strip = *decoder_->strip_text_;
  size_t cut = 0;
  while (stripped_ < strip.start && std::string_view(text).substr(cut).starts_with(strip.content)) {
    cut += strip.content.size();
    ++stripped_;
  }
  start_over_ = stripped_ == strip.start || cut < text.size();
  return text.substr(cut);
}

std::string TokenText::Finish() {
  std::string text = decoder_->byte_level_ ? ReplaceUtf8Faults(pending_) : FinishByteRun();
  text = StripStart(std::move(text));
  *this = TokenText(*decoder_, bytes_);
  return text;
}

}  // namespace tokline
