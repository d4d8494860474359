#include "harness/engine/make_decoder.h"

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
  return Decoder(model.spec, model.weights, options);
}

}  // namespace tokline
