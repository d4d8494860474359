// What the commands share: the model, where and how it runs, and the flags for both.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "harness/cli/flags.h"
#include "harness/cli/kv_size.h"
#include "harness/decoder/ablation.h"
#include "harness/decoder/decoder.h"
#include "harness/models/checkpoint.h"
#include "harness/models/model_spec.h"
#include "harness/models/model_weights.h"

namespace tokline {

// The embedded model: beside the program where it is installed, in the sources where it was built.
std::filesystem::path DefaultModelDir();

struct LoadedModel {
  explicit LoadedModel(const std::filesystem::path& dir);

  std::string Name() const;  // without the way to it

  ModelSpec spec;
  Checkpoint checkpoint;
  ModelWeights weights;
};

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

// Reads the checkpoint ahead, uploads it and lets go of its pages.
Decoder MakeDecoder(const LoadedModel& model, const DecoderOptions& options);

// One line on standard error if the checkpoint has tensors that the model does not use.
void ReportExtraTensors(const LoadedModel& model);

}  // namespace tokline
