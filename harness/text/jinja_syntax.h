// The parsed form of a Jinja program.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/text/jinja_value.h"

namespace tokline::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Expression {
  enum class Kind {
    kConstant,   // constant
    kVariable,   // name
    kList,       // parts
    kTuple,      // parts
    kDict,       // parts: key, value, key, value ...
    kAttribute,  // parts[0].name
    kItem,       // parts[0][parts[1]]
    kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], of which any but the first may be null
    kCall,       // parts[0](the other parts, then named, which has * and ** too)
    kFilter,     // parts[0] | name(the other parts, then named)
    kTest,       // parts[0] is name(the other parts), or is not if negated
    kUnary,      // name is "-", "+" or "not"
    kBinary,     // name is the operator
    kCompare,    // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    kCondition   // parts[0] if parts[1] else parts[2], which may be null
  };
  Kind kind = Kind::kConstant;
  int line = 0;
  std::string name = {};
  Value constant = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<std::pair<std::string, ExpressionPtr>> named = {};
  std::vector<std::string> operators = {};
  bool negated = false;
  int depth = 0;  // of the expressions inside it
};

struct Statement;
using Body = std::vector<std::unique_ptr<const Statement>>;

struct Statement {
  enum class Kind {
    kText,     // text
    kOutput,   // {{ expression }}
    kIf,       // conditions[i] -> bodies[i]; one body more is the else
    kFor,      // names in expression (if condition) -> bodies[0]; bodies[1] is the else
    kSet,      // names = expression; or names[0].attribute = expression
    kSetBody,  // names[0] = the output of bodies[0], through the filters of expression
    kMacro,    // names[0](names[1], ...) with defaults for the last ones -> bodies[0]
    kFilter,   // the output of bodies[0], through the filters of expression
    kScope,    // bodies[0], with names[i] = conditions[i]
    kBreak,
    kContinue
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text = {};
  std::vector<std::string> names = {};
  std::string attribute = {};
  bool recursive = false;
  ExpressionPtr expression = {};
  ExpressionPtr condition = {};
  std::vector<ExpressionPtr> conditions = {};
  std::vector<Body> bodies = {};
};

// The variable that stands for the body's text in the expression of kSetBody and kFilter. No
// program can spell it.
inline constexpr std::string_view kBodyText = "(body)";

// Throws Error with the line for anything that is not Jinja or not supported.
Body Parse(std::string_view source);

}  // namespace tokline::jinja
