// Parses Jinja programs by recursive descent, with Jinja's own grammar and precedences.
#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "harness/platform/printable.h"
#include "harness/text/jinja_lexer.h"
#include "harness/text/jinja_syntax.h"

namespace tokline::jinja {
namespace {

constexpr int kMaxDepth = 100;            // of brackets, statements and the like
constexpr int kMaxExpressionDepth = 200;  // of the tree: a + a + a has the depth 2

using Kind = Token::Kind;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(Tokenize(source)) {}

  Body Run() {
    Body body = ParseBody({});
    if (Now().kind != Kind::kEnd) Fail("the statement ", Now().text, " begins nothing here");
    return body;
  }

 private:
  // Counts how deep the parser is in the program.
  class Deeper {
   public:
    explicit Deeper(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxDepth) parser_.Fail("the program nests deeper than ", kMaxDepth);
    }
    ~Deeper() { --parser_.depth_; }

   private:
    Parser& parser_;
  };

  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const {
    throw Error("line ", Now().line, ": ", parts...);
  }

  const Token& Now() const { return tokens_[at_]; }
  const Token& Ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool IsName(std::string_view name) const {
    return Now().kind == Kind::kName && Now().text == name;
  }
  bool IsOperator(std::string_view text) const {
    return Now().kind == Kind::kOperator && Now().text == text;
  }
  bool SkipName(std::string_view name) {
    if (!IsName(name)) return false;
    ++at_;
    return true;
  }
  bool SkipOperator(std::string_view text) {
    if (!IsOperator(text)) return false;
    ++at_;
    return true;
  }
  std::string NowText() const {
    switch (Now().kind) {
      case Kind::kEnd:
        return "the end of the program";
      case Kind::kTagEnd:
        return "the end of the tag";
      case Kind::kString:
        return "the string " + Quoted(Now().text, 40);
      default:
        return Quoted(Now().text, 40);
    }
  }
  void ExpectOperator(std::string_view text) {
    if (!SkipOperator(text)) Fail("there is ", NowText(), " where ", text, " is needed");
  }
  void ExpectName(std::string_view name) {
    if (!SkipName(name)) Fail("there is ", NowText(), " where ", name, " is needed");
  }
  void ExpectTagEnd() {
    if (Now().kind != Kind::kTagEnd) Fail("there is ", NowText(), " where the tag should end");
    ++at_;
  }
  std::string TakeName() {
    if (Now().kind != Kind::kName) Fail("there is ", NowText(), " where a name is needed");
    return tokens_[at_++].text;
  }
  // Takes a name to which a value is assigned.
  std::string TakeTarget() {
    constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
    if (std::ranges::find(kConstants, Now().text) != std::end(kConstants)) {
      Fail("nothing can be assigned to ", Now().text);
    }
    return TakeName();
  }

  // Parses up to one of these statements, which is left, or to the end of the program.
  Body ParseBody(std::initializer_list<std::string_view> stops) {
    const Deeper deeper(*this);
    Body body;
    while (Now().kind != Kind::kEnd) {
      if (Now().kind == Kind::kData) {
        Statement text{.kind = Statement::Kind::kText, .line = Now().line, .text = Now().text};
        ++at_;
        body.push_back(std::make_unique<const Statement>(std::move(text)));
        continue;
      }
      const bool statement = Now().kind == Kind::kStatement;
      ++at_;
      if (!statement) {
        Statement output{.kind = Statement::Kind::kOutput, .line = Now().line};
        output.expression = ParseTuple();
        ExpectTagEnd();
        body.push_back(std::make_unique<const Statement>(std::move(output)));
        continue;
      }
      const std::string& name = Now().text;
      if (Now().kind == Kind::kName && std::ranges::find(stops, name) != stops.end()) return body;
      if (Now().kind == Kind::kName && stops.size() == 0 && name.starts_with("end")) return body;
      body.push_back(std::make_unique<const Statement>(ParseStatement()));
    }
    if (stops.size() > 0) Fail("a ", *(stops.end() - 1), " is missing");
    return body;
  }

