// Where a text that comes in pieces ends: before the first stop string in it.
//
// A stop string may span pieces, so what might begin one is held back until it is known. The text
// ends as soon as one is complete: of several the one that is complete first, of those that end
// together the longest. How the text is cut into pieces has no part in it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tokline {

class StopStrings {
 public:
  // Throws InvalidArgument for one that is empty or not UTF-8. Without any, text passes as it is.
  explicit StopStrings(std::vector<std::string> stops);

  // Takes the next piece and returns what may be shown; of whole code points, if all pieces are.
  // After the end: nothing.
  std::string Push(std::string_view piece);
  // The text has ended without a stop string: what was held back.
  std::string Finish();

  // The stop string that ended the text; empty as long as none did.
  const std::string& Found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // what follows the text that was returned
  std::string found_;
};

}  // namespace tokline
