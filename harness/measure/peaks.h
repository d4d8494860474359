// The device's peak rates: as measured in the run, and as its datasheet states them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/common/launch_options.h"

namespace tokline {

struct Peaks {
  double read_gbps = 0;      // by a kernel that only reads
  double copy_gbps = 0;      // bytes read plus bytes written
  double matmul_tflops = 0;  // dense bf16 matrix product; 0: not measured
  double launch_us = 0;      // an empty kernel, launched repeatedly on a stream
  double graph_node_us = 0;  // an empty kernel as a node of a graph
  std::string from_run{};    // id of the run that measured them; "": this run

  bool Measured() const { return read_gbps > 0; }
};

struct Datasheet {
  double memory_gbps = 0;
  double bf16_tflops = 0;  // dense
};

// The vendor's figures for devices that the suite knows, looked up by the name that the driver
// reports.
std::optional<Datasheet> DatasheetOf(std::string_view device_name);

// A large matrix product with which the matmul peak is measured.
struct MatmulWork {
  std::function<void(const LaunchOptions&)> launch;
  double flops = 0;
};

// Takes about a second and temporarily allocates a sixteenth of the device's free memory, at most 2
// GiB. CUDA builds only.
Peaks MeasurePeaks(const std::optional<MatmulWork>& matmul);

}  // namespace tokline
