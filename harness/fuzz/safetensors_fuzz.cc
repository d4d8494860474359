// libFuzzer target: a safetensors file. Whatever is accepted is consistent; all else is refused.
// Sources: harness/models safetensors
// Sources: harness/platform json_file json_node mapped_file printable
#include <cstdint>
#include <string_view>

#include "harness/fuzz/refusal.h"
#include "harness/models/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokline;
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  fuzz::AcceptOrRefuse([&] {
    const int64_t header_bytes =
        SafetensorsHeaderBytes(file.substr(0, 8), static_cast<int64_t>(size), "input");
    const int64_t data_bytes = static_cast<int64_t>(size) - kSafetensorsPrefixBytes - header_bytes;
    const auto entries = ParseSafetensorsHeader(
        file.substr(kSafetensorsPrefixBytes, static_cast<size_t>(header_bytes)), data_bytes,
        "input");
    int64_t covered = 0;
    for (const SafetensorsEntry& entry : entries) {
      fuzz::Check(entry.begin == covered && entry.end >= entry.begin);
      fuzz::Check(static_cast<int64_t>(entry.shape.size()) <= kMaxSafetensorsRank);
      for (const int64_t extent : entry.shape) fuzz::Check(extent >= 0);
      covered = entry.end;
    }
    fuzz::Check(covered == data_bytes);
  });
  return 0;
}
