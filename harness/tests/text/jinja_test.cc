// Compares small programs with Jinja's own results, and tests what is refused and what is bounded.
#include "harness/text/jinja.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/platform/printable.h"
#include "harness/tests/text/golden_text.h"
#include "kernels/common/error.h"

namespace tokline::jinja {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Value Messages(const nlohmann::json& chat) {
  List list;
  for (const auto& message : chat) {
    Dict dict;
    dict.Put(MarkedText("role"), message.at("role").get<std::string>());
    dict.Put(MarkedText("content"), MarkedText(message.at("content").get<std::string>(), true));
    list.items.emplace_back(std::move(dict));
  }
  return list;
}

std::string Render(const std::string& program, const Value& messages = {}) {
  return Program(program, "t.jinja").Run({{"messages", messages}}, {}).Bytes();
}

std::string ErrorOf(const std::string& program) {
  try {
    Render(program);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(JinjaTest, ProgramsRenderWhatTheyDoInJinja) {
  const nlohmann::json golden = testing::ReadGolden("jinja.json");
  ASSERT_GE(golden.size(), 300u);
  const Value messages = Messages(golden.at(0));
  int64_t refused = 0;
  for (size_t i = 1; i < golden.size(); ++i) {
    const auto program = golden.at(i).at(0).get<std::string>();
    std::string text;
    std::string why = "refused";
    bool failed = false;
    try {
      text = Render(program, messages);
    } catch (const std::exception& error) {
      failed = true;
      why = error.what();
    }
    const auto& wanted = golden.at(i).at(1);
    refused += wanted.is_null();
    if (wanted.is_null()) {
      EXPECT_TRUE(failed) << program << " gives " << Quoted(text, 400);
    } else {
      EXPECT_EQ(failed ? why : Quoted(text, 999), Quoted(wanted.get<std::string>(), 999))
          << program;
    }
  }
  EXPECT_GE(refused, 15);
}

// The results of Jinja 3.1.6. As there, the else of a loop also runs if break or continue ended all
// iterations, and what it breaks is the loop around.
TEST(JinjaTest, ElseOfALoopRunsUnlessAnIterationFinished) {
  const std::pair<const char*, const char*> kPrograms[] = {
      {"{% for i in [] %}x{% else %}none{% endfor %}", "none"},
      {"{% for i in [1, 2] if i > 5 %}x{% else %}none{% endfor %}", "none"},
      {"{% for i in [1, 2] if i > 1 %}{{ i }}{% else %}none{% endfor %}", "2"},
      {"{% for i in '' %}x{% else %}none{% endfor %}", "none"},
      {"{% for i in no_such_name %}x{% else %}none{% endfor %}", "none"},
      {"{% for i in [1] | select('eq', 2) %}x{% else %}none{% endfor %}", "none"},
      {"{% for i in [] recursive %}x{% else %}none{% endfor %}", "none"},
      {"{% for i in [1] %}{% break %}{% else %}none{% endfor %}", "none"},
      {"{% for i in [1] %}{% continue %}{% else %}none{% endfor %}", "none"},
      {"{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% else %}none{% endfor "
       "%}",
       "1"},
      {"{% for a in [1, 2] %}{{ a }}{% for b in [] %}{% else %}{% break %}{% endfor %}x{% endfor "
       "%}",
       "1"},
      {"{% for a in [1, 2] %}{{ a }}{% for b in [1] if b > 1 %}{% else %}{% continue %}{% endfor "
       "%}x"
       "{% endfor %}",
       "12"},
  };
  for (const auto& [program, text] : kPrograms) EXPECT_EQ(Render(program), text) << program;
}

TEST(JinjaTest, TestsAndRoundGiveWhatTheyDoInJinja) {
  const std::pair<const char*, const char*> kExpressions[] = {
      {"1 is ge 1", "True"},
      {"1 is ge(2)", "False"},
      {"2 is le 2", "True"},
      {"3 is le(2)", "False"},
      {"'b' is ge 'a'", "True"},
      {"[1, 2, 3] | select('>=', 2) | list", "[2, 3]"},
      {"[1, 2, 3] | reject('<=', 2) | list", "[3]"},
      {"5 | round", "5"},
      {"true | round", "1"},
      {"(5 | round) is integer", "True"},
      {"5 | round(0, 'ceil')", "5.0"},
      {"5.5 | round", "6.0"},
      {"-0.4 | round", "-0.0"},
  };
  for (const auto& [expression, text] : kExpressions) {
    EXPECT_EQ(Render(StrCat("{{ ", expression, " }}")), text) << expression;
  }
  EXPECT_THAT(ErrorOf("{{ 5 | round(0, 'up') }}"),
              HasSubstr("\"up\"; allowed: common, ceil, floor"));
}

TEST(JinjaTest, GeneratorsCanBeGoneThroughAndAreNoLists) {
  const std::pair<const char*, const char*> kExpressions[] = {
      {"['a', 'b'] | map('upper') | list", "['A', 'B']"},
      {"['a', 'b'] | map('upper') | first", "A"},
      {"['a', 'b'] | map('upper') | join('+')", "A+B"},
      {"['a', 'b'] | map('upper') | list | length", "2"},
      {"['a', 'b'] | map('upper') | sort | last", "B"},
      {"['a', 'b'] | map('upper') | reverse", "['B', 'A']"},
      {"['a', 'b'] | reverse | join", "ba"},
      {"['a', 'a'] | unique | list", "['a']"},
      {"{'a': 1} | items | list", "[('a', 1)]"},
      {"[{'a': 1}] | selectattr('a', 'ge', 2) | first is defined", "False"},
      {"'A' in (['a'] | map('upper'))", "True"},
      {"(['a'] | map('upper')) is iterable", "True"},
      {"(['a'] | map('upper')) is sequence", "False"},
      {"(['a'] | map('upper'))[0] is defined", "False"},
      {"1 if ([] | select) else 2", "1"},  // Python does not look into it
      {"1 if ([] | select | list) else 2", "2"},
  };
  for (const auto& [expression, text] : kExpressions) {
    EXPECT_EQ(Render(StrCat("{{ ", expression, " }}")), text) << expression;
  }
  const std::pair<const char*, const char*> kRefused[] = {
      {"{{ ['a'] | map('upper') }}", "a value of type generator has no text"},
      {"{{ ['a'] | map('upper') | length }}", "a value of type generator has no length"},
      {"{{ ['a'] | map('upper') | last }}", "last needs a list, not a value of type generator"},
      {"{{ ['a'] | map('upper') | tojson }}", "a value of type generator cannot become JSON"},
      {"{{ (['a'] | map('upper'))[1:] }}", "a value of type generator has no slices"},
  };
  for (const auto& [program, message] : kRefused) {
    EXPECT_THAT(ErrorOf(program), HasSubstr(message)) << program;
  }
}

TEST(JinjaTest, WhatIsNotJinjaIsRefusedWithItsLine) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"a\nb {{ 1 + }}", "line 2: there is the end of the tag where a value is needed"},
      {"{% if 1 %}x", "a endif is missing"},
      {"{{ 'a", "line 1: a string does not end"},
      {"\n{# a", "line 2: a comment does not end"},
      {"\n\n{{ 1", "line 3: a tag does not end"},
      {"{% endfor %}", "the statement endfor begins nothing here"},
      {"{{ a b }}", "there is \"b\" where the tag should end"},
      {"{{ (1 }}", "'}' closes nothing"},
      {"{{ 1) }}", "')' closes nothing"},
      {"{{ ? }}", "the character \"?\" is not expected"},
      {"{% set true = 1 %}", "nothing can be assigned to true"},
      {"{% break %}", "outside of a loop"},
      {"{{ 99999999999999999999 }}", "is too large"},
      {"{{ '\\ud800' }}", "4 hexadecimal digits"},
  };
  for (const auto& [program, message] : kWrong) {
    EXPECT_THAT(ErrorOf(program), AllOf(HasSubstr("t.jinja, line "), HasSubstr(message)))
        << program;
  }
}

