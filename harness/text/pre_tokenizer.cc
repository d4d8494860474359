// Reads a pre-tokenizer and splits text with it, with the library's five ways of treating the
// delimiters of a split.
#include "harness/text/pre_tokenizer.h"

#include <utility>

#include "harness/text/sequence_steps.h"
#include "harness/text/utf8.h"

namespace tokline {
namespace {

// GPT-2's expression, which the ByteLevel pre-tokenizer uses with use_regex.
constexpr std::string_view kByteLevelExpression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Digits takes Unicode 17, where the library's expressions have 16.
constexpr std::string_view kDigitsExpression = "[\\p{N}\U00011DE0-\U00011DE9\U00016FF4-\U00016FF6]";

}  // namespace

PreTokenizer PreTokenizer::Read(const JsonNode& node) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.Add(node, 0);
  return pre_tokenizer;
}

PreTokenizer::Behavior PreTokenizer::ReadBehavior(const JsonNode& node) {
  constexpr std::pair<std::string_view, Behavior> kBehaviors[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  const std::string& name = node.Text();
  for (const auto& [one, behavior] : kBehaviors) {
    if (one == name) return behavior;
  }
  node.Refuse("supported: Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

void PreTokenizer::Add(const JsonNode& node, int depth) {
  const JsonNode type_node = node.Member("type");
  const std::string& type = type_node.Text();
  if (byte_level_) type_node.Refuse("nothing may come after ByteLevel");
  if (type == "ByteLevel") {
    node.AllowKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (node.FlagOf("add_prefix_space", true)) steps_.emplace_back(Prefix{" "});
    if (node.FlagOf("use_regex", true)) {
      steps_.emplace_back(SplitAt{Pattern::Regex(kByteLevelExpression)});
    }
    byte_level_ = true;
  } else if (type == "Split") {
    node.AllowKeys({"type", "pattern", "behavior", "invert"});
    steps_.emplace_back(SplitAt{Pattern::Read(node.Member("pattern")),
                                ReadBehavior(node.Member("behavior")),
                                node.FlagOf("invert", false)});
  } else if (type == "Digits") {
    node.AllowKeys({"type", "individual_digits"});
    steps_.emplace_back(SplitAt{
        Pattern::Regex(kDigitsExpression),
        node.FlagOf("individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous});
  } else if (type == "Metaspace") {
    AddMetaspace(node);
  } else if (type == "Sequence") {
    for (const JsonNode& step : SequenceSteps(node, "pretokenizers", depth)) Add(step, depth + 1);
  } else {
    type_node.Refuse("supported pre-tokenizers: ByteLevel, Digits, Metaspace, Sequence, Split");
  }
}

void PreTokenizer::AddMetaspace(const JsonNode& node) {
  node.AllowKeys({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const JsonNode replacement_node = node.Member("replacement");
  const std::string& replacement = replacement_node.Text();
  if (CountUtf8(replacement) != 1) replacement_node.Refuse("it must be one character");
  const std::optional<JsonNode> scheme_node = node.Find("prepend_scheme");
  std::string scheme = scheme_node ? scheme_node->Text() : "always";
  if (!node.FlagOf("add_prefix_space", true)) {  // the older way to say "never"
    if (scheme_node && scheme != "never") {
      scheme_node->Refuse("with \"add_prefix_space\": false it must be \"never\"");
    }
    scheme = "never";
  }
  steps_.emplace_back(ReplaceSpaces{replacement});
  if (scheme == "always" || scheme == "first") {
    steps_.emplace_back(Prefix{replacement, scheme == "first"});
  } else if (scheme != "never") {
    scheme_node->Refuse("supported: always, first, never");
  }
  if (node.FlagOf("split", true)) {
    steps_.emplace_back(SplitAt{Pattern::Literal(replacement), Behavior::kMergedWithNext});
  }
}

void PreTokenizer::Apply(const SplitAt& split, TextPiece piece, std::vector<TextPiece>& out) {
  const auto add = [&](size_t begin, size_t end) {
    if (begin == end) return;
    out.push_back({.text = piece.text.substr(begin, end - begin),
                   .starts_text = piece.starts_text && begin == 0,
                   .goes_on = piece.goes_on && begin == 0});
  };
  if (split.behavior == Behavior::kIsolated || split.behavior == Behavior::kRemoved) {
    split.pattern.Cover(piece.text, [&](MatchSpan span) {
      if (split.behavior == Behavior::kIsolated || span.matched == split.invert) {
        add(span.begin, span.end);
      }
    });
    return;
  }
  // The other behaviours join several spans into one piece. A delimiter joins its neighbour unless
  // the neighbour is a delimiter too.
  std::vector<MatchSpan> spans;
  split.pattern.Cover(piece.text, [&](MatchSpan span) {
    span.matched = span.matched != split.invert;
    spans.push_back(span);
  });
  const auto joins = [&](size_t i) {  // whether span i joins span i - 1
    switch (split.behavior) {
      case Behavior::kContiguous:
        return spans[i].matched == spans[i - 1].matched;
      case Behavior::kMergedWithPrevious:
        return spans[i].matched && !spans[i - 1].matched;
      default:
        return !spans[i].matched && spans[i - 1].matched;
    }
  };
  for (size_t first = 0; first < spans.size();) {
    size_t last = first + 1;
    while (last < spans.size() && joins(last)) ++last;
    add(spans[first].begin, spans[last - 1].end);
    first = last;
  }
}

std::vector<TextPiece> PreTokenizer::Split(TextPiece text, std::deque<std::string>& made) const {
  std::vector<TextPiece> pieces;
  if (!text.text.empty()) pieces.push_back(text);
  for (const Step& step : steps_) {
    if (const auto* split = std::get_if<SplitAt>(&step)) {
      std::vector<TextPiece> parts;
      parts.reserve(pieces.size());
      for (const TextPiece& piece : pieces) Apply(*split, piece, parts);
      pieces = std::move(parts);
      continue;
    }
    for (TextPiece& piece : pieces) {
      if (const auto* prefix = std::get_if<Prefix>(&step)) {
        if (piece.text.starts_with(prefix->text)) continue;
        if (piece.goes_on || (prefix->only_first && !piece.starts_text)) continue;
        piece.text = made.emplace_back(prefix->text).append(piece.text);
      } else {
        std::string& replaced = made.emplace_back();
        for (const char c : piece.text) {
          if (c == ' ') {
            replaced += std::get<ReplaceSpaces>(step).with;
          } else {
            replaced += c;
          }
        }
        piece.text = replaced;
      }
    }
  }
  return pieces;
}

}  // namespace tokline
