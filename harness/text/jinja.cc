// Evaluates parsed Jinja programs.
#include "harness/text/jinja.h"

#include <algorithm>
#include <cmath>

#include "harness/platform/printable.h"
#include "harness/text/jinja_builtins.h"
#include "harness/text/jinja_syntax.h"

namespace tokline::jinja {
namespace {

constexpr int kMaxCalls = 40;  // of macros and recursive loops inside each other

// The variables of a block. Assignments stay in the innermost scope.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables = {};

  const Value* Find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
      for (const auto& [known, value] : scope->variables) {
        if (known == name) return &value;
      }
    }
    return nullptr;
  }
  void Set(std::string_view name, Value value) {
    for (auto& [known, old] : variables) {
      if (known != name) continue;
      old = std::move(value);
      return;
    }
    variables.emplace_back(name, std::move(value));
  }
};
using ScopePtr = std::shared_ptr<Scope>;

enum class Flow { kOn, kBreak, kContinue };

class Interpreter {
 public:
  explicit Interpreter(const std::tm& now) { context_.now = now; }

  MarkedText Run(const Body& body, const Program::Variables& variables) {
    auto scope = std::make_shared<Scope>();
    scope->variables = variables;
    MarkedText out;
    Execute(body, scope, out);
    // Macros hold the scope that holds them, so this breaks the cycle.
    scope->variables.clear();
    return out;
  }
  int Line() const { return line_; }

 private:
  static ScopePtr Inside(const ScopePtr& parent) {
    return std::make_shared<Scope>(Scope{.parent = parent});
  }

  void Print(const MarkedText& text, MarkedText& out) {
    context_.budget.Bytes(text.Size());
    out.Append(text);
  }

