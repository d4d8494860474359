// Implements a rank of the measurement on several GPUs.
#include "benches/peer_rank.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>

#include "benches/barrier_all_reduce.h"
#include "harness/platform/random_values.h"
#include "kernels/common/error.h"
#include "kernels/norm/norm.h"
#include "reference/all_reduce_norm.h"
#include "reference/elements.h"

namespace tokline::bench {
namespace {

constexpr float kNormEps = 1e-6f;

using Bytes = PeerProblem::Bytes;

AllReduceNormVariant VariantOf(Way way) {
  switch (way) {
    case Way::kTwoShot:
      return AllReduceNormVariant::kTwoShot;
    case Way::kSlabs:
      return AllReduceNormVariant::kSlabs;
    default:
      return AllReduceNormVariant::kOneShot;
  }
}

Bytes Random(int64_t elements, uint64_t seed) {
  Bytes bytes(static_cast<size_t>(elements * SizeOf(kPeerDType)));
  FillRandom(kPeerDType, bytes.data(), 0, elements, seed, 0);
  return bytes;
}

// Throws RuntimeFailure unless the error of every element is within `units` times 2^-7 of its value
// or, if that is smaller, of the root mean square of all elements. NCCL rounds the sum before the
// residual is added, and its norm follows. The root mean square of the errors has no bound here.
void Compare(const Bytes& expected, const DeviceBuffer& device, double units, const char* what) {
  const Bytes actual = device.ToHost<unsigned char>();
  const int64_t count = std::ssize(expected) / SizeOf(kPeerDType);
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double e = LoadElement(kPeerDType, expected.data(), i);
    squares += e * e;
  }
  const double rms = std::sqrt(squares / static_cast<double>(count));
  for (int64_t i = 0; i < count; ++i) {
    const double e = LoadElement(kPeerDType, expected.data(), i);
    const double a = LoadElement(kPeerDType, actual.data(), i);
    if (std::abs(a - e) <= units * Epsilon(kPeerDType) * std::max(std::abs(e), rms)) continue;
    throw RuntimeFailure(
        StrCat(what, " is wrong: element ", i, " is ", a, "; ", e, " was expected"));
  }
}

}  // namespace

PeerProblem::PeerProblem(const PeerShape& of, int32_t ranks)
    : shape(of), residual(Random(of.Elements(), 1)), weight(Random(of.hidden, 2)) {
  uint64_t seed = 3;
  for (Set& set : sets) {
    set.sum = set.out = Bytes(residual.size());
    AllReduceNormParams params{.dtype = kPeerDType,
                               .num_tokens = of.tokens,
                               .hidden_size = of.hidden,
                               .eps = kNormEps,
                               .partial_stride = of.hidden,
                               .residual = residual.data(),
                               .residual_stride = of.hidden,
                               .weight = weight.data(),
                               .residual_out = set.sum.data(),
                               .residual_out_stride = of.hidden,
                               .out = set.out.data(),
                               .out_stride = of.hidden,
                               .peers = {.world_size = ranks}};
    for (int32_t r = 0; r < ranks; ++r) set.partials.push_back(Random(of.Elements(), seed++));
    for (int32_t r = 0; r < ranks; ++r) params.partials[r] = set.partials[r].data();
    AllReduceNormReference(params);
  }
}

PeerRank::PeerRank(const PeerProblem& problem, const PeerGpu& gpu)
    : problem_(problem), gpu_(gpu), residual_(problem.residual), weight_(problem.weight) {
  for (const PeerProblem::Set& set : problem.sets) {
    partials_.emplace_back(set.partials[static_cast<size_t>(gpu.peers.rank)]);
    sums_.emplace_back(problem.shape.Bytes());
    outs_.emplace_back(problem.shape.Bytes());
  }
}

