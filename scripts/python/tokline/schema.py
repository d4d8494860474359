"""harness/record/record.schema.json: what a record must look like, and the numbers that programs and tools share."""

import json
import math
import operator
import re

from tokline.kernels import ROOT

SCHEMA = json.loads((ROOT / "harness/record/record.schema.json").read_text(encoding="utf-8"))
VERSION = SCHEMA["properties"]["schema"]["const"]
RULES = SCHEMA["x-rules"]
LEAST_CHANGE = RULES["least_change"]  # a smaller one is not called faster or slower
LEAST_CHANGE_WORDS = f"{100 * LEAST_CHANGE:g} %"
_FIGURES = {name: SCHEMA["$defs"][f"{name}_figures"]["properties"] for name in ("kernel", "decoder", "workload")}
MIN_SAMPLES = _FIGURES["kernel"]["samples_us"]["minItems"]
MAX_MEAN_REGRET = {"decoder": _FIGURES["decoder"]["verified"]["properties"]["mean_regret"]["maximum"],
                   "workload": RULES["max_mean_draw_regret"]}
MAX_PERCENT_OF_PEAK = SCHEMA["$defs"]["shares"]["allOf"][0]["then"]["properties"]["percent_of_measured_peak"]["maximum"]

_TYPES = {"array": list, "boolean": bool, "integer": int, "null": type(None), "object": dict, "string": str}
_WORDS = {"array": "a list", "boolean": "true or false", "integer": "a whole number", "null": "null",
          "number": "a number", "object": "an object", "string": "text"}
# Bounds say nothing about values of other types.
_BOUNDS = {"minimum": (operator.ge, "at least"), "maximum": (operator.le, "at most"),
           "exclusiveMinimum": (operator.gt, "more than")}
_SIZES = {"minLength": (str, operator.ge, "at least {} characters"), "minItems": (list, operator.ge, "at least {} items"),
          "maxItems": (list, operator.le, "at most {} items"), "minProperties": (dict, operator.ge, "at least {} fields")}


def brief(value):
    """The beginning of a value, for a message."""
    return json.dumps(value)[:60]


def compiled(schema, root=SCHEMA):
    """A function that checks a value by a schema of the file `root`. It returns None, or what is wrong and where below
    the value. It knows those keywords of JSON Schema (2020-12) that the file of records uses."""
    return _Compiler(root).checker(schema)


class _Compiler:
    """Makes a function of each schema, only once for each name."""

    def __init__(self, root):
        self.root, self.named = root, {}

    def checker(self, schema):
        if isinstance(schema, bool):
            return lambda value: None if schema else _is_not(value, "absent")
        checks = [check for check in (self.check(name, rule, schema) for name, rule in schema.items()) if check]
        return checks[0] if len(checks) == 1 else _first(checks)

    def check(self, name, rule, schema):
        """The check of one keyword, or None for a keyword that checks nothing by itself."""
        if name in ("$schema", "title", "description", "$defs", "then", "else", "x-rules"):
            return None
        if name in _BOUNDS:
            holds, words = _BOUNDS[name]
            return lambda value: (_is_not(value, f"{words} {rule:g}")
                                  if type(value) in (int, float) and not holds(value, rule) else None)
        if name in _SIZES:
            kind, holds, words = _SIZES[name]
            return lambda value: (_is_not(value, f"of {words.format(rule)}, not of {len(value)}")
                                  if type(value) is kind and not holds(len(value), rule) else None)
        method = getattr(self, "_" + name.removeprefix("$"), None)
        if method is None:
            raise NotImplementedError(f"the schema's keyword '{name}' is not implemented")
        return method(rule, schema)

    def _ref(self, rule, _):
        if rule not in self.named:
            target = self.root
            for part in rule.removeprefix("#/").split("/"):
                target = target[part]
            self.named[rule] = self.checker(target)
        return self.named[rule]

    def _type(self, rule, _):
        names = rule if isinstance(rule, list) else [rule]
        # The exact type: a bool is an int to isinstance.
        types = {_TYPES[name] for name in names if name != "number"} | ({int, float} if "number" in names else set())
        words = " or ".join(_WORDS[name] for name in names)

        def check(value):
            kind = type(value)
            return None if kind in types and (kind is not float or math.isfinite(value)) else _is_not(value, words)
        return check

    def _enum(self, rule, _):
        words = "one of " + ", ".join(each if isinstance(each, str) else json.dumps(each) for each in rule)
        return lambda value: None if value in rule else _is_not(value, words)

    def _const(self, rule, _):
        words = json.dumps(rule)
        return lambda value: None if value == rule and type(value) is type(rule) else _is_not(value, words)

    def _pattern(self, rule, _):
        search = re.compile(rule).search
        return lambda value: (_is_not(value, f"text that matches {rule}")
                              if type(value) is str and not search(value) else None)

    def _required(self, rule, _):
        def check(value):
            if type(value) is dict:
                for name in rule:
                    if name not in value:
                        return "", f"has no field '{name}'"
            return None
        return check

    def _properties(self, rule, _):
        fields = [(name, self.checker(schema)) for name, schema in rule.items()]

        def check(value):
            if type(value) is dict:
                for name, field in fields:
                    if name in value and (problem := field(value[name])):
                        return f".{name}{problem[0]}", problem[1]
            return None
        return check

    def _additionalProperties(self, rule, schema):
        known, others = schema.get("properties", ()), self.checker(rule)

        def check(value):
            for name in (value if type(value) is dict else ()):
                if name not in known and (problem := others(value[name])):
                    return f".{name}{problem[0]}", problem[1]
            return None
        return check

    def _items(self, rule, _):
        item = self.checker(rule)

        def check(value):
            for index, each in enumerate(value if type(value) is list else ()):
                if problem := item(each):
                    return f"[{index}]{problem[0]}", problem[1]
            return None
        return check

    def _allOf(self, rule, _):
        return _first([self.checker(each) for each in rule])

    def _if(self, rule, schema):
        condition, then, otherwise = (self.checker(each) for each in (
            rule, schema.get("then", True), schema.get("else", True)))
        return lambda value: otherwise(value) if condition(value) else then(value)


def _is_not(value, words):
    return "", f"is {brief(value)}; it must be {words}"


def _first(checks):
    """The first problem that one of them finds."""
    def check(value):
        for each in checks:
            if problem := each(value):
                return problem
        return None
    return check
