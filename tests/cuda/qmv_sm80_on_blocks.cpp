#include "qmv_sm80_on_blocks.h"

#include <cstring>
#include <map>

#include "cuda/qmv_sm80/kernel.cuh"

namespace moeblas::test {
namespace {

using cuda::Qmv80Params;
using simt::ProductBuffers;

using Kernel = void (*)(const Qmv80Params&, const ProductBuffers&);

const std::map<std::string, Kernel>& kernels_by_name() {
  using namespace formats;
  static const std::map<std::string, Kernel> all = {
      {"qmv_sm80_affine2", cuda::device::qmv80<Affine<2>, false>},
      {"qmv_sm80_affine3", cuda::device::qmv80<Affine<3>, false>},
      {"qmv_sm80_affine4", cuda::device::qmv80<Affine<4>, false>},
      {"qmv_sm80_affine5", cuda::device::qmv80<Affine<5>, false>},
      {"qmv_sm80_affine6", cuda::device::qmv80<Affine<6>, false>},
      {"qmv_sm80_affine8", cuda::device::qmv80<Affine<8>, false>},
      {"qmv_sm80_one_affine2", cuda::device::qmv80<Affine<2>, true>},
      {"qmv_sm80_one_affine3", cuda::device::qmv80<Affine<3>, true>},
      {"qmv_sm80_one_affine4", cuda::device::qmv80<Affine<4>, true>},
      {"qmv_sm80_one_affine5", cuda::device::qmv80<Affine<5>, true>},
      {"qmv_sm80_one_affine6", cuda::device::qmv80<Affine<6>, true>},
      {"qmv_sm80_one_affine8", cuda::device::qmv80<Affine<8>, true>},
      {"qmv_sm80_mxfp4", cuda::device::qmv80<Mxfp4, false>},
      {"qmv_sm80_mxfp8", cuda::device::qmv80<Mxfp8, false>},
      {"qmv_sm80_nvfp4", cuda::device::qmv80<Nvfp4, false>},
  };
  return all;
}

template <class T>
const T* pointer(const simt::Step& step, size_t i) {
  return static_cast<const T*>(step.pointers[i]);
}

}  // namespace

std::vector<std::string> qmv_sm80_kernels() {
  std::vector<std::string> names;
  for (const auto& [name, kernel] : kernels_by_name()) names.push_back(name);
  return names;
}

void run_qmv_sm80_on_blocks(const simt::Step& step, uint64_t seed) {
  Qmv80Params params;
  std::memcpy(&params, step.params.data(), sizeof params);
  const ProductBuffers b = {pointer<simt::Pair>(step, 0), pointer<uint>(step, 1),
                            pointer<uint>(step, 2),       pointer<uint>(step, 3),
                            pointer<uchar>(step, 4),      pointer<uchar>(step, 5),
                            pointer<float>(step, 6),      pointer<uchar>(step, 7),
                            pointer<uchar>(step, 8),      pointer<uchar>(step, 9),
                            pointer<float>(step, 10),     pointer<uchar>(step, 11),
                            pointer<uchar>(step, 12),     static_cast<uchar*>(step.pointers[13])};
  const Kernel kernel = kernels_by_name().at(step.kernel);
  const uint8_t spoilt = seed % 2 == 0 ? 0xff : 0xfb;  // NaN; a large number
  run_grid({step.groups[0], step.threads[0], step.shared_bytes, seed, spoilt},
           [&] { kernel(params, b); });
}

}  // namespace moeblas::test
