#include "qmv_one_sm90_on_blocks.h"

#include <cstring>
#include <map>
#include <stdexcept>

#include "cuda/qmv_one_sm90/kernel.cuh"

namespace moeblas::test {
namespace {

using cuda::QmvOneParams;
using cuda::device::QmvOne;
using cuda::device::QmvOneE2m1;
using cuda::device::QmvOneMaps;
using simt::ProductBuffers;

constexpr size_t kSharedBytes = 232448;  // of a block on sm_90

using Kernel = void (*)(const QmvOneParams&, const ProductBuffers&, const QmvOneMaps&);

const std::map<std::string, Kernel>& kernels_by_name() {
#define MB_ONE(bits, group, rows, batches)  \
  {"qmv_one_sm90_affine" #bits "_g" #group, \
   cuda::device::qmv_one<QmvOne<bits, group, rows, batches>>},
#define MB_ONE_E2M1(name, format, group, rows, batches) \
  {"qmv_one_sm90_" #name, cuda::device::qmv_one<QmvOneE2m1<formats::format, group, rows, batches>>},
  static const std::map<std::string, Kernel> all = {MB_QMV_ONE_INSTANCES(MB_ONE)
                                                        MB_QMV_ONE_E2M1_INSTANCES(MB_ONE_E2M1)};
#undef MB_ONE_E2M1
#undef MB_ONE
  return all;
}

template <class T>
const T* pointer(const simt::Step& step, size_t i) {
  return static_cast<const T*>(step.pointers[i]);
}

}  // namespace

std::vector<std::string> qmv_one_sm90_kernels() {
  std::vector<std::string> names;
  for (const auto& [name, kernel] : kernels_by_name()) names.push_back(name);
  return names;
}

void run_qmv_one_sm90_on_blocks(const cuda::QmvOnePlan& plan, const simt::Step& step,
                                uint64_t seed) {
  if (plan.shared_bytes + sizeof(cuda::device::QmvOneShared) > kSharedBytes) {
    throw std::runtime_error("more shared memory than a block has");
  }
  QmvOneParams params = plan.params;
  std::memcpy(&params.product, step.params.data(), sizeof params.product);
  const ProductBuffers b = {nullptr,
                            nullptr,
                            nullptr,
                            nullptr,
                            pointer<uchar>(step, 4),
                            nullptr,
                            nullptr,
                            pointer<uchar>(step, 7),
                            pointer<uchar>(step, 8),
                            pointer<uchar>(step, 9),
                            pointer<float>(step, 10),
                            pointer<uchar>(step, 11),
                            pointer<uchar>(step, 12),
                            static_cast<uchar*>(step.pointers[13])};
  const QmvOneMaps maps = {map_of_host(plan.codes), map_of_host(plan.scales),
                           map_of_host(plan.biases)};
  const Kernel kernel = kernels_by_name().at(plan.kernel);
  const uint8_t spoilt = seed % 2 == 0 ? 0xff : 0xfb;  // NaN; a large number
  run_grid({plan.grid, cuda::kQmvOneThreads, plan.shared_bytes, seed, spoilt},
           [&] { kernel(params, b, maps); });
}

}  // namespace moeblas::test
