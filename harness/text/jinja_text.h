// The operations of Jinja programs on texts. They keep the marks of bytes that come from messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/text/jinja_builtins.h"
#include "harness/text/jinja_value.h"

namespace tokline::jinja {

// kTitle is Jinja's filter, which begins words after white space and brackets; kPythonTitle is the
// method, which begins them after anything but a letter.
enum class Case { kLower, kUpper, kCapital, kTitle, kPythonTitle };

// Maps each code point to one: unlike Python, ß stays ß.
MarkedText ChangeCase(const MarkedText& text, Case to);
bool IsCased(std::string_view text, bool upper);  // Python's isupper() or islower()

// Removes the characters of a text, or white space, from the ends.
MarkedText StripText(const MarkedText& text, const std::optional<Value>& characters, bool left,
                     bool right);
// Replaces at most `count` times; any number of times if it is negative.
MarkedText ReplaceText(Context& context, const MarkedText& text, const MarkedText& old_text,
                       const MarkedText& new_text, int64_t count);
MarkedText JoinTexts(Context& context, const MarkedText& between, const std::vector<Value>& items);
std::string Indentation(const Value& width);  // a number of spaces, or a text
MarkedText IndentText(Context& context, const MarkedText& text, const std::string& indentation,
                      bool first, bool blank);
std::optional<double> ParseFloat(const std::string& text);

// A method of a text, such as split, or nothing.
std::optional<Value> TextMethod(Context& context, const MarkedText& text, std::string_view name);

}  // namespace tokline::jinja