void PeerRank::Launch(Way way, int launches) const {
  const PeerShape& shape = problem_.shape;
  for (int i = 0; i < launches; ++i) {
    const auto set = static_cast<size_t>(i / kLaunchesOfASet % kPeerSets);
    AllReduceNormParams params{.dtype = kPeerDType,
                               .variant = VariantOf(way),
                               .num_tokens = shape.tokens,
                               .hidden_size = shape.hidden,
                               .eps = kNormEps,
                               .partial_stride = shape.hidden,
                               .residual = residual_.data(),
                               .residual_stride = shape.hidden,
                               .weight = weight_.data(),
                               .residual_out = sums_[set].data(),
                               .residual_out_stride = shape.hidden,
                               .out = outs_[set].data(),
                               .out_stride = shape.hidden,
                               .peers = gpu_.peers};
    params.partials[gpu_.peers.rank] = partials_[set].data();
    const LaunchOptions options{.stream = gpu_.stream.get(),
                                .dependent = way != Way::kOneShotPlain && i > 0};
    if (way == Way::kBarrier) {
      LaunchBarrier(params, set);
    } else if (way == Way::kNccl) {
      LaunchOverNccl(params, gpu_.communicator.get(), options);
    } else {
      tokline::Launch(params, options);
    }
  }
}

void PeerRank::Poison() const {
  for (const std::vector<DeviceBuffer>* buffers : {&sums_, &outs_}) {
    for (const DeviceBuffer& buffer : *buffers) {
      TOKLINE_CUDA(cudaMemsetAsync(buffer.data(), 0xff, static_cast<size_t>(buffer.bytes()),
                                   gpu_.stream.get()));
    }
  }
  TOKLINE_CUDA(cudaDeviceSynchronize());  // waits for the uploads of the inputs, too
}

void PeerRank::Check(Way way) const {
  TOKLINE_CUDA(cudaStreamSynchronize(gpu_.stream.get()));
  if (IsOurs(way)) RequireAllReduced(gpu_.peers, gpu_.stream.get());
  for (size_t set = 0; set < kPeerSets; ++set) {
    Compare(problem_.sets[set].sum, sums_[set], IsOurs(way) ? 1 : 2, "residual_out");
    Compare(problem_.sets[set].out, outs_[set], IsOurs(way) ? 4 : 8, "out");
  }
}

UniqueGraphExec PeerRank::Capture(Way way) const {
  UniqueGraphExec graph = CaptureGraph(
      gpu_.stream.get(), [&] { Launch(way, problem_.shape.Launches()); },
      problem_.shape.Launches());
  TOKLINE_CUDA(cudaGraphUpload(graph.get(), gpu_.stream.get()));
  TOKLINE_CUDA(cudaStreamSynchronize(gpu_.stream.get()));
  return graph;
}

double PeerRank::Replay(const UniqueGraphExec& graph,
                        const std::function<void()>& meanwhile) const {
  TOKLINE_CUDA(cudaGraphLaunch(graph.get(), gpu_.stream.get()));
  TOKLINE_CUDA(cudaEventRecord(begin_.get(), gpu_.stream.get()));
  TOKLINE_CUDA(cudaGraphLaunch(graph.get(), gpu_.stream.get()));
  TOKLINE_CUDA(cudaEventRecord(end_.get(), gpu_.stream.get()));
  meanwhile();
  TOKLINE_CUDA(cudaStreamSynchronize(gpu_.stream.get()));
  return ElapsedUs(begin_, end_) / problem_.shape.Launches();
}

// The sum is written where NCCL would write it, and the norm follows.
void PeerRank::LaunchBarrier(const AllReduceNormParams& params, size_t set) const {
  const void* partials[kMaxRanks] = {};
  for (size_t r = 0; r < ranks_.size(); ++r) partials[r] = ranks_[r]->Partial(set);
  LaunchBarrierAllReduce(params.peers.world_size, params.peers.rank, partials, gpu_.barriers,
                         problem_.shape.Elements(), params.residual_out, gpu_.stream.get());
  tokline::Launch(NormParams{.dtype = params.dtype,
                             .num_tokens = params.num_tokens,
                             .hidden_size = params.hidden_size,
                             .eps = params.eps,
                             .x = params.residual_out,
                             .x_stride = params.hidden_size,
                             .add = params.residual,
                             .add_stride = params.residual_stride,
                             .weight = params.weight,
                             .residual_out = params.residual_out,
                             .residual_out_stride = params.residual_out_stride,
                             .out = params.out,
                             .out_stride = params.out_stride},
                  {.stream = gpu_.stream.get(), .dependent = true});
}

}  // namespace tokline::bench
