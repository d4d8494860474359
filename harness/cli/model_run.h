// The flags that several commands share: the model, and where and how it runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/cli/kv_size.h"
#include "harness/engine/ablation.h"
#include "harness/engine/decoder_config.h"
#include "harness/models/loaded_model.h"
#include "harness/platform/flags.h"

namespace tokline {

// The folder of the embedded model: next to the program if it is installed, otherwise in the source
// tree from which it was built.
std::filesystem::path DefaultModelDir();

// The flags of every command that runs a model, with their defaults.
struct RunFlags {
  std::filesystem::path model = DefaultModelDir();
  std::optional<Device> device;  // if empty: cuda if there is a usable device, otherwise cpu
  std::optional<DType> dtype;    // if empty: f32 on the CPU; on CUDA the checkpoint's, or bf16 for
                                 // f32
  int32_t page_size = DecoderOptions().page_size;
  KvSize kv;
  AblationSet ablate;
  std::string ablated;  // as the user named them, separated by commas

  std::optional<uint64_t> random_seed;  // of --weights random
  int32_t ranks = DecoderOptions().ranks;
  std::chrono::milliseconds rank_limit = DecoderOptions().rank_limit;

  void AddTo(std::vector<Flag>& flags);
  // Adds --tp and --rank-limit.
  void AddRanksTo(std::vector<Flag>& flags);
  // Adds --rank-limit, for a command whose --tp is its own.
  void AddRankLimitTo(std::vector<Flag>& flags);
  // Adds --weights, for commands for which the model's output does not matter.
  void AddWeightsTo(std::vector<Flag>& flags);
  LoadedModel Load() const;
  // The names that --ablate takes, one aligned line per name, to be printed below the flags.
  static std::string AblationHelp();
  Device ChosenDevice() const;
  // The implementation's name in record rows: "cuda" or "reference", the number of ranks if there
  // are several, and what was ablated.
  std::string Implementation() const;
  // Options for max_batch sequences of max_context tokens. kv_size.h applies the KV cache's size.
  DecoderOptions Options(const ModelSpec& spec, int32_t max_batch, int64_t max_context) const;
  // The same for one sequence that someone waits for: on the CPU, where a token takes long, steps
  // are short, so that an interrupt is noticed soon and progress can be shown.
  DecoderOptions InteractiveOptions(const ModelSpec& spec, int64_t max_context) const;
};

inline constexpr std::string_view kRanksHelp =
    "divide the model among N ranks: as many GPUs, or threads on the CPU (default: 1, or the "
    "processes of mpirun)";
// The number of ranks if --tp is not given.
int32_t DefaultRanks();
// Checks the values of --tp.
void TakeRanks(std::string_view flag, std::span<const int64_t> numbers);

// Prints one line to standard error if the checkpoint has tensors that the model does not use.
void ReportExtraTensors(const LoadedModel& model);

}  // namespace tokline
