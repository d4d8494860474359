#include "harness/platform/process_memory.h"

#include <malloc.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace tokline {
namespace {

// The value that follows `name`, in bytes, from text with lines such as "VmRSS:     1234 kB".
int64_t KibibytesIn(const std::string& text, std::string_view name) {
  const size_t at = text.find(name);
  if (at == text.npos) return 0;
  return std::strtoll(text.c_str() + at + name.size(), nullptr, 10) * 1024;
}

std::string ReadAll(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

ProcessMemory ReadProcessMemory() {
#ifdef __GLIBC__
  const struct mallinfo2 heap = mallinfo2();
  const auto heap_in_use = static_cast<int64_t>(heap.uordblks + heap.hblkhd);
#else
  const int64_t heap_in_use = 0;
#endif
  const std::string status = ReadAll("/proc/self/status");
  return {.resident = KibibytesIn(status, "VmRSS:"),
          .peak_resident = KibibytesIn(status, "VmHWM:"),
          .anonymous = KibibytesIn(status, "RssAnon:"),
          .heap_in_use = heap_in_use};
}

int64_t AvailableHostBytes() { return KibibytesIn(ReadAll("/proc/meminfo"), "MemAvailable:"); }

}  // namespace tokline
