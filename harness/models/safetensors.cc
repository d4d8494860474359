// Parses safetensors headers. A header is untrusted: every value is checked before it is used.
#include "harness/models/safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "harness/platform/json_file.h"
#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Every dtype of the format whose elements are whole bytes. Which of them a model may use is
// decided later.
constexpr std::pair<std::string_view, int64_t> kElementBytes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
    {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},     {"I32", 4},
    {"F32", 4},  {"U64", 8}, {"I64", 8}, {"F64", 8},     {"C64", 8}};

std::optional<int64_t> ElementBytes(std::string_view dtype) {
  for (const auto& [name, bytes] : kElementBytes) {
    if (name == dtype) return bytes;
  }
  return std::nullopt;
}

// A SAX reader that accepts exactly what the format allows and builds nothing else, so that a
// header can neither nest deeply nor make the process allocate more than a few times its size:
//   {"__metadata__": {string: string}, name: {"dtype": s, "shape": [n], "data_offsets": [n, n]}}
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  std::vector<SafetensorsEntry> TakeEntries() { return std::move(entries_); }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kMetadataStart:
        state_ = State::kMetadata;
        return true;
      case State::kTensorStart:
        state_ = State::kTensor;
        return true;
      default:
        return Unexpected("an object");
    }
  }

  bool end_object() override {
    if (state_ == State::kTensor) FinishTensor();
    state_ = state_ == State::kTop ? State::kEnd : State::kTop;
    return true;
  }

  bool key(string_t& name) override {
    switch (state_) {
      case State::kTop:
        StartEntry(name);
        break;
      case State::kMetadata:
        if (!metadata_keys_.insert(name).second) Fail("__metadata__ has ", Quoted(name), " twice");
        break;
      default:
        StartField(name);
        break;
    }
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kDtype) return Unexpected("a string");
    entry_.dtype = value;
    state_ = State::kTensor;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::kShapeStart) {
      state_ = State::kShape;
    } else if (state_ == State::kOffsetsStart) {
      state_ = State::kOffsets;
    } else {
      return Unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsets && offsets_.size() != 2) {
      Fail(Tensor(), " has ", offsets_.size(), " data_offsets; it must have 2");
    }
    state_ = State::kTensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kShape && state_ != State::kOffsets) return Unexpected("a number");
    const bool is_shape = state_ == State::kShape;
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      Fail(Tensor(), " has ", value, " in its ", is_shape ? "shape" : "data_offsets",
           "; at most 2^63 - 1 is allowed");
    }
    auto& list = is_shape ? entry_.shape : offsets_;
    const int64_t most = is_shape ? kMaxSafetensorsRank : 2;
    if (static_cast<int64_t>(list.size()) == most) {
      Fail(Tensor(), " has more than ", most, is_shape ? " dimensions" : " data_offsets");
    }
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool number_integer(number_integer_t value) override {
    return Unexpected(StrCat("the number ", value).c_str());
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(StrCat("the number ", text.substr(0, 40)).c_str());
  }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::json::exception& error) override {
    Fail("the header is not valid JSON: ", JsonErrorText(error));
  }

 private:
  enum class State {
    kStart,
    kTop,
    kMetadataStart,
    kMetadata,
    kTensorStart,
    kTensor,
    kDtype,
    kShapeStart,
    kShape,
    kOffsetsStart,
    kOffsets,
    kEnd
  };

  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const {
    throw RuntimeFailure(StrCat(file_, ": ", parts...));
  }

  std::string Tensor() const { return StrCat("tensor ", Quoted(entry_.name)); }

  bool Unexpected(const char* found) const {
    switch (state_) {
      case State::kStart:
        Fail("the header is ", found, "; it must be an object");
      case State::kMetadataStart:
        Fail("__metadata__ is ", found, "; it must be an object");
      case State::kMetadata:
        Fail("a value of __metadata__ is ", found, "; it must be a string");
      case State::kTensorStart:
        Fail(Tensor(), " is ", found, "; it must be an object");
      case State::kDtype:
        Fail(Tensor(), " has ", found, " as dtype; it must be a string");
      case State::kShapeStart:
        Fail(Tensor(), " has ", found, " as shape; it must be an array");
      case State::kShape:
        Fail(Tensor(), " has ", found, " in its shape; all must be integers from 0");
      case State::kOffsetsStart:
        Fail(Tensor(), " has ", found, " as data_offsets; it must be an array");
      default:
        Fail(Tensor(), " has ", found, " in its data_offsets; both must be integers from 0");
    }
  }

  void StartEntry(const std::string& name) {
    if (!names_.insert(name).second) Fail("the header has ", Quoted(name), " twice");
    if (name == "__metadata__") {
      state_ = State::kMetadataStart;
      return;
    }
    if (static_cast<int64_t>(entries_.size()) == kMaxSafetensorsTensors) {
      Fail("the file has more than ", kMaxSafetensorsTensors, " tensors");
    }
    entry_ = SafetensorsEntry();
    entry_.name = name;
    offsets_.clear();
    fields_.clear();
    state_ = State::kTensorStart;
  }

  void StartField(const std::string& name) {
    if (!fields_.insert(name).second) Fail(Tensor(), " has ", Quoted(name), " twice");
    if (name == "dtype") {
      state_ = State::kDtype;
    } else if (name == "shape") {
      state_ = State::kShapeStart;
    } else if (name == "data_offsets") {
      state_ = State::kOffsetsStart;
    } else {
      Fail(Tensor(), " has the key ", Quoted(name), "; allowed are dtype, shape, data_offsets");
    }
  }

  void FinishTensor() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) Fail(Tensor(), " has no ", field);
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    CheckSize();
    entries_.push_back(std::move(entry_));
  }

  void CheckSize() const {
    const std::optional<int64_t> element_bytes = ElementBytes(entry_.dtype);
    if (!element_bytes) {
      std::string known;
      for (const auto& [name, bytes] : kElementBytes) known += StrCat(" ", name);
      Fail(Tensor(), " has the dtype ", Quoted(entry_.dtype), "; known are", known);
    }
    // Look for a zero extent first: without it, an extent of zero could mask an overflow of the
    // product, or be masked by one.
    int64_t bytes = *element_bytes;
    const bool empty = std::ranges::find(entry_.shape, 0) != entry_.shape.end();
    for (const int64_t extent : entry_.shape) {
      if (!empty && __builtin_mul_overflow(bytes, extent, &bytes)) {
        Fail(Tensor(), " of dtype ", entry_.dtype, " and shape ", ListText(entry_.shape),
             " has more than 2^63 - 1 bytes");
      }
    }
    if (empty) bytes = 0;
    if (entry_.begin > entry_.end) {
      Fail(Tensor(), " has the data_offsets ", ListText(offsets_), "; the first must not exceed ",
           "the second");
    }
    if (entry_.end - entry_.begin != bytes) {
      Fail(Tensor(), " has ", entry_.end - entry_.begin, " bytes (data_offsets ",
           ListText(offsets_), "); dtype ", entry_.dtype, " and shape ", ListText(entry_.shape),
           " make ", bytes);
    }
  }

  const std::string& file_;
  State state_ = State::kStart;
  SafetensorsEntry entry_;
  std::vector<int64_t> offsets_;
  std::set<std::string, std::less<>> fields_;
  std::set<std::string> names_;
  std::set<std::string> metadata_keys_;
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace

