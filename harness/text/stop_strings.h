// Finds the end of a text that arrives in pieces: it ends before the first stop string.
//
// A stop string may span pieces, so text that may be the start of one is held back until that is
// known. The text ends as soon as a stop string is complete. If there are several, the one that is
// completed first wins, and the longest of those that end at the same place. The result does not
// depend on how the text is cut into pieces.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tokline {

class StopStrings {
 public:
  // Throws InvalidArgument if a stop string is empty or not UTF-8. Without stop strings, the text
  // passes unchanged.
  explicit StopStrings(std::vector<std::string> stops);

  // Takes the next piece and returns the text that may now be shown. It consists of whole code
  // points if all pieces do, and is empty after the end.
  std::string Push(std::string_view piece);
  // Ends the text without a stop string and returns what was held back.
  std::string Finish();

  // The stop string that ended the text, or empty if none has.
  const std::string& Found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // the text not yet returned
  std::string found_;
};

}  // namespace tokline
