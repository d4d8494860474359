// The CUDA backend. All work goes to the one stream of its device. A few threads upload weights,
// each with its own stream and two pinned buffers, so that reading the checkpoint overlaps with the
// copies over the bus.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "harness/engine/backend.h"
#include "harness/engine/convert_elements.h"
#include "harness/platform/cuda_handles.h"
#include "harness/platform/device.h"
#include "harness/platform/peer_access.h"
#include "harness/platform/staged_copy.h"
#include "kernels/device/cuda_check.h"
#include "kernels/device/nccl_library.h"
#include "kernels/device/rehearsal.h"

namespace tokline {
namespace {

constexpr int64_t kUploadPieceBytes = int64_t{16} << 20;
constexpr int kUploadThreads = 4;  // 128 MiB of pinned memory in total

void LogIfFailed(cudaError_t code, const char* what) {
  if (code != cudaSuccess) std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
}

class CudaFence : public Fence {
 public:
  explicit CudaFence(cudaStream_t stream) : stream_(stream) {
    TOKLINE_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~CudaFence() override { LogIfFailed(cudaEventDestroy(event_), "cudaEventDestroy"); }
  CudaFence(const CudaFence&) = delete;
  CudaFence& operator=(const CudaFence&) = delete;
  void Record() override { TOKLINE_CUDA(cudaEventRecord(event_, stream_)); }
  void Wait() override { TOKLINE_CUDA(cudaEventSynchronize(event_)); }

 private:
  cudaStream_t stream_;
  cudaEvent_t event_ = nullptr;
};

class CudaTimeMark : public TimeMark {
 public:
  explicit CudaTimeMark(cudaStream_t stream) : stream_(stream) {
    TOKLINE_CUDA(cudaEventCreate(&event_));
  }
  ~CudaTimeMark() override { LogIfFailed(cudaEventDestroy(event_), "cudaEventDestroy"); }
  CudaTimeMark(const CudaTimeMark&) = delete;
  CudaTimeMark& operator=(const CudaTimeMark&) = delete;
  void Record() override { TOKLINE_CUDA(cudaEventRecord(event_, stream_)); }
  double NsSince(const TimeMark& earlier) const override {
    float ms = 0;
    TOKLINE_CUDA(
        cudaEventElapsedTime(&ms, static_cast<const CudaTimeMark&>(earlier).event_, event_));
    return 1e6 * double{ms};
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t event_ = nullptr;
};

class CudaGraph : public WorkGraph {
 public:
  CudaGraph(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    TOKLINE_CUDA(cudaGraphInstantiate(&exec_, graph, 0));
    TOKLINE_CUDA(cudaGraphUpload(exec_, stream_));
  }
  ~CudaGraph() override { LogIfFailed(cudaGraphExecDestroy(exec_), "cudaGraphExecDestroy"); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void Enqueue() override { TOKLINE_CUDA(cudaGraphLaunch(exec_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
};

Memory AllocatePinned(int64_t bytes) {
  if (bytes <= 0) return {};
  void* data = nullptr;
  TOKLINE_CUDA(cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocDefault));
  return {data, bytes, [](void* p) { LogIfFailed(cudaFreeHost(p), "cudaFreeHost"); }};
}

// The fence of a rank, which also checks that the sums before it were complete.
class RankFence : public CudaFence {
 public:
  RankFence(cudaStream_t stream, const PeerBuffers& peers)
      : CudaFence(stream), stream_(stream), peers_(peers), header_(AllocatePinned(kHeaderBytes)) {
    std::memset(header_.data(), 0, kHeaderBytes);
  }
  void Record() override {
    CopyStaged(header_.data(), peers_.buffers[peers_.rank], kHeaderBytes, stream_);
    CudaFence::Record();
  }
  void Wait() override {
    CudaFence::Wait();
    RequireAllReduced(peers_, *reinterpret_cast<const AllReduceHeader*>(header_.data()));
  }

 private:
  static constexpr int64_t kHeaderBytes = sizeof(AllReduceHeader);

  cudaStream_t stream_;
  const PeerBuffers& peers_;
  Memory header_;
};

// Cuts a copy into pieces that fit a staging buffer. A piece is whole rows or a part of one row.
void AddPieces(const WeightCopy& copy, std::vector<WeightCopy>& pieces) {
  const int64_t room = kUploadPieceBytes / SizeOf(copy.to);
  const int64_t columns = std::min(copy.columns, room);
  const int64_t rows = std::max<int64_t>(columns == copy.columns ? room / columns : 1, 1);
  for (int64_t row = 0; row < copy.rows; row += rows) {
    for (int64_t column = 0; column < copy.columns; column += columns) {
      WeightCopy piece = copy;
      piece.host = static_cast<const char*>(copy.host) +
                   (row * copy.row_stride + column * copy.column_stride) * SizeOf(copy.from);
      piece.device =
          static_cast<char*>(copy.device) + (row * copy.columns + column) * SizeOf(copy.to);
      piece.rows = std::min(rows, copy.rows - row);
      piece.columns = std::min(columns, copy.columns - column);
      pieces.push_back(piece);
    }
  }
}

// Uploads pieces, starting at the shared index `next`, until none is left.
void UploadPieces(std::span<const WeightCopy> pieces, std::atomic<size_t>& next) {
  constexpr int kBuffers = 2;
  const UniqueStream stream = MakeStream();
  Memory staging = AllocatePinned(kBuffers * kUploadPieceBytes);
  std::unique_ptr<CudaFence> fences[kBuffers];
  for (auto& fence : fences) fence = std::make_unique<CudaFence>(stream.get());
  for (int turn = 0;; turn = (turn + 1) % kBuffers) {
    const size_t index = next.fetch_add(1);
    if (index >= pieces.size()) break;
    const WeightCopy& piece = pieces[index];
    std::byte* buffer = staging.data() + turn * kUploadPieceBytes;
    fences[turn]->Wait();
    ConvertMatrix(piece.from, piece.host, piece.row_stride, piece.column_stride, piece.to, buffer,
                  piece.rows, piece.columns);
    TOKLINE_CUDA(cudaMemcpyAsync(piece.device, buffer,
                                 static_cast<size_t>(piece.rows * piece.columns * SizeOf(piece.to)),
                                 cudaMemcpyHostToDevice, stream.get()));
    fences[turn]->Record();
  }
  TOKLINE_CUDA(cudaStreamSynchronize(stream.get()));
}

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const RankPlace& place) : place_(place) {
    if (place.link == nullptr) return;
    Join();
    const Rehearsal rehearsal;  // loads the kernels while no rank waits for another
    CopyStaged(this, this, 1, stream_);
    tokline::CopyCounted(nullptr, nullptr, 16, stream_);
  }

  Device device() const override { return Device::kCuda; }
  bool asynchronous() const override { return true; }
  const Ops& ops() const override { return ops_; }
  const DeviceFacts& facts() const override { return facts_; }
  CUstream_st* stream() const override { return stream_; }
  Matmul* matmul() override { return &matmul_; }
  int64_t FreeBytes() const override {
    size_t free_bytes = 0, total = 0;
    TOKLINE_CUDA(cudaMemGetInfo(&free_bytes, &total));
    return static_cast<int64_t>(free_bytes);
  }

  Memory Allocate(int64_t bytes) override {
    if (bytes <= 0) return {};
    void* data = nullptr;
    const cudaError_t code = cudaMalloc(&data, static_cast<size_t>(bytes));
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // clears the error, which is reported here
      throw RuntimeFailure(StrCat("device memory does not suffice: ", bytes, " bytes are needed, ",
                                  FreeBytes(), " are free"));
    }
    TOKLINE_CUDA(code);
    Memory memory(data, bytes, [](void* p) { LogIfFailed(cudaFree(p), "cudaFree"); });
    Zero(data, bytes);
    Synchronize();
    return memory;
  }
  Memory AllocateStaging(int64_t bytes) override { return AllocatePinned(bytes); }

