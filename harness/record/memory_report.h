// The memory of a run: what was planned beside what was measured, and the rest that no plan
// explains.
#pragma once

#include "harness/engine/backend.h"
#include "harness/engine/decoder.h"
#include "harness/engine/decoder_memory.h"
#include "harness/record/record.h"

namespace tokline {

// As records have it.
MemoryByUse ByUse(const MemoryPlan& plan);

// Made before a decoder is, asked while the decoder lives. Bytes. On CUDA "measured" is what the
// device has less free than before, on the CPU the pages of no file that the process has more.
class MemoryWatch {
 public:
  explicit MemoryWatch(Device device);

  // "planned" by use, "planned_total", "measured", "unexplained": measured less planned_total, and
  // of the host "host_resident" and "host_peak". On the CPU planned_total has the staging too.
  Json Report(Decoder& decoder) const;

 private:
  int64_t before_ = 0;
};

}  // namespace tokline
