#include "cuda/qmv_sm90/family.h"

#include <algorithm>

namespace moeblas::cuda {
namespace {

constexpr uint32_t costs(uint32_t one, uint32_t two, uint32_t four, uint32_t eight) {
  return one | two << 8 | four << 16 | eight << 24;
}
// As many columns as QmvTraits::kFew cost less than eight, eight less than sixteen.
constexpr uint32_t kCheap2 = costs(16, 16, 18, 18), kCheap4 = costs(16, 16, 16, 18),
                   kCheap8 = costs(16, 16, 16, 17);
// One row and two as bytes: fitted to what thread blocks of an expert layer took.
constexpr uint32_t kMxfp4Helped = costs(16, 17, 20, 23);

#define MB_FAMILY(bits, group, tokens, cheap, scale, helped, slots) \
  {{Mode::affine, bits, group},                                     \
   DType::scale,                                                    \
   "qmv_sm90_affine" #bits "_few_" #scale,                          \
   "qmv_sm90_affine" #bits "_g" #group "_" #scale,                  \
   helped,                                                          \
   slots,                                                           \
   "qmv_sm90_affine" #bits "_g" #group "_columns",                  \
   tokens,                                                          \
   kCheap##cheap,                                                   \
   kCheap##cheap}
#define MB_HELPED(bits, group, tokens, cheap, scale)                  \
  MB_FAMILY(bits, group, tokens, cheap, scale,                        \
            "qmv_sm90_affine" #bits "_g" #group "_" #scale "_helped", \
            "qmv_sm90_affine" #bits "_g" #group "_" #scale "_slots_helped")
#define MB_FAMILIES(bits, group, tokens, cheap)                     \
  MB_FAMILY(bits, group, tokens, cheap, f32, nullptr, nullptr),     \
      MB_FAMILY(bits, group, tokens, cheap, f16, nullptr, nullptr), \
      MB_FAMILY(bits, group, tokens, cheap, bf16, nullptr, nullptr)
#define MB_HELPED_FAMILIES(bits, group, tokens, cheap)          \
  MB_FAMILY(bits, group, tokens, cheap, f32, nullptr, nullptr), \
      MB_HELPED(bits, group, tokens, cheap, f16), MB_HELPED(bits, group, tokens, cheap, bf16)
const QmvFamily kFamilies[] = {
    MB_HELPED_FAMILIES(4, 32, 2, 4),
    MB_HELPED_FAMILIES(4, 64, 2, 4),
    MB_FAMILIES(8, 32, 4, 4),
    MB_FAMILIES(8, 64, 4, 8),
    {{Mode::mxfp4, 4, 32},
     DType::u8,
     "qmv_sm90_mxfp4_few",
     "qmv_sm90_mxfp4",
     "qmv_sm90_mxfp4_helped",
     "qmv_sm90_mxfp4_slots_helped",
     "qmv_sm90_fp4_columns",
     2,
     kCheap4,
     kMxfp4Helped},
    {{Mode::mxfp8, 8, 32},
     DType::u8,
     "qmv_sm90_mxfp8_few",
     "qmv_sm90_mxfp8",
     nullptr,
     nullptr,
     "qmv_sm90_mxfp8_columns",
     4,
     kCheap4,
     kCheap4},
    {{Mode::nvfp4, 4, 16},
     DType::u8,
     "qmv_sm90_nvfp4_few",
     "qmv_sm90_nvfp4",
     "qmv_sm90_nvfp4_helped",
     "qmv_sm90_nvfp4_slots_helped",
     "qmv_sm90_fp4_columns",
     1,
     kCheap2,
     kCheap2},
};
#undef MB_HELPED_FAMILIES
#undef MB_FAMILIES
#undef MB_HELPED
#undef MB_FAMILY

}  // namespace

const QmvFamily* qmv_sm90_family(const dispatch::Operand& w) {
  // Groups of 128 are two of 64 that share a scale.
  const int group = std::min(w.spec->group_size, 64);
  for (const QmvFamily& f : kFamilies) {
    if (f.spec.mode == w.spec->mode && f.spec.bits == w.spec->bits && f.spec.group_size == group &&
        f.scale == w.scales.dtype) {
      return &f;
    }
  }
  return nullptr;
}

}  // namespace moeblas::cuda
