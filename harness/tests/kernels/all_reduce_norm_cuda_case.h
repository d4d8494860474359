// What tests of all_reduce_norm on devices have in common: the exchange buffers of a group, and the
// tensors of a rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "harness/tests/kernels/all_reduce_norm_case.h"
#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/message_of.h"
#include "kernels/all_reduce_norm/all_reduce_norm.h"
#include "kernels/all_reduce_norm/all_reduce_norm_plan.h"
#include "kernels/common/error.h"

namespace tokline::testing {

// Whether the variant takes these rows: each rank owns one, or a slab of them.
inline bool Takes(AllReduceNormVariant variant, int32_t ranks, int64_t tokens) {
  if (variant == AllReduceNormVariant::kSlabs) return SlabsOf(ranks, tokens).slabs >= ranks;
  return variant != AllReduceNormVariant::kTwoShot || tokens >= ranks;
}

// The exchange buffers of a group, each on the device of its rank. Zeros lie behind each.
class AllReduceExchange {
 public:
  static constexpr int64_t kBytesBehind = 4096;

  AllReduceExchange(int32_t ranks, int64_t max_tokens, int64_t max_hidden,
                    bool own_devices = false) {
    peers_.world_size = ranks;
    peers_.slab_bytes = AllReduceNormSlabBytes(ranks, max_tokens, max_hidden);
    peers_.bytes = AllReduceNormBufferBytes(ranks, max_tokens, max_hidden) + peers_.slab_bytes;
    for (int32_t r = 0; r < ranks; ++r) {
      if (own_devices) TOKLINE_CUDA(cudaSetDevice(r));
      buffers_.emplace_back(std::vector<char>(static_cast<size_t>(peers_.bytes + kBytesBehind)));
      TOKLINE_CUDA(cudaDeviceSynchronize());
      peers_.buffers[r] = buffers_.back().data();
    }
    if (own_devices) TOKLINE_CUDA(cudaSetDevice(0));
  }

  PeerBuffers Peers(int32_t rank) const {
    PeerBuffers peers = peers_;
    peers.rank = rank;
    return peers;
  }
  DeviceBuffer& Buffer(int32_t rank) { return buffers_[static_cast<size_t>(rank)]; }
  AllReduceHeader Header(int32_t rank) {
    AllReduceHeader header{};
    Buffer(rank).CopyTo(&header, sizeof(header));
    return header;
  }
  void SetHeader(int32_t rank, const AllReduceHeader& header) {
    Buffer(rank).CopyFrom(&header, sizeof(header));
  }

 private:
  PeerBuffers peers_;
  std::vector<DeviceBuffer> buffers_;
};

// The tensors of one rank on the current device. Each of several rounds has outputs of its own, so
// that none hides what another has written.
struct AllReduceRankTensors {
  int64_t rounds;
  DeviceBuffer partial, residual, weight, residual_out, out;

  AllReduceRankTensors(const AllReduceCase& c, int32_t rank, int64_t all_rounds = 1)
      : rounds(all_rounds),
        partial(ToDevice(c.partials[static_cast<size_t>(rank)])),
        residual(ToDevice(c.residual)),
        weight(ToDevice(c.weight)),
        residual_out(rounds * std::ssize(c.residual.bytes())),
        out(residual_out.bytes()) {
    ClearOutputs();
  }

  void ClearOutputs() {
    const std::vector<unsigned char> nan(static_cast<size_t>(out.bytes()), 0xff);
    residual_out.CopyFrom(nan.data(), out.bytes());
    out.CopyFrom(nan.data(), out.bytes());
    TOKLINE_CUDA(cudaDeviceSynchronize());  // the streams of the ranks do not wait for copies
  }

  AllReduceNormParams Params(const AllReduceCase& c, const PeerBuffers& peers,
                             int64_t round = 0) const {
    const int64_t at = round * (out.bytes() / rounds);
    AllReduceNormParams params =
        c.Params(peers.rank, residual_out.as<char>() + at, out.as<char>() + at);
    for (const void*& other : params.partials) other = nullptr;
    params.partials[peers.rank] = partial.data();
    if (params.residual) params.residual = residual.data();
    if (params.weight) params.weight = weight.data();
    params.peers = peers;
    return params;
  }
  // The outputs of the first round are right, and those of all others are the same.
  ::testing::AssertionResult Check(const AllReduceCase& c) const {
    HostTensor first[] = {c.NewOut(), c.NewOut()};
    HostTensor* next = first;
    for (const DeviceBuffer* buffer : {&residual_out, &out}) {
      const auto all = buffer->ToHost<unsigned char>();
      const int64_t bytes = buffer->bytes() / rounds;
      for (int64_t i = bytes; i < buffer->bytes(); ++i) {
        if (all[i] != all[i - bytes]) {
          return ::testing::AssertionFailure()
                 << (buffer == &out ? "out" : "residual_out") << " of round " << i / bytes
                 << " differs from that of the round before in element "
                 << i % bytes / SizeOf(c.setup.dtype);
        }
      }
      (next++)->bytes().assign(all.begin(), all.begin() + bytes);
    }
    return c.Check(first[0], first[1]);
  }
};

inline std::string ErrorOf(const PeerBuffers& peers) {
  return MessageOf<RuntimeFailure>([&] { RequireAllReduced(peers, nullptr); });
}

}  // namespace tokline::testing
