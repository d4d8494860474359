// The flags of a command that measures, and the header of its record.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "harness/cli/commands.h"
#include "harness/cli/flags.h"
#include "harness/engine/backend.h"
#include "harness/record/run_record.h"

namespace tokline {

// Where a command that measures writes to, and what it takes over.
struct RecordFlags {
  std::filesystem::path json;
  std::string record;
  std::string peaks;  // a record file; "": they are measured

  void AddTo(std::vector<Flag>& flags);
  // Throws InvalidArgument for peaks of a device that has none.
  void RequirePeaksOf(Device device) const;
};

// The header of a run of `program` ("tokline bench"); on CUDA with peaks, measured or taken over.
RunHeader MakeRunHeader(const CommandLine& line, std::string program, Device device,
                        const RecordFlags& flags);

}  // namespace tokline
