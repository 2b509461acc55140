#include "cuda/queue.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "moeblas/error.h"
#include "simt/cuda_registry.h"

// Generated: refers to every file of kernels, so that a static library keeps them.
extern const int* const moeblas_cuda_kernels_files[];

namespace moeblas::cuda {
namespace {

constexpr uint64_t kMostThreads = 1024;
constexpr uint64_t kMostGroupsX = 0x7fffffff;
// Dynamic shared memory that every kernel has without being given it.
constexpr uint32_t kDefaultSharedBytes = 48 * 1024;
// Of devices whose kernels' limits are remembered; others are set at every launch.
constexpr int kDevices = 64;

struct Kernel {
  const void* function = nullptr;
  std::atomic<uint64_t> launches{0};
  std::atomic<bool> fits{false};  // its arguments are as many and as large as a step's
  // The most shared memory beyond the default that it was given, by device.
  std::array<std::atomic<uint32_t>, kDevices> shared_bytes{};
};

using Kernels = std::map<std::string_view, Kernel>;

// Never destroyed, as the devices are.
Kernels& kernels() {
  static Kernels* const all = [] {
    auto* list = new Kernels;
    if (moeblas_cuda_kernels_files[0] == nullptr) return list;
    for (auto* k = simt::CudaKernel::first(); k != nullptr; k = k->next) {
      (*list)[k->name].function = k->function;
    }
    return list;
  }();
  return *all;
}

[[noreturn]] void fail(moeblas_status status, const char* op, const simt::Step& step,
                       const std::string& what) {
  throw Error(status, std::string("[") + op + "] kernel " + step.kernel + " in (" +
                          std::to_string(step.groups[0]) + ", " + std::to_string(step.groups[1]) +
                          ", " + std::to_string(step.groups[2]) + ") groups of (" +
                          std::to_string(step.threads[0]) + ", " + std::to_string(step.threads[1]) +
                          ", " + std::to_string(step.threads[2]) + ") threads: " + what);
}

// The runtime copies as many bytes as the kernel declares, whatever a step holds: compared once per
// kernel, a mistake in a plan is a message and not a read past its end. (That the kernel declares
// no more arguments cannot be asked without an error; one that is missing shows in the parameters'
// size.)
void require_arguments(const char* op, const simt::Step& step, Kernel& kernel) {
  if (kernel.fits.load(std::memory_order_relaxed)) return;
  const size_t given = step.pointer_count + (step.param_bytes > 0 ? 1 : 0);
  for (size_t i = 0; i < given; ++i) {
    size_t offset = 0, bytes = 0;
    const cudaError_t status = cudaFuncGetParamInfo(kernel.function, i, &offset, &bytes);
    if (status != cudaSuccess) cudaGetLastError();
    if (status != cudaSuccess && status != cudaErrorInvalidValue)
      return;  // the launch will say why
    const size_t expected = i < step.pointer_count ? sizeof(void*) : step.param_bytes;
    if (bytes != expected) {
      fail(MOEBLAS_INTERNAL_ERROR, op, step,
           "argument " + std::to_string(i) + " has " + std::to_string(bytes) + " bytes, the step " +
               std::to_string(expected));
    }
  }
  kernel.fits.store(true, std::memory_order_relaxed);
}

// A kernel's limit is one of the current device.
void allow_shared_bytes(const char* op, int32_t device, const simt::Step& step, Kernel& kernel) {
  if (step.shared_bytes <= kDefaultSharedBytes) return;
  std::atomic<uint32_t>* allowed =
      device < kDevices ? &kernel.shared_bytes[static_cast<size_t>(device)] : nullptr;
  if (allowed != nullptr && allowed->load(std::memory_order_relaxed) >= step.shared_bytes) return;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(step.shared_bytes));
  if (status != cudaSuccess) {
    cudaGetLastError();
    fail(MOEBLAS_DEVICE_ERROR, op, step, cudaGetErrorString(status));
  }
  if (allowed != nullptr) allowed->store(step.shared_bytes, std::memory_order_relaxed);
}

}  // namespace

void Queue::run(const simt::Step& step) {
  const auto found = kernels().find(step.kernel);
  if (found == kernels().end()) {
    fail(MOEBLAS_INTERNAL_ERROR, op_, step, "this build has no kernel of this name");
  }
  Kernel& kernel = found->second;
  const auto& [x, y, z] = step.groups;
  if (x == 0 || y == 0 || z == 0) return;
  const uint64_t threads = uint64_t{step.threads[0]} * step.threads[1] * step.threads[2];
  if (x > kMostGroupsX || std::max(y, z) > simt::kMaxGroupsYZ || threads == 0 ||
      threads > kMostThreads) {
    fail(MOEBLAS_DEVICE_ERROR, op_, step, "beyond what a grid can have");
  }
  require_arguments(op_, step, kernel);
  allow_shared_bytes(op_, device_, step, kernel);

  std::array<void*, simt::Step::kMaxPointers + 1> arguments{};
  for (size_t i = 0; i < step.pointer_count; ++i) {
    arguments[i] = const_cast<void**>(&step.pointers[i]);
  }
  if (step.param_bytes > 0) {
    arguments[step.pointer_count] = const_cast<std::byte*>(step.params.data());
  }
  const cudaError_t status =
      cudaLaunchKernel(kernel.function, {x, y, z},
                       {step.threads[0], step.threads[1], step.threads[2]}, arguments.data(),
                       step.shared_bytes, stream_);
  if (status != cudaSuccess) {
    cudaGetLastError();
    fail(MOEBLAS_DEVICE_ERROR, op_, step, cudaGetErrorString(status));
  }
  kernel.launches.fetch_add(1, std::memory_order_relaxed);
}

void for_each_kernel(const std::function<void(const char*, uint64_t)>& f) {
  for (const auto& [name, kernel] : kernels()) {
    f(name.data(), kernel.launches.load(std::memory_order_relaxed));
  }
}

}  // namespace moeblas::cuda
