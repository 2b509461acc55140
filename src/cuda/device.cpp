#include "cuda/device.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>

#include "moeblas/error.h"

namespace moeblas::cuda {
namespace {

using dispatch::Reason;

// Workspaces of calls that bring none: the pool keeps this much between calls, so that a program
// that synchronises after each of them does not go back to the driver for every one.
constexpr uint64_t kPoolKeeps = uint64_t{64} << 20;

struct Device {
  int capability = 0;
  int multiprocessors = 0;
  size_t shared = 0;
  bool pools = false;
  size_t memory = 0;
  char name[sizeof cudaDeviceProp::name] = "";
  Reason why_not;

  std::once_flag pool_made;
  cudaMemPool_t pool = nullptr;
};

// In a child of the process that looked for devices. (Asking for the process in every call would be
// a system call in every call.)
std::atomic<bool> g_forked = false;

// What this process found. Never destroyed: calls may come as late as other libraries' destructors.
struct Machine {
  int driver = 0;
  int runtime = 0;
  Reason why_not;  // none of the devices can be used
  std::deque<Device> devices;

  Machine();
};

Reason reason(const char* what, cudaError_t status) {
  return Reason::of("%s: %s", what, cudaGetErrorString(status));
}

Device& found(Device& device, int id) {
  cudaDeviceProp properties;
  int pools = 0;
  cudaError_t status = cudaGetDeviceProperties(&properties, id);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, id);
  }
  if (status != cudaSuccess) {
    cudaGetLastError();
    device.why_not = reason("asking for its properties failed", status);
    return device;
  }
  device.capability = 10 * properties.major + properties.minor;
  device.multiprocessors = properties.multiProcessorCount;
  device.shared = properties.sharedMemPerBlockOptin;
  device.pools = pools != 0;
  device.memory = properties.totalGlobalMem;
  std::memcpy(device.name, properties.name, sizeof device.name);
  if (!has_code_for(device.capability, MOEBLAS_CUDA_ARCHITECTURES)) {
    device.why_not =
        Reason::of("%.60s has capability %d.%d; this build has code for %s", device.name,
                   properties.major, properties.minor, MOEBLAS_CUDA_ARCHITECTURES);
  }
  return device;
}

Machine::Machine() {
  int count = 0;
  pthread_atfork(nullptr, nullptr, [] { g_forked.store(true, std::memory_order_relaxed); });
  cudaRuntimeGetVersion(&runtime);
  const cudaError_t driver_status = cudaDriverGetVersion(&driver);
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (driver_status != cudaSuccess || driver == 0) {
    why_not = Reason::of("no NVIDIA driver was found");
  } else if (status == cudaErrorInsufficientDriver) {
    why_not = Reason::of("the driver is for CUDA %d.%d, this build needs %d.%d or newer",
                         driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  } else if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    why_not = Reason::of("a driver, but no device that this process may see");
  } else if (status != cudaSuccess) {
    why_not = reason("looking for devices failed", status);
  }
  if (why_not) return;
  for (int id = 0; id < count; ++id) found(devices.emplace_back(), id);
}

Machine& machine() {
  static Machine* const all = new Machine;
  return *all;
}

// CUDA does not survive a fork: a child of a process that used it gets an error from every call.
Reason why_none(const Machine& all) {
  if (!all.why_not && g_forked.load(std::memory_order_relaxed)) {
    return Reason::of("CUDA was in use before this process was forked; start it anew (spawn)");
  }
  return all.why_not;
}

}  // namespace

void check(cudaError_t status, const char* op, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw Error(status == cudaErrorMemoryAllocation ? MOEBLAS_OUT_OF_MEMORY : MOEBLAS_DEVICE_ERROR,
              std::string("[") + op + "] " + what + ": " + cudaGetErrorString(status));
}

bool has_code_for(int capability, const char* architectures) {
  for (const char* p = architectures; *p != '\0'; p += std::strcspn(p, ",")) {
    if (*p == ',') ++p;
    char* rest = nullptr;
    const int built = static_cast<int>(std::strtol(p, &rest, 10));
    if (rest == p) return true;  // "native", "all": whoever built it knew
    const bool specific = *rest == 'a', family = *rest == 'f';
    if (specific || family) ++rest;
    const bool real = std::strncmp(rest, "-virtual", 8) != 0;
    const bool text = std::strncmp(rest, "-real", 5) != 0;
    const bool same_major = capability / 10 == built / 10 && capability >= built;
    if (specific ? capability == built
                 : (real && same_major) || (text && !family && capability >= built)) {
      return true;
    }
  }
  return false;
}

int capability(int32_t device, Reason& why_not) {
  Machine& all = machine();
  if ((why_not = why_none(all))) return 0;
  if (device < 0 || static_cast<size_t>(device) >= all.devices.size()) {
    why_not =
        Reason::of("there is no device %d; this process sees %zu", device, all.devices.size());
    return 0;
  }
  const Device& d = all.devices[static_cast<size_t>(device)];
  why_not = d.why_not;
  return d.capability;
}

int multiprocessors(int32_t device) {
  constexpr int kHopper = 132;
  const auto& devices = machine().devices;
  const auto id = static_cast<size_t>(device);
  return id < devices.size() ? devices[id].multiprocessors : kHopper;
}
size_t most_shared_bytes(int32_t device) {
  constexpr size_t kHopper = 232448;
  const auto& devices = machine().devices;
  const auto id = static_cast<size_t>(device);
  return id < devices.size() ? devices[id].shared : kHopper;
}

void describe(char* text, size_t bytes) {
  const Machine& all = machine();
  size_t used = 0;
  const auto append = [&](const char* format, auto... values) {
    const int n = std::snprintf(text + used, bytes - used, format, values...);
    used = std::min(used + static_cast<size_t>(n), bytes - 1);
  };
  if (const Reason why_not = why_none(all)) {
    append("off: %s", why_not.text());
    return;
  }
  for (size_t i = 0; i < all.devices.size(); ++i) {
    const Device& d = all.devices[i];
    append("%s%zu %s, capability %d.%d, %.1f GiB", i > 0 ? "; " : "", i, d.name, d.capability / 10,
           d.capability % 10, static_cast<double>(d.memory) / (1 << 30));
    if (d.why_not) append(" (off: %s)", d.why_not.text());
  }
  append("; driver for CUDA %d.%d, runtime %d.%d, code for %s", all.driver / 1000,
         all.driver % 1000 / 10, all.runtime / 1000, all.runtime % 1000 / 10,
         MOEBLAS_CUDA_ARCHITECTURES);
}

cudaMemPool_t workspace_pool(int32_t device) {
  Device& d = machine().devices[static_cast<size_t>(device)];
  // A pool of the library's own: the device's default one belongs to the application.
  std::call_once(d.pool_made, [&] {
    if (!d.pools) return;
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {.type = cudaMemLocationTypeDevice, .id = device};
    cudaMemPool_t pool = nullptr;
    uint64_t keeps = kPoolKeeps;
    if (cudaMemPoolCreate(&pool, &properties) == cudaSuccess &&
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keeps) == cudaSuccess) {
      d.pool = pool;
    } else {
      cudaGetLastError();
    }
  });
  return d.pool;
}

}  // namespace moeblas::cuda
