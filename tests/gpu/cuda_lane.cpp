#include "cuda_lane.h"

namespace moeblas::gpu {

DeviceMemory::DeviceMemory(size_t bytes) : bytes_(bytes) {
  if (bytes > 0) check_cuda(cudaMalloc(&data_, bytes), "cudaMalloc");
}
DeviceMemory::DeviceMemory(std::span<const uint8_t> host) : DeviceMemory(host.size()) {
  check_cuda(cudaMemcpy(data_, host.data(), host.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
}
DeviceMemory::~DeviceMemory() { cudaFree(data_); }

CudaLane::CudaLane(size_t bytes) : memory_(std::make_unique<DeviceMemory>(bytes)) {
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

CudaLane::~CudaLane() { cudaStreamDestroy(stream_); }

void CudaLane::send(const Block& block) {
  if (block.size() > memory_->size()) memory_ = std::make_unique<DeviceMemory>(block.size());
  check_cuda(cudaMemcpyAsync(base(), block.bytes(), block.size(), cudaMemcpyHostToDevice, stream_),
             "sending a block");
}

std::vector<uint8_t> CudaLane::fetch(const Block& block) {
  std::vector<uint8_t> bytes(block.size());
  check_cuda(cudaMemcpyAsync(bytes.data(), base(), bytes.size(), cudaMemcpyDeviceToHost, stream_),
             "fetching a block");
  check_cuda(cudaStreamSynchronize(stream_), "waiting for a call");
  return bytes;
}

}  // namespace moeblas::gpu
