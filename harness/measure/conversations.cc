// Parses conversations one by one, so that a large file is never held in memory.
#include "harness/measure/conversations.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "harness/platform/json_file.h"
#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxBytes = int64_t{1} << 30;
constexpr size_t kMaxTextBytes = size_t{4} << 20;  // of a prompt or an answer

std::ifstream Open(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    throw RuntimeFailure(
        StrCat("cannot read the workload ", file.string(), ": ", std::strerror(errno)));
  }
  return in;
}

const std::string& TextOf(const Json& turn, const char* name) {
  Require(turn.is_object() && turn.contains(name) && turn[name].is_string(),
          "a turn has no text \"", name, "\"");
  return turn[name].get_ref<const std::string&>();
}

// Returns the first question and its answer, if there is an answer.
std::optional<std::pair<std::string, std::string>> FirstAnswered(const Json& conversation) {
  Require(conversation.is_object() && conversation.contains("conversations") &&
              conversation["conversations"].is_array(),
          "it is not an object with a list \"conversations\"");
  const std::string* question = nullptr;
  for (const Json& turn : conversation["conversations"]) {
    const std::string& from = TextOf(turn, "from");
    const std::string& value = TextOf(turn, "value");
    if (question != nullptr && from == "gpt") return std::pair(*question, value);
    question = from == "human" ? &value : nullptr;
  }
  return std::nullopt;
}

}  // namespace

std::string ConversationCounts::Text(int64_t taken) const {
  return StrCat(Grouped(read), read == 1 ? " conversation" : " conversations",
                " read: ", Grouped(taken), " taken, ", Grouped(unanswered), " without an answer, ",
                Grouped(empty), " empty, ", Grouped(too_long), " too long");
}

bool HasConversations(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return false;
  std::string begin(4096, ' ');
  std::ifstream in(file, std::ios::binary);
  in.read(begin.data(), std::ssize(begin));
  const size_t first = begin.find_first_not_of(" \t\r\n");
  return first != begin.npos && begin[first] == '[';
}

Workload ReadConversations(const std::filesystem::path& file, const EncodeText& encode,
                           const ConversationLimits& limits, ConversationCounts& counts) {
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(file));
  Require(bytes <= kMaxBytes, file.string(), " has ", bytes, " bytes; at most ", kMaxBytes,
          " are allowed");
  Workload workload{.name = file.filename().string()};
  int64_t prompt_tokens = 0;
  const auto take = [&](const Json& conversation) {
    ++counts.read;
    const auto answered = FirstAnswered(conversation);
    if (!answered) {
      ++counts.unanswered;
      return;
    }
    if (std::max(answered->first.size(), answered->second.size()) > kMaxTextBytes) {
      ++counts.too_long;
      return;
    }
    Request request;
    request.prompt = encode(answered->first, true);
    request.max_new_tokens = std::ssize(encode(answered->second, false));
    const int64_t prompt = std::ssize(request.prompt);
    if (prompt == 0 || request.max_new_tokens == 0) {
      ++counts.empty;
    } else if (prompt + request.max_new_tokens > limits.max_context) {
      ++counts.too_long;
    } else {
      prompt_tokens += prompt;
      RequireFewTokens("it", prompt_tokens);
      workload.requests.push_back({.request = std::move(request)});
    }
  };

  struct Enough {};
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    const bool whole =
        event == Event::object_end || event == Event::array_end || event == Event::value;
    Require(depth <= kMaxJsonDepth, "it nests deeper than ", kMaxJsonDepth,
            ", the most that is allowed");
    if (depth != 1 || !whole) return true;
    take(parsed);
    if (std::ssize(workload.requests) == limits.requests) throw Enough();
    return false;  // it is no longer needed
  };
  std::ifstream in = Open(file);
  try {
    Require(Json::parse(in, callback).is_array(), file.string(), " is not a list");
  } catch (const Enough&) {
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        StrCat(file.string(), ": conversation ", counts.read, ": ", error.what()));
  } catch (const Json::exception& error) {
    throw InvalidArgument(
        StrCat(file.string(), ": after conversation ", counts.read, ": ", JsonErrorText(error)));
  }
  Require(!workload.requests.empty(), file.string(), " has no request to run: ", counts.Text(0));
  return workload;
}

}  // namespace tokline
