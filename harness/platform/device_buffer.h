// Owned device memory. CUDA builds only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

#include "harness/platform/cuda_handles.h"
#include "kernels/device/cuda_check.h"

namespace tokline {

// A block of memory on the current device, aligned to 256 bytes and freed by the destructor.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(int64_t bytes) : bytes_(bytes) {
    if (bytes > 0) TOKLINE_CUDA(cudaMalloc(&data_, static_cast<size_t>(bytes)));
  }
  template <typename T>
  explicit DeviceBuffer(const std::vector<T>& host)
      : DeviceBuffer(static_cast<int64_t>(host.size() * sizeof(T))) {
    CopyFrom(host.data(), bytes_);
  }
  ~DeviceBuffer() { Free(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this != &other) {
      Free();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

  // Blocking copies. They wait for all work on the device first.
  void CopyFrom(const void* host, int64_t bytes, int64_t offset_bytes = 0) {
    RequireRange(bytes, offset_bytes);
    if (bytes == 0) return;
    TOKLINE_CUDA(cudaDeviceSynchronize());
    TOKLINE_CUDA(cudaMemcpy(static_cast<char*>(data_) + offset_bytes, host,
                            static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
  }
  void CopyTo(void* host, int64_t bytes, int64_t offset_bytes = 0) const {
    RequireRange(bytes, offset_bytes);
    if (bytes == 0) return;
    TOKLINE_CUDA(cudaDeviceSynchronize());
    TOKLINE_CUDA(cudaMemcpy(host, static_cast<const char*>(data_) + offset_bytes,
                            static_cast<size_t>(bytes), cudaMemcpyDeviceToHost));
  }
  template <typename T>
  std::vector<T> ToHost() const {
    std::vector<T> host(static_cast<size_t>(bytes_) / sizeof(T));
    CopyTo(host.data(), static_cast<int64_t>(host.size() * sizeof(T)));
    return host;
  }
  // Sets every byte and waits until that is done.
  void Fill(unsigned char byte) {
    if (bytes_ == 0) return;
    TOKLINE_CUDA(cudaMemsetAsync(data_, byte, static_cast<size_t>(bytes_), WorkStream()));
    TOKLINE_CUDA(cudaDeviceSynchronize());
  }

 private:
  void RequireRange(int64_t bytes, int64_t offset_bytes) const {
    Require(bytes >= 0 && offset_bytes >= 0 && offset_bytes + bytes <= bytes_, "copy of ", bytes,
            " bytes at ", offset_bytes, " exceeds the buffer's ", bytes_);
  }
  void Free() noexcept {
    if (data_ == nullptr) return;
    const cudaError_t code = cudaFree(data_);
    if (code != cudaSuccess) std::fprintf(stderr, "cudaFree: %s\n", cudaGetErrorString(code));
    data_ = nullptr;
  }

  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace tokline
