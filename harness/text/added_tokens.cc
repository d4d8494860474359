// Reads the added tokens of a tokenizer and splits text at them exactly as the Hugging Face library
// does.
#include "harness/text/added_tokens.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "harness/platform/printable.h"
#include "harness/text/pattern.h"
#include "harness/text/utf8.h"

namespace tokline {
namespace {

constexpr size_t kMaxTokens = size_t{1} << 16;
constexpr size_t kMaxContentBytes = 1024;
constexpr size_t kMaxGrowth = size_t{4} << 20;  // bytes by which normalizing lengthens all of them

// Whether the text holds one code point that \w matches in Rust's regex crate, which the library
// uses here: alphabetic characters, marks, decimal digits, connector punctuation and join controls.
// Circled and squared letters are symbols but alphabetic.
bool IsWord(std::string_view code_point) {
  static const Pattern word = Pattern::Regex(
      "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}_\u203F\u2040\u2054\uFE33\uFE34\uFE4D-\uFE4F\uFF3F\u200C\u200D"
      "\u24B6-\u24E9\U0001F130-\U0001F149\U0001F150-\U0001F169\U0001F170-\U0001F189]");
  bool matched = false;
  word.Cover(code_point, [&](MatchSpan span) { matched = span.matched; });
  return matched;
}

std::string_view LastOf(std::string_view text) { return text.substr(LastCodePoint(text)); }
std::string_view FirstOf(std::string_view text) { return text.substr(0, Utf8Length(text[0])); }

bool StandsAlone(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !IsWord(LastOf(text.substr(0, begin)))) &&
         (end == text.size() || !IsWord(FirstOf(text.substr(end))));
}

// Returns the normalized content of an added token, which may be at most `max_growth` bytes longer.
std::string Normalized(const JsonNode& node, const std::string& content,
                       const Normalizer& normalizer, size_t max_growth) {
  try {
    return normalizer.Apply(content, /*prepend=*/true, content.size() + max_growth);
  } catch (const RuntimeFailure& error) {
    node.Member("content").Fail(error.what());
  }
}

}  // namespace

void AddedTokens::Trie::Add(std::string_view word, int32_t index) {
  starts_[static_cast<unsigned char>(word[0])] = true;
  size_t node = 0;
  for (const char c : word) {
    const auto [child, is_new] = nodes_[node].children.try_emplace(
        static_cast<unsigned char>(c), static_cast<int32_t>(nodes_.size()));
    node = static_cast<size_t>(child->second);
    if (is_new) nodes_.emplace_back();
  }
  nodes_[node].index = index;
}

int32_t AddedTokens::Trie::Longest(std::string_view text, size_t at, size_t& length) const {
  int32_t found = -1;
  if (!starts_[static_cast<unsigned char>(text[at])]) return found;
  const Node* node = &nodes_[0];
  for (size_t i = at; i < text.size(); ++i) {
    const auto child = node->children.find(static_cast<unsigned char>(text[i]));
    if (child == node->children.end()) break;
    node = &nodes_[static_cast<size_t>(child->second)];
    if (node->index >= 0) {
      found = node->index;
      length = i + 1 - at;
    }
  }
  return found;
}

AddedTokens::AddedTokens(const JsonNode& root, const BpeModel& model, const Normalizer& normalizer)
    : max_id_(model.MaxId()) {
  const std::optional<JsonNode> list = root.Find("added_tokens");
  if (!list) return;
  size_t growth = 0;
  for (const JsonNode& node : list->Items(kMaxTokens)) {
    AddedToken token = ReadToken(node);
    CheckId(node, token, model);
    max_id_ = std::max(max_id_, token.id);
    const size_t index = tokens_.size();
    by_id_.emplace(token.id, index);
    by_content_.emplace(token.content, index);
    token.text = token.normalized ? Normalized(node, token.content, normalizer, kMaxGrowth - growth)
                                  : token.content;
    // NFC is not limited: it makes a text at most 3 times as long.
    growth = std::min(kMaxGrowth, growth + std::max(token.text.size(), token.content.size()) -
                                      token.content.size());
    if (!token.text.empty()) {
      (token.normalized ? normalized_ : before_).Add(token.text, static_cast<int32_t>(index));
    }
    has_normalized_special_ |= token.normalized && token.special;
    tokens_.push_back(std::move(token));
  }
}

