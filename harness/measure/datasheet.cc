#include <array>

#include "harness/measure/peaks.h"

namespace tokline {
namespace {

struct KnownDevice {
  std::string_view name_part;
  Datasheet datasheet;
};

// From NVIDIA's product briefs; bf16 is dense, without sparsity. The first entry whose name is part
// of the device's name wins, so longer names come before names that they contain.
constexpr std::array kKnownDevices{
    KnownDevice{"H200 NVL", {4800, 835}},
    KnownDevice{"H200", {4800, 989}},
    KnownDevice{"H100 PCIe", {2039, 756}},
    KnownDevice{"H100 NVL", {3938, 835}},
    KnownDevice{"H100 80GB HBM3", {3352, 989}},
    KnownDevice{"A100-SXM4-80GB", {2039, 312}},
    KnownDevice{"A100 80GB PCIe", {1935, 312}},
    KnownDevice{"A100-SXM4-40GB", {1555, 312}},
    KnownDevice{"L40S", {864, 362}},
    KnownDevice{"L4", {300, 121}},
    KnownDevice{"A10G", {600, 70}},
};

}  // namespace

std::optional<Datasheet> DatasheetOf(std::string_view device_name) {
  // An instance of a divided device has only a part of its memory and processors.
  if (device_name.find(" MIG ") != std::string_view::npos) return std::nullopt;
  for (const KnownDevice& device : kKnownDevices) {
    const size_t at = device_name.find(device.name_part);
    if (at == std::string_view::npos) continue;
    // Only whole words match: L4 must not match L40, nor H200 GH200.
    const size_t end = at + device.name_part.size();
    if ((at == 0 || device_name[at - 1] == ' ') &&
        (end == device_name.size() || device_name[end] == ' ')) {
      return device.datasheet;
    }
  }
  return std::nullopt;
}

}  // namespace tokline
