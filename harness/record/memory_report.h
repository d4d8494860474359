// The memory of a run: the planned and the measured amounts, and the rest that no plan explains.
#pragma once

#include "harness/engine/backend.h"
#include "harness/engine/decoder.h"
#include "harness/record/record.h"

namespace tokline {

// Must be created before the decoder and queried while the decoder lives. All figures are bytes. On
// CUDA, "measured" is the decrease of the device's free memory; on the CPU, it is the increase of
// the process's pages that belong to no file.
class MemoryWatch {
 public:
  explicit MemoryWatch(Device device);

  // Returns "planned" by use, "planned_total", "measured", "unexplained" (measured minus
  // planned_total), and the host's "host_resident" and "host_peak". On the CPU, planned_total
  // includes the staging memory.
  Json Report(Decoder& decoder) const;

 private:
  int64_t before_ = 0;
};

}  // namespace tokline
