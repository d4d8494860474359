#include "harness/text/stop_strings.h"

#include <algorithm>
#include <utility>

#include "harness/text/utf8.h"
#include "kernels/common/error.h"

namespace tokline {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    Require(!stop.empty(), "a stop string is empty; it needs at least one character");
    RequireUtf8(stop, "a stop string");
  }
}

std::string StopStrings::Push(std::string_view piece) {
  if (!found_.empty()) return {};
  held_ += piece;
  size_t end = held_.npos;
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    if (begin == held_.npos) continue;
    const size_t stop_end = begin + stop.size();
    if (stop_end < end || (stop_end == end && stop.size() > found_.size())) {
      end = stop_end;
      found_ = stop;
    }
  }
  // Hold back the longest suffix of the text that is a prefix of a stop string.
  size_t shown = held_.size();
  if (!found_.empty()) {
    shown = end - found_.size();
  } else {
    for (const std::string& stop : stops_) {
      for (size_t length = std::min(stop.size() - 1, held_.size()); length > 0; --length) {
        if (!held_.ends_with(std::string_view(stop).substr(0, length))) continue;
        shown = std::min(shown, held_.size() - length);
        break;
      }
    }
  }
  std::string text = held_.substr(0, shown);
  held_.erase(0, found_.empty() ? shown : held_.size());
  return text;
}

std::string StopStrings::Finish() { return std::exchange(held_, {}); }

}  // namespace tokline