  void CopyToDevice(void* device, const void* staging, int64_t bytes) override {
    if (bytes <= kMaxStagedCopyBytes) return CopyStaged(device, staging, bytes, stream_);
    TOKLINE_CUDA(cudaMemcpyAsync(device, staging, static_cast<size_t>(bytes),
                                 cudaMemcpyHostToDevice, stream_));
  }
  void CopyCounted(void* device, const void* staging, int64_t most) override {
    tokline::CopyCounted(device, staging, most, stream_);
  }
  void CopyToHost(void* staging, const void* device, int64_t bytes) override {
    if (bytes <= kMaxStagedCopyBytes) return CopyStaged(staging, device, bytes, stream_);
    TOKLINE_CUDA(cudaMemcpyAsync(staging, device, static_cast<size_t>(bytes),
                                 cudaMemcpyDeviceToHost, stream_));
  }
  void Zero(void* device, int64_t bytes) override {
    TOKLINE_CUDA(cudaMemsetAsync(device, 0, static_cast<size_t>(bytes), stream_));
  }
  void Upload(void* device, const void* host, int64_t bytes) override {
    Copy(device, host, bytes, cudaMemcpyHostToDevice);
  }
  void Download(void* host, const void* device, int64_t bytes) override {
    Copy(host, device, bytes, cudaMemcpyDeviceToHost);
  }

