// Builds the prompts of a conversation so that they share as many leading tokens as the template
// allows.
#include "harness/chat/conversation.h"

#include <algorithm>
#include <utility>

#include "harness/platform/printable.h"
#include "harness/text/utf8.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Placeholder for the system text in rendered templates. No template trims it.
constexpr std::string_view kStandIn = "\x02";

// The first special token that the template writes after an answer; otherwise the model's end of
// text.
int32_t FindEndOfTurn(const Tokenizer& tokenizer, const ChatTemplate& chat_template) {
  const std::string after = chat_template.AfterAnswer();
  for (const int32_t id :
       tokenizer.Encode(after, {.add_special_tokens = false, .allow_special = true})) {
    if (tokenizer.IsSpecial(id)) return id;
  }
  const std::optional<std::string> end = chat_template.SpecialToken("eos_token");
  if (const auto id = end ? tokenizer.Find(*end) : std::nullopt) return *id;
  throw RuntimeFailure(StrCat(chat_template.Where(), ": the template ends answers with ",
                              Quoted(after, 40),
                              ", in which the tokenizer has no special token, and there is no "
                              "eos_token in tokenizer_config.json that it has"));
}

// Returns the parts from byte `at` of their joined text.
std::vector<TextPart> PartsFrom(std::span<const TextPart> parts, size_t at) {
  std::vector<TextPart> rest;
  for (const TextPart& part : parts) {
    const size_t cut = std::min(at, part.text.size());
    at -= cut;
    if (cut < part.text.size()) rest.push_back({part.text.substr(cut), part.allow_special});
  }
  return rest;
}

// Returns the first `size` bytes of the parts.
std::vector<TextPart> PartsBefore(std::span<const TextPart> parts, size_t size) {
  std::vector<TextPart> first;
  for (const TextPart& part : parts) {
    const size_t taken = std::min(size, part.text.size());
    size -= taken;
    if (taken > 0) first.push_back({part.text.substr(0, taken), part.allow_special});
  }
  return first;
}

}  // namespace

Conversation::Conversation(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                           Options options)
    : tokenizer_(tokenizer),
      template_(chat_template),
      options_(std::move(options)),
      end_of_turn_(FindEndOfTurn(tokenizer, chat_template)) {
  RequireUtf8(options_.system, "the system text");
  for (const ContextPiece& piece : options_.context) RequireUtf8(piece.text, piece.name);
  // A time that the template writes must not change, because the history is rendered again.
  if (!options_.chat.now) options_.chat.now = LocalTime();
  MakePrefix();
  ProbeTemplate();
}

void Conversation::MakePrefix() {
  if (options_.system.empty() && options_.context.empty()) return;
  messages_.push_back({.role = "system", .content = std::string(kStandIn)});
  options_.chat.add_generation_prompt = false;
  // Some templates only write the system text when a user has spoken.
  const std::vector<ChatMessage> begun = {messages_[0], {.role = "user", .content = "a"}};
  const std::vector<TextPart> parts = template_.Render(begun, options_.chat);
  const std::string text = JoinText(parts);
  const size_t place = text.find(kStandIn);
  if (place == text.npos || text.find(kStandIn, place + 1) != text.npos) {
    throw RuntimeFailure(StrCat(template_.Where(), ": the template writes the system text ",
                                place == text.npos ? "nowhere" : "more than once",
                                ", so that it takes neither a system text nor chunks"));
  }
  std::vector<TextPart> head = PartsBefore(parts, place);
  head_ = text.substr(0, place);
  const bool parted = !options_.system.empty() && !options_.context.empty();
  head.push_back({options_.system + (parted ? "\n\n" : "")});
  prefix_ = EncodeAfter({}, head);
  const auto size = [this] { return static_cast<int64_t>(prefix_.size()); };
  spans_.push_back({.name = "system", .begin = 0, .end = size()});
  for (const ContextPiece& piece : options_.context) {
    const TextPart part{StrCat(piece.name, ":\n", piece.text, "\n\n")};
    const std::vector<int32_t> ids = EncodeAfter({}, {&part, 1});
    const int64_t begin = size();
    prefix_.insert(prefix_.end(), ids.begin(), ids.end());
    spans_.push_back({.name = piece.name, .begin = begin, .end = size()});
  }
}

std::vector<int64_t> Conversation::PrefixCuts() const {
  std::vector<int64_t> cuts;
  for (const TokenSpan& span : spans_) cuts.push_back(span.end);
  if (cuts.size() > 1) cuts.erase(cuts.begin());  // the system text joins the first piece's chunk
  return cuts;
}

// Renders a history whose answer contains everything that a template may drop.
void Conversation::ProbeTemplate() {
  std::vector<ChatMessage> asked = messages_;
  asked.push_back({.role = "user", .content = "a"});
  const std::string question = JoinText(RenderTurns(asked, false));
  const std::string prompt = JoinText(RenderTurns(asked, true));
  const std::string opened =
      prompt.starts_with(question) ? OpenedThoughts(prompt.substr(question.size())) : "";
  const std::string begin = opened.empty() ? StrCat(kThoughts, "\n") : "";
  const std::string answer = StrCat(begin, "b\n", kEndOfThoughts, "\n\nc");
  const auto keeps = [&](const std::string& content) {
    std::vector<ChatMessage> messages = asked;
    messages.push_back({.role = "assistant", .content = content});
    messages.push_back({.role = "user", .content = "d"});
    return JoinText(RenderTurns(messages, true)).starts_with(prompt + answer);
  };
  // Some templates write the opening of thoughts in the history, too.
  keeps_answers_ = keeps(answer);
  if (keeps_answers_ || opened.empty()) return;
  keeps_answers_ = keeps(opened + answer);
  opened_thoughts_ = opened;
}

