// The device's peak rates: as measured in the run, and as its datasheet states them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/common/launch_options.h"

namespace tokline {

struct Peaks {
  double read_gbps = 0;  // by a kernel that only reads
  // bytes read plus bytes written, by a kernel that reads two bytes for each that it writes; 0 if
  // taken from a program that did not measure it
  double two_to_one_gbps = 0;
  double copy_gbps = 0;      // the same, by a kernel that reads one byte for each that it writes
  double matmul_tflops = 0;  // dense bf16 matrix product; 0: not measured
  double launch_us = 0;      // an empty kernel, launched repeatedly on a stream
  double graph_node_us = 0;  // an empty kernel as a node of a graph
  std::string from_run{};    // id of the run that measured them; "": this run

  bool Measured() const { return read_gbps > 0; }
};

// Returns the better value of each peak: a peak that was missed in one measurement may be reached
// in another.
Peaks BestOf(const Peaks& a, const Peaks& b);

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

// The best of several launches, grids and placements in memory. Takes about two seconds and
// temporarily allocates a tenth of the device's free memory, at most 3 GiB. CUDA builds only.
Peaks MeasurePeaks(const std::optional<MatmulWork>& matmul);

}  // namespace tokline
