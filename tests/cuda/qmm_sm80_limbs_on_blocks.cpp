#include "qmm_sm80_limbs_on_blocks.h"

#include <cstring>
#include <map>

#include "cuda/qmm_sm80_limbs/kernel.cuh"
#include "cuda/qmm_sm80_limbs/rows.cuh"

namespace moeblas::test {
namespace {

using cuda::QmmSm80LimbsParams;
using cuda::QmmSm80LimbsShort;
using cuda::QmmSm80LimbsTall;
using simt::ProductBuffers;

using Kernel = void (*)(const QmmSm80LimbsParams&, const ProductBuffers&);

template <class F, class Size>
void kernel(const QmmSm80LimbsParams& p, const ProductBuffers& b) {
  static thread_local int64_t places[Size::kRows];  // of a block, whose threads share this one
  cuda::device::make_limbs_parts<F, Size>(p, b, places);
}

template <class F>
void add(std::map<std::string, Kernel>& all, const std::string& format) {
  all["qmm_sm80_limbs_tall_" + format] = kernel<F, QmmSm80LimbsTall>;
  all["qmm_sm80_limbs_short_" + format] = kernel<F, QmmSm80LimbsShort>;
}

const std::map<std::string, Kernel>& kernels_by_name() {
  static const std::map<std::string, Kernel> all = [] {
    std::map<std::string, Kernel> made;
    add<formats::Affine<2>>(made, "affine2");
    add<formats::Affine<3>>(made, "affine3");
    add<formats::Affine<4>>(made, "affine4");
    add<formats::Affine<5>>(made, "affine5");
    add<formats::Affine<6>>(made, "affine6");
    add<formats::Affine<8>>(made, "affine8");
    add<formats::Mxfp4>(made, "mxfp4");
    add<formats::Mxfp8>(made, "mxfp8");
    add<formats::Nvfp4>(made, "nvfp4");
    return made;
  }();
  return all;
}

template <class T>
T* pointer(const simt::Step& step, size_t i) {
  return static_cast<T*>(step.pointers[i]);
}
template <class Params>
Params params_of(const simt::Step& step) {
  Params params;
  std::memcpy(&params, step.params.data(), sizeof params);
  return params;
}

}  // namespace

std::vector<std::string> qmm_sm80_limbs_kernels() {
  std::vector<std::string> names;
  for (const auto& [name, kernel] : kernels_by_name()) names.push_back(name);
  return names;
}

void run_qmm_sm80_limbs_on_blocks(const simt::Step& step, uint64_t seed) {
  const uint8_t spoilt = seed % 2 == 0 ? 0xff : 0xfb;  // NaN; a large number
  const Grid grid = {step.groups[0], step.threads[0], step.shared_bytes, seed, spoilt};
  if (std::string_view(step.kernel) == "qmm_sm80_limbs_rows") {
    const auto params = params_of<cuda::XLimbsParams>(step);
    run_grid(grid, [&] {
      cuda::device::make_x_limbs(params, pointer<uint8_t>(step, 0), pointer<uint8_t>(step, 1),
                                 pointer<float>(step, 2));
    });
    return;
  }
  const auto params = params_of<QmmSm80LimbsParams>(step);
  const ProductBuffers b = {
      pointer<simt::Pair>(step, 0), pointer<uint>(step, 1),   pointer<uint>(step, 2),
      pointer<uint>(step, 3),       pointer<uchar>(step, 4),  pointer<uchar>(step, 5),
      pointer<float>(step, 6),      pointer<uchar>(step, 7),  pointer<uchar>(step, 8),
      pointer<uchar>(step, 9),      pointer<float>(step, 10), pointer<uchar>(step, 11),
      pointer<uchar>(step, 12),     pointer<uchar>(step, 13)};
  const Kernel kernel = kernels_by_name().at(step.kernel);
  run_grid(grid, [&] { kernel(params, b); });
}

}  // namespace moeblas::test
