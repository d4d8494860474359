// Workloads of recorded conversations, in the form of the published ShareGPT files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/measure/workload.h"

namespace tokline {

struct ConversationLimits {
  int64_t requests = 256;   // at most
  int64_t max_context = 0;  // tokens of a prompt and its answer together
};

// Returns the ids of a text; for a prompt, including those that the tokenizer puts around it.
using EncodeText = std::function<std::vector<int32_t>(std::string_view text, bool is_prompt)>;

// The outcome of each conversation of a file, as counts, up to the one that gave the last request.
struct ConversationCounts {
  int64_t read = 0;
  int64_t unanswered = 0;  // no human turn is followed by an answer
  int64_t empty = 0;       // the prompt or the answer has no token
  int64_t too_long = 0;    // prompt and answer exceed the limit, or a text has more than 4 MiB

  // "1,200 conversations read: 256 taken, 3 without an answer, ..."
  std::string Text(int64_t taken) const;
};

// Whether it is a regular file that begins with a JSON list, as opposed to JSON lines.
bool HasConversations(const std::filesystem::path& file);

// Reads [{"conversations": [{"from": "human" or "gpt", "value": text}, ...]}, ...]; other fields
// and speakers are ignored. The first human turn that is followed by an answer is the prompt of a
// request. The request generates as many tokens as this answer has, greedily. All requests arrive
// at once. Conversations are taken in order until there are enough. Throws InvalidArgument that
// names the conversation, and RuntimeFailure if the file cannot be read.
Workload ReadConversations(const std::filesystem::path& file, const EncodeText& encode,
                           const ConversationLimits& limits, ConversationCounts& counts);

}  // namespace tokline
