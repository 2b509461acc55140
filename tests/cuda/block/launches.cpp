#include "block/launches.h"

#include <algorithm>
#include <map>

#include "block/block.h"
#include "block/tensor_map.h"
#include "cuda/device.h"
#include "cuda/queue.h"

namespace moeblas::test {
namespace {

struct Kernel {
  KernelOnBlocks::Kind kind;
  std::vector<size_t> sizes;
  KernelOnBlocks::Run run;
};
std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> all;
  return all;
}

thread_local LaunchesOnBlocks* current = nullptr;

}  // namespace

KernelOnBlocks::KernelOnBlocks(const std::string& name, Kind kind, std::vector<size_t> sizes,
                               Run run) {
  kernels()[name] = {kind, std::move(sizes), std::move(run)};
}

std::vector<std::string> KernelOnBlocks::names(const std::string& prefix) {
  std::vector<std::string> found;
  for (const auto& [name, kernel] : kernels()) {
    if (name.starts_with(prefix)) found.push_back(name);
  }
  return found;
}

LaunchesOnBlocks::LaunchesOnBlocks(uint64_t seed, uint32_t clusters, simt::Queue& portable)
    : seed_(seed), clusters_(clusters), portable_(portable) {
  current = this;
}
LaunchesOnBlocks::~LaunchesOnBlocks() { current = nullptr; }

LaunchesOnBlocks& LaunchesOnBlocks::now() {
  if (current == nullptr) throw std::runtime_error("a launch where there are no thread blocks");
  return *current;
}

void LaunchesOnBlocks::run(const char* name, uint32_t blocks, uint32_t threads,
                           uint32_t shared_bytes, size_t count, const void* const* arguments,
                           const size_t* sizes) {
  const auto found = kernels().find(name);
  if (found == kernels().end()) throw NoKernelOnBlocks(std::string("not on blocks: ") + name);
  const Kernel& kernel = found->second;
  if (!std::equal(sizes, sizes + count, kernel.sizes.begin(), kernel.sizes.end())) {
    throw std::runtime_error(std::string(name) + " takes other arguments");
  }
  Grid grid{blocks, threads, shared_bytes, seed_ + launches_++};
  grid.spoilt = seed_ % 2 == 0 ? 0xff : 0xfb;  // NaN; a large number
  grid.cluster = kernel.kind.cluster;
  if (kernel.kind.persistent) grid.blocks = std::min(blocks, clusters_ * grid.cluster);
  if (on_launch) on_launch(name);
  run_grid(grid, [&] { kernel.run(arguments); });
}

void LaunchesOnBlocks::run(const simt::Step& step) { portable_.run(step); }

}  // namespace moeblas::test

// In the places of queue.cpp, current_device.cpp and tensor_map.cpp of src/cuda.
namespace moeblas::cuda {

void Queue::run(const simt::Step& step) { test::LaunchesOnBlocks::now().run(step); }
void Queue::launch(const Launch& l) {
  test::LaunchesOnBlocks::now().run(l.kernel, l.groups[0], l.threads[0], l.shared_bytes, l.count,
                                    l.arguments, l.sizes);
}
uint32_t Queue::clusters_at_once(const char*, uint32_t blocks, uint32_t, uint32_t) {
  return std::min(132 / blocks, test::LaunchesOnBlocks::now().clusters());
}
void for_each_kernel(const std::function<void(const char*, uint64_t)>&) {}

CurrentDevice::CurrentDevice(int32_t, const char*) {}
CurrentDevice::~CurrentDevice() = default;

CUtensorMap tensor_map(const TensorMapShape& shape, const char*) {
  return test::map_of_host(shape);
}

}  // namespace moeblas::cuda
