// Implements StepStamps with a kernel of one thread that appends the device's clock to a list.
#include <algorithm>

#include "harness/measure/step_stamps.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx/global_timer.cuh"
#include "kernels/device/rehearsal.h"

namespace tokline {
namespace {

__global__ void StampKernel(int64_t* count, int64_t* stamps, int64_t room) {
  const int64_t index = (*count)++;
  if (index < room) stamps[index] = static_cast<int64_t>(ptx::GlobalTimerNs());
}

}  // namespace

StepStamps::StepStamps(Backend& backend, int64_t steps)
    : backend_(backend),
      room_(2 * steps + 1),
      stamps_(backend.Allocate((1 + room_) * int64_t{sizeof(int64_t)})) {
  const Rehearsal rehearsal;  // while no rank waits for another
  Stamp();
}

void StepStamps::Begin(StepOp op, std::string_view) {
  op_ = op;
  if (op == StepOp::kEmbedding) Stamp();
}

void StepStamps::End() {
  if (op_ == StepOp::kSampling) Stamp();
}

void StepStamps::Restart() { backend_.Zero(stamps_.data(), sizeof(int64_t)); }

std::vector<int64_t> StepStamps::Read() {
  std::vector<int64_t> host(static_cast<size_t>(1 + room_));
  backend_.Download(host.data(), stamps_.data(), stamps_.bytes());
  const int64_t taken = std::min(host.front(), room_);
  return {host.begin() + 1, host.begin() + 1 + taken};
}

// Not dependent: a stamp is taken when the kernel before it has ended.
void StepStamps::Stamp() {
  auto* count = reinterpret_cast<int64_t*>(stamps_.data());
  LaunchKernel(StampKernel, {.grid = dim3(1), .block = dim3(1)},
               {.stream = backend_.stream(), .dependent = false}, count, count + 1, room_);
}

}  // namespace tokline