  Flow Execute(const Body& body, const ScopePtr& scope, MarkedText& out) {
    for (const auto& statement : body) {
      const Flow flow = Execute(*statement, scope, out);
      if (flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }

  Flow Execute(const Statement& statement, const ScopePtr& scope, MarkedText& out) {
    line_ = statement.line;
    context_.budget.Step();
    switch (statement.kind) {
      case Statement::Kind::kText:
        Print(MarkedText(statement.text), out);
        return Flow::kOn;
      case Statement::Kind::kOutput:
        Print(Evaluate(*statement.expression, scope).Str(), out);
        return Flow::kOn;
      case Statement::Kind::kIf:
        for (size_t i = 0; i < statement.bodies.size(); ++i) {
          const bool otherwise = i == statement.conditions.size();
          if (otherwise || Evaluate(*statement.conditions[i], scope).Truth()) {
            return Execute(statement.bodies[i], scope, out);
          }
        }
        return Flow::kOn;
      case Statement::Kind::kFor: {
        MarkedText text;
        const Flow flow =
            RunLoop(statement, Evaluate(*statement.expression, scope), scope, 1, text);
        Print(text, out);
        return flow;
      }
      case Statement::Kind::kSet:
        Assign(statement, Evaluate(*statement.expression, scope), scope);
        return Flow::kOn;
      case Statement::Kind::kSetBody:
        scope->Set(statement.names[0], Filtered(statement, scope));
        return Flow::kOn;
      case Statement::Kind::kFilter:
        Print(Filtered(statement, scope).Str(), out);
        return Flow::kOn;
      case Statement::Kind::kMacro:
        scope->Set(statement.names[0], Macro(statement, scope));
        return Flow::kOn;
      case Statement::Kind::kScope: {
        const ScopePtr inside = Inside(scope);
        for (size_t i = 0; i < statement.names.size(); ++i) {
          inside->Set(statement.names[i], Evaluate(*statement.conditions[i], scope));
        }
        return Execute(statement.bodies[0], inside, out);
      }
      case Statement::Kind::kBreak:
        return Flow::kBreak;
      case Statement::Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kOn;
  }

  void Unpack(const std::vector<std::string>& names, const Value& value, const ScopePtr& scope) {
    if (names.size() == 1) return scope->Set(names[0], value);
    const std::vector<Value> items = value.Items();
    if (items.size() != names.size()) {
      throw Error(items.size(), " values cannot be assigned to ", names.size(), " names");
    }
    for (size_t i = 0; i < names.size(); ++i) scope->Set(names[i], items[i]);
  }

  void Assign(const Statement& statement, const Value& value, const ScopePtr& scope) {
    if (statement.attribute.empty()) return Unpack(statement.names, value, scope);
    const Value* found = scope->Find(statement.names[0]);
    Namespace* names = found == nullptr ? nullptr : found->IfNamespace();
    if (names == nullptr) {
      throw Error(statement.names[0], ".", statement.attribute, " can only be assigned to if ",
                  statement.names[0], " is a namespace");
    }
    names->names.Put(MarkedText(statement.attribute), value);
  }

  // Returns the output of the body, passed through the statement's filters.
  Value Filtered(const Statement& statement, const ScopePtr& scope) {
    MarkedText text;
    Execute(statement.bodies[0], Inside(scope), text);
    const ScopePtr inside = Inside(scope);
    inside->Set(kBodyText, Value(std::move(text)));
    return Evaluate(*statement.expression, inside);
  }

  // Throws Error if calls nest too deeply.
  class Call {
   public:
    explicit Call(int& depth) : depth_(depth) {
      if (++depth_ > kMaxCalls) {
        --depth_;
        throw Error("calls nest deeper than ", kMaxCalls);
      }
    }
    ~Call() { --depth_; }

   private:
    int& depth_;
  };

  // Returns the effect of the loop's else on the enclosing loop.
  Flow RunLoop(const Statement& statement, const Value& over, const ScopePtr& scope, int64_t depth,
               MarkedText& out) {
    auto loop = std::make_shared<Loop>();
    loop->depth = depth;
    for (const Value& item : over.Items()) {
      context_.budget.Step();
      if (statement.condition != nullptr) {
        const ScopePtr inside = Inside(scope);
        Unpack(statement.names, item, inside);
        if (!Evaluate(*statement.condition, inside).Truth()) continue;
      }
      loop->items.push_back(item);
    }
    if (statement.recursive) {
      loop->recurse = [this, &statement, scope, depth](Arguments& arguments) -> Value {
        const Call call(calls_);
        const Value deeper = arguments.Require(0, "iterable");
        arguments.Finish(1);
        MarkedText text;
        RunLoop(statement, deeper, scope, depth + 1, text);
        return text;
      };
    }
    bool finished = false;  // some iteration
    for (; loop->index < loop->items.size(); ++loop->index) {
      const ScopePtr inside = Inside(scope);
      inside->Set("loop", Value(std::shared_ptr<const Loop>(loop)));
      Unpack(statement.names, loop->items[loop->index], inside);
      const Flow flow = Execute(statement.bodies[0], inside, out);
      if (flow == Flow::kBreak) break;
      finished |= flow == Flow::kOn;
    }
    // As in Jinja, an iteration that break or continue ends does not count.
    if (finished || statement.bodies.size() < 2) return Flow::kOn;
    return Execute(statement.bodies[1], Inside(scope), out);
  }

  Value Macro(const Statement& macro, const ScopePtr& scope) {
    // The scope holds the macro, so the macro must not keep the scope alive.
    return Callable{
        macro.names[0],
        [this, &macro, weak = std::weak_ptr<Scope>(scope)](Arguments& arguments) -> Value {
          const Call call(calls_);
          const ScopePtr outer = weak.lock();
          if (outer == nullptr) throw Error("the macro ", macro.names[0], " has gone");
          const ScopePtr inside = Inside(outer);
          const size_t count = macro.names.size() - 1;
          const size_t required = count - macro.conditions.size();
          for (size_t i = 0; i < count; ++i) {
            const std::string& name = macro.names[i + 1];
            std::optional<Value> value = arguments.Take(i, name);
            if (!value && i >= required) {
              value = Evaluate(*macro.conditions[i - required], inside);
            }
            inside->Set(name, value ? *value : Value(Undefined{name}));
          }
          arguments.Finish(count);
          MarkedText out;
          Execute(macro.bodies[0], inside, out);
          return out;
        }};
  }

  Arguments EvaluateArguments(const Expression& call, const ScopePtr& scope) {
    Arguments arguments;
    for (size_t i = 1; i < call.parts.size(); ++i) {
      arguments.positional.push_back(Evaluate(*call.parts[i], scope));
    }
    for (const auto& [name, expression] : call.named) {
      const Value value = Evaluate(*expression, scope);
      if (name == "*") {
        const std::vector<Value> items = value.Items();
        context_.budget.Step(std::ssize(items));
        arguments.positional.insert(arguments.positional.end(), items.begin(), items.end());
      } else if (name != "**") {
        arguments.named.emplace_back(name, value);
      } else if (const auto* dict = value.If<Dict>()) {
        for (const auto& [key, item] : dict->items) arguments.named.emplace_back(key.Bytes(), item);
      } else {
        throw Error("** needs a dictionary, not a value of type ", value.TypeName());
      }
    }
    return arguments;
  }

  Value Evaluate(const Expression& expression, const ScopePtr& scope) {
    using Kind = Expression::Kind;
    line_ = expression.line;
    context_.budget.Step();
    const auto part = [&](size_t i) { return Evaluate(*expression.parts[i], scope); };
    switch (expression.kind) {
      case Kind::kConstant:
        return expression.constant;
      case Kind::kVariable:
        return Variable(expression.name, *scope);
      case Kind::kList:
      case Kind::kTuple: {
        List list{.items = {}, .is_tuple = expression.kind == Kind::kTuple};
        for (size_t i = 0; i < expression.parts.size(); ++i) list.items.push_back(part(i));
        return list;
      }
      case Kind::kDict: {
        Dict dict;
        for (size_t i = 0; i < expression.parts.size(); i += 2) {
          const MarkedText key = part(i).Text();
          dict.Put(key, part(i + 1));
        }
        return dict;
      }
      case Kind::kAttribute:
        return Attribute(context_, part(0), expression.name);
      case Kind::kItem: {
        const Value object = part(0);
        return Item(context_, object, part(1));
      }
      case Kind::kSlice:
        return Slice(expression, scope);
      case Kind::kCall:
        return CallValue(expression, scope);
      case Kind::kFilter: {
        const Value input = part(0);
        Arguments arguments = EvaluateArguments(expression, scope);
        line_ = expression.line;
        return ApplyFilter(context_, expression.name, input, arguments);
      }
      case Kind::kTest: {
        const Value input = part(0);
        Arguments arguments = EvaluateArguments(expression, scope);
        line_ = expression.line;
        return ApplyTest(context_, expression.name, input, arguments) != expression.negated;
      }
      case Kind::kUnary:
        return Unary(expression.name, part(0));
      case Kind::kBinary:
        return Binary(expression, scope);
      case Kind::kCompare:
        return Compare(expression, scope);
      case Kind::kCondition:
        if (part(1).Truth()) return part(0);
        return expression.parts[2] == nullptr ? Value(Undefined{"the value of an if without else"})
                                              : part(2);
    }
    return {};
  }

  Value Variable(const std::string& name, const Scope& scope) {
    if (const Value* found = scope.Find(name)) return *found;
    if (std::optional<Value> function = FindFunction(context_, name)) return *function;
    return Undefined{name};
  }

  Value CallValue(const Expression& call, const ScopePtr& scope) {
    const Value callee = Evaluate(*call.parts[0], scope);
    Arguments arguments = EvaluateArguments(call, scope);
    line_ = call.line;
    if (const auto* loop = callee.If<Loop>(); loop != nullptr && loop->recurse) {
      return loop->recurse(arguments);
    }
    if (const auto* function = callee.If<Callable>()) return function->call(arguments);
    if (const auto* undefined = callee.If<Undefined>()) {
      throw Error(undefined->name, " is not supported, or is undefined, and cannot be called");
    }
    throw Error("a value of type ", callee.TypeName(), " cannot be called");
  }

  Value Slice(const Expression& slice, const ScopePtr& scope) {
    const Value object = Evaluate(*slice.parts[0], scope);
    const auto bound = [&](size_t i) -> std::optional<int64_t> {
      if (slice.parts[i] == nullptr) return std::nullopt;
      const Value value = Evaluate(*slice.parts[i], scope);
      if (value.Is<None>()) return std::nullopt;
      if (!value.Integer()) {
        throw Error("a slice is bounded by integers, not by a value of type ", value.TypeName());
      }
      return value.Integer();
    };
    const auto* list = object.If<List>();
    const auto* text = object.If<MarkedText>();
    const std::optional<int64_t> first = bound(1), last = bound(2), step_or_none = bound(3);
    if (object.Is<Undefined>() || (list == nullptr && text == nullptr)) {
      throw Error("a value of type ", object.TypeName(), " has no slices");
    }
    const int64_t step = step_or_none.value_or(1);
    if (step == 0) throw Error("the step of a slice must not be 0");
    const int64_t size = object.Length();
    context_.budget.Step(size);
    const int64_t least = step > 0 ? 0 : -1;
    const int64_t most = step > 0 ? size : size - 1;
    const auto clamped = [&](std::optional<int64_t> at, int64_t missing) {
      if (!at) return missing;
      return std::clamp(*at < 0 ? *at + size : *at, least, most);
    };
    const int64_t begin = clamped(first, step > 0 ? least : most);
    const int64_t end = clamped(last, step > 0 ? most : least);
    List items{.items = {}, .is_tuple = list != nullptr && list->is_tuple};
    const std::vector<Value> all = object.Items();
    for (__int128 i = begin; step > 0 ? i < end : i > end; i += step) {
      items.items.push_back(all[static_cast<size_t>(i)]);
    }
    if (list != nullptr) return items;
    MarkedText cut;
    for (const Value& character : items.items) cut.Append(character.Text());
    context_.budget.Bytes(cut.Size());
    return cut;
  }

  static Value Unary(const std::string& name, const Value& value) {
    if (name == "not") return !value.Truth();
    const auto number = value.Number();
    if (!number) throw Error("a value of type ", value.TypeName(), " has no sign");
    const double sign = name == "-" ? -1 : 1;
    if (const auto integer = value.Integer()) {
      if (*integer == INT64_MIN) throw Error("a number is too large");
      return sign < 0 ? -*integer : *integer;
    }
    return sign * *number;
  }

  Value Binary(const Expression& binary, const ScopePtr& scope) {
    const std::string& name = binary.name;
    const Value left = Evaluate(*binary.parts[0], scope);
    if (name == "and" && !left.Truth()) return left;
    if (name == "or" && left.Truth()) return left;
    const Value right = Evaluate(*binary.parts[1], scope);
    line_ = binary.line;
    if (name == "and" || name == "or") return right;
    if (name == "~") return Joined(left.Str(), right.Str());
    const auto *a = left.If<MarkedText>(), *b = right.If<MarkedText>();
    if (name == "+" && a != nullptr && b != nullptr) return Joined(*a, *b);
    const auto *x = left.If<List>(), *y = right.If<List>();
    if (name == "+" && x != nullptr && y != nullptr && x->is_tuple == y->is_tuple) {
      List sum = *x;
      context_.budget.Step(std::ssize(x->items) + std::ssize(y->items));
      sum.items.insert(sum.items.end(), y->items.begin(), y->items.end());
      return sum;
    }
    if (name == "*" && a != nullptr && right.Integer()) return Repeated(*a, *right.Integer());
    if (name == "*" && b != nullptr && left.Integer()) return Repeated(*b, *left.Integer());
    if (left.Number() && right.Number()) {
      return left.Integer() && right.Integer() ? OfIntegers(name, *left.Integer(), *right.Integer())
                                               : OfReals(name, *left.Number(), *right.Number());
    }
    for (const Value* value : {&left, &right}) {
      if (const auto* undefined = value->If<Undefined>())
        throw Error(undefined->name, " is undefined");
    }
    throw Error(left.TypeName(), " ", name, " ", right.TypeName(), " is not supported");
  }

  Value Joined(const MarkedText& a, const MarkedText& b) {
    context_.budget.Bytes(a.Size() + b.Size());
    MarkedText joined = a;
    joined.Append(b);
    return joined;
  }

  Value Repeated(const MarkedText& text, int64_t times) {
    MarkedText repeated;
    for (int64_t i = 0; i < times && text.Size() > 0; ++i) {
      context_.budget.Bytes(text.Size());
      repeated.Append(text);
    }
    return repeated;
  }

  static Value OfIntegers(const std::string& name, int64_t a, int64_t b) {
    int64_t result = 0;
    bool overflow = false;
    if (name == "+") {
      overflow = __builtin_add_overflow(a, b, &result);
    } else if (name == "-") {
      overflow = __builtin_sub_overflow(a, b, &result);
    } else if (name == "*") {
      overflow = __builtin_mul_overflow(a, b, &result);
    } else if (name == "**") {
      if (b < 0) return OfReals(name, static_cast<double>(a), static_cast<double>(b));
      result = 1;
      for (int64_t i = 0; i < b && !overflow && result != 0 && (result != 1 || a != 1); ++i) {
        overflow = __builtin_mul_overflow(result, a, &result);
        if (a == -1 && i > 1) return b % 2 == 0 ? int64_t{1} : int64_t{-1};
      }
    } else {
      if (b == 0) throw Error("a division by 0");
      if (name == "/") return static_cast<double>(a) / static_cast<double>(b);
      if (b == -1) {  // the smallest number divided by -1 does not fit
        overflow = name == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
      } else {
        const bool down = a % b != 0 && (a < 0) != (b < 0);  // Python rounds down
        result = name == "//" ? a / b - (down ? 1 : 0) : a % b + (down ? b : 0);
      }
    }
    if (overflow) throw Error(a, " ", name, " ", b, " is too large");
    return result;
  }

  static Value OfReals(const std::string& name, double a, double b) {
    if (name == "+") return a + b;
    if (name == "-") return a - b;
    if (name == "*") return a * b;
    if (name == "**") return std::pow(a, b);
    if (b == 0) throw Error("a division by 0");
    if (name == "/") return a / b;
    if (name == "//") return std::floor(a / b);
    const double rest = std::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }

  Value Compare(const Expression& compare, const ScopePtr& scope) {
    Value left = Evaluate(*compare.parts[0], scope);
    for (size_t i = 0; i < compare.operators.size(); ++i) {
      Value right = Evaluate(*compare.parts[i + 1], scope);
      line_ = compare.line;
      if (!Holds(compare.operators[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  bool Holds(const std::string& name, const Value& a, const Value& b) {
    // Comparing long texts and searching in them costs steps as well.
    for (const Value* value : {&a, &b}) {
      if (const auto* text = value->If<MarkedText>()) {
        context_.budget.Step(static_cast<int64_t>(text->Size() / 64));
      }
      if (const auto* list = value->If<List>()) context_.budget.Step(std::ssize(list->items));
      if (const auto* generator = value->If<Generator>()) {
        context_.budget.Step(std::ssize(generator->items));
      }
    }
    if (name == "==") return a.Equals(b);
    if (name == "!=") return !a.Equals(b);
    if (name == "<") return a.LessThan(b);
    if (name == ">") return b.LessThan(a);
    if (name == "<=") return a.LessThan(b) || a.Equals(b);
    if (name == ">=") return b.LessThan(a) || a.Equals(b);
    return b.Contains(a) == (name == "in");
  }

  Context context_;
  int line_ = 0;
  int calls_ = 0;
};

}  // namespace

struct Program::Parsed {
  Body body;
};

Program::Program(std::string_view source, std::string where) : where_(std::move(where)) {
  try {
    parsed_ = std::make_unique<const Parsed>(Parsed{Parse(source)});
  } catch (const Error& error) {
    throw RuntimeFailure(StrCat(where_, ", ", error.what()));
  }
}
Program::Program(Program&&) noexcept = default;
Program& Program::operator=(Program&&) noexcept = default;
Program::~Program() = default;

MarkedText Program::Run(const Variables& variables, const std::tm& now) const {
  Interpreter interpreter(now);
  const auto at = [&] { return StrCat(where_, ", line ", interpreter.Line(), ": "); };
  try {
    return interpreter.Run(parsed_->body, variables);
  } catch (const Raised& raised) {
    throw InvalidArgument(StrCat(at(), "the template says ", Quoted(raised.what(), 400)));
  } catch (const Error& error) {
    throw RuntimeFailure(at() + error.what());
  }
}

}  // namespace tokline::jinja
