// Declares the part of NCCL that is used and finds it in the library with dlopen.
#include "kernels/device/nccl_library.h"

#include <dlfcn.h>

#include <cstddef>

#include "kernels/common/error.h"
#include "kernels/device/rehearsal.h"

namespace tokline {
namespace {

// The used part of the declarations in nccl.h. They belong to NCCL's binary interface.
using Result = int;  // ncclResult_t; 0 is success
constexpr int kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9;
constexpr int kSum = 0;

struct Nccl {
  const char* (*error_string)(Result) = nullptr;
  Result (*version)(int*) = nullptr;
  Result (*init_all)(ncclComm**, int, const int*) = nullptr;
  Result (*new_id)(NcclId*) = nullptr;
  Result (*init_rank)(ncclComm**, int, NcclId, int) = nullptr;
  Result (*destroy)(ncclComm*) = nullptr;
  Result (*all_reduce)(const void*, void*, size_t, int, int, ncclComm*, CUstream_st*) = nullptr;

  static const Nccl& Get() {
    static const Nccl nccl;
    return nccl;
  }

  void Check(Result result, const char* call) const {
    if (result != 0) throw CudaError(StrCat(call, ": ", error_string(result)));
  }

 private:
  Nccl() {
    void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw RuntimeFailure(StrCat("NCCL cannot be loaded: ", ::dlerror(),
                                  "; install it, or name its folder in LD_LIBRARY_PATH"));
    }
    Load(library, error_string, "ncclGetErrorString");
    Load(library, version, "ncclGetVersion");
    Load(library, init_all, "ncclCommInitAll");
    Load(library, new_id, "ncclGetUniqueId");
    Load(library, init_rank, "ncclCommInitRank");
    Load(library, destroy, "ncclCommDestroy");
    Load(library, all_reduce, "ncclAllReduce");
  }

  template <typename Function>
  static void Load(void* library, Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    if (function == nullptr) throw RuntimeFailure(StrCat("libnccl.so.2 has no ", name));
  }
};

int TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return kFloat32;
    case DType::kBf16:
      return kBfloat16;
    case DType::kF16:
      return kFloat16;
  }
  throw InvalidArgument("NcclSum: unknown dtype");
}

}  // namespace

void NcclCommDeleter::operator()(ncclComm* communicator) const noexcept {
  Nccl::Get().destroy(communicator);
}

std::string NcclVersion() {
  const Nccl& nccl = Nccl::Get();
  int code = 0;  // 22809 is 2.28.9
  nccl.Check(nccl.version(&code), "ncclGetVersion");
  return StrCat(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

std::vector<UniqueNcclComm> MakeNcclComms(int32_t ranks) {
  const Nccl& nccl = Nccl::Get();
  std::vector<ncclComm*> bare(static_cast<size_t>(ranks));
  nccl.Check(nccl.init_all(bare.data(), ranks, nullptr), "ncclCommInitAll");
  std::vector<UniqueNcclComm> owned;
  for (ncclComm* communicator : bare) owned.emplace_back(communicator);
  return owned;
}

NcclId NewNcclId() {
  const Nccl& nccl = Nccl::Get();
  NcclId id;
  nccl.Check(nccl.new_id(&id), "ncclGetUniqueId");
  return id;
}

UniqueNcclComm JoinNccl(const NcclId& id, int32_t ranks, int32_t rank) {
  const Nccl& nccl = Nccl::Get();
  ncclComm* communicator = nullptr;
  nccl.Check(nccl.init_rank(&communicator, ranks, id, rank), "ncclCommInitRank");
  return UniqueNcclComm(communicator);
}

void NcclSum(DType dtype, const void* x, void* out, int64_t count, ncclComm* communicator,
             CUstream_st* stream) {
  if (Rehearsal::IsOn()) return;  // NCCL has loaded its kernels with the communicator
  const Nccl& nccl = Nccl::Get();
  nccl.Check(nccl.all_reduce(x, out, static_cast<size_t>(count), TypeOf(dtype), kSum, communicator,
                             stream),
             "ncclAllReduce");
}

}  // namespace tokline
