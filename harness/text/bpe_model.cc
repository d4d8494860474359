// Reads a BPE model and encodes pieces with it, including the library's treatment of unknown
// characters and of stale merges.
#include "harness/text/bpe_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "harness/platform/printable.h"
#include "harness/text/byte_alphabet.h"
#include "harness/text/utf8.h"

namespace tokline {
namespace {

constexpr int64_t kMaxVocab = int64_t{1} << 21;
constexpr size_t kMaxMerges = size_t{1} << 22;
constexpr size_t kMaxTokenBytes = 8192;

// A pair that may be merged, and the resulting token. It is stale once one of its halves has
// changed.
struct Candidate {
  int32_t rank;
  int32_t position;  // index of the left half's symbol
  int32_t left;      // ids of the halves when the pair was found
  int32_t right;
  int32_t id;

  // The top of the heap is the pair with the lowest rank, and the leftmost of these.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

BpeModel BpeModel::Read(const JsonNode& node, bool byte_level) {
  node.AllowKeys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                  "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const std::optional<JsonNode> type = node.Find("type"); type && type->Text() != "BPE") {
    type->Refuse("supported models: BPE");
  }
  node.RequireNull("dropout", "with dropout the ids of a text are random");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const std::optional<JsonNode> found = node.Find(affix); found && !found->Text().empty()) {
      found->Refuse("it must be null or empty");
    }
  }
  BpeModel model;
  model.byte_level_ = byte_level;
  model.byte_fallback_ = node.FlagOf("byte_fallback", false);
  model.fuse_unknown_ = node.FlagOf("fuse_unk", false);
  model.ignore_merges_ = node.FlagOf("ignore_merges", false);
  model.ReadVocab(node.Member("vocab"));
  model.ReadMerges(node.Member("merges"));
  if (const std::optional<JsonNode> unknown = node.Find("unk_token")) {
    model.unknown_id_ = model.Find(unknown->Text());
    if (!model.unknown_id_) unknown->Refuse("it must be in the vocabulary");
  }
  constexpr std::string_view kHex = "0123456789ABCDEF";
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto id_or_none = [&](std::string_view token) { return model.Find(token).value_or(-1); };
    model.byte_ids_[byte] = id_or_none(ByteCharacter(static_cast<unsigned char>(byte)));
    model.fallback_ids_[byte] = id_or_none(StrCat("<0x", kHex[byte >> 4], kHex[byte & 15], ">"));
  }
  if (model.ignore_merges_) {
    for (const auto& [token, id] : model.ids_) {
      std::optional<std::string> piece = byte_level ? SpelledBytes(token) : std::string(token);
      if (piece) model.whole_pieces_.emplace(*std::move(piece), id);
    }
  }
  return model;
}

void BpeModel::ReadVocab(const JsonNode& node) {
  const nlohmann::json& vocab = node.Value();
  if (!vocab.is_object()) node.Refuse("it must be an object of tokens and their ids");
  if (vocab.empty() || vocab.size() > static_cast<size_t>(kMaxVocab)) {
    node.Refuse("it must have 1 to ", kMaxVocab, " tokens");
  }
  // Ids may have gaps, but the gaps are limited so that a small file cannot cause a huge
  // allocation.
  const int64_t most = 2 * static_cast<int64_t>(vocab.size()) + 1024;
  tokens_.resize(vocab.size());
  for (auto entry = vocab.begin(); entry != vocab.end(); ++entry) {
    const std::string& token = entry.key();
    const nlohmann::json& value = *entry;
    const auto refuse = [&](const auto&... message) {
      node.Fail("the token ", Quoted(token), " ", message...);
    };
    if (token.empty() || token.size() > kMaxTokenBytes) {
      refuse("has ", token.size(), " bytes; it must have 1 to ", kMaxTokenBytes);
    }
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(most)) {
      refuse("has the id ", value.dump(-1, ' ', true).substr(0, 40),
             "; it must be an integer from 0 to ", most - 1);
    }
    const auto id = value.get<size_t>();
    if (id >= tokens_.size()) tokens_.resize(id + 1);
    if (!tokens_[id].empty()) refuse("has the id ", id, ", which ", Quoted(tokens_[id]), " has");
    tokens_[id] = token;
  }
  ids_.reserve(vocab.size());
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id].empty()) ids_.emplace(tokens_[id], static_cast<int32_t>(id));
  }
}

