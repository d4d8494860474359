// tokline inspect: shows what a model is, what its files contain and how much memory a run takes.
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "harness/cli/commands.h"
#include "harness/cli/kv_size.h"
#include "harness/cli/model_run.h"
#include "harness/cli/output_file.h"
#include "harness/cli/status_line.h"
#include "harness/engine/one_kernel_step.h"
#include "harness/platform/device.h"
#include "harness/platform/printable.h"
#include "harness/record/record.h"
#include "harness/text/chat_template.h"
#include "harness/text/tokenizer.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

struct InspectFlags {
  RunFlags run;
  int32_t batch = 1;
  int64_t context = 0;
  std::filesystem::path json;

  std::vector<Flag> Table() {
    std::vector<Flag> flags;
    run.AddTo(flags);
    run.AddRanksTo(flags);
    flags.insert(flags.end(),
                 {{"--batch", "N", "batch size for the memory of a run (default: 1)",
                   IntegerInto(batch, 1, kMaxBatch)},
                  {"--context", "N",
                   "tokens per sequence for the memory of a run (default: the model's maximum)",
                   IntegerInto(context, 1)},
                  {"--json", "FILE", "write the same facts", TextInto(json)}});
    return flags;
  }
};

Json RopeScalingJson(const ModelSpec& spec) {
  if (!spec.rope_scaling) return nullptr;
  return {{"type", "llama3"},
          {"factor", spec.rope_scaling->factor},
          {"low_freq_factor", spec.rope_scaling->low_freq_factor},
          {"high_freq_factor", spec.rope_scaling->high_freq_factor},
          {"original_positions", spec.rope_scaling->original_positions}};
}

// The shortest number that is this float: 1e-06 instead of 9.999999974752427e-07.
double AsWritten(float value) {
  char text[32] = {};
  std::to_chars(text, text + sizeof(text) - 1, value);
  return std::strtod(text, nullptr);
}

// RoPE settings are included only if the model uses RoPE.
Json SpecJson(const ModelSpec& spec) {
  Json json = {{"family", spec.family},
               {"hidden_size", spec.hidden_size},
               {"intermediate_size", spec.intermediate_size},
               {"num_layers", spec.num_layers},
               {"vocab_size", spec.vocab_size},
               {"max_positions", spec.max_positions},
               {"num_q_heads", spec.num_q_heads},
               {"num_kv_heads", spec.num_kv_heads},
               {"head_dim", spec.head_dim},
               {"norm", Name(spec.norm)},
               {"norm_eps", AsWritten(spec.norm_eps)},
               {"position", Name(spec.position)}};
  if (spec.position == PositionKind::kRope) {
    json["rope_pairing"] = Name(spec.rope_pairing);
    json["rope_theta"] = spec.rope_theta;
    json["rope_scaling"] = RopeScalingJson(spec);
  }
  json["qk_norm"] = spec.qk_norm;
  json["qkv_bias"] = spec.qkv_bias;
  json["output_bias"] = spec.output_bias;
  json["mlp"] = Name(spec.mlp);
  json["mlp_bias"] = spec.mlp_bias;
  json["tied_embeddings"] = spec.tied_embeddings;
  json["dtype"] = Name(spec.dtype);
  json["eos_token_ids"] = spec.eos_token_ids;
  return json;
}

// "yes", "none", or why generate and chat would refuse it.
std::string VerdictOf(const std::filesystem::path& dir, bool tokenizer) {
  std::error_code error;
  try {
    if (!tokenizer) return ChatTemplate::Load(dir) ? "yes" : "none";
    if (!std::filesystem::exists(dir / "tokenizer.json", error)) return "none";
    Tokenizer::Load(dir);
    return "yes";
  } catch (const std::exception& refusal) {
    return StrCat("refused: ", refusal.what());
  }
}

Json TensorsJson(const Checkpoint& checkpoint) {
  Json tensors = Json::array();
  for (const auto& [name, tensor] : checkpoint.Tensors()) {
    tensors.push_back({{"name", name},
                       {"dtype", tensor.dtype},
                       {"shape", tensor.shape},
                       {"bytes", tensor.bytes},
                       {"file", checkpoint.Files()[tensor.file].Path().filename().string()}});
  }
  return tensors;
}

// All facts are 0 if there is no device.
DeviceFacts FactsOf(Device device) {
#if TOKLINE_HAS_CUDA
  if (device == Device::kCuda && CudaDeviceCount() > 0) return QueryDeviceFacts();
#endif
  static_cast<void>(device);
  return {};
}

