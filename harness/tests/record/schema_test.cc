// Tests the subset of JSON Schema with which records are checked.
#include "harness/record/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <string>

#include "harness/tests/message_of.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;

// Returns the problem that is reported for a value.
std::string Said(const char* schema, const Json& value) {
  return testing::MessageOf([&] { Schema(schema).Validate(value, "it"); });
}

TEST(SchemaTest, NamesPathValueAndWhatIsAllowed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Said(R"({"type": "integer"})", 1), "nothing was thrown");
  EXPECT_EQ(Said(R"({"type": "number"})", 1), "nothing was thrown");
  EXPECT_EQ(Said(R"({"type": "integer"})", 1.5), "it is 1.5; it must be a whole number");
  EXPECT_EQ(Said(R"({"type": "number"})", true), "it is true; it must be a number");
  EXPECT_EQ(Said(R"({"type": "number"})", nan), "it is null; it must be a number");
  EXPECT_EQ(Said(R"({"type": ["string", "null"]})", 3), "it is 3; it must be text or null");
  EXPECT_EQ(Said(R"({"enum": ["a", null]})", "b"), "it is \"b\"; it must be one of a, null");
  EXPECT_EQ(Said(R"({"const": 2})", 1), "it is 1; it must be 2");
  EXPECT_EQ(Said(R"({"minimum": 2})", 1.5), "it is 1.5; it must be at least 2");
  EXPECT_EQ(Said(R"({"minimum": 2})", 2), "nothing was thrown");
  EXPECT_EQ(Said(R"({"minimum": 2})", nullptr), "nothing was thrown");
  EXPECT_EQ(Said(R"({"maximum": 2})", 2.5), "it is 2.5; it must be at most 2");
  EXPECT_EQ(Said(R"({"exclusiveMinimum": 0})", 0), "it is 0; it must be more than 0");
  EXPECT_EQ(Said(R"({"minLength": 1})", ""),
            "it is \"\"; it must be of at least 1 characters, not of 0");
  EXPECT_THAT(Said(R"({"minItems": 2})", Json::array({1})), HasSubstr("at least 2 items"));
  EXPECT_THAT(Said(R"({"maxItems": 1})", {1, 2}), HasSubstr("at most 1 items"));
  EXPECT_THAT(Said(R"({"minProperties": 1})", Json::object()), HasSubstr("at least 1 fields"));
  EXPECT_THAT(Said(R"({"pattern": "^[0-9]+T"})", "20x"), HasSubstr("text that matches ^[0-9]+T"));
  EXPECT_EQ(Said(R"({"pattern": "^[0-9]+T"})", "20T"), "nothing was thrown");
  EXPECT_EQ(Said(R"({"required": ["a"]})", Json::object()), "it has no field 'a'");
  EXPECT_EQ(Said(R"({"properties": {"a": {"items": {"type": "number"}}}})", {{"a", {1, "x"}}}),
            "it.a[1] is \"x\"; it must be a number");
  EXPECT_EQ(Said(R"({"properties": {"a": false}})", {{"a", 1}}), "it.a is 1; it must be absent");
  EXPECT_EQ(Said(R"({"properties": {"a": {}}, "additionalProperties": false})", {{"b", 1}}),
            "it.b is 1; it must be absent");
}

TEST(SchemaTest, ConditionsAndReferences) {
  const char* schema = R"({"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["a"]},
      "else": {"$ref": "#/$defs/b"}, "allOf": [{"required": ["c"]}],
      "$defs": {"b": {"required": ["b"]}}})";
  EXPECT_EQ(Said(schema, {{"k", 1}}), "it has no field 'a'");
  EXPECT_EQ(Said(schema, {{"k", 2}}), "it has no field 'b'");
  EXPECT_EQ(Said(schema, {{"k", 1}, {"a", 1}}), "it has no field 'c'");
  EXPECT_EQ(Said(schema, {{"k", 2}, {"b", 1}, {"c", 1}}), "nothing was thrown");
}

TEST(SchemaTest, WhatIsNotImplementedIsRefusedAtTheStart) {
  EXPECT_THAT(Said(R"({"properties": {"a": {"multipleOf": 2}}})", Json::object()),
              HasSubstr("keyword 'multipleOf' is not implemented"));
  EXPECT_THAT(Said(R"({"allOf": [{"if": {"not": {}}}]})", Json::object()), HasSubstr("'not'"));
  EXPECT_ANY_THROW(Schema(R"({"$ref": "#/$defs/none"})"));
}

TEST(SchemaTest, EveryFieldOfARecordIsDescribed) {
  std::set<std::string> named, described;
  const std::function<void(const Json&)> collect = [&](const Json& schema) {
    if (!schema.is_structured()) return;
    for (const Json& part : schema) collect(part);
    const auto fields = schema.is_object() ? schema.find("properties") : schema.end();
    if (fields == schema.end()) return;
    for (const auto& [name, field] : fields->items()) {
      named.insert(name);
      if (field.is_object() && field.contains("description")) described.insert(name);
    }
  };
  collect(RecordSchema().Root());
  EXPECT_GT(named.size(), 120u);
  EXPECT_EQ(named, described);
}

}  // namespace
}  // namespace tokline
