// The flags that the commands share: the model, and where and how it runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "harness/cli/flags.h"
#include "harness/cli/kv_size.h"
#include "harness/engine/ablation.h"
#include "harness/engine/decoder_memory.h"
#include "harness/models/loaded_model.h"

namespace tokline {

// The embedded model: beside the program where it is installed, in the sources where it was built.
std::filesystem::path DefaultModelDir();

// The flags of every command that runs a model, with their defaults.
struct RunFlags {
  std::filesystem::path model = DefaultModelDir();
  std::optional<Device> device;  // none: cuda where there is a usable device, else cpu
  std::optional<DType> dtype;    // none: f32 on the CPU; on CUDA the checkpoint's, or bf16 for f32
  int32_t page_size = DecoderOptions().page_size;
  KvSize kv;
  AblationSet ablate;
  std::string ablated;  // as they were named, separated by commas

  void AddTo(std::vector<Flag>& flags);
  // What --ablate takes, one aligned line a name, to stand below the flags.
  static std::string AblationHelp();
  Device ChosenDevice() const;
  // As rows name it: "cuda" or "reference", and what was ablated.
  std::string Implementation() const;
  // For max_batch sequences of max_context tokens; kv_size.h applies the size of the KV cache.
  DecoderOptions Options(const ModelSpec& spec, int32_t max_batch, int64_t max_context) const;
};

// One line on standard error if the checkpoint has tensors that the model does not use.
void ReportExtraTensors(const LoadedModel& model);

}  // namespace tokline
