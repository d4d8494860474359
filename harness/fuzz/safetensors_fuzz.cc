// libFuzzer target of the safetensors reader, apart from the default build. From the root:
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. harness/fuzz/*.cc
//     harness/models/{safetensors,json_file,mapped_file,printable}.cc -o /tmp/safetensors_fuzz
//   /tmp/safetensors_fuzz -max_total_time=600
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "harness/models/safetensors.h"
#include "kernels/common/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokline;
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const int64_t header_bytes =
        SafetensorsHeaderBytes(file.substr(0, 8), static_cast<int64_t>(size), "input");
    const int64_t data_bytes = static_cast<int64_t>(size) - kSafetensorsPrefixBytes - header_bytes;
    const auto entries = ParseSafetensorsHeader(
        file.substr(kSafetensorsPrefixBytes, static_cast<size_t>(header_bytes)), data_bytes,
        "input");
    int64_t covered = 0;
    for (const SafetensorsEntry& entry : entries) {
      if (entry.begin != covered || entry.end < entry.begin) std::abort();
      covered = entry.end;
    }
    if (covered != data_bytes) std::abort();
  } catch (const RuntimeFailure&) {
    return 0;
  }
  return 0;
}
