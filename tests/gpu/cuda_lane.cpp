#include "cuda_lane.h"

namespace moeblas::gpu {
namespace {

// f with `device` current.
template <class F>
void on_device(int device, F&& f) {
  int before = 0;
  check_cuda(cudaGetDevice(&before), "cudaGetDevice");
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  f();
  check_cuda(cudaSetDevice(before), "cudaSetDevice");
}

}  // namespace

int device_count() {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

DeviceMemory::DeviceMemory(size_t bytes, int device) : bytes_(bytes) {
  if (bytes == 0) return;
  on_device(device, [&] { check_cuda(cudaMalloc(&data_, bytes), "cudaMalloc"); });
}
DeviceMemory::DeviceMemory(std::span<const uint8_t> host) : DeviceMemory(host.size()) {
  check_cuda(cudaMemcpy(data_, host.data(), host.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
}
DeviceMemory::~DeviceMemory() { cudaFree(data_); }

CudaLane::CudaLane(size_t bytes, int device)
    : device_(device), memory_(std::make_unique<DeviceMemory>(bytes, device)) {
  on_device(device, [&] {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  });
}

CudaLane::~CudaLane() { cudaStreamDestroy(stream_); }

void CudaLane::send(const Block& block) {
  if (block.size() > memory_->size()) {
    memory_ = std::make_unique<DeviceMemory>(block.size(), device_);
  }
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