int64_t SafetensorsHeaderBytes(std::string_view prefix, int64_t file_bytes,
                               const std::string& file) {
  if (file_bytes <= kSafetensorsPrefixBytes ||
      static_cast<int64_t>(prefix.size()) < kSafetensorsPrefixBytes) {
    throw RuntimeFailure(StrCat(file, ": the file has ", file_bytes,
                                " bytes; a safetensors file has at least ",
                                kSafetensorsPrefixBytes + 1));
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(prefix[i]);
  const int64_t room = file_bytes - kSafetensorsPrefixBytes;
  if (length == 0 || length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes) ||
      length > static_cast<uint64_t>(room)) {
    throw RuntimeFailure(StrCat(file, ": the header says that it has ", length,
                                " bytes; allowed are 1 to ",
                                std::min(room, kMaxSafetensorsHeaderBytes), " in a file of ",
                                file_bytes, " bytes (truncated, or not a safetensors file)"));
  }
  return static_cast<int64_t>(length);
}

std::vector<SafetensorsEntry> ParseSafetensorsHeader(std::string_view header, int64_t data_bytes,
                                                     const std::string& file) {
  if (header.empty() || header.front() != '{') {
    throw RuntimeFailure(StrCat(file, ": the header starts with ", Quoted(header.substr(0, 1)),
                                "; it must start with \"{\""));
  }
  RefuseNul(header, file);
  HeaderReader reader(file);
  nlohmann::json::sax_parse(header, &reader);
  std::vector<SafetensorsEntry> entries = reader.TakeEntries();

  std::ranges::sort(entries, {}, [](const SafetensorsEntry& entry) {
    return std::tuple(entry.begin, entry.end, std::string_view(entry.name));
  });
  int64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    const auto fail = [&](const auto&... parts) {
      throw RuntimeFailure(StrCat(file, ": tensor ", Quoted(entry.name), " ", parts...));
    };
    if (entry.end > data_bytes) {
      fail("ends at byte ", entry.end, " of the data; the file has ", data_bytes,
           " bytes of data (truncated?)");
    }
    if (entry.begin < covered) {
      fail("starts at byte ", entry.begin, " of the data and overlaps the tensor before it, which ",
           "ends at ", covered);
    }
    if (entry.begin > covered) {
      fail("starts at byte ", entry.begin, " of the data; the tensor before it ends at ", covered,
           ", and holes are not allowed");
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    throw RuntimeFailure(StrCat(file, ": the tensors end at byte ", covered,
                                " of the data; the file has ", data_bytes, " bytes of data"));
  }
  return entries;
}

}  // namespace tokline