void Conversation::AddAnswer(std::string answer, bool finished) {
  // An answer that ended by itself without an end of thoughts counts as answer throughout, as in
  // transformers.
  const bool thinks =
      keeps_answers_ || !finished || answer.find(kEndOfThoughts) != std::string::npos;
  if (thinks) answer.insert(0, opened_thoughts_);
  if (!keeps_answers_) answer = CloseThoughts(std::move(answer));
  messages_.push_back({.role = "assistant", .content = std::move(answer)});
}

std::vector<int32_t> Conversation::EncodeAfter(std::span<const int32_t> before,
                                               std::span<const TextPart> parts) const {
  if (before.empty()) before = prefix_;
  const TextBefore what =
      before.empty() ? TextBefore::kNothing : tokenizer_.BeforeTextAfter(before.back());
  return tokenizer_.Encode(parts, {.add_special_tokens = false, .before = what});
}

std::vector<TextPart> Conversation::RenderTurns(std::span<const ChatMessage> messages,
                                                bool prompt) const {
  ChatOptions options = options_.chat;
  options.add_generation_prompt = prompt;
  const std::vector<TextPart> parts = template_.Render(messages, options);
  if (spans_.empty()) return parts;
  const std::string before = head_ + std::string(kStandIn);
  if (!JoinText(parts).starts_with(before)) {
    throw RuntimeFailure(StrCat(template_.Where(),
                                ": the template moves the system text when the conversation grows, "
                                "so that it takes neither a system text nor chunks"));
  }
  return PartsFrom(parts, before.size());
}

Request Conversation::BeginTurn(std::string_view user) {
  RequireUtf8(user, "the turn");
  messages_.push_back({.role = "user", .content = std::string(user)});
  segments_before_turn_ = segments_.size();
  try {
    return RequestAnswer();
  } catch (...) {
    DropTurn();
    throw;
  }
}

Request Conversation::RequestAnswer() {
  const std::vector<TextPart> parts = RenderTurns(messages_, true);
  const std::string text = JoinText(parts);
  size_t at = 0;
  size_t kept = 0;
  while (kept < segments_.size() &&
         std::string_view(text).substr(at).starts_with(segments_[kept].text)) {
    at += segments_[kept++].text.size();
  }
  segments_.resize(kept);
  segments_before_turn_ = kept;

  // The markup before the answer becomes a segment of its own if this yields the same tokens,
  // because a template may later remove it from the history.
  const std::vector<TextPart> rest = PartsFrom(parts, at);
  const std::string question_text = JoinText(RenderTurns(messages_, false));
  const size_t asked = text.starts_with(question_text) ? question_text.size() : 0;
  const std::span<const int32_t> before =
      kept > 0 ? std::span<const int32_t>(segments_.back().ids) : std::span<const int32_t>();
  std::vector<int32_t> whole = EncodeAfter(before, rest);
  if (asked > at && asked < text.size()) {
    Segment question{.text = text.substr(at, asked - at),
                     .ids = EncodeAfter(before, PartsBefore(rest, asked - at))};
    Segment opening{.text = text.substr(asked),
                    .ids = EncodeAfter(question.ids, PartsFrom(rest, asked - at))};
    std::vector<int32_t> both = question.ids;
    both.insert(both.end(), opening.ids.begin(), opening.ids.end());
    if (both == whole) {
      segments_.push_back(std::move(question));
      segments_.push_back(std::move(opening));
      whole.clear();
    }
  }
  if (!whole.empty()) segments_.push_back({.text = text.substr(at), .ids = std::move(whole)});

  Request request{.prompt = prefix_, .keep = keeps_answers_};
  for (const Segment& segment : segments_) {
    request.prompt.insert(request.prompt.end(), segment.ids.begin(), segment.ids.end());
  }
  // The next turn shares at most the tokens up to the end of the question.
  if (!keeps_answers_ && !segments_.empty()) {
    const int64_t cut = std::ssize(request.prompt) - std::ssize(segments_.back().ids);
    if (cut > 0) request.cuts = {cut};
  }
  return request;
}

void Conversation::EndTurn(std::span<const int32_t> answer, bool stopped) {
  Require(stopped || !answer.empty(), "an answer has at least one token");
  const bool ends_turn = stopped && answer.back() == end_of_turn_;
  const auto text_ids = answer.first(answer.size() - (stopped ? 1 : 0));
  std::string content = tokenizer_.Decode(text_ids, {.skip_special = true});
  const auto kept_ids = ends_turn ? answer : text_ids;
  const std::string_view end = ends_turn ? *tokenizer_.Spelling(end_of_turn_) : "";
  segments_.push_back({.text = StrCat(content, end), .ids = {kept_ids.begin(), kept_ids.end()}});
  AddAnswer(std::move(content), stopped);
}

void Conversation::EndTurn(std::string text) { AddAnswer(std::move(text), false); }

void Conversation::DropTurn() {
  Require(!messages_.empty() && messages_.back().role == "user", "no turn has begun");
  messages_.pop_back();
  segments_.resize(segments_before_turn_);
}

void Conversation::Reset() {
  messages_.resize(spans_.empty() ? 0 : 1);
  segments_.clear();
}

}  // namespace tokline
