// Runs chat templates, which are Jinja programs. docs/tokenizers.md lists what is supported.
//
// Programs are untrusted: their nesting, steps and memory are limited, they can access only the
// variables that they are given, and anything unsupported is refused with its line.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/text/jinja_value.h"
#include "harness/text/marked_text.h"

namespace tokline::jinja {

class Program {
 public:
  // `source` must be valid UTF-8. Throws RuntimeFailure that begins with `where` and the line.
  Program(std::string_view source, std::string where);
  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;
  ~Program();

  using Variables = std::vector<std::pair<std::string, Value>>;
  // Throws InvalidArgument with the program's own message if it raises one, and RuntimeFailure for
  // errors of the program; both begin with `where` and the line. `now` is the time that
  // strftime_now returns.
  MarkedText Run(const Variables& variables, const std::tm& now) const;

 private:
  struct Parsed;
  std::unique_ptr<const Parsed> parsed_;
  std::string where_;
};

}  // namespace tokline::jinja
