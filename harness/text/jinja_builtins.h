// What Jinja programs find without defining it: filters, tests, functions, and the methods of texts
// and dictionaries.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "harness/text/jinja_value.h"

namespace tokline::jinja {

// What a program may take. Both limits are far above what a template needs for a conversation that
// fits a model.
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
  std::tm now = {};  // what strftime_now tells
};

// All throw Error for unknown names, with those that are supported.
Value ApplyFilter(Context& context, std::string_view name, const Value& input,
                  Arguments& arguments);
bool ApplyTest(Context& context, std::string_view name, const Value& input, Arguments& arguments);
std::optional<Value> FindFunction(Context& context, std::string_view name);

// object.name, as Python and Jinja look it up: methods first. Undefined if there is no such thing.
Value Attribute(Context& context, const Value& object, std::string_view name);
// object[index].
Value Item(Context& context, const Value& object, const Value& index);

}  // namespace tokline::jinja