AddedToken AddedTokens::ReadToken(const JsonNode& node) const {
  node.AllowKeys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.id =
      static_cast<int32_t>(node.Member("id").Integer(0, std::numeric_limits<int32_t>::max() - 1));
  const JsonNode content = node.Member("content");
  token.content = content.Text();
  if (token.content.empty() || token.content.size() > kMaxContentBytes) {
    content.Refuse("it must have 1 to ", kMaxContentBytes, " bytes");
  }
  if (by_content_.contains(token.content)) content.Refuse("another added token has it too");
  token.special = node.FlagOf("special", false);
  token.single_word = node.FlagOf("single_word", false);
  token.strip_left = node.FlagOf("lstrip", false);
  token.strip_right = node.FlagOf("rstrip", false);
  token.normalized = node.FlagOf("normalized", !token.special);
  return token;
}

void AddedTokens::CheckId(const JsonNode& node, const AddedToken& token,
                          const BpeModel& model) const {
  const std::optional<int32_t> in_vocab = model.Find(token.content);
  // The library starts new ids at the number of the vocabulary's tokens, not after its highest id.
  int64_t expected = model.Size();
  if (in_vocab) {
    expected = *in_vocab;
  } else if (!by_id_.empty()) {
    expected = std::max<int64_t>(expected, int64_t{by_id_.rbegin()->first} + 1);
  }
  if (token.id != expected) {
    node.Member("id").Refuse("the token ", Quoted(token.content), " has ", expected,
                             in_vocab ? " in model.vocab" : " as the next free id");
  }
  if (by_id_.contains(token.id) || (!in_vocab && model.Token(token.id) != nullptr)) {
    node.Member("id").Refuse("another token has it too");
  }
}

std::vector<AddedTokens::Part> AddedTokens::Split(const Trie& trie, std::string_view text,
                                                  const std::vector<PlainRange>& plain) const {
  std::vector<Part> parts;
  size_t done = 0;
  auto range = plain.begin();
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    const int32_t index = trie.Longest(text, at, length);
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = at;
    size_t end = at + length;
    while (range != plain.end() && range->end <= begin) ++range;
    if (token.special && range != plain.end() && range->begin < end) {
      // A token inside the plain range is skipped as a whole, as in the library. If it crosses the
      // range's bounds, only one byte is skipped, because a token of the markup may begin inside
      // it.
      at = range->begin <= begin && end <= range->end ? end : at + 1;
      continue;
    }
    at = end;
    if (token.single_word && !StandsAlone(text, begin, end)) continue;
    if (token.strip_left) {
      while (begin > done) {
        const std::string_view front = text.substr(done, begin - done);
        if (!IsWhiteSpace(DecodeUtf8(LastOf(front)))) break;
        begin = done + LastCodePoint(front);
      }
    }
    if (token.strip_right) {
      while (end < text.size() && IsWhiteSpace(DecodeUtf8(FirstOf(text.substr(end))))) {
        end += Utf8Length(text[end]);
      }
    }
    if (done < begin) parts.push_back({done, begin});
    parts.push_back({begin, end, &token});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size()});
  return parts;
}

std::vector<AddedTokens::Part> AddedTokens::SplitBeforeNormalizing(
    std::string_view text, const std::vector<PlainRange>& plain) const {
  return Split(before_, text, plain);
}

std::vector<AddedTokens::Part> AddedTokens::SplitNormalized(
    std::string_view text, const std::vector<PlainRange>& plain) const {
  return Split(normalized_, text, plain);
}

const AddedToken* AddedTokens::Find(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::Find(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

}  // namespace tokline
