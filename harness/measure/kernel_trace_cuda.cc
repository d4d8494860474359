// Implements KernelTrace with CUPTI's activity records.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>

#include "harness/measure/kernel_trace.h"
#include "kernels/device/cuda_check.h"

struct CUctx_st;

namespace tokline {
namespace {

// The part of CUPTI's C interface that is used here. Toolkits installed from a package index come
// without <cupti.h>. Only the beginning of each record is declared; it has not changed from CUDA 11
// to 13.
constexpr int kSuccess = 0;
constexpr int kNoMoreRecords = 12;  // CUPTI_ERROR_MAX_LIMIT_REACHED
constexpr int kKindConcurrentKernel = 10;
constexpr uint32_t kFlushForced = 1;
struct Record {
  int32_t kind;
};
struct KernelRecord {
  int32_t kind;
  uint8_t cache_config, shared_config;
  uint16_t registers;
  int32_t cache_requested, cache_executed;
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3];
  int32_t static_shared, dynamic_shared;
  uint32_t local_per_thread, local_total;
  uint32_t correlation;
  int64_t grid_id;
  const char* name;
};
static_assert(offsetof(KernelRecord, start) == 16 && offsetof(KernelRecord, name) == 104);
using BufferRequested = void (*)(uint8_t**, size_t*, size_t*);
using BufferCompleted = void (*)(CUctx_st*, uint32_t, uint8_t*, size_t, size_t);

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kBufferAlignment = 8;

// The folders besides the loader's own paths in which the library may be: next to the loaded CUDA
// libraries, whether from a toolkit or a package, and in the toolkit.
std::set<std::filesystem::path> Folders() {
  std::set<std::filesystem::path> folders;
  const auto visit = [](dl_phdr_info* info, size_t, void* data) {
    const std::filesystem::path path(info->dlpi_name);
    const std::string name = path.filename().string();
    if (name.starts_with("libcudart") || name.starts_with("libcublas")) {
      static_cast<std::set<std::filesystem::path>*>(data)->insert(path.parent_path());
    }
    return 0;
  };
  std::set<std::filesystem::path> roots = {"/usr/local/cuda"};
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = std::getenv(variable)) roots.insert(root);
  }
  std::set<std::filesystem::path> loaded;
  dl_iterate_phdr(visit, &loaded);
  for (const std::filesystem::path& folder : loaded) {
    folders.insert(folder);
    roots.insert(folder.parent_path());  // lib64/..
    // packages have one folder each
    folders.insert(folder.parent_path().parent_path() / "cuda_cupti" / "lib");
  }
  for (const std::filesystem::path& root : roots) {
    folders.insert(root / "lib64");
    folders.insert(root / "extras" / "CUPTI" / "lib64");
  }
  return folders;
}