// Formats the report as two columns, followed by the tensors.
std::string Text(const Json& report) {
  std::string text;
  const auto line = [&](std::string label, const std::string& value) {
    label.resize(24, ' ');
    text += StrCat(label, value, "\n");
  };
  line("model", report["model"].get<std::string>());
  for (const auto& [key, value] : report["spec"].items()) {
    line(key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  line("parameters", report["parameters"].dump());
  line("file_bytes", report["file_bytes"].dump());
  line("weight_bytes", report["weight_bytes"].dump());
  line("kv_bytes_per_token", report["kv_bytes_per_token"].dump());
  for (const char* key : {"tokenizer", "chat_template"}) {
    line(key, Printable(report[key].get<std::string>()));
  }
  const Json& run = report["run"];
  line("decode_steps", run["decode_steps"].get<std::string>());
  text += StrCat("\nmemory of a run on ", run["device"].get<std::string>(), " in ",
                 run["dtype"].get<std::string>(), ", batch ", run["batch"].dump(), ", context ",
                 run["context"].dump(), "\n");
  const auto bytes_lines = [&](const Json& uses) {
    for (const auto& [key, value] : uses.items()) {
      const auto bytes = value.get<int64_t>();
      line(key, StrCat(bytes, " (", BytesText(bytes), ")"));
    }
  };
  bytes_lines(run["memory_bytes"]);
  text += "in addition, on the host\n";
  bytes_lines(run["host_bytes"]);
  if (run["device"] == Name(Device::kCuda) && !run["device_present"]) {
    text += "no CUDA device: the workspace of chunk_decode depends on it and is not counted\n";
  }
  text += StrCat("\n", report["tensors"].size(), " tensors\n");
  for (const Json& tensor : report["tensors"]) {
    const std::string name = Quoted(tensor["name"].get<std::string>());
    text += StrCat(name.substr(1, name.rfind('"') - 1), "  ", tensor["dtype"].get<std::string>(),
                   "  ", tensor["shape"].dump(), "  ", tensor["bytes"].dump(), "\n");
  }
  for (const Json& name : report["extra_tensors"]) {
    text += StrCat("not used: ", Quoted(name.get<std::string>()), "\n");
  }
  for (const Json& name : report["known_buffers"]) {
    text += StrCat("not needed: ", Quoted(name.get<std::string>()), "\n");
  }
  return text;
}

}  // namespace

std::string InspectHelp() {
  InspectFlags flags;
  return FlagHelp(flags.Table()) + RunFlags::AblationHelp();
}

int InspectCommand(const CommandLine& line) {
  InspectFlags flags;
  ParseFlags("tokline inspect", flags.Table(), line.args);
  OutputFile json_file(flags.json);
  const LoadedModel model(flags.run.model);
  const ModelSpec& spec = model.spec;
  Require(flags.context <= spec.max_positions, "--context is ", flags.context, "; the model has ",
          spec.max_positions, " positions");
  const int64_t context = flags.context == 0 ? spec.max_positions : flags.context;
  DecoderOptions options = flags.run.Options(spec, flags.batch, context);
  Require(flags.run.kv.fraction == 0,
          "--kv-fraction depends on what is free after a run's warm-up, but inspect runs nothing; "
          "use --kv-bytes or --kv-pages");
  DecoderConfig(spec, options, {});  // first refuses a context beyond the model's positions
  SizeKvForBatch(flags.run.kv, model, options);
  const DeviceFacts facts = FactsOf(options.device);
  const MemoryNeeds memory = MemoryNeedsOf(spec, options, facts);
  Json uses = ToJson(memory);
  uses["total"] = memory.Total();

  const Json report = {{"model", model.Name()},
                       {"spec", SpecJson(spec)},
                       {"parameters", model.weights.parameters},
                       {"file_bytes", model.checkpoint.FileBytes()},
                       {"weight_bytes", model.weights.bytes},
                       {"kv_bytes_per_token", spec.KvBytesPerToken(options.dtype)},
                       {"tokenizer", VerdictOf(model.checkpoint.Dir(), true)},
                       {"chat_template", VerdictOf(model.checkpoint.Dir(), false)},
                       {"run",
                        {{"device", Name(options.device)},
                         {"device_present", options.device == Device::kCpu || facts.sm_count > 0},
                         {"dtype", Name(options.dtype)},
                         {"batch", flags.batch},
                         {"context", context},
                         {"decode_steps", StepPathText(spec, DecoderConfig(spec, options, facts))},
                         {"memory_bytes", std::move(uses)},
                         {"host_bytes",
                          {{"mapped_files", model.checkpoint.FileBytes()},
                           {"step_arrays", memory.staging_bytes},
                           {"total", model.checkpoint.FileBytes() + memory.staging_bytes}}}}},
                       {"extra_tensors", model.weights.extra_tensors},
                       {"known_buffers", model.weights.known_buffers},
                       {"tensors", TensorsJson(model.checkpoint)}};
  Print(Text(report));
  json_file.CommitJson(report);
  return kSuccess;
}

}  // namespace tokline
