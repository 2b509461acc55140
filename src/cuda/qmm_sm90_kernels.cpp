#include "cuda/qmm_sm90_kernels.h"

#include <vector_types.h>

#include <algorithm>

#include "cuda/qmm_sm90_layout.h"
#include "cuda/qmm_sm90_plan.h"

namespace moeblas::cuda {

using dispatch::MatmulProblem;

namespace {

template <class Bytes, class Tiles>
constexpr QmmSm90Kernel kernel(const char* name) {
  return {name,
          BlockShape<Tiles>::kRows,
          Tiles::kMostTokens,
          Tiles::kLeastTokens,
          BlockShape<Tiles>::kThreads,
          BlockMemory<Bytes, Tiles>::kBytes,
          CodeRing<Bytes, Tiles>::kBlocks,
          CodeRing<Bytes, Tiles>::kByBlocks,
          Tiles::kGathers,
          CodeRing<Bytes, Tiles>::kWholeScales ? BlockMemory<Bytes, Tiles>::kScaleRoom : 0,
          CodeRing<Bytes, Tiles>::kScaleUnit,
          CodeRing<Bytes, Tiles>::kScaleChunks};
}
// Of a format, by the width of their tiles.
struct Kernels {
  QmmSm90Kernel tiles256, tiles128, tiles64, tiles32;
  uint32_t chunk_blocks;
};
#define MB_KERNELS_OF(name, Bytes, Of)                   \
  {kernel<Bytes, Of<Tiles256>>("qmm_sm90_" name "_256"), \
   kernel<Bytes, Of<Tiles128>>("qmm_sm90_" name "_128"), \
   kernel<Bytes, Of<Tiles64>>("qmm_sm90_" name "_64"),   \
   kernel<Bytes, Of<Tiles32>>("qmm_sm90_" name "_32"), Bytes::kChunkBlocks}
#define MB_KERNELS(name, Bytes) MB_KERNELS_OF(name, Bytes, SameTiles)
#define MB_NIBBLE_KERNELS(name, Bytes) MB_KERNELS_OF(name, Bytes, NibbleTiles)
#define MB_DENSE_KERNELS(name) MB_KERNELS_OF(name, DenseBytes, DenseTiles)
#define MB_FIELD_KERNELS(bits) \
  MB_KERNELS_OF("affine" #bits "_bf16", FieldBytes<bits>, FieldTiles<bits>::Of)
// One width for what is rare.
template <class Bytes>
constexpr Kernels any_kernels(const char* name) {
  constexpr auto of = kernel<Bytes, Tiles256Any>;
  return {of(name), of(name), of(name), of(name), Bytes::kChunkBlocks};
}
constexpr Kernels kAffine4 = MB_NIBBLE_KERNELS("affine4_bf16", AffineBytes<4>);
constexpr Kernels kAffine8 = MB_KERNELS("affine8_bf16", AffineBytes<8>);
constexpr Kernels kAnyAffine4 = any_kernels<AnyAffineBytes<4>>("qmm_sm90_affine4_any_bf16");
constexpr Kernels kAnyAffine8 = any_kernels<AnyAffineBytes<8>>("qmm_sm90_affine8_any_bf16");
constexpr Kernels kAffine4F16 = MB_NIBBLE_KERNELS("affine4_f16", AffineBytes<4>);
constexpr Kernels kAffine8F16 = MB_KERNELS("affine8_f16", AffineBytes<8>);
constexpr Kernels kAffine2 = MB_FIELD_KERNELS(2);
constexpr Kernels kAffine3 = MB_FIELD_KERNELS(3);
constexpr Kernels kAffine5 = MB_FIELD_KERNELS(5);
constexpr Kernels kAffine6 = MB_FIELD_KERNELS(6);
constexpr Kernels kMxfp4 = MB_NIBBLE_KERNELS("mxfp4_bf16", Mxfp4Bytes);
constexpr Kernels kMxfp8 = MB_KERNELS("mxfp8_bf16", Mxfp8Bytes);
constexpr Kernels kNvfp4 = MB_NIBBLE_KERNELS("nvfp4_bf16", Nvfp4Bytes);
constexpr Kernels kNvfp4F16 = MB_NIBBLE_KERNELS("nvfp4_f16", Nvfp4Bytes);
constexpr Kernels kDenseBf16 = MB_DENSE_KERNELS("dense_bf16");
constexpr Kernels kAcrossBf16 = MB_DENSE_KERNELS("across_bf16");
constexpr Kernels kDenseF16 = MB_DENSE_KERNELS("dense_f16");
constexpr Kernels kAcrossF16 = MB_DENSE_KERNELS("across_f16");
#undef MB_FIELD_KERNELS
#undef MB_DENSE_KERNELS
#undef MB_NIBBLE_KERNELS
#undef MB_KERNELS
#undef MB_KERNELS_OF

const Kernels& kernels_of(const MatmulProblem& p) {
  const bool half = p.x.values.dtype == DType::f16;
  if (!p.w.spec) {
    if (across(p)) return half ? kAcrossF16 : kAcrossBf16;
    return half ? kDenseF16 : kDenseBf16;
  }
  const QuantSpec& spec = *p.w.spec;
  if (spec.mode == Mode::mxfp4) return kMxfp4;
  if (spec.mode == Mode::mxfp8) return kMxfp8;
  if (spec.mode == Mode::nvfp4) return half ? kNvfp4F16 : kNvfp4;
  if (spec.bits == 2) return kAffine2;
  if (spec.bits == 3) return kAffine3;
  if (spec.bits == 5) return kAffine5;
  if (spec.bits == 6) return kAffine6;
  if (half) return spec.bits == 8 ? kAffine8F16 : kAffine4F16;
  const bool plain = p.w.scales.dtype == p.x.values.dtype && spec.group_size >= 32;
  if (spec.bits == 8) return plain ? kAffine8 : kAnyAffine8;
  return plain ? kAffine4 : kAnyAffine4;
}

// Rows of a matrix where all are met alike. What the routing is, the host does not know; every
// width takes every routing. Experts that meet 32 rows each on the average meet more in half of the
// cases: where a kernel's tiles are 64 or 32 wide, a quarter less time than by tiles of 32 alone
// (and 2 % more where all meet 32).
constexpr int64_t kMostRowsOf32 = 32, kMostRowsOf64 = 64, kMostRowsOf128 = 160;
constexpr int64_t kMostRoutedRowsOf32 = 24;

}  // namespace

int64_t k_stride(const MatmulProblem& p) {
  return p.transpose ? p.w.values.col_stride : p.w.values.row_stride;
}
int64_t n_stride(const MatmulProblem& p) {
  return p.transpose ? p.w.values.row_stride : p.w.values.col_stride;
}
bool across(const MatmulProblem& p) { return !p.w.spec && k_stride(p) != 1; }

// Of one packed matrix, whose K is shared out, 65 to 128 rows of 16384^2 took 122 us by tiles of
// 128 and 108 by those of 256, which are as narrow; of 8192^2 48 and 35.
const QmmSm90Kernel& qmm_sm90_kernel(const MatmulProblem& p) {
  const Kernels& of = kernels_of(p);
  const int64_t matrices = std::max<int64_t>(1, std::min(p.batch.numel(), p.w.values.count()));
  const int64_t rows = p.total_rows() / matrices;
  const bool routed = p.grouping != dispatch::Grouping::none;
  const bool both = routed && of.tiles64.least_tokens <= kMostRowsOf32;
  if (rows <= (both ? kMostRoutedRowsOf32 : kMostRowsOf32)) return of.tiles32;
  if (rows <= kMostRowsOf64) return of.tiles64;
  return rows <= kMostRowsOf128 && !qmm_sm90_shares(p) ? of.tiles128 : of.tiles256;
}

uint32_t qmm_sm90_chunk_blocks(const MatmulProblem& p) { return kernels_of(p).chunk_blocks; }

bool qmm_sm90_has_layers(const MatmulProblem& p) {
  const Kernels& of = kernels_of(p);
  return &of == &kAffine4 || &of == &kAffine8 || &of == &kMxfp4 || &of == &kMxfp8 || &of == &kNvfp4;
}

}  // namespace moeblas::cuda