void* OpenLibrary() {
  const std::string name = StrCat("libcupti.so.", CUDART_VERSION / 1000);
  if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  for (const std::filesystem::path& folder : Folders()) {
    std::error_code error;
    const std::filesystem::path path = folder / name;
    if (!std::filesystem::exists(path, error)) continue;
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  throw RuntimeFailure(StrCat("there is no ", name));
}

// The library, opened once per process because it keeps its own threads and buffers. It delivers
// its records to this object.
class Cupti {
 public:
  // Throws RuntimeFailure on each call if the library cannot be used.
  static Cupti& Get() {
    // never destroyed: the library's threads deliver until the process ends
    static Cupti& cupti = *new Cupti;
    return cupti;
  }

  void Start() {
    int device = 0;
    TOKLINE_CUDA(cudaGetDevice(&device));
    device_ = static_cast<uint32_t>(device);
    Discard();
    Check(enable_(kKindConcurrentKernel), "cuptiActivityEnable");
  }
  void Stop() {
    disable_(kKindConcurrentKernel);
    flush_(kFlushForced);
    Discard();
  }
  std::vector<TracedKernel> Take() {
    TOKLINE_CUDA(cudaDeviceSynchronize());
    Check(flush_(kFlushForced), "cuptiActivityFlushAll");
    size_t dropped = 0;
    Check(dropped_(nullptr, 0, &dropped), "cuptiActivityGetNumDroppedRecords");
    const std::lock_guard lock(mutex_);
    std::vector<TracedKernel> taken;
    taken.swap(kernels_);
    if (dropped > 0 || lost_) {
      throw RuntimeFailure(StrCat("the kernel trace lost ", dropped, " records"));
    }
    return taken;
  }

 private:
  Cupti() : library_(OpenLibrary()) {
    Load(register_, "cuptiActivityRegisterCallbacks");
    Load(enable_, "cuptiActivityEnable");
    Load(disable_, "cuptiActivityDisable");
    Load(flush_, "cuptiActivityFlushAll");
    Load(next_, "cuptiActivityGetNextRecord");
    Load(dropped_, "cuptiActivityGetNumDroppedRecords");
    Load(result_text_, "cuptiGetResultString");
    Check(register_(GiveBuffer, TakeBuffer), "cuptiActivityRegisterCallbacks");
  }

  template <typename Function>
  void Load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) throw RuntimeFailure(StrCat("the CUPTI library has no ", name));
  }
  void Check(int result, const char* what) const {
    if (result == kSuccess) return;
    const char* text = nullptr;
    result_text_(result, &text);
    throw RuntimeFailure(StrCat(what, ": ", text == nullptr ? "unknown error" : text));
  }
  void Discard() {
    const std::lock_guard lock(mutex_);
    kernels_.clear();
    lost_ = false;
  }

  static void GiveBuffer(uint8_t** buffer, size_t* bytes, size_t* max_records) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
    *bytes = *buffer == nullptr ? 0 : kBufferBytes;
    *max_records = 0;  // as many as fit
  }
  // Called on one of the library's threads.
  static void TakeBuffer(CUctx_st*, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
    Get().Read(buffer, valid_bytes);
    std::free(buffer);
  }
  void Read(uint8_t* buffer, size_t valid_bytes) {
    if (buffer == nullptr || valid_bytes == 0) return;
    const std::lock_guard lock(mutex_);
    Record* record = nullptr;
    int result = kSuccess;
    while ((result = next_(buffer, valid_bytes, &record)) == kSuccess) {
      if (record->kind != kKindConcurrentKernel) continue;
      const auto* kernel = reinterpret_cast<const KernelRecord*>(record);
      if (kernel->device != device_) continue;  // of another rank
      kernels_.push_back({.begin_ns = static_cast<int64_t>(kernel->start),
                          .end_ns = static_cast<int64_t>(kernel->end),
                          .name = kernel->name == nullptr ? "" : kernel->name});
      lost_ = lost_ || kernel->end == 0;  // 0 if the times could not be read
    }
    lost_ = lost_ || result != kNoMoreRecords;
  }

  void* library_;
  int (*register_)(BufferRequested, BufferCompleted) = nullptr;
  int (*enable_)(int) = nullptr;
  int (*disable_)(int) = nullptr;
  int (*flush_)(uint32_t) = nullptr;
  int (*next_)(uint8_t*, size_t, Record**) = nullptr;
  int (*dropped_)(CUctx_st*, uint32_t, size_t*) = nullptr;
  int (*result_text_)(int, const char**) = nullptr;
  std::mutex mutex_;
  std::atomic<uint32_t> device_ = 0;  // that is traced
  std::vector<TracedKernel> kernels_;
  bool lost_ = false;
};

}  // namespace

class KernelTrace::Session {
 public:
  Session() : cupti_(Cupti::Get()) { cupti_.Start(); }
  ~Session() { cupti_.Stop(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  std::vector<TracedKernel> Take() { return cupti_.Take(); }

 private:
  Cupti& cupti_;
};

KernelTrace::KernelTrace() : session_(std::make_unique<Session>()) {}
KernelTrace::~KernelTrace() = default;
std::vector<TracedKernel> KernelTrace::Take() { return session_->Take(); }

}  // namespace tokline
