// The flags for the model, its device, dtype, KV cache and ablations, and the decoder options that
// follow from them.
#include "harness/cli/model_run.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "harness/cli/commands.h"
#include "harness/cli/status_line.h"
#include "harness/engine/process_group.h"
#include "harness/models/model_location.h"
#include "harness/platform/device.h"
#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr std::array<std::string_view, 3> kDeviceNames = {"auto", "cpu", "cuda"};
constexpr std::array kDTypes = {DType::kF32, DType::kBf16, DType::kF16};

DType ParseDType(std::string_view text) {
  std::array<std::string_view, kDTypes.size()> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = Name(kDTypes[i]);
  return kDTypes[ParseChoice("--dtype", text, names)];
}

// Ends the process when a rank hangs. That rank still uses the objects that would be destroyed, so
// nothing is destroyed.
void EndProcess(const std::string& line) {
  std::fprintf(stderr, "tokline: %s\n", line.c_str());
  std::_Exit(kFailure);
}

}  // namespace

std::filesystem::path DefaultModelDir() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path installed =
      program.parent_path().parent_path() / "share" / "tokline" / "models" / "qwen3-lookup";
  if (!error && std::filesystem::exists(installed / "config.json", error)) return installed;
  return TOKLINE_DEFAULT_MODEL_DIR;
}

void RunFlags::AddTo(std::vector<Flag>& flags) {
  flags.insert(flags.end(),
               {{"--model", "DIR|NAME",
                 "folder, name made by scripts/model, or ORG/NAME[@REV] in the Hugging Face cache "
                 "(default: embedded)",
                 [this](auto, auto text) { model = FindModel(text); }},
                {"--device", "cpu|cuda|auto",
                 "auto: cuda if there is a device, otherwise cpu (default: auto)",
                 [this](auto flag, auto text) {
                   constexpr std::array<std::optional<Device>, 3> kDevices = {
                       std::nullopt, Device::kCpu, Device::kCuda};
                   device = kDevices[ParseChoice(flag, text, kDeviceNames)];
                 }},
                {"--dtype", "f32|bf16|f16",
                 "storage type (default: f32 on cpu; the checkpoint's or bf16 on cuda)",
                 [this](auto, auto text) { dtype = ParseDType(text); }},
                {"--page-size", "N",
                 "tokens per page of the KV cache, a power of two from 16 (default: 256; chat: 64)",
                 [this](auto flag, auto text) {
                   IntegerInto(page_size, 16, int64_t{1} << 20)(flag, text);
                   Require(std::has_single_bit(static_cast<uint32_t>(page_size)), flag, " is ",
                           Quoted(text), "; it must be a power of two from 16 to 1048576");
                 }}});
  kv.AddTo(flags);
  flags.push_back(
      {"--ablate", "NAME",
       "replace ops by their plain counterparts; repeat it, or separate names by commas",
       [this](auto, auto names) {
         ablated += StrCat(ablated.empty() ? "" : ",", names);
         ablate = ParseAblations(ablated);
       },
       /*repeats=*/true});
}

int32_t DefaultRanks() {
  const ProcessGroup* const processes = ProcessGroup::Get();
  return processes == nullptr ? 1 : processes->Size();
}

void TakeRanks(std::string_view flag, std::span<const int64_t> numbers) {
  const ProcessGroup* const processes = ProcessGroup::Get();
  for (const int64_t number : numbers) {
    Require(processes == nullptr || number == processes->Size(), flag, " has ", number,
            "; mpirun has started ", DefaultRanks(), " processes, each of which is a rank");
  }
}

void RunFlags::AddRanksTo(std::vector<Flag>& flags) {
  ranks = DefaultRanks();
  flags.push_back({"--tp", "N", kRanksHelp, [this](auto flag, auto text) {
                     ranks = static_cast<int32_t>(ParseInteger(flag, text, 1, kMaxRanks));
                     TakeRanks(flag, {{ranks}});
                   }});
  AddRankLimitTo(flags);
}

