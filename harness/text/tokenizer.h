// Converts text to token ids and back as specified by a Hugging Face tokenizer.json.
// docs/tokenizers.md says what is supported and how the ids are checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/text/token_decoder.h"
#include "harness/text/utf8.h"

namespace tokline {

// What precedes a text that is a part of a longer one. Some tokenizers put a prefix, such as a
// space, before a whole text, or also before what follows an added token. A normalized token is an
// added token that is searched for in normalized text.
enum class TextBefore { kNothing, kAddedToken, kNormalizedToken, kText };

struct EncodeOptions {
  bool add_special_tokens = true;  // add what the post-processor puts around a text
  bool allow_special = false;      // treat special tokens that are spelled in the text as tokens
  InvalidUtf8 invalid_utf8 = InvalidUtf8::kRefuse;
  TextBefore before = TextBefore::kNothing;
};

// A part of a text in which only some parts may spell special tokens: the markup of a chat template
// may, the text of a user may not.
struct TextPart {
  std::string text;
  bool allow_special = false;

  bool operator==(const TextPart&) const = default;
};

struct DecodeOptions {
  bool skip_special = false;  // omit special tokens from the text
};

class TextStream;

class Tokenizer {
 public:
  // `path` is a tokenizer.json or a folder that contains one. Throws RuntimeFailure that names the
  // file, the place in it, the value and what is allowed.
  static Tokenizer Load(const std::filesystem::path& path);
  // Same as Load, but from memory; `name` stands for the file in error messages.
  static Tokenizer Parse(std::string_view json, const std::string& name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Encode may be called from several threads at once. It throws InvalidArgument for invalid UTF-8
  // unless the options say to replace it.
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Encodes the parts as one text: tokens may span parts. options.allow_special is ignored. If the
  // tokenizer searches for special tokens in normalized text, this also throws InvalidArgument if
  // the normalizer changes what spans two parts of which one may spell them.
  std::vector<int32_t> Encode(std::span<const TextPart> parts,
                              const EncodeOptions& options = {}) const;

  // Ids without a token, which padded vocabularies have, decode to nothing. Bytes that are not
  // UTF-8 become U+FFFD.
  std::string Decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;
  // The tokenizer must outlive the stream.
  TextStream Stream(const DecodeOptions& options = {}) const;

  // Returns the id of a token, given as the file spells it.
  std::optional<int32_t> Find(std::string_view token) const;
  // Returns the token's spelling in the file, or nothing if the id has no token.
  std::optional<std::string_view> Spelling(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  // What stands before a text that follows this token.
  TextBefore BeforeTextAfter(int32_t id) const;
  int32_t MaxId() const;

 private:
  friend class TextStream;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);

  std::unique_ptr<const Impl> impl_;
};

// Converts tokens to text one by one. Each code point is returned as soon as it is complete, and
// never in part. The results of Push and Finish concatenate to the result of Decode, with one
// exception: if a run of byte tokens ("<0xE4>") is not entirely valid UTF-8, Decode turns even its
// valid parts into U+FFFD.
class TextStream {
 public:
  std::string Push(int32_t id);
  // Returns what is left of an incomplete code point. Further ids start a new text.
  std::string Finish() { return text_.Finish(); }

 private:
  friend class Tokenizer;
  TextStream(const Tokenizer::Impl& tokenizer, const DecodeOptions& options,
             TokenText::Bytes bytes);

  const Tokenizer::Impl* tokenizer_;
  DecodeOptions options_;
  TokenText text_;
};

}  // namespace tokline
