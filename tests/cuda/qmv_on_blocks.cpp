#include "qmv_on_blocks.h"

#include <map>
#include <stdexcept>

#include "cuda/qmv_sm90/kernel.cuh"

namespace moeblas::test {
namespace {

using cuda::QmvPlan;
using cuda::device::QmvHelped;
using cuda::device::QmvTraits;

constexpr size_t kSharedBytes = 232448;  // of a block on sm_90
constexpr size_t kOfSchedules = 256;     // what schedule_many declares

using Kernel = void (*)(const QmvPlan&);

template <class Traits>
void run_kernel(const QmvPlan& plan) {
  cuda::device::QmvMaps maps;
  std::transform(std::begin(plan.maps), std::end(plan.maps), maps.map, map_of_host);
  cuda::device::qmv<Traits>(plan.params, maps);
}

template <class Traits>
void run_columns(const QmvPlan& plan) {
  cuda::device::stage_columns<Traits>(plan.params);
}

template <int bits>
void add_affine(std::map<std::string, Kernel>& all) {
  using F = formats::Affine<bits>;
  const std::string name = "qmv_sm90_affine" + std::to_string(bits);
  const auto add = [&]<int scale>(const std::string& suffix) {
    all[name + "_few_" + suffix] = run_kernel<QmvTraits<F, scale, 0, 32>>;
    all[name + "_g32_" + suffix] = run_kernel<QmvTraits<F, scale, 2, 32>>;
    all[name + "_g64_" + suffix] = run_kernel<QmvTraits<F, scale, 2, 64>>;
  };
  all[name + "_g32_columns"] = run_columns<QmvTraits<F, simt::kF32, 2, 32>>;
  all[name + "_g64_columns"] = run_columns<QmvTraits<F, simt::kF32, 2, 64>>;
  if constexpr (bits == 4) {
    const auto add_helped = [&]<int scale>(const std::string& suffix) {
      all[name + "_g32_" + suffix + "_helped"] = run_kernel<QmvHelped<F, scale, 32>>;
      all[name + "_g64_" + suffix + "_helped"] = run_kernel<QmvHelped<F, scale, 64>>;
      all[name + "_g32_" + suffix + "_slots_helped"] = run_kernel<QmvHelped<F, scale, 32, false>>;
      all[name + "_g64_" + suffix + "_slots_helped"] = run_kernel<QmvHelped<F, scale, 64, false>>;
    };
    add_helped.template operator()<simt::kF16>("f16");
    add_helped.template operator()<simt::kBf16>("bf16");
  }
  add.template operator()<simt::kF32>("f32");
  add.template operator()<simt::kF16>("f16");
  add.template operator()<simt::kBf16>("bf16");
}

const std::map<std::string, Kernel>& kernels_by_name() {
  static const auto all = [] {
    std::map<std::string, Kernel> list;
    add_affine<4>(list);
    add_affine<8>(list);
    list["qmv_sm90_fp4_columns"] = run_columns<QmvTraits<formats::Mxfp4, simt::kU8, 2, 32>>;
    list["qmv_sm90_mxfp8_columns"] = run_columns<QmvTraits<formats::Mxfp8, simt::kU8, 2, 32>>;
    list["qmv_sm90_mxfp4_few"] = run_kernel<QmvTraits<formats::Mxfp4, simt::kU8, 0, 32>>;
    list["qmv_sm90_mxfp4"] = run_kernel<QmvTraits<formats::Mxfp4, simt::kU8, 2, 32>>;
    list["qmv_sm90_mxfp8_few"] = run_kernel<QmvTraits<formats::Mxfp8, simt::kU8, 0, 32>>;
    list["qmv_sm90_mxfp8"] = run_kernel<QmvTraits<formats::Mxfp8, simt::kU8, 2, 32>>;
    list["qmv_sm90_mxfp4_helped"] = run_kernel<QmvHelped<formats::Mxfp4, simt::kU8, 32>>;
    list["qmv_sm90_nvfp4_helped"] = run_kernel<QmvHelped<formats::Nvfp4, simt::kU8, 16>>;
    list["qmv_sm90_mxfp4_slots_helped"] =
        run_kernel<QmvHelped<formats::Mxfp4, simt::kU8, 32, false>>;
    list["qmv_sm90_nvfp4_slots_helped"] =
        run_kernel<QmvHelped<formats::Nvfp4, simt::kU8, 16, false>>;
    list["qmv_sm90_nvfp4_few"] = run_kernel<QmvTraits<formats::Nvfp4, simt::kU8, 0, 16>>;
    list["qmv_sm90_nvfp4"] = run_kernel<QmvTraits<formats::Nvfp4, simt::kU8, 2, 16>>;
    return list;
  }();
  return all;
}

}  // namespace

std::vector<std::string> qmv_kernels() {
  std::vector<std::string> names;
  for (const auto& [name, kernel] : kernels_by_name()) names.push_back(name);
  return names;
}

void run_on_blocks(const QmvPlan& made, uint64_t seed) {
  QmvPlan plan = made;
  if (plan.shared_bytes + sizeof(cuda::device::QmvShared) + kOfSchedules > kSharedBytes) {
    throw std::runtime_error("more shared memory than a block has");
  }
  const uint8_t spoilt = seed % 2 == 0 ? 0xff : 0xfb;  // NaN; a large number
  const Kernel kernel = kernels_by_name().at(plan.kernel);
  std::vector<uint8_t> workspace(plan.workspace + 128, spoilt);
  if (plan.columns_kernel != nullptr) {
    const auto address = reinterpret_cast<uintptr_t>(workspace.data());
    plan.params.staged_x = workspace.data() + (128 - address % 128);
    plan.maps[cuda::kQmvMapOfX].data = plan.params.staged_x;
    const Kernel columns = kernels_by_name().at(plan.columns_kernel);
    run_grid(
        {plan.column_sections, 32 * cuda::kQmvConsumers, plan.params.x_bytes + 128, seed, spoilt},
        [&] { columns(plan); });
  }
  run_grid({plan.grid, cuda::kQmvThreads, plan.shared_bytes, seed, spoilt}, [&] { kernel(plan); });
}

}  // namespace moeblas::test
