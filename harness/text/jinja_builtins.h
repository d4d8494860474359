// What Jinja programs can use without defining it: filters, tests, functions, and the methods of
// texts and dictionaries.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "harness/text/jinja_value.h"

namespace tokline::jinja {

// The steps and memory that a program may use. Both limits are far above the needs of a template
// for a conversation that fits a model.
class Budget {
 public:
  static constexpr int64_t kMaxSteps = 5'000'000;
  static constexpr int64_t kMaxBytes = int64_t{1} << 28;

  void Step(int64_t steps = 1) {
    if ((steps_ += steps) > kMaxSteps)
      throw Error("the program takes more than ", kMaxSteps, " steps");
  }
  void Bytes(size_t bytes) {
    if ((bytes_ += static_cast<int64_t>(bytes)) > kMaxBytes) {
      throw Error("the program makes texts of more than ", kMaxBytes, " bytes");
    }
  }

 private:
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
};

struct Context {
  Budget budget;
  std::tm now = {};  // the time that strftime_now returns
};

// All throw Error for unknown names, with those that are supported.
Value ApplyFilter(Context& context, std::string_view name, const Value& input,
                  Arguments& arguments);
bool ApplyTest(Context& context, std::string_view name, const Value& input, Arguments& arguments);
std::optional<Value> FindFunction(Context& context, std::string_view name);

// object.name, looked up as in Python and Jinja: methods first. Undefined if there is none.
Value Attribute(Context& context, const Value& object, std::string_view name);
// object[index].
Value Item(Context& context, const Value& object, const Value& index);

}  // namespace tokline::jinja
