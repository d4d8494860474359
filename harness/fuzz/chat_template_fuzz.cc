// libFuzzer target: a chat template and, after the first NUL byte, what the user says. A program
// renders or is refused, within its limits; its output is UTF-8, and special tokens that only the
// user spells are never markup.
// Sources: harness/text *
// Sources: harness/platform json_file json_node mapped_file printable
// Libraries: pcre2-8 utf8proc
// Longest: 8192
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/fuzz/refusal.h"
#include "harness/text/chat_template.h"
#include "harness/text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokline;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string program = ReplaceUtf8Faults(input.substr(0, end));
  const std::string said = ReplaceUtf8Faults(input.substr(std::min(end + 1, input.size())));
  const std::vector<ChatMessage> messages = {
      {"system", said}, {"user", "a" + said}, {"assistant", said}, {"user", said}};
  fuzz::AcceptOrRefuse([&] {
    const ChatTemplate chat(program, "input", {{"bos_token", "<s>"}});
    try {
      for (const TextPart& part : chat.Render(messages)) {
        fuzz::Check(!part.text.empty() && !FindUtf8Fault(part.text));
      }
      chat.AfterAnswer();
    } catch (const InvalidArgument&) {  // the program refuses the conversation
    }
  });
  return 0;
}
