"""The subset of JSON Schema that records are checked by: the same as harness/tests/record/schema_test.cc has."""

import unittest

from tokline import schema


class SchemaTest(unittest.TestCase):
    def says(self, words, rules, value):
        problem = schema.compiled(rules, rules)(value)
        self.assertEqual(problem and " ".join(problem), words)

    def test_names_path_value_and_what_is_allowed(self):
        for rules, value, words in (
            ({"type": "integer"}, 1, None),
            ({"type": "number"}, 1, None),
            ({"type": "integer"}, 1.5, " is 1.5; it must be a whole number"),
            ({"type": "number"}, True, " is true; it must be a number"),
            ({"type": "number"}, float("inf"), " is Infinity; it must be a number"),
            ({"type": ["string", "null"]}, 3, " is 3; it must be text or null"),
            ({"enum": ["a", None]}, "b", ' is "b"; it must be one of a, null'),
            ({"const": 2}, 1, " is 1; it must be 2"),
            ({"const": 1}, True, " is true; it must be 1"),
            ({"minimum": 2}, 1.5, " is 1.5; it must be at least 2"),
            ({"minimum": 2}, None, None),
            ({"maximum": 2}, 2.5, " is 2.5; it must be at most 2"),
            ({"exclusiveMinimum": 0}, 0, " is 0; it must be more than 0"),
            ({"minLength": 1}, "", ' is ""; it must be of at least 1 characters, not of 0'),
            ({"minItems": 2}, [1], " is [1]; it must be of at least 2 items, not of 1"),
            ({"maxItems": 1}, [1, 2], " is [1, 2]; it must be of at most 1 items, not of 2"),
            ({"minProperties": 1}, {}, " is {}; it must be of at least 1 fields, not of 0"),
            ({"pattern": "^[0-9]+T"}, "20x", ' is "20x"; it must be text that matches ^[0-9]+T'),
            ({"required": ["a"]}, {}, " has no field 'a'"),
            ({"properties": {"a": {"items": {"type": "number"}}}}, {"a": [1, "x"]},
             '.a[1] is "x"; it must be a number'),
            ({"properties": {"a": False}}, {"a": 1}, ".a is 1; it must be absent"),
            ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}, ".b is 1; it must be absent"),
        ):
            with self.subTest(rules=rules, value=value):
                self.says(words, rules, value)

    def test_conditions_and_references(self):
        rules = {"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["a"]},
                 "else": {"$ref": "#/$defs/b"}, "allOf": [{"required": ["c"]}],
                 "$defs": {"b": {"required": ["b"]}}}
        self.says(" has no field 'a'", rules, {"k": 1})
        self.says(" has no field 'b'", rules, {"k": 2})
        self.says(" has no field 'c'", rules, {"k": 1, "a": 1})
        self.says(None, rules, {"k": 2, "b": 1, "c": 1})

    def test_what_is_not_implemented_is_refused_at_the_start(self):
        with self.assertRaisesRegex(NotImplementedError, "multipleOf"):
            schema.compiled({"properties": {"a": {"multipleOf": 2}}})


if __name__ == "__main__":
    unittest.main()
