// libFuzzer target: a tokenizer.json and, after the first NUL byte, a text. Every accepted
// tokenizer encodes any text, and decodes to whole code points.
// Sources: harness/text *
// Sources: harness/platform json_file json_node mapped_file printable
// Libraries: pcre2-8 utf8proc
// Corpus: harness/tests/text/golden
// Longest: 65536
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "harness/text/tokenizer.h"
#include "kernels/common/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokline;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(std::min(end + 1, input.size()));
  try {
    const Tokenizer tokenizer = Tokenizer::Parse(input.substr(0, end), "input");
    for (const bool allow_special : {false, true}) {
      std::vector<int32_t> ids;
      for (const std::string_view one : {text, std::string_view(" a\u0301 \u4f60<s>'s 12\n")}) {
        ids = tokenizer.Encode(
            one, {.allow_special = allow_special, .invalid_utf8 = InvalidUtf8::kReplace});
        for (const int32_t id : ids) {
          if (!tokenizer.Spelling(id) || id > tokenizer.MaxId()) std::abort();
        }
        TextStream stream = tokenizer.Stream();
        for (const int32_t id : ids) {
          if (FindUtf8Fault(stream.Push(id))) std::abort();
        }
        if (FindUtf8Fault(stream.Finish()) || FindUtf8Fault(tokenizer.Decode(ids))) std::abort();
      }
    }
  } catch (const RuntimeFailure&) {
    return 0;
  }
  return 0;
}
