#include "harness/engine/make_decoder.h"

#include "kernels/common/error.h"

namespace tokline {
namespace {

// Reads a checkpoint ahead. The destructor releases its mapped pages.
class ResidentCheckpoint {
 public:
  explicit ResidentCheckpoint(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
    for (const auto& [name, tensor] : checkpoint.Tensors()) {
      checkpoint.Prefetch(tensor.data, tensor.bytes);
    }
  }
  ~ResidentCheckpoint() {
    for (const MappedFile& file : checkpoint_.Files()) file.Release(0, file.Size());
  }
  ResidentCheckpoint(const ResidentCheckpoint&) = delete;
  ResidentCheckpoint& operator=(const ResidentCheckpoint&) = delete;

 private:
  const Checkpoint& checkpoint_;
};

}  // namespace

Decoder MakeDecoder(const LoadedModel& model, const DecoderOptions& options) {
  const ResidentCheckpoint resident(model.checkpoint);
  std::unique_ptr<RemoteRanks> remote;
  if (ProcessGroup* const processes = options.Processes()) {
    // Throws here what all ranks would otherwise throw.
    const DecoderConfig config(model.spec, options, {});
    Require(options.ranks == processes->Size(), "the model is to be divided among ", options.ranks,
            " ranks; mpirun has started ", processes->Size());
    Require(options.device == Device::kCpu || model.spec.norm == NormKind::kRms,
            "a model of family ", model.spec.family,
            " has layer norms; the GPUs of several processes sum over NCCL, which "
            "needs RMS norms");
    Require(options.device == Device::kCpu || (!config.split_input_norm && !config.split_mlp),
            "--ablate rmsnorm_qkv and fused_mlp leave sums without the norm that follows; the GPUs "
            "of several processes sum over NCCL, which needs it");
    remote = std::make_unique<RemoteRanks>(*processes, model, options);
  }
  const auto make_backend = [&](const RankPlace& place) {
    return MakeBackend(options.device, place);
  };
  return Decoder(model.spec, model.weights, options, make_backend, std::move(remote));
}

}  // namespace tokline