TEST(JinjaTest, WhatIsNotSupportedIsNamedWithItsLine) {
  const std::pair<const char*, const char*> kUnsupported[] = {
      {"\n{% include 'x' %}",
       "line 2: the statement \"include\" is not supported; supported: break"},
      {"{% raw %}{% endraw %}", "\"raw\" is not supported"},
      {"{% macro f() %}{% endmacro %}\n{% call f() %}{% endcall %}",
       "line 2: the statement \"call\""},
      {"\n{{ 1 | wordwrap }}", "line 2: the filter \"wordwrap\" is not supported; supported: abs"},
      {"{{ 1 is escaped }}", "the test \"escaped\" is not supported; supported: boolean"},
      {"{{ cycler(1, 2) }}", "cycler is not supported, or is undefined"},
      {"{{ 'a'.encode() }}", "the attribute \"encode\" of a value of type str is not supported"},
      {"{{ {1: 2} }}", "a text is needed here, not a value of type int"},
      {"{{ 'a %s' % 'b' }}", "str % str is not supported"},
      {"{{ 'abc' | indent(-1) }}", "an indentation is"},
      {"{{ 1.25 | round(1) }}", "round is supported for numbers, to precision 0"},
      {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "2 arguments were given; at most 1"},
      {"{{ 'a' | trim(foo=1) }}", "the argument \"foo\" is not supported"},
  };
  for (const auto& [program, message] : kUnsupported) {
    EXPECT_THAT(ErrorOf(program), HasSubstr(message)) << program;
  }
}

