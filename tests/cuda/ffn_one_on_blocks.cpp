#include "ffn_one_on_blocks.h"

#include <map>
#include <stdexcept>

#include "cuda/ffn_one_sm90/kernel.cuh"

namespace moeblas::test {
namespace {

using cuda::FfnOnePlan;
using cuda::device::QmvTraits;

constexpr size_t kSharedBytes = 232448;  // of a block on sm_90

uint32_t meeting = 0;

using Kernel = void (*)(const FfnOnePlan&);

template <class Traits, class Warps>
void run_kernel(const FfnOnePlan& plan) {
  cuda::device::FfnOneMaps maps;
  std::transform(std::begin(plan.maps), std::end(plan.maps), maps.map, map_of_host);
  cuda::device::ffn_one<Traits, Warps>(plan.params, maps, &meeting);
}

const std::map<std::string, Kernel>& kernels_by_name() {
  static const auto all = [] {
    std::map<std::string, Kernel> list;
    const auto add = [&]<class T>(T, const std::string& name) {
      list["ffn_one_sm90_" + name] = run_kernel<T, cuda::OneFew>;
      list["ffn_one_sm90_" + name + "_many"] = run_kernel<T, cuda::OneMany>;
    };
    const auto add_affine = [&]<int bits>() {
      using F = formats::Affine<bits>;
      const std::string name = "affine" + std::to_string(bits);
      add(QmvTraits<F, simt::kF32, 0, 32>{}, name + "_f32");
      add(QmvTraits<F, simt::kF16, 0, 32>{}, name + "_f16");
      add(QmvTraits<F, simt::kBf16, 0, 32>{}, name + "_bf16");
    };
    add_affine.template operator()<4>();
    add_affine.template operator()<8>();
    add(QmvTraits<formats::Mxfp4, simt::kU8, 0, 32>{}, "mxfp4");
    add(QmvTraits<formats::Mxfp8, simt::kU8, 0, 32>{}, "mxfp8");
    add(QmvTraits<formats::Nvfp4, simt::kU8, 0, 16>{}, "nvfp4");
    return list;
  }();
  return all;
}

}  // namespace

std::vector<std::string> ffn_one_kernels() {
  std::vector<std::string> names;
  for (const auto& [name, kernel] : kernels_by_name()) names.push_back(name);
  return names;
}

void run_on_blocks(const FfnOnePlan& plan, uint64_t seed) {
  if (plan.shared_bytes + sizeof(cuda::device::FfnOneShared) > kSharedBytes) {
    throw std::runtime_error("more shared memory than a block has");
  }
  const Kernel kernel = kernels_by_name().at(plan.kernel);
  const uint8_t spoilt = seed % 2 == 0 ? 0xff : 0xfb;  // NaN; a large number
  run_grid({plan.grid, plan.threads, plan.shared_bytes, seed, spoilt, true}, [&] { kernel(plan); });
}

}  // namespace moeblas::test