void RunFlags::AddRankLimitTo(std::vector<Flag>& flags) {
  flags.push_back({"--rank-limit", "S",
                   "end when a rank has kept the others waiting for S seconds (default: 60)",
                   [this](auto flag, auto text) {
                     constexpr int64_t kDay = 86'400;
                     rank_limit = std::chrono::seconds(ParseInteger(flag, text, 1, kDay));
                   }});
}

void RunFlags::AddWeightsTo(std::vector<Flag>& flags) {
  flags.push_back({"--weights", "random[:SEED]",
                   "draw the weights on the device; the model needs a config.json alone",
                   [this](auto flag, auto text) {
                     constexpr std::string_view kRandom = "random";
                     const std::string_view rest =
                         text.substr(std::min(text.size(), kRandom.size()));
                     Require(text.starts_with(kRandom) && (rest.empty() || rest[0] == ':'), flag,
                             " is ", Quoted(text), "; it must be random or random:SEED");
                     random_seed = rest.empty() ? 0 : ParseSeed(flag, rest.substr(1));
                   }});
}

LoadedModel RunFlags::Load() const {
  if (random_seed) return LoadedModel(model, *random_seed);
  LoadedModel loaded(model);
  CheckElements(loaded.checkpoint, loaded.weights);
  return loaded;
}

std::string RunFlags::AblationHelp() {
  std::string help = "\nNames for --ablate, and what runs instead:\n";
  size_t width = 0;
  for (const AblationEntry& entry : AllAblations()) width = std::max(width, entry.name.size());
  for (const AblationEntry& entry : AllAblations()) {
    std::string name(entry.name);
    name.resize(width + 2, ' ');
    help += StrCat("  ", name, entry.instead, "\n");
  }
  return help;
}

Device RunFlags::ChosenDevice() const {
  if (device) return *device;
  return CudaDeviceCount() > 0 ? Device::kCuda : Device::kCpu;
}

std::string RunFlags::Implementation() const {
  return StrCat(
      ChosenDevice() == Device::kCuda ? "cuda" : "reference",
      ranks == 1 ? "" : StrCat(" with ", ranks, ProcessGroup::Get() ? " processes" : " ranks"),
      ablated.empty() ? "" : " without " + ablated);
}

DecoderOptions RunFlags::Options(const ModelSpec& spec, int32_t max_batch,
                                 int64_t max_context) const {
  DecoderOptions options;
  options.device = ChosenDevice();
  options.ranks = ranks;
  options.processes = ProcessGroup::Get();
  options.rank_limit = rank_limit;
  options.on_hang = EndProcess;
  if (dtype) {
    options.dtype = *dtype;
  } else if (options.device == Device::kCuda) {
    options.dtype = spec.dtype == DType::kF16 ? DType::kF16 : DType::kBf16;
  }
  options.max_batch = max_batch;
  options.max_context = max_context;
  options.page_size = page_size;
  options.keep_logits = false;  // a command that reads them says so
  options.ablate = ablate;
  return options;
}

DecoderOptions RunFlags::InteractiveOptions(const ModelSpec& spec, int64_t max_context) const {
  // Enough that converting the weights of each step to double takes a small part of its time.
  constexpr int64_t kHostTokens = 32;
  DecoderOptions options = Options(spec, 1, max_context);
  if (options.device == Device::kCpu) options.token_budget = kHostTokens;
  return options;
}

void ReportExtraTensors(const LoadedModel& model) {
  const std::vector<std::string>& extra = model.weights.extra_tensors;
  if (extra.empty()) return;
  constexpr size_t kNamed = 3;
  const std::string names = Joined(std::span(extra).first(std::min(kNamed, extra.size())),
                                   [](const std::string& name) { return Quoted(name); });
  PrintStatus(StrCat("[", extra.size(), " tensors of the checkpoint are not used: ", names,
                     extra.size() > kNamed ? ", ...; tokline inspect lists them]" : "]"));
}

}  // namespace tokline
