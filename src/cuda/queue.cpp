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
constexpr uint32_t kSharedBytes = 48 << 10;  // what a kernel gets without being asked, in all

struct Kernel {
  const void* function = nullptr;
  std::atomic<uint64_t> launches{0};
  std::atomic<uint64_t> with_most_shared{0};  // devices, as bits, where it may have all there is
  std::atomic<bool> fits{false};        // its arguments are as many and as large as a launch's
  std::atomic<uint32_t> own_shared{0};  // bytes that it declares, once `fits`
  std::array<std::atomic<uint32_t>, 16> clusters{};  // of first devices: at once; 0: not asked yet
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

// The runtime copies as many bytes as the kernel declares, whatever a launch holds: compared once
// per kernel, a mistake in a plan is a message and not a read past its end. (That the kernel
// declares no more arguments cannot be asked without an error; one that is missing shows in the
// last one's size.)
std::string misfit(const void* function, size_t count, const size_t* sizes, uint32_t& shared) {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, function) != cudaSuccess) cudaGetLastError();
  shared = static_cast<uint32_t>(attributes.sharedSizeBytes);
  for (size_t i = 0; i < count; ++i) {
    size_t offset = 0, bytes = 0;
    const cudaError_t status = cudaFuncGetParamInfo(function, i, &offset, &bytes);
    if (status != cudaSuccess) cudaGetLastError();
    if (status != cudaSuccess && status != cudaErrorInvalidValue) return "";  // the launch says why
    if (bytes != sizes[i]) {
      return "argument " + std::to_string(i) + " has " + std::to_string(bytes) +
             " bytes, the launch " + std::to_string(sizes[i]);
    }
  }
  return "";
}

// All the dynamic shared memory that a block can have. The attribute counts for every later launch
// on the device, whoever makes it, so it is never lowered.
cudaError_t allow_most_shared_memory(Kernel& kernel) {
  int device = 0, most = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  const uint64_t bit = uint64_t{1} << device % 64;
  if (device < 64 && (kernel.with_most_shared.load(std::memory_order_relaxed) & bit) != 0) {
    return cudaSuccess;
  }
  cudaFuncAttributes attributes;
  status = cudaFuncGetAttributes(&attributes, kernel.function);
  if (status != cudaSuccess) return status;
  status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (status != cudaSuccess) return status;
  status = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                most - static_cast<int>(attributes.sharedSizeBytes));
  if (status == cudaSuccess) {
    kernel.with_most_shared.fetch_or(bit, std::memory_order_relaxed);
  }
  return status;
}

std::string triple(const std::array<uint32_t, 3>& v) {
  return "(" + std::to_string(v[0]) + ", " + std::to_string(v[1]) + ", " + std::to_string(v[2]) +
         ")";
}

}  // namespace

void Queue::fail(moeblas_status status, const Launch& launch, const std::string& what) const {
  throw Error(status, std::string("[") + op_ + "] kernel " + launch.kernel + " in " +
                          triple(launch.groups) + " groups of " + triple(launch.threads) +
                          " threads: " + what);
}

