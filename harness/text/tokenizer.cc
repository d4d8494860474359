// Loads tokenizer.json and runs its stages: added tokens, normalizer, pre-tokenizer, BPE model and
// post-processor to encode; the decoder to decode.
#include "harness/text/tokenizer.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "harness/platform/json_file.h"
#include "harness/platform/printable.h"
#include "harness/text/added_tokens.h"
#include "harness/text/bpe_model.h"
#include "harness/text/normalizer.h"
#include "harness/text/post_processor.h"
#include "harness/text/pre_tokenizer.h"
#include "harness/text/word_cache.h"

namespace tokline {

struct Tokenizer::Impl {
  explicit Impl(const JsonNode& root);

  void EncodeText(std::string_view text, const std::vector<PlainRange>& plain, TextBefore before,
                  std::vector<int32_t>& ids) const;
  std::vector<PlainRange> NormalizedRanges(std::string_view text,
                                           const std::vector<PlainRange>& plain, bool prepend,
                                           std::string_view normalized) const;
  void EncodePieces(TextPiece text, WordCache* cache, std::vector<int32_t>& ids) const;

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  AddedTokens added;
  PostProcessor post_processor;
  TokenDecoder decoder;

  mutable std::mutex cache_mutex;  // if it is taken, Encode works without the cache
  mutable WordCache cache;
};

namespace {

template <typename Component, typename... Arguments>
Component ReadOptional(const JsonNode& root, std::string_view key, const Arguments&... arguments) {
  const std::optional<JsonNode> node = root.Find(key);
  return node ? Component::Read(*node, arguments...) : Component();
}

const JsonNode& CheckRoot(const JsonNode& root) {
  // Truncation and padding are settings of a call and do not affect the ids of a text; transformers
  // ignores both too.
  root.AllowKeys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                  "post_processor", "decoder", "model"});
  if (const JsonNode version = root.Member("version"); version.Text() != "1.0") {
    version.Refuse("supported: 1.0");
  }
  return root;
}

}  // namespace

Tokenizer::Impl::Impl(const JsonNode& root)
    : normalizer(ReadOptional<Normalizer>(CheckRoot(root), "normalizer")),
      pre_tokenizer(ReadOptional<PreTokenizer>(root, "pre_tokenizer")),
      model(BpeModel::Read(root.Member("model"), pre_tokenizer.ByteLevel())),
      added(root, model, normalizer),
      post_processor(ReadOptional<PostProcessor>(root, "post_processor", model, added)),
      decoder(ReadOptional<TokenDecoder>(root, "decoder")) {}

void Tokenizer::Impl::EncodePieces(TextPiece text, WordCache* word_cache,
                                   std::vector<int32_t>& ids) const {
  std::deque<std::string> made;
  for (const TextPiece& piece : pre_tokenizer.Split(text, made)) {
    if (word_cache == nullptr || piece.text.size() > WordCache::kMaxPieceBytes) {
      model.Encode(piece.text, ids);
      continue;
    }
    const std::vector<int32_t>* known = word_cache->Find(piece.text);
    if (known != nullptr) {
      ids.insert(ids.end(), known->begin(), known->end());
      continue;
    }
    const auto before = static_cast<std::ptrdiff_t>(ids.size());
    model.Encode(piece.text, ids);
    word_cache->Put(piece.text, std::vector<int32_t>(ids.begin() + before, ids.end()));
  }
}

// Where the plain ranges of a text are in the normalized text, if that matters. They are found by
// normalizing the text between their bounds.
std::vector<PlainRange> Tokenizer::Impl::NormalizedRanges(std::string_view text,
                                                          const std::vector<PlainRange>& plain,
                                                          bool prepend,
                                                          std::string_view normalized) const {
  if (plain.empty() || !added.HasNormalizedSpecial()) return {};
  if (plain[0].begin == 0 && plain[0].end == text.size()) return {{0, normalized.size()}};
  std::string joined;
  size_t done = 0;
  const auto add_until = [&](size_t end) {
    const size_t before = joined.size();
    if (done < end) joined += normalizer.Apply(text.substr(done, end - done), prepend && done == 0);
    done = end;
    const bool whole = done < text.size() || joined.size() == normalized.size();
    const std::string_view piece = std::string_view(joined).substr(before);
    Require(whole && normalized.substr(std::min(before, normalized.size()), piece.size()) == piece,
            "the tokenizer's normalizer changes what spans byte ", done, ", ",
            Quoted(text.substr(done), 40),
            ", the bound between text that may spell special tokens and text that may not; this "
            "tokenizer searches for special tokens after it has normalized the text");
    return joined.size();
  };
  std::vector<PlainRange> moved;
  for (const PlainRange& range : plain) {
    const size_t begin = add_until(range.begin);
    moved.push_back({begin, add_until(range.end)});
  }
  add_until(text.size());
  return moved;
}