  void UploadWeights(std::span<const WeightCopy> copies) override {
    std::vector<WeightCopy> pieces;
    for (const WeightCopy& copy : copies) AddPieces(copy, pieces);
    int device = 0;  // which is not the current one of a new thread
    TOKLINE_CUDA(cudaGetDevice(&device));
    std::atomic<size_t> next = 0;
    std::mutex mutex;
    std::exception_ptr error;
    const auto work = [&] {
      try {
        TOKLINE_CUDA(cudaSetDevice(device));
        UploadPieces(pieces, next);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    };
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < kUploadThreads; ++i) threads.emplace_back(work);
    }
    if (error) std::rethrow_exception(error);
  }

  void DrawWeights(DType dtype, void* device, const RandomPieces& pieces, uint64_t seed,
                   int log2_scale) override {
    FillRandomOnDevice(dtype, device, pieces, seed, log2_scale);
    Synchronize();
  }

  void AllReduceNorm(AllReduceNormParams params, const LaunchOptions& options) override {
    params.peers = peers_;
    params.time_limit_ms = place_.link->Limit().count();
    if (communicator_ != nullptr) return LaunchOverNccl(params, communicator_, options);
    for (int64_t begin = 0; begin < params.num_tokens;) {
      const AllReduceNormParams rest = RowsOf(params, begin, params.num_tokens - begin);
      const int64_t rows = RowsInOneLaunch(rest);
      Launch(RowsOf(rest, 0, rows), options);
      begin += rows;
    }
  }

  const PeerBuffers* Peers() const override {
    return place_.link == nullptr || communicator_ != nullptr ? nullptr : &peers_;
  }

  // A rank writes its columns to all others. A sum whose result is not used then tells each rank
  // that all columns have arrived.
  void GatherColumns(const ColumnGather& gather) override {
    if (place_.own_process) return SumColumns(gather);
    const auto matrices = place_.Gather(gather.matrix);
    const auto pitch = static_cast<size_t>(gather.stride) * sizeof(float);
    for (int32_t peer = 0; peer < place_.Ranks(); ++peer) {
      if (peer == place_.rank || Rehearsal::IsOn()) continue;
      float* const matrix = matrices[static_cast<size_t>(peer)];
      TOKLINE_CUDA(cudaMemcpy2DAsync(matrix + gather.begin, pitch, gather.matrix + gather.begin,
                                     pitch, static_cast<size_t>(gather.columns) * sizeof(float),
                                     static_cast<size_t>(gather.rows), cudaMemcpyDefault, stream_));
    }
    AllReduceNormParams nothing{.num_tokens = 1,
                                .hidden_size = kNothing,
                                .partial_stride = kNothing,
                                .residual_out = nothing_.data(),
                                .residual_out_stride = kNothing};
    nothing.partials[place_.rank] = nothing_.data();
    AllReduceNorm(nothing, {.stream = stream_, .dependent = false});
  }

  std::unique_ptr<Fence> MakeFence() override {
    if (place_.link == nullptr || communicator_ != nullptr) {
      return std::make_unique<CudaFence>(stream_);
    }
    return std::make_unique<RankFence>(stream_, peers_);
  }
  std::unique_ptr<TimeMark> MakeTimeMark() override {
    return std::make_unique<CudaTimeMark>(stream_);
  }
  void Synchronize() override { TOKLINE_CUDA(cudaStreamSynchronize(stream_)); }

  void Rehearse(const std::function<void()>& enqueue) override {
    if (!IsThreadOfGroup()) return;
    MeetThreads();
    {
      const Rehearsal rehearsal;
      enqueue();
    }
    MeetThreads();
  }

  std::unique_ptr<WorkGraph> Capture(const std::function<void()>& enqueue) override {
    TOKLINE_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      enqueue();
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();  // clears the error; the exception reports the cause
      throw;
    }
    TOKLINE_CUDA(cudaStreamEndCapture(stream_, &graph));
    const std::unique_ptr<CUgraph_st, void (*)(CUgraph_st*)> owner(
        graph, [](CUgraph_st* g) { LogIfFailed(cudaGraphDestroy(g), "cudaGraphDestroy"); });
    auto made = std::make_unique<CudaGraph>(graph, stream_);
    MeetThreads();
    return made;
  }

