// The kernels of products of many rows for one tier.
#include "cpu/simd/mm_int8.h"
#include "cpu/simd/mm_panels.h"
#include "cpu/simd/mm_tiles.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

// Sums and operands that the registers hold: 24 + 4 + 1 of 32, or 12 + 2 + 1 of 16.
constexpr int kVectors = Simd::kLanes == 16 ? 4 : 2;
using P = Panels<Simd, kVectors>;
using T = Tiles<Simd, kVectors, kTileRows>;

template <Panel kPanel, int kCode = 0>
constexpr void set_packed(MmKernels& m) {
  constexpr int at = static_cast<int>(kPanel);
  m.packed_along_k[at][kCode] = P::packed_along_k<static_cast<Codes>(kCode), kPanel>;
  m.packed_along_n[at][kCode] = P::packed_along_n<static_cast<Codes>(kCode), kPanel>;
  if constexpr (kCode + 1 < kCodeKinds) set_packed<kPanel, kCode + 1>(m);
}

template <Element kElement>
constexpr void set_elements(MmKernels& m) {
  constexpr int at = static_cast<int>(kElement), f32 = static_cast<int>(Panel::f32);
  m.dense_along_k[f32][at] = P::dense_along_k<Panel::f32, kElement>;
  m.dense_along_n[f32][at] = P::dense_along_n<Panel::f32, kElement>;
  m.load[at] = P::load_row<kElement>;
  m.store[at] = P::store_row<kElement>;
}

constexpr MmKernels kernels() {
  MmKernels m{};
  m.cols = P::kCols;
  set_packed<Panel::f32>(m);
  set_elements<Element::f32>(m);
  set_elements<Element::f16>(m);
  set_elements<Element::bf16>(m);
  m.e8m0_scales = P::byte_scales<true>;
  m.e4m3_scales = P::byte_scales<false>;
  m.multiply[static_cast<int>(Panel::f32)] = T::multiply<Panel::f32>;
#if defined(__AVX512BF16__)
  constexpr int pairs = static_cast<int>(Panel::bf16), bf16 = static_cast<int>(Element::bf16);
  set_packed<Panel::bf16>(m);
  m.dense_along_k[pairs][bf16] = P::dense_along_k<Panel::bf16, Element::bf16>;
  m.dense_along_n[pairs][bf16] = P::dense_along_n<Panel::bf16, Element::bf16>;
  m.multiply[pairs] = T::multiply<Panel::bf16>;
#endif
#if defined(__AVX512VNNI__)
  using I = Int8<Simd, kVectors, kTileRows>;
  constexpr int int8 = static_cast<int>(Panel::int8);
  m.packed_along_k[int8][static_cast<int>(Codes::u2)] = I::fill<Codes::u2>;
  m.packed_along_k[int8][static_cast<int>(Codes::u4)] = I::fill<Codes::u4>;
  m.packed_along_k[int8][static_cast<int>(Codes::u8)] = I::fill<Codes::u8>;
  m.packed_along_k[int8][static_cast<int>(Codes::e2m1)] = I::fill<Codes::e2m1>;
  m.multiply[int8] = I::multiply;
  m.quantize_x[static_cast<int>(Element::f32)] = I::quantize_x<Element::f32>;
  m.quantize_x[static_cast<int>(Element::f16)] = I::quantize_x<Element::f16>;
  m.quantize_x[static_cast<int>(Element::bf16)] = I::quantize_x<Element::bf16>;
#endif
  return m;
}

}  // namespace

extern const MmKernels mm_kernels;
constinit const MmKernels mm_kernels = kernels();

}  // namespace moeblas::cpu::MOEBLAS_TIER