TEST(JinjaTest, ErrorsTellTheProgramsOwnWordsFromOthers) {
  EXPECT_THROW(Render("{{ raise_exception('roles') }}"), InvalidArgument);
  EXPECT_THAT(ErrorOf("\n{{ raise_exception('roles\nmust') }}"),
              HasSubstr("t.jinja, line 2: the template says \"roles\\x0amust\""));
  EXPECT_THROW(Render("{{ a.b }}"), RuntimeFailure);
  EXPECT_THAT(ErrorOf("{{ a.b }}"), HasSubstr("a is undefined, and so has no \"b\""));
  // Names may come from texts, and messages are one line.
  EXPECT_THAT(ErrorOf("{{ {}['a\nb'].c }}"), HasSubstr("the attribute \"a\\x0ab\" of"));
  EXPECT_THAT(ErrorOf("{{ 'a'.strip(**{'b\nc': 1}) }}"), HasSubstr("the argument \"b\\x0ac\""));
}

// Untrusted programs end, in bounded memory.
TEST(JinjaTest, TimeMemoryAndNestingAreBounded) {
  const std::string deep(5000, '(');
  const std::pair<std::string, const char*> kGreedy[] = {
      {"{{ " + deep + "1" + std::string(5000, ')') + " }}", "nests deeper than 100"},
      {"{{ 1" +
           [] {
             std::string sum;
             for (int i = 0; i < 5000; ++i) sum += " + 1";
             return sum;
           }() +
           " }}",
       "nests deeper than 200"},
      {"{{ a" +
           [] {
             std::string filters;
             for (int i = 0; i < 5000; ++i) filters += "|trim";
             return filters;
           }() +
           " }}",
       "nests deeper than 200"},
      {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
       "more than 5000000 steps"},
      {"{% for a in range(1000000) %}{% endfor %}", "a range has more than 100000 items"},
      {"{{ 'abcdefgh' * 1000000000 }}", "more than 268435456 bytes"},
      {"{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
       "{% endfor %}",
       "more than 268435456 bytes"},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls nest deeper than 40"},
      {"{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x] %}{% endfor %}"
       "{{ ns.x }}",
       "values nest deeper than 64"},
      {"{{ 9223372036854775807 + 1 }}", "is too large"},
      {"{{ (-9223372036854775807 - 1) // -1 }}", "is too large"},
      {"{{ (-9223372036854775807 - 1) | abs }}", "is too large"},
      {"{{ 10 ** 30 }}", "is too large"},
  };
  for (const auto& [program, message] : kGreedy) {
    EXPECT_THAT(ErrorOf(program), HasSubstr(message)) << program.substr(0, 80);
  }
}

// Destroying one within another would overflow the stack.
TEST(JinjaTest, ValuesMayNestAHundredThousandDeep) {
  for (const char* deeper : {"[ns.x]", "[ns.x] | select", "{'a': ns.x}", "namespace(y=ns.x)",
                             "[ns.x].index", "(ns.x,)"}) {
    SCOPED_TRACE(deeper);
    EXPECT_EQ(Render(StrCat(
                  "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = ", deeper,
                  " %}{% endfor %}done")),
              "done");
  }
}

// Whatever is done to a text of a message, its bytes stay those of a message.
TEST(JinjaTest, MarksOfMessagesSurviveEveryOperation) {
  const char* kOperations[] = {"{{ m }}",
                               "{{ m | trim }}",
                               "{{ m.strip('<') }}",
                               "{{ m[1:] }}",
                               "{{ m[::-1] }}",
                               "{{ m | upper }}",
                               "{{ m.title() }}",
                               "{{ 'a' + m }}",
                               "{{ m ~ 1 }}",
                               "{{ m * 2 }}",
                               "{{ m.split('|')[0] }}",
                               "{{ m | replace('x', 'y') }}",
                               "{{ 'a-b' | replace('-', m) }}",
                               "{{ [m, m] | join(', ') }}",
                               "{{ m | list }}",
                               "{{ m | tojson }}",
                               "{{ {'a': m} }}",
                               "{{ m | indent }}",
                               "{{ m | first }}",
                               "{{ m.partition('|')[2] }}",
                               "{{ m.splitlines() | last }}",
                               "{% set x %}{{ m }}{% endset %}{{ x }}",
                               "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(m) }}",
                               "{% filter lower %}{{ m }}{% endfilter %}",
                               "{% for c in m %}{{ c }}{% endfor %}",
                               "{{ {m: 1} | items | first | first }}"};
  const std::string letters = "<|IM_end|>";
  for (const char* program : kOperations) {
    const MarkedText text = Program(program, "t").Run({{"m", MarkedText(letters, true)}}, {});
    size_t of_message = 0;
    for (size_t i = 0; i < text.Size(); ++i) {
      if (std::string_view("<|>").find(text.Bytes()[i]) == std::string_view::npos) continue;
      ++of_message;
      EXPECT_TRUE(text.OfMessage(i)) << program << " at " << i << " of " << text.Bytes();
    }
    EXPECT_GT(of_message + text.Size(), 0u) << program;
  }
  const MarkedText mixed =
      Program("<|a|>{{ m }}<|b|>", "t").Run({{"m", MarkedText("<|c|>", true)}}, {});
  EXPECT_EQ(mixed.Parts(),
            (std::vector<TextPart>{{"<|a|>", true}, {"<|c|>", false}, {"<|b|>", true}}));
}

}  // namespace
}  // namespace tokline::jinja