  // The body of a statement that one other statement ends.
  Body ParseBodyUntil(std::string_view end) {
    ExpectTagEnd();
    Body body = ParseBody({end});
    ++at_;
    ExpectTagEnd();
    return body;
  }

  Statement ParseStatement() {
    const int line = Now().line;
    const std::string name = TakeName();
    Statement statement{.line = line};
    if (name == "if") {
      ParseIf(statement);
    } else if (name == "for") {
      ParseFor(statement);
    } else if (name == "set") {
      ParseSet(statement);
    } else if (name == "macro") {
      ParseMacro(statement);
    } else if (name == "filter") {
      statement.kind = Statement::Kind::kFilter;
      statement.expression = ParseFilters(Variable(kBodyText), /*first_without_bar=*/true);
      statement.bodies.push_back(ParseBodyUntil("endfilter"));
    } else if (name == "with") {
      statement.kind = Statement::Kind::kScope;
      while (Now().kind != Kind::kTagEnd) {
        if (!statement.names.empty()) ExpectOperator(",");
        statement.names.push_back(TakeTarget());
        ExpectOperator("=");
        statement.conditions.push_back(ParseExpression());
      }
      statement.bodies.push_back(ParseBodyUntil("endwith"));
    } else if (name == "generation") {  // marks answers for training; the text is the body's
      statement.kind = Statement::Kind::kScope;
      statement.bodies.push_back(ParseBodyUntil("endgeneration"));
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) Fail("there is a ", name, " outside of a loop");
      statement.kind = name == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue;
      ExpectTagEnd();
    } else {
      --at_;
      Fail(
          "the statement ", Quoted(name, 40),
          " is not supported; supported: break, continue, filter, for, generation, if, macro, set, "
          "with");
    }
    return statement;
  }

  void ParseIf(Statement& statement) {
    statement.kind = Statement::Kind::kIf;
    while (true) {
      statement.conditions.push_back(ParseTuple());
      ExpectTagEnd();
      statement.bodies.push_back(ParseBody({"elif", "else", "endif"}));
      if (SkipName("elif")) continue;
      if (SkipName("else")) {
        ExpectTagEnd();
        statement.bodies.push_back(ParseBody({"endif"}));
      }
      ++at_;
      return ExpectTagEnd();
    }
  }

  void ParseFor(Statement& statement) {
    statement.kind = Statement::Kind::kFor;
    statement.names = ParseTargets();
    ExpectName("in");
    statement.expression = ParseTuple(/*with_condition=*/false);
    if (SkipName("if")) statement.condition = ParseExpression();
    statement.recursive = SkipName("recursive");
    ExpectTagEnd();
    ++loops_;
    statement.bodies.push_back(ParseBody({"else", "endfor"}));
    --loops_;
    if (SkipName("else")) {
      ExpectTagEnd();
      statement.bodies.push_back(ParseBody({"endfor"}));
    }
    ++at_;
    ExpectTagEnd();
  }

  std::vector<std::string> ParseTargets() {
    const bool brackets = SkipOperator("(");
    std::vector<std::string> names = {TakeTarget()};
    while (SkipOperator(",")) names.push_back(TakeTarget());
    if (brackets) ExpectOperator(")");
    return names;
  }

  void ParseSet(Statement& statement) {
    statement.names = ParseTargets();
    if (statement.names.size() == 1 && SkipOperator(".")) statement.attribute = TakeName();
    if (SkipOperator("=")) {
      statement.kind = Statement::Kind::kSet;
      statement.expression = ParseTuple();
      return ExpectTagEnd();
    }
    if (statement.names.size() != 1 || !statement.attribute.empty()) ExpectOperator("=");
    statement.kind = Statement::Kind::kSetBody;
    statement.expression = ParseFilters(Variable(kBodyText), /*first_without_bar=*/false);
    statement.bodies.push_back(ParseBodyUntil("endset"));
  }

  void ParseMacro(Statement& statement) {
    statement.kind = Statement::Kind::kMacro;
    statement.names.push_back(TakeTarget());
    ExpectOperator("(");
    while (!IsOperator(")")) {
      if (statement.names.size() > 1) ExpectOperator(",");
      statement.names.push_back(TakeTarget());
      if (SkipOperator("=")) {
        statement.conditions.push_back(ParseExpression());
      } else if (!statement.conditions.empty()) {
        Fail("a parameter without a default follows one with a default");
      }
    }
    ++at_;
    const int loops = std::exchange(loops_, 0);
    statement.bodies.push_back(ParseBodyUntil("endmacro"));
    loops_ = loops;
  }

  ExpressionPtr Make(Expression expression) const {
    const auto hold = [&](const ExpressionPtr& part) {
      if (part != nullptr) expression.depth = std::max(expression.depth, part->depth + 1);
    };
    std::ranges::for_each(expression.parts, hold);
    for (const auto& [name, value] : expression.named) hold(value);
    if (expression.depth > kMaxExpressionDepth) {
      Fail("an expression nests deeper than ", kMaxExpressionDepth);
    }
    return std::make_unique<const Expression>(std::move(expression));
  }
  ExpressionPtr Variable(std::string_view name) const {
    return Make(
        {.kind = Expression::Kind::kVariable, .line = Now().line, .name = std::string(name)});
  }
  ExpressionPtr Constant(Value value) const {
    return Make({.line = Now().line, .constant = std::move(value)});
  }
  template <typename... Parts>
  ExpressionPtr Operation(Expression::Kind kind, std::string_view name, Parts... parts) const {
    Expression expression{.kind = kind, .line = Now().line, .name = std::string(name)};
    (expression.parts.push_back(std::move(parts)), ...);
    return Make(std::move(expression));
  }

  // One expression, or several with commas, which make a tuple.
  ExpressionPtr ParseTuple(bool with_condition = true) {
    const auto one = [&] { return with_condition ? ParseExpression() : ParseOr(); };
    ExpressionPtr first = one();
    if (!IsOperator(",")) return first;
    Expression tuple{.kind = Expression::Kind::kTuple, .line = Now().line};
    tuple.parts.push_back(std::move(first));
    while (SkipOperator(",")) {
      if (Now().kind == Kind::kTagEnd || IsOperator(")") || IsOperator("=")) break;
      tuple.parts.push_back(one());
    }
    return Make(std::move(tuple));
  }

  ExpressionPtr ParseExpression() {
    const Deeper deeper(*this);
    ExpressionPtr value = ParseOr();
    while (SkipName("if")) {
      ExpressionPtr condition = ParseOr();
      ExpressionPtr otherwise = SkipName("else") ? ParseExpression() : nullptr;
      value = Operation(Expression::Kind::kCondition, "", std::move(value), std::move(condition),
                        std::move(otherwise));
    }
    return value;
  }

  ExpressionPtr ParseOr() {
    ExpressionPtr left = ParseAnd();
    while (SkipName("or")) {
      left = Operation(Expression::Kind::kBinary, "or", std::move(left), ParseAnd());
    }
    return left;
  }
  ExpressionPtr ParseAnd() {
    ExpressionPtr left = ParseNot();
    while (SkipName("and")) {
      left = Operation(Expression::Kind::kBinary, "and", std::move(left), ParseNot());
    }
    return left;
  }
  ExpressionPtr ParseNot() {
    const Deeper deeper(*this);
    if (SkipName("not")) return Operation(Expression::Kind::kUnary, "not", ParseNot());
    return ParseCompare();
  }

  ExpressionPtr ParseCompare() {
    constexpr std::string_view kComparisons[] = {"==", "!=", "<", "<=", ">", ">="};
    Expression compare{.kind = Expression::Kind::kCompare, .line = Now().line};
    compare.parts.push_back(ParseSum());
    while (true) {
      if (Now().kind == Kind::kOperator &&
          std::ranges::find(kComparisons, Now().text) != std::end(kComparisons)) {
        compare.operators.push_back(tokens_[at_++].text);
      } else if (SkipName("in")) {
        compare.operators.emplace_back("in");
      } else if (IsName("not") && Ahead().kind == Kind::kName && Ahead().text == "in") {
        at_ += 2;
        compare.operators.emplace_back("not in");
      } else {
        break;
      }
      compare.parts.push_back(ParseSum());
    }
    return compare.operators.empty() ? std::move(compare.parts[0]) : Make(std::move(compare));
  }

  // A chain of these operators, from left to right, between what `operand` parses.
  template <typename Operand>
  ExpressionPtr ParseChain(std::initializer_list<std::string_view> operators,
                           const Operand& operand) {
    ExpressionPtr left = operand();
    while (Now().kind == Kind::kOperator &&
           std::ranges::find(operators, Now().text) != operators.end()) {
      const std::string name = tokens_[at_++].text;
      left = Operation(Expression::Kind::kBinary, name, std::move(left), operand());
    }
    return left;
  }
  ExpressionPtr ParseSum() {
    return ParseChain({"+", "-"}, [&] { return ParseConcatenation(); });
  }
  ExpressionPtr ParseConcatenation() {
    return ParseChain({"~"}, [&] { return ParseProduct(); });
  }
  ExpressionPtr ParseProduct() {
    return ParseChain({"*", "/", "//", "%"}, [&] { return ParsePower(); });
  }
  ExpressionPtr ParsePower() {
    return ParseChain({"**"}, [&] { return ParseUnary(true); });
  }

  ExpressionPtr ParseUnary(bool with_filters) {
    const Deeper deeper(*this);
    ExpressionPtr value;
    if (IsOperator("-") || IsOperator("+")) {
      const std::string name = tokens_[at_++].text;
      value = Operation(Expression::Kind::kUnary, name, ParseUnary(false));
    } else {
      value = ParsePrimary();
    }
    value = ParsePostfix(std::move(value));
    return with_filters ? ParseFilters(std::move(value), false) : std::move(value);
  }

  ExpressionPtr ParsePrimary() {
    const Token token = Now();
    switch (token.kind) {
      case Kind::kName:
        ++at_;
        if (token.text == "true" || token.text == "True") return Constant(true);
        if (token.text == "false" || token.text == "False") return Constant(false);
        if (token.text == "none" || token.text == "None") return Constant({});
        return Variable(token.text);
      case Kind::kString: {
        std::string text;
        while (Now().kind == Kind::kString) text += tokens_[at_++].text;
        return Constant(text);
      }
      case Kind::kInteger:
      case Kind::kFloat:
        ++at_;
        return Constant(ParseNumber(token));
      default:
        break;
    }
    if (SkipOperator("(")) {
      if (SkipOperator(")")) return Make({.kind = Expression::Kind::kTuple, .line = token.line});
      ExpressionPtr inner = ParseTuple();
      ExpectOperator(")");
      return inner;
    }
    if (SkipOperator("[")) {
      Expression list{.kind = Expression::Kind::kList, .line = token.line};
      while (!SkipOperator("]")) {
        if (!list.parts.empty()) ExpectOperator(",");
        if (!IsOperator("]")) list.parts.push_back(ParseExpression());
      }
      return Make(std::move(list));
    }
    if (SkipOperator("{")) {
      Expression dict{.kind = Expression::Kind::kDict, .line = token.line};
      while (!SkipOperator("}")) {
        if (!dict.parts.empty()) ExpectOperator(",");
        if (IsOperator("}")) continue;
        dict.parts.push_back(ParseExpression());
        ExpectOperator(":");
        dict.parts.push_back(ParseExpression());
      }
      return Make(std::move(dict));
    }
    Fail("there is ", NowText(), " where a value is needed");
  }

  Value ParseNumber(const Token& token) const {
    const char* const end = token.text.data() + token.text.size();
    if (token.kind == Kind::kFloat) {
      double number = 0;
      if (std::from_chars(token.text.data(), end, number).ptr != end)
        Fail("no number: ", token.text);
      return number;
    }
    int64_t number = 0;
    if (std::from_chars(token.text.data(), end, number).ec != std::errc()) {
      Fail("the number ", token.text, " is too large");
    }
    return number;
  }

  ExpressionPtr ParsePostfix(ExpressionPtr value) {
    while (true) {
      if (SkipOperator(".")) {
        if (Now().kind == Kind::kInteger) {
          ExpressionPtr index = ParsePrimary();
          value = Operation(Expression::Kind::kItem, "", std::move(value), std::move(index));
        } else {
          const std::string name = TakeName();
          value = Operation(Expression::Kind::kAttribute, name, std::move(value));
        }
      } else if (SkipOperator("[")) {
        value = ParseSubscript(std::move(value));
      } else if (IsOperator("(")) {
        value = ParseCall(Expression::Kind::kCall, "", std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr ParseSubscript(ExpressionPtr value) {
    ExpressionPtr bounds[3];
    size_t colons = 0;
    while (!IsOperator("]")) {
      if (SkipOperator(":")) {
        if (++colons > 2) Fail("a slice has at most two colons");
      } else if (bounds[colons] != nullptr) {
        ExpectOperator("]");
      } else {
        bounds[colons] = ParseExpression();
      }
    }
    if (colons == 0 && bounds[0] == nullptr) Fail("there is no index between the brackets");
    ++at_;
    if (colons == 0) {
      return Operation(Expression::Kind::kItem, "", std::move(value), std::move(bounds[0]));
    }
    return Operation(Expression::Kind::kSlice, "", std::move(value), std::move(bounds[0]),
                     std::move(bounds[1]), std::move(bounds[2]));
  }

  // Parses the arguments in brackets after a function, a filter or a test.
  ExpressionPtr ParseCall(Expression::Kind kind, std::string_view name, ExpressionPtr value) {
    Expression call{.kind = kind, .line = Now().line, .name = std::string(name)};
    call.parts.push_back(std::move(value));
    ExpectOperator("(");
    bool first = true;
    while (!SkipOperator(")")) {
      if (!first) ExpectOperator(",");
      first = false;
      if (IsOperator(")")) continue;
      if (IsOperator("*") || IsOperator("**")) {
        std::string spread = tokens_[at_++].text;
        call.named.emplace_back(std::move(spread), ParseExpression());
        continue;
      }
      if (Now().kind == Kind::kName && Ahead().kind == Kind::kOperator && Ahead().text == "=") {
        std::string argument = TakeName();
        ++at_;
        call.named.emplace_back(std::move(argument), ParseExpression());
      } else {
        if (!call.named.empty()) Fail("an argument without a name follows one with a name");
        call.parts.push_back(ParseExpression());
      }
    }
    return Make(std::move(call));
  }

  ExpressionPtr ParseFilters(ExpressionPtr value, bool first_without_bar) {
    while (true) {
      if (std::exchange(first_without_bar, false) || SkipOperator("|")) {
        const std::string name = TakeName();
        value = IsOperator("(") ? ParseCall(Expression::Kind::kFilter, name, std::move(value))
                                : Operation(Expression::Kind::kFilter, name, std::move(value));
      } else if (SkipName("is")) {
        value = ParseTest(std::move(value));
      } else if (IsOperator("(")) {
        value = ParseCall(Expression::Kind::kCall, "", std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr ParseTest(ExpressionPtr value) {
    const bool negated = SkipName("not");
    Expression test{.kind = Expression::Kind::kTest, .line = Now().line, .negated = negated};
    const std::string name = TakeName();
    if (IsOperator("(")) {
      ExpressionPtr call = ParseCall(Expression::Kind::kTest, name, std::move(value));
      return negated ? Operation(Expression::Kind::kUnary, "not", std::move(call))
                     : std::move(call);
    }
    test.name = name;
    test.parts.push_back(std::move(value));
    const bool argument =
        Now().kind == Kind::kString || Now().kind == Kind::kInteger || Now().kind == Kind::kFloat ||
        IsOperator("[") || IsOperator("{") ||
        (Now().kind == Kind::kName && !IsName("else") && !IsName("or") && !IsName("and"));
    if (argument) {
      if (IsName("is")) Fail("tests cannot be chained with is");
      if (IsName("if") || IsName("in") || IsName("not") || IsName("recursive")) {
        return Make(std::move(test));
      }
      test.parts.push_back(ParsePostfix(ParsePrimary()));
    }
    return Make(std::move(test));
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;  // around the statement
};

}  // namespace

Body Parse(std::string_view source) { return Parser(source).Run(); }

}  // namespace tokline::jinja