void Tokenizer::Impl::EncodeText(std::string_view text, const std::vector<PlainRange>& plain,
                                 TextBefore before, std::vector<int32_t>& ids) const {
  std::unique_lock<std::mutex> lock(cache_mutex, std::try_to_lock);
  WordCache* const word_cache = lock ? &cache : nullptr;
  size_t next_plain = 0;  // both are in order
  for (const AddedTokens::Part& outer : added.SplitBeforeNormalizing(text, plain)) {
    if (outer.token != nullptr) {
      ids.push_back(outer.token->id);
      continue;
    }
    const std::string_view raw = text.substr(outer.begin, outer.end - outer.begin);
    const bool goes_on = outer.begin == 0 && before == TextBefore::kText;
    std::vector<PlainRange> section_plain;
    while (next_plain < plain.size() && plain[next_plain].end <= outer.begin) ++next_plain;
    for (size_t i = next_plain; i < plain.size() && plain[i].begin < outer.end; ++i) {
      const size_t begin = std::max(plain[i].begin, outer.begin);
      const size_t end = std::min(plain[i].end, outer.end);
      if (begin < end) section_plain.push_back({begin - outer.begin, end - outer.begin});
    }
    std::string changed;
    if (!normalizer.Empty()) {
      const bool prepend =
          outer.begin > 0 || before == TextBefore::kNothing || before == TextBefore::kAddedToken;
      changed = normalizer.Apply(raw, prepend);
      section_plain = NormalizedRanges(raw, section_plain, prepend, changed);
    }
    const std::string_view section = normalizer.Empty() ? raw : std::string_view(changed);
    for (const AddedTokens::Part& inner : added.SplitNormalized(section, section_plain)) {
      if (inner.token != nullptr) {
        ids.push_back(inner.token->id);
        continue;
      }
      const bool first = outer.begin == 0 && inner.begin == 0;
      EncodePieces({.text = section.substr(inner.begin, inner.end - inner.begin),
                    .starts_text = first && before == TextBefore::kNothing,
                    .goes_on = first && goes_on},
                   word_cache, ids);
    }
  }
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::Load(const std::filesystem::path& path) {
  const auto file = std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  const nlohmann::json json = ReadJsonFile(file);
  return Tokenizer(std::make_unique<const Impl>(JsonNode(json, file.string())));
}

Tokenizer Tokenizer::Parse(std::string_view text, const std::string& name) {
  const nlohmann::json json = ParseJson(text, name);
  return Tokenizer(std::make_unique<const Impl>(JsonNode(json, name)));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  const TextPart part{std::string(text), options.allow_special};
  return Encode(std::span(&part, 1), options);
}

std::vector<int32_t> Tokenizer::Encode(std::span<const TextPart> parts,
                                       const EncodeOptions& options) const {
  std::string text;
  std::vector<PlainRange> plain;
  for (const TextPart& part : parts) {
    const size_t begin = text.size();
    if (options.invalid_utf8 == InvalidUtf8::kReplace) {
      text += ReplaceUtf8Faults(part.text);
    } else {
      RequireUtf8(part.text, "the text");
      text += part.text;
    }
    if (part.allow_special || text.size() == begin) continue;
    if (!plain.empty() && plain.back().end == begin) {
      plain.back().end = text.size();
    } else {
      plain.push_back({begin, text.size()});
    }
  }
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = impl_->post_processor.Before();
  impl_->EncodeText(text, plain, options.before, ids);
  if (options.add_special_tokens) {
    const std::vector<int32_t>& after = impl_->post_processor.After();
    ids.insert(ids.end(), after.begin(), after.end());
  }
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  TextStream stream(*impl_, options, TokenText::Bytes::kWhole);
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id);
  return text + stream.Finish();
}

TextStream Tokenizer::Stream(const DecodeOptions& options) const {
  return {*impl_, options, TokenText::Bytes::kAsTheyCome};
}

std::optional<int32_t> Tokenizer::Find(std::string_view token) const {
  if (const AddedToken* added = impl_->added.Find(token)) return added->id;
  return impl_->model.Find(token);
}

std::optional<std::string_view> Tokenizer::Spelling(int32_t id) const {
  if (const AddedToken* added = impl_->added.Find(id)) return added->content;
  const std::string* token = impl_->model.Token(id);
  if (token == nullptr) return std::nullopt;
  return *token;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  const AddedToken* added = impl_->added.Find(id);
  return added != nullptr && added->special;
}

TextBefore Tokenizer::BeforeTextAfter(int32_t id) const {
  const AddedToken* added = impl_->added.Find(id);
  if (added == nullptr) return TextBefore::kText;
  return added->normalized ? TextBefore::kNormalizedToken : TextBefore::kAddedToken;
}

int32_t Tokenizer::MaxId() const { return impl_->added.MaxId(); }

TextStream::TextStream(const Tokenizer::Impl& tokenizer, const DecodeOptions& options,
                       TokenText::Bytes bytes)
    : tokenizer_(&tokenizer), options_(options), text_(tokenizer.decoder, bytes) {}

std::string TextStream::Push(int32_t id) {
  if (const AddedToken* added = tokenizer_->added.Find(id)) {
    return added->special && options_.skip_special ? std::string() : text_.Push(added->text);
  }
  const std::string* token = tokenizer_->model.Token(id);
  return token == nullptr ? std::string() : text_.Push(*token);
}

}  // namespace tokline