void Queue::launch(const Launch& launch) {
  const auto found = kernels().find(launch.kernel);
  if (found == kernels().end()) {
    fail(MOEBLAS_INTERNAL_ERROR, launch, "this build has no kernel of this name");
  }
  Kernel& kernel = found->second;
  const auto& [x, y, z] = launch.groups;
  if (x == 0 || y == 0 || z == 0) return;
  const uint64_t threads = uint64_t{launch.threads[0]} * launch.threads[1] * launch.threads[2];
  if (x > kMostGroupsX || std::max(y, z) > simt::kMaxGroupsYZ || threads == 0 ||
      threads > kMostThreads) {
    fail(MOEBLAS_DEVICE_ERROR, launch, "beyond what a grid can have");
  }
  if (!kernel.fits.load(std::memory_order_acquire)) {
    uint32_t own_shared = 0;
    const std::string what = misfit(kernel.function, launch.count, launch.sizes, own_shared);
    if (!what.empty()) fail(MOEBLAS_INTERNAL_ERROR, launch, what);
    kernel.own_shared.store(own_shared, std::memory_order_relaxed);
    kernel.fits.store(true, std::memory_order_release);
  }
  cudaError_t status = cudaSuccess;
  if (launch.shared_bytes + kernel.own_shared.load(std::memory_order_relaxed) > kSharedBytes) {
    status = allow_most_shared_memory(kernel);
  }
  if (status == cudaSuccess) {
    std::array<cudaLaunchAttribute, 2> attributes{};
    unsigned count = 0;
    if (launch.how.early) {
      attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (launch.how.together) {
      attributes[count].id = cudaLaunchAttributeCooperative;
      attributes[count++].val.cooperative = 1;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = {x, y, z};
    config.blockDim = {launch.threads[0], launch.threads[1], launch.threads[2]};
    config.dynamicSmemBytes = launch.shared_bytes;
    config.stream = stream_;
    config.attrs = attributes.data();
    config.numAttrs = count;
    status = cudaLaunchKernelExC(&config, kernel.function, const_cast<void**>(launch.arguments));
  }
  if (status != cudaSuccess) {
    cudaGetLastError();
    fail(MOEBLAS_DEVICE_ERROR, launch, cudaGetErrorString(status));
  }
  kernel.launches.fetch_add(1, std::memory_order_relaxed);
}

uint32_t Queue::clusters_at_once(const char* name, uint32_t blocks, uint32_t threads,
                                 uint32_t shared_bytes) {
  const Launch launch = {name, {blocks, 1, 1}, {threads, 1, 1}, shared_bytes,
                         0,    nullptr,        nullptr,         {}};
  const auto found = kernels().find(name);
  if (found == kernels().end()) {
    fail(MOEBLAS_INTERNAL_ERROR, launch, "this build has no kernel of this name");
  }
  Kernel& kernel = found->second;
  int device = 0;
  cudaError_t status = cudaGetDevice(&device);
  const bool kept = status == cudaSuccess && static_cast<size_t>(device) < kernel.clusters.size();
  if (kept) {
    const uint32_t known = kernel.clusters[static_cast<size_t>(device)].load();
    if (known != 0) return known;
  }
  int count = 0;
  if (status == cudaSuccess) status = allow_most_shared_memory(kernel);
  if (status == cudaSuccess) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = blocks;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = {blocks, 1, 1};
    config.blockDim = {threads, 1, 1};
    config.dynamicSmemBytes = shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    status = cudaOccupancyMaxActiveClusters(&count, kernel.function, &config);
  }
  if (status != cudaSuccess) {
    cudaGetLastError();
    fail(MOEBLAS_DEVICE_ERROR, launch, cudaGetErrorString(status));
  }
  const auto clusters = static_cast<uint32_t>(std::max(count, 1));
  if (kept) kernel.clusters[static_cast<size_t>(device)].store(clusters);
  return clusters;
}

void Queue::run(const simt::Step& step) {
  std::array<const void*, simt::Step::kMaxPointers + 1> arguments{};
  std::array<size_t, simt::Step::kMaxPointers + 1> sizes{};
  size_t count = 0;
  for (; count < step.pointer_count; ++count) {
    arguments[count] = &step.pointers[count];
    sizes[count] = sizeof(void*);
  }
  if (step.param_bytes > 0) {
    arguments[count] = step.params.data();
    sizes[count++] = step.param_bytes;
  }
  launch({step.kernel,
          step.groups,
          step.threads,
          step.shared_bytes,
          count,
          arguments.data(),
          sizes.data(),
          {.early = step.early}});
}

void for_each_kernel(const std::function<void(const char*, uint64_t)>& f) {
  for (const auto& [name, kernel] : kernels()) {
    f(name.data(), kernel.launches.load(std::memory_order_relaxed));
  }
}

}  // namespace moeblas::cuda
