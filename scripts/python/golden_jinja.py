"""Small Jinja programs and what Jinja renders of them, with the options that transformers sets."""

from transformers.utils.chat_template_utils import render_jinja_template

# All are rendered with these messages, and without a generation prompt.
MESSAGES = [{"role": "user", "content": " Ab\u00e9 'c' \"d\"\n\u4f60 ab ab "}, {"role": "assistant", "content": "x,y,,z"}]
EXPRESSIONS = r"""
1 + 2 * 3 - 4 // 3 ; 7 // -2 ; -7 // 2 ; 7 % -3 ; -7 % 3 ; 7 / 2 ; 2 ** 10 ; 2 ** -1 ; 2 ** 3 ** 2 ; -2 ** 2 ; 1e3
1.5e-7 ; 1_000 + 1 ; 10 / 5 ; 0.1 + 0.2 ; 1e16 ; 123456789012.5 ; 1e300 * 1e10 ; 5 // 0.3 ; 7.5 % 2 ; -7.5 % 2
true + true ; not 1 == 2 ; 1 < 2 < 3 ; 1 < 3 < 2 ; 1 == 1.0 ; "a" < "b" ; "a" == 1 ; "a" ~ 1 ~ none ~ true ~ 1.0
"a" "b" ; "ab" * 3 ; 3 * "ab" ; [1, 2] + [3] ; (1, 2) ; (1,) ; () ; [] ; {} ; {"a": 1, "b": [none, true, 1.5, "q'"]}
"it's" ; ["it's", "say \"x\"", "both ' and \"", "new\nline", "\u00e9\u200b\x07", "\\"] ; "a" in "cab"
"x" not in "cab" ; 1 in [1, 2] ; "a" in {"a": 1} ; 1 if true else 2 ; 1 if false ; (1 if false) is defined
none or "x" ; 0 and 1 ; "" or 0 ; not none ; [] or {} ; 1 and "y" ; none == none ; undefined_name
undefined_name is defined ; undefined_name == none ; undefined_name | default("d") ; none | default("d")
none | default("d", true) ; "" | d("e", boolean=true) ; [1, 2, 3][0] ; [1, 2, 3][-1] ; [1, 2, 3][9] is defined
[1, 2, 3, 4][1:] ; [1, 2, 3, 4][:-1] ; [1, 2, 3, 4][::-1] ; [1, 2, 3, 4][::2] ; [1, 2, 3][5:] ; [1, 2, 3][-9:2]
"abc\u00e9"[::-1] ; "abc\u00e9"[1:4] ; "abc"[1] ; "abc"[-1] ; (1, 2, 3)[1:] ; messages[0].content | trim
messages[0]["content"].strip() ; messages[0].content.split() ; messages[0].content.split(none, 1)
messages[0].content.rsplit(none, 1) ; messages[1].content.split(",") ; messages[1].content.split(",", 1)
messages[1].content.rsplit(",", 1) ; messages[1].content.split("zz") ; "a b ".split(maxsplit=1) ; "".split()
"".split(",") ; " a  b ".split(" ") ; "a\nb\r\nc\x0bd\u2028e".splitlines() ; "a\n\n".splitlines()
"a\nb".splitlines(true) ; "abcabc".replace("b", "X") ; "abcabc".replace("b", "X", 1) ; "abc".replace("", "-")
"abcabc" | replace("c", "Z", 1) ; "abc".startswith("ab") ; "abc".startswith(("x", "a")) ; "abc".endswith("bc")
"xxabxx".strip("x") ; "xxabxx".lstrip("x") ; "xxabxx".rstrip("x") ; " a " | trim ; "xax" | trim("x")
"\u00c9cole ABC".lower() ; "\u00e9cole abc".upper() ; "hello world-foo (bar) it's 1st".title()
"hello world-foo (bar) it's 1st" | title ; "hELLO World" | capitalize ; "hELLO World".capitalize() ; "HELLO" | lower
"hi" | upper ; "abcabc".find("c") ; "abcabc".rfind("c") ; "abc".find("z") ; "\u00e9abc".find("c")
"abcabc".count("bc") ; "aaa".count("aa") ; "abc".count("") ; "abc".index("b") ; "a-b-c".partition("-")
"a-b-c".rpartition("-") ; "abc".partition("z") ; "abc".isalpha() ; "ab1".isalnum() ; "123".isdigit() ; "".isdigit()
" \t".isspace() ; "ABC".isupper() ; "abC".islower() ; "abc".removeprefix("a") ; "abc".removesuffix("c")
"-".join(["a", "b"]) ; "-".join([]) ; "abc" | length ; "\u4f60\u597d" | length ; [1, 2] | count ; {"a": 1} | length
undefined_name | length ; "abc" | list ; {"a": 1, "b": 2} | list ; [1, 2] | join(", ") ; ["a", 1, none] | join
messages | map(attribute="role") | join("+") ; messages | map(attribute="x", default="?") | join
["a ", " b"] | map("trim") | list ; ["a", "b"] | map("replace", "a", "c") | list
messages | selectattr("role", "equalto", "user") | list | length
messages | selectattr("role", "==", "user") | map(attribute="role") | list
messages | rejectattr("role", "in", ["user"]) | map(attribute="role") | list ; [0, 1, "", "a"] | select | list
[1, 2, 3, 4] | select("even") | list ; [1, 2, 3, 4] | reject("odd") | list ; [1, 5, 3] | select("gt", 2) | list
[3, 1, 2] | sort ; [3, 1, 2] | sort(reverse=true) ; ["b", "A", "c"] | sort
["b", "A", "c"] | sort(case_sensitive=true) ; messages | sort(attribute="role") | map(attribute="role") | list
{"b": 1, "a": 2} | dictsort ; {"b": 1, "a": 2} | dictsort(by="value") ; {"B": 1, "a": 2} | dictsort(reverse=true)
[1, 2, 1, "a", "A"] | unique | list ; [3, 1, 2] | min ; [3, 1, 2] | max ; [] | min ; [1, 2, 3] | sum ; [1.5, 2] | sum
[] | sum ; [1, 2, 3] | first ; [1, 2, 3] | last ; [] | first ; "abc" | first ; "abc" | last
[1, 2, 3] | reverse | list ; "abc" | reverse ; "42" | int ; " 42 " | int ; "4.7" | int ; "x" | int ; "x" | int(7)
4.7 | int ; -4.7 | int ; true | int ; none | int ; "1e3" | int ; "1.5" | float ; "x" | float ; 3 | float ; 3.7 | round
2.5 | round ; 3.2 | round(0, "ceil") ; 3.7 | round(method="floor") ; -3 | abs ; -3.5 | abs ; 1 | string
none | string ; [1, "a"] | string ; {"a": "b"} | items | list ; undefined_name | items | list
{"a": 1}.items() | list ; {"a": 1}.keys() | list ; {"a": 1}.values() | list ; {"a": 1}.get("a") ; {"a": 1}.get("b")
{"a": 1}.get("b", 2) ; {"a": 1}.a ; {"a": 1}["a"] ; {"items": 1}["items"] ; {"a": 1} | tojson
{"b": "\u00e9\"\n\u0001/<>&'", "a": [1, 2.5, none, true, {}, []]} | tojson
{"b": [1, {"c": []}], "a": 2} | tojson(indent=2) ; {"b": 1, "a": 2} | tojson(sort_keys=true)
[1, 2] | tojson(separators=(",", ":")) ; messages | tojson ; "x" | tojson ; undefined_name | default("") | tojson
"a\nb\n\nc" | indent ; "a\nb\n\nc" | indent(2, true) ; "a\nb\n\nc" | indent(2, blank=true) ; "a\nb" | indent("> ")
"a\n" | indent ; 1 is number ; true is number ; 1.5 is float ; 1 is integer ; true is integer ; true is boolean
"a" is string ; [] is sequence ; {} is mapping ; [] is iterable ; 1 is iterable ; {} is sequence ; none is none
1 is none ; 1 is not none ; true is true ; 1 is true ; false is false ; 4 is divisibleby(2) ; 4 is divisibleby 3
3 is odd ; 4 is even ; 1 is eq 1 ; 1 is ne 1 ; 1 is sameas 1 ; "a" is in ["a"] ; "ABC" is upper ; "abc" is lower
range is callable ; undefined_name is undefined ; range(3) | list ; range(1, 4) | list ; range(5, 0, -2) | list
dict(a=1, b=2) ; namespace(a=1).a ; range(3) | map("string") | join ; [[1, 2], [3, 4]] | map("first") | list
[[1, 2], [3, 4]] | map(attribute=1) | list ; "abc" is defined and "abc" is string ; not "a" is string
messages[0].role.title() ; messages[0].content == messages[0]["content"] ; messages[5] is defined
messages[0].foo is defined ; none.foo is defined ; "abc".foo is defined ; messages | length - 1 ; -messages | length
1 in range(3) ; "%" ~ "s" ; 1.0 ; 1.0 == 1 ; 10 // 3 * 3 + 10 % 3 ; strftime_now("%Y") is string ; "a" + 1
none + "a" ; 1 / 0 ; undefined_name + "a" ; undefined_name.foo ; undefined_name["a"] ; undefined_name() ; "abc" < 1
[1] < 2 ; {"a": 1}.b.c ; messages[0].content.foo() ; raise_exception("no") ; "a" - 1 ; 1() ; namespace(a=1).b
"abc".index("z") ; [1, 2].append(3) ; messages.pop() ; (messages | length) - 1
"""
PROGRAMS = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "  {% if true %}  x  {% endif %}  \n y", "  {%- if true -%}  x  {%- endif -%}  \n y",
    "{%+ if true %} x {% endif +%}\ny", "\n\n{{ 1 }}\n\n{{- 2 -}}\n\n3\n\n", "a {# comment #} b\n{# line #}\nc{#- x -#}  d", "x\r\ny\rz\n",
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }}:{{ m.role }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for m in messages %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{% endfor %}",
    "{% for i in [1, 2, 3, 4] if i is even %}{{ loop.index }}:{{ i }} {{ loop.length }}{% else %}none{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}", "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1, 2, 3] %}{{ loop.previtem }}-{{ loop.nextitem is defined }} {{ loop.cycle('a', 'b') }};{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = i + 5 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1, y=[]) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}",
    "{% if false %}{% set x = 1 %}{% endif %}{{ x is defined }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}",
    "{% set x %}  a {{ 1 }} {% endset %}[{{ x }}]", "{% set x | upper | trim %} ab {% endset %}[{{ x }}]",
    "{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}|{{ f(1, 3) }}|{{ f(1, c='y') }}|{{ f(b=1, a=0) }}",
    "{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}{{ f(1) }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% set y = 3 %}{% macro f() %}{{ y }}{% endmacro %}{{ f() }}{% set y = 4 %}{{ f() }}", "{% macro f() %} a {% endmacro %}[{{ f() | trim }}]",
    "{% filter upper %}ab{{ 'c' }}{% endfilter %}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}",
    "{% generation %}x{% endgeneration %}y", "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{{ loop.depth }}{% endif %}{% endfor %}",
    "{% if 1 %}a{% elif 2 %}b{% else %}c{% endif %}{% if 0 %}a{% elif 2 %}b{% else %}c{% endif %}{% if 0 %}a{% elif 0 %}b{% else %}c{% endif %}",
    "{% for m in messages[::-1] %}{{ m['role'] }}{% endfor %}", "{{ messages[0]['content'].split('c')[-1].lstrip('\\'') }}",
    "{% for c in 'a\u00e9' %}[{{ c }}]{% endfor %}", "{% for x in undefined_name %}x{% endfor %}y", "{% for x in 5 %}x{% endfor %}",
    "{{ {'a': {'b': [1, 2]}}.a.b[1] }}{{ {'a': 1,} }}{{ [1, 2,] }}", "{{ 'a' if messages else 'b' }}{{ \"}}\" }}{{ '%}' }}", "{% set x = {'k': 'v'} %}{{ x.k }}{{ x['k'] }}{{ x.z }}",
    "{{ 'tab\\tnew\\nquote\\'x\\u00e9\\x41\\q' }}", "{{ 1 }}{% set loop = 5 %}{{ loop }}", "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% if messages is not string and messages is iterable %}y{% endif %}", "{{ messages | length > 1 and messages[0].role == 'user' }}", "{{ dict({'a': 1}, b=2) }}", "{{ '' ~ messages[0] }}",
]


def results() -> list[list]:
    """[program, what it renders]; null if it is refused."""
    expressions = [one for line in EXPRESSIONS.strip().splitlines() for one in line.split(" ; ")]
    programs = PROGRAMS + [f"[{{{{ {expression} }}}}]" for expression in expressions]
    return [[program, rendered(program)] for program in programs]


def rendered(program: str):
    """What transformers renders, or None."""
    try:
        out, _ = render_jinja_template([MESSAGES], chat_template=program, add_generation_prompt=False)
    except Exception:  # whatever Jinja or the program raises
        return None
    return out[0]