  int64_t CapturedKernels() const override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
    TOKLINE_CUDA(
        cudaStreamGetCaptureInfo(stream_, &status, nullptr, &graph, nullptr, nullptr, nullptr));
#else
    TOKLINE_CUDA(cudaStreamGetCaptureInfo(stream_, &status, nullptr, &graph, nullptr, nullptr));
#endif
    if (status != cudaStreamCaptureStatusActive) return 0;
    size_t count = 0;
    TOKLINE_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    TOKLINE_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
    return std::ranges::count_if(nodes, [](cudaGraphNode_t node) {
      cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
      TOKLINE_CUDA(cudaGraphNodeGetType(node, &type));
      return type == cudaGraphNodeTypeKernel;
    });
  }

 private:
  static constexpr int64_t kNothing = 8;  // elements

  bool IsThreadOfGroup() const { return place_.link != nullptr && !place_.own_process; }

  // When a rank loads kernels or makes a graph, CUDA may wait for the work on any device of the
  // process, and so for a sum whose other half another rank has yet to launch. Ranks that meet
  // before that have enqueued the same work, which ends by itself. If they also meet afterwards,
  // none launches a sum before all have loaded.
  void MeetThreads() const {
    if (IsThreadOfGroup()) place_.Gather(0);
  }

  // Copies from or to any host memory.
  void Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
    if (bytes > 0)
      TOKLINE_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_));
    Synchronize();
  }

  // Exchanges the addresses of the ranks' buffers. Makes NCCL's communicators instead if one device
  // cannot access the memory of another, or if the ranks are processes.
  void Join() {
    const int32_t ranks = place_.Ranks();
    peers_ = {.world_size = ranks, .rank = place_.rank};
    if (place_.own_process) {
      const NcclId id = place_.Gather(place_.rank == 0 ? NewNcclId() : NcclId())[0];
      communicators_.push_back(JoinNccl(id, ranks, place_.rank));
      communicator_ = communicators_.front().get();
      return;
    }
    if (place_.rank == 0) {
      try {
        EnablePeerAccess(ranks);
      } catch (const CudaError&) {
        throw;
      } catch (const RuntimeFailure&) {
        communicators_ = MakeNcclComms(ranks);
        TOKLINE_CUDA(cudaSetDevice(0));
      }
    }
    nothing_ = Allocate(kNothing * SizeOf(DType::kBf16));
    const std::vector<UniqueNcclComm>* const communicators = place_.Gather(&communicators_)[0];
    if (!communicators->empty()) {
      communicator_ = communicators->at(static_cast<size_t>(place_.rank)).get();
      return;
    }
    exchange_ = Allocate(place_.sums.Bytes(ranks));
    peers_.bytes = exchange_.bytes();
    peers_.slab_bytes = place_.sums.SlabBytes(ranks);
    std::ranges::copy(place_.Gather<void*>(exchange_.data()), peers_.buffers);
  }
  // Gathers by a sum: the other ranks have zeros in the place of a rank's columns.
  void SumColumns(const ColumnGather& gather) {
    const int64_t end = gather.begin + gather.columns;
    const auto zero = [&](int64_t begin, int64_t columns) {
      if (columns == 0) return;
      TOKLINE_CUDA(cudaMemset2DAsync(
          gather.matrix + begin, static_cast<size_t>(gather.stride) * sizeof(float), 0,
          static_cast<size_t>(columns) * sizeof(float), static_cast<size_t>(gather.rows), stream_));
    };
    zero(0, gather.begin);
    zero(end, gather.stride - end);
    NcclSum(DType::kF32, gather.matrix, gather.matrix, gather.rows * gather.stride, communicator_,
            stream_);
  }

  RankPlace place_;
  Ops ops_ = MakeCudaOps();
  DeviceFacts facts_ = QueryDeviceFacts();
  cudaStream_t stream_ = WorkStream();
  Matmul matmul_;
  PeerBuffers peers_;
  Memory exchange_;  // peers_.buffers of this rank
  Memory nothing_;
  std::vector<UniqueNcclComm> communicators_;  // those that this rank has made
  ncclComm* communicator_ = nullptr;           // null: the ranks exchange sums by peer access
};

}  // namespace

std::unique_ptr<Backend> MakeCudaBackend(const RankPlace& place) {
  if (place.link != nullptr) {
    const int devices = CudaDeviceCount();
    Require(place.device < devices, place.Ranks(), " ranks need a GPU each, and rank ", place.rank,
            " is number ", place.device + 1, " on its host; its process sees ", devices);
    TOKLINE_CUDA(cudaSetDevice(place.device));
  }
  RequireUsableCudaDevice();
  return std::make_unique<CudaBackend>(place);
}

}  // namespace tokline
