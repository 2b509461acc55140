// CUDA's side of jobs: device memory and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "job.h"

namespace moeblas::gpu {

inline constexpr Device kCuda{MOEBLAS_CUDA, 0};

inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

int device_count();

// Device memory of exactly these bytes.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes, int device = 0);
  explicit DeviceMemory(std::span<const uint8_t> host);  // with these in it
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  size_t size() const { return bytes_; }

 private:
  void* data_ = nullptr;  // null if empty
  size_t bytes_;
};

// Its stream waits for no other. No call changes the thread's current device.
class CudaLane final : public Lane {
 public:
  explicit CudaLane(size_t bytes, int device = 0);
  ~CudaLane() override;
  CudaLane(const CudaLane&) = delete;
  CudaLane& operator=(const CudaLane&) = delete;

  Device device() const override { return {MOEBLAS_CUDA, device_}; }
  cudaStream_t cuda_stream() const { return stream_; }
  void* stream() const override { return stream_; }
  void send(const Block& block) override;
  uint8_t* base() const override { return memory_->data(); }
  std::vector<uint8_t> fetch(const Block& block) override;

 private:
  int device_;
  std::unique_ptr<DeviceMemory> memory_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace moeblas::gpu