void BpeModel::ReadMerges(const JsonNode& node) {
  const nlohmann::json& merges = node.Value();
  if (!merges.is_array()) node.Refuse("it must be a list");
  if (merges.size() > kMaxMerges) node.Refuse("at most ", kMaxMerges, " are allowed");
  merges_ = MergeTable(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const nlohmann::json& merge = merges[rank];
    const auto refuse = [&] {
      node.Fail("merge ", rank, " is ", Quoted(merge.dump(-1, ' ', true)),
                "; it must be \"left right\" or [\"left\", \"right\"]");
    };
    if (merge.is_string()) {
      const std::string_view text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == text.npos || text.find(' ', space + 1) != text.npos) refuse();
      AddMerge(node, rank, text.substr(0, space), text.substr(space + 1));
    } else {
      if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() ||
          !merge[1].is_string()) {
        refuse();
      }
      AddMerge(node, rank, merge[0].get_ref<const std::string&>(),
               merge[1].get_ref<const std::string&>());
    }
  }
}

void BpeModel::AddMerge(const JsonNode& list, size_t rank, std::string_view left,
                        std::string_view right) {
  const auto require = [&](std::string_view token) {
    const std::optional<int32_t> id = Find(token);
    if (!id)
      list.Fail("merge ", rank, " needs ", Quoted(token), ", which is not in the vocabulary");
    return *id;
  };
  const int32_t left_id = require(left);
  const int32_t right_id = require(right);
  const int32_t id = require(std::string(left).append(right));
  merges_.Put({left_id, right_id, static_cast<int32_t>(rank), id});
}

std::optional<int32_t> BpeModel::Find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* BpeModel::Token(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) return nullptr;
  const std::string& token = tokens_[static_cast<size_t>(id)];
  return token.empty() ? nullptr : &token;
}

std::vector<BpeModel::Symbol> BpeModel::InitialSymbols(std::string_view piece) const {
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  const auto add = [&](int32_t id) {
    const auto index = static_cast<int32_t>(symbols.size());
    if (index > 0) symbols.back().next = index;
    symbols.push_back({id, index - 1, -1, false});
  };
  bool unknown_waits = false;  // is added before the next known character
  for (size_t at = 0; at < piece.size();) {
    const size_t length = byte_level_ ? 1 : Utf8Length(piece[at]);
    const std::string_view character = piece.substr(at, length);
    at += length;
    const int32_t id = byte_level_ ? byte_ids_[static_cast<unsigned char>(character[0])]
                                   : Find(character).value_or(-1);
    if (id >= 0) {
      if (unknown_waits) add(*unknown_id_);
      unknown_waits = false;
      add(id);
      continue;
    }
    // At byte level, the fallback spells the UTF-8 encoding of the byte's character.
    const std::string_view spelled =
        byte_level_ ? ByteCharacter(static_cast<unsigned char>(character[0])) : character;
    const auto fallback_id = [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
    if (byte_fallback_ &&
        std::all_of(spelled.begin(), spelled.end(), [&](char c) { return fallback_id(c) >= 0; })) {
      for (const char c : spelled) add(fallback_id(c));
      continue;
    }
    if (!unknown_id_) continue;
    if (unknown_waits && !fuse_unknown_) add(*unknown_id_);
    unknown_waits = true;
  }
  if (unknown_waits) add(*unknown_id_);
  return symbols;
}

void BpeModel::MergeAll(std::vector<Symbol>& symbols) const {
  std::vector<Candidate> heap;
  heap.reserve(symbols.size());
  const auto candidate = [&](int32_t left, int32_t right) -> std::optional<Candidate> {
    const MergeTable::Merge* merge =
        merges_.Find(symbols[static_cast<size_t>(left)].id, symbols[static_cast<size_t>(right)].id);
    if (merge == nullptr) return std::nullopt;
    return Candidate{merge->rank, left, merge->left, merge->right, merge->id};
  };
  for (int32_t left = 0; left + 1 < static_cast<int32_t>(symbols.size()); ++left) {
    if (const auto found = candidate(left, left + 1)) heap.push_back(*found);
  }
  std::make_heap(heap.begin(), heap.end());
  const auto push = [&](int32_t left, int32_t right) {
    if (const auto found = candidate(left, right)) {
      heap.push_back(*found);
      std::push_heap(heap.begin(), heap.end());
    }
  };
  while (!heap.empty()) {
    const Candidate top = heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(top.position)];
    if (left.merged || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (left.id != top.left || right.id != top.right) {
      // The halves have changed since; the library still merges them if they make the same token.
      const MergeTable::Merge* merge = merges_.Find(left.id, right.id);
      if (merge == nullptr || merge->id != top.id) continue;
    }
    left.id = top.id;
    left.next = right.next;
    right.merged = true;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = top.position;
    if (left.previous >= 0) push(left.previous, top.position);
    if (left.next >= 0) push(top.position, left.next);
  }
}

void BpeModel::Encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto whole = whole_pieces_.find(std::string(piece)); whole != whole_pieces_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  std::vector<Symbol> symbols = InitialSymbols(piece);
  MergeAll(symbols);
  for (const Symbol& symbol : symbols) {
    if (!symbol.merged) ids.push_back(symbol.id);
  }
}

}  // namespace tokline
