#include "harness/measure/peaks.h"

#include <algorithm>

namespace tokline {

Peaks BestOf(const Peaks& a, const Peaks& b) {
  return {.read_gbps = std::max(a.read_gbps, b.read_gbps),
          .two_to_one_gbps = std::max(a.two_to_one_gbps, b.two_to_one_gbps),
          .copy_gbps = std::max(a.copy_gbps, b.copy_gbps),
          .matmul_tflops = std::max(a.matmul_tflops, b.matmul_tflops),
          .launch_us = std::min(a.launch_us, b.launch_us),
          .graph_node_us = std::min(a.graph_node_us, b.graph_node_us),
          .from_run = a.from_run};
}

}  // namespace tokline
