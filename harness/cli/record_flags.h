// The flags of commands that measure, and the header of their records.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "harness/cli/commands.h"
#include "harness/engine/backend.h"
#include "harness/platform/flags.h"
#include "harness/record/run_record.h"

namespace tokline {

// Where a measuring command writes its results, and which peaks it uses.
struct RecordFlags {
  std::filesystem::path json;
  std::string record;
  std::string peaks;  // a record file to take them from; if empty, they are measured

  void AddTo(std::vector<Flag>& flags);
  // Throws InvalidArgument if peaks are given for a device that has none.
  void RequirePeaksOf(Device device) const;
};

// Makes the header of a run of `program` ("tokline bench"). On CUDA it contains the peaks, measured
// or taken from the given file.
RunHeader MakeRunHeader(const CommandLine& line, std::string program, Device device,
                        const RecordFlags& flags, int32_t ranks = 1);

}  // namespace tokline
