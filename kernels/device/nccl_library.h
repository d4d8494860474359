// NCCL, loaded at run time: programs that do not use it run where it is missing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/common/dtype.h"

struct CUstream_st;
struct ncclComm;

namespace tokline {

struct NcclCommDeleter {
  void operator()(ncclComm* communicator) const noexcept;
};
using UniqueNcclComm = std::unique_ptr<ncclComm, NcclCommDeleter>;

// "2.28.9". Like the functions below, throws RuntimeFailure if libnccl.so.2 is not found, and
// CudaError with the call and NCCL's reason if a call fails.
std::string NcclVersion();

// Makes one communicator for each of this process's devices 0 to `ranks` - 1.
std::vector<UniqueNcclComm> MakeNcclComms(int32_t ranks);

// The identifier on which the processes of a group have to agree.
struct NcclId {
  char bytes[128] = {};
};
NcclId NewNcclId();
// Makes the communicator of the current device in a group of `ranks` processes, all of which call
// this.
UniqueNcclComm JoinNccl(const NcclId& id, int32_t ranks, int32_t rank);

// Enqueues out = sum over the ranks of x, `count` elements; out may be x.
void NcclSum(DType dtype, const void* x, void* out, int64_t count, ncclComm* communicator,
             CUstream_st* stream);

}  // namespace tokline
