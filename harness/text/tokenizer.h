// Text to token ids and back, by a Hugging Face tokenizer.json. docs/tokenizers.md says what is
// supported and how the ids are checked.
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

struct EncodeOptions {
  bool add_special_tokens = true;  // what the post-processor puts around a text
  bool allow_special = false;      // special tokens spelled in the text are tokens, not text
  InvalidUtf8 invalid_utf8 = InvalidUtf8::kRefuse;
};

// A part of a text, for texts of which only some parts may spell special tokens: a chat template's
// markup may, what a user wrote may not.
struct TextPart {
  std::string text;
  bool allow_special = false;

  bool operator==(const TextPart&) const = default;
};

struct DecodeOptions {
  bool skip_special = false;  // leave special tokens out of the text
};

class TextStream;

class Tokenizer {
 public:
  // A tokenizer.json, or a folder that has one. Throws RuntimeFailure that names the file, the
  // place in it, the value and what is allowed.
  static Tokenizer Load(const std::filesystem::path& path);
  // The same from memory; `name` stands for the file in messages.
  static Tokenizer Parse(std::string_view json, const std::string& name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Safe to call from several threads. Throws InvalidArgument for invalid UTF-8, unless it is to be
  // replaced.
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options = {}) const;
  // The parts as one text: tokens may span them. options.allow_special is ignored.
  std::vector<int32_t> Encode(std::span<const TextPart> parts,
                              const EncodeOptions& options = {}) const;

  // Ids without a token, which padded vocabularies have, stand for nothing. Bytes that are not
  // UTF-8 become U+FFFD.
  std::string Decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;
  // The tokenizer outlives the stream.
  TextStream Stream(const DecodeOptions& options = {}) const;

  // The id of a token as the file spells it.
  std::optional<int32_t> Find(std::string_view token) const;
  // The spelling in the file; nothing for an id without a token.
  std::optional<std::string_view> Spelling(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  int32_t MaxId() const;

 private:
  friend class TextStream;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);

  std::unique_ptr<const Impl> impl_;
};

// The text of tokens as they come: each code point as soon as it is whole, never a part of one. All
// that Push and Finish returned is what Decode returns, with one exception: of byte tokens
// ("<0xE4>") that are not valid UTF-8 as a whole, Decode makes U+FFFD even of the valid parts.
class TextStream {
 public:
  std::string Push(int32_t id);
  // What is left of a broken code point. Further ids start a new text.
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
