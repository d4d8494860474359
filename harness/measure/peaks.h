// What the device can do at most: measured in the run, and as its datasheet says.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/common/launch_options.h"

namespace tokline {

struct Peaks {
  double read_gbps = 0;      // a kernel that only reads
  double copy_gbps = 0;      // bytes read + bytes written
  double matmul_tflops = 0;  // dense bf16 matrix product; 0: not measured
  double launch_us = 0;      // an empty kernel, launched one by one on a stream
  double graph_node_us = 0;  // an empty kernel in a graph
  std::string from_run{};    // that measured them, or "": this one

  bool Measured() const { return read_gbps > 0; }
};

struct Datasheet {
  double memory_gbps = 0;
  double bf16_tflops = 0;  // dense
};

// Figures of the vendor for devices that the suite knows, by the name that the driver reports.
std::optional<Datasheet> DatasheetOf(std::string_view device_name);

// A large matrix product to measure the matmul peak with.
struct MatmulWork {
  std::function<void(const LaunchOptions&)> launch;
  double flops = 0;
};

// Takes about a second and, for its time, a sixteenth of the device's free memory, at most 2 GiB.
// CUDA builds only.
Peaks MeasurePeaks(const std::optional<MatmulWork>& matmul);

}  // namespace tokline
