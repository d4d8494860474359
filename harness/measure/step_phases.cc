#include "harness/measure/step_phases.h"

#include <array>

#include "kernels/common/error.h"
#include "kernels/decode_step/decode_step.h"

namespace tokline {
namespace {

constexpr std::array<StepOp, kDecodeStepPhases> kPhasesOfLayer = {
    StepOp::kQkv, StepOp::kChunkDecode, StepOp::kAttentionOutput, StepOp::kGateUp, StepOp::kDown};

int64_t StampsOfBlock(int64_t num_layers) {
  return DecodeStepStamps(static_cast<int32_t>(num_layers));
}

}  // namespace

PhaseObserver::PhaseObserver(Decoder& decoder)
    : backend_(decoder.GetBackend()),
      stamps_(
          backend_.Allocate(backend_.facts().sm_count * StampsOfBlock(decoder.Spec().num_layers) *
                            int64_t{sizeof(int64_t)})) {}

void PhaseObserver::AppendTo(std::vector<int64_t>& read) const {
  const size_t before = read.size();
  read.resize(before + static_cast<size_t>(stamps_.bytes()) / sizeof(int64_t));
  backend_.Download(read.data() + before, stamps_.data(), stamps_.bytes());
}

PhaseShares SharesOfPhases(std::span<const int64_t> stamps, int64_t num_layers) {
  Require(num_layers >= 1, "num_layers is ", num_layers, "; it must be >= 1");
  const auto per_block = static_cast<size_t>(StampsOfBlock(num_layers));
  Require(!stamps.empty() && stamps.size() % per_block == 0, "there are ", stamps.size(),
          " stamps; each block writes ", per_block, " in ", num_layers, " layers");
  PhaseShares shares;  // cycles, until all are known
  double all = 0;
  for (size_t i = 0; i < stamps.size(); ++i) {
    const size_t block = i / per_block, place = i % per_block;
    if (stamps[i] == 0) {
      throw RuntimeFailure(
          StrCat("block ", block, " has not written stamp ", place, " of ", per_block));
    }
    if (place == 0) continue;
    const int64_t taken = stamps[i] - stamps[i - 1];
    if (taken <= 0) {
      throw RuntimeFailure(StrCat("stamp ", place, " of block ", block, " is ", stamps[i],
                                  ", that before it ", stamps[i - 1], "; they must ascend"));
    }
    const StepOp phase = place + 1 == per_block
                             ? StepOp::kLmHead
                             : kPhasesOfLayer[(place - 1) % kPhasesOfLayer.size()];
    shares[phase] += static_cast<double>(taken);
    all += static_cast<double>(taken);
  }
  for (auto& [phase, share] : shares) share /= all;
  return shares;
}

}  // namespace tokline
