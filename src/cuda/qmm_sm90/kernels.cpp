#include "cuda/qmm_sm90/kernels.h"

#include <vector_types.h>

#include <algorithm>
#include <limits>

#include "cuda/qmm_sm90/layout.h"
#include "cuda/qmm_sm90/plan.h"
#include "cuda/qmm_sm90/shares.h"

namespace moeblas::cuda {

using dispatch::MatmulProblem;

namespace {

template <class Tiles>
constexpr uint32_t extra_step() {
  if constexpr (Tiles::kExtra != 0) return Tiles::kExtraStep;
  return 0;
}
template <class Bytes, class Tiles>
constexpr QmmSm90Kernel kernel(const char* name) {
  return {name,
          BlockShape<Tiles>::kRows,
          Tiles::kMostTokens,
          Tiles::kLeastTokens,
          Tiles::kExtra,
          extra_step<Tiles>(),
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
  QmmSm90Either either256{}, either128{}, either64{};
  QmmSm90Kernel ahead256{};
  QmmSm90Either ahead256_288{};
  QmmSm90Kernel natural256{};
  QmmSm90Either natural256_288{};
};
#define MB_KERNELS_OF(name, Bytes, Of)                   \
  {kernel<Bytes, Of<Tiles256>>("qmm_sm90_" name "_256"), \
   kernel<Bytes, Of<Tiles128>>("qmm_sm90_" name "_128"), \
   kernel<Bytes, Of<Tiles64>>("qmm_sm90_" name "_64"),   \
   kernel<Bytes, Of<Tiles32>>("qmm_sm90_" name "_32"), Bytes::kChunkBlocks}
#define MB_NIBBLE_KERNELS(name, Bytes) MB_KERNELS_OF(name, Bytes, NibbleTiles)
#define MB_DENSE_KERNELS(name) MB_KERNELS_OF(name, DenseBytes, DenseTiles)
// And with wider tiles beside those of three widths, which must save so many thousandths.
template <class Bytes, template <class> class Of>
constexpr Kernels with_wider(Kernels all, const char* of256, const char* of128, const char* of64,
                             const uint32_t (&losses)[3]) {
  using Of256 = typename WiderThan<Of<Tiles256>, 288>::Type;
  using Of128 = typename WiderThan<Of<Tiles128>, 160>::Type;
  using Of64 = typename WiderThan<Of<Tiles64>, 96>::Type;
  all.either256 = {of256, kernel<Bytes, Of256>(of256), losses[0]};
  all.either128 = {of128, kernel<Bytes, Of128>(of128), losses[1]};
  all.either64 = {of64, kernel<Bytes, Of64>(of64), losses[2]};
  return all;
}
#define MB_EITHER_OF(name, Bytes, Of, ...)                                           \
  with_wider<Bytes, Of>(MB_KERNELS_OF(name, Bytes, Of), "qmm_sm90_" name "_256_288", \
                        "qmm_sm90_" name "_128_160", "qmm_sm90_" name "_64_96", {__VA_ARGS__})
#define MB_EITHER(name, Bytes, Of) MB_EITHER_OF(name, Bytes, Of, 25, 120, 165)
#define MB_FIELD_KERNELS(bits) \
  MB_EITHER("affine" #bits "_bf16", FieldBytes<bits>, FieldTiles<bits>::Of)
// Taken between those of codes, not tuned.
#define MB_DENSE_EITHER(name) MB_EITHER_OF(name, DenseBytes, DenseTiles, 60, 60, 60)
constexpr Kernels without_160(Kernels all) {
  all.either128 = {};
  return all;
}
// And with one that writes rows of x itself.
template <class Bytes, template <class> class Of, int kConsumers>
constexpr Kernels with_ahead(Kernels all, const char* name) {
  all.ahead256 = kernel<Bytes, AheadTiles<Of<Tiles256>, kConsumers>>(name);
  return all;
}
template <class Bytes, template <class> class Of>
constexpr Kernels with_wider_ahead(Kernels all, const char* name, const char* either) {
  all = with_ahead<Bytes, Of, 224>(all, name);
  all.ahead256_288 = {either, kernel<Bytes, AheadTiles<Tiles288, 224>>(either), all.either256.loss};
  return all;
}
#define MB_AHEAD(name, Bytes, Of)                                                        \
  with_wider_ahead<Bytes, Of>(MB_EITHER(name, Bytes, Of), "qmm_sm90_" name "_256_ahead", \
                              "qmm_sm90_" name "_256_288_ahead")
#define MB_DENSE_AHEAD(name) \
  with_ahead<DenseBytes, DenseTiles, 224>(MB_DENSE_EITHER(name), "qmm_sm90_" name "_256_ahead")
// And with one that multiplies rows of x as they lie, and one that has wider tiles beside it.
template <class Bytes, template <class> class Of>
constexpr Kernels with_natural(Kernels all, const char* name, const char* either) {
  all.natural256 = kernel<Bytes, Of<Tiles256>>(name);
  all.natural256_288 = {either, kernel<Bytes, typename WiderThan<Of<Tiles256>, 288>::Type>(either),
                        all.either256.loss};
  return all;
}
// One width for what is rare.
template <class Bytes>
constexpr Kernels any_kernels(const char* name) {
  constexpr auto of = kernel<Bytes, Tiles256Any>;
  return {of(name), of(name), of(name), of(name), Bytes::kChunkBlocks};
}
constexpr Kernels kAffine4 = with_natural<AffineBytes<4>, NibbleTiles>(
    MB_AHEAD("affine4_bf16", AffineBytes<4>, NibbleTiles), "qmm_sm90_affine4_bf16_256_natural",
    "qmm_sm90_affine4_bf16_256_288_natural");
constexpr Kernels kAffine8 = with_natural<AffineBytes<8>, SameTiles>(
    MB_AHEAD("affine8_bf16", AffineBytes<8>, SameTiles), "qmm_sm90_affine8_bf16_256_natural",
    "qmm_sm90_affine8_bf16_256_288_natural");
constexpr Kernels kAnyAffine4 = any_kernels<AnyAffineBytes<4>>("qmm_sm90_affine4_any_bf16");
constexpr Kernels kAnyAffine8 = any_kernels<AnyAffineBytes<8>>("qmm_sm90_affine8_any_bf16");
constexpr Kernels kAffine4F16 = without_160(MB_EITHER("affine4_f16", AffineBytes<4>, NibbleTiles));
constexpr Kernels kAffine8F16 = MB_EITHER("affine8_f16", AffineBytes<8>, SameTiles);
constexpr Kernels kAffine2 = MB_FIELD_KERNELS(2);
constexpr Kernels kAffine3 = MB_FIELD_KERNELS(3);
constexpr Kernels kAffine5 = MB_FIELD_KERNELS(5);
constexpr Kernels kAffine6 = MB_FIELD_KERNELS(6);
constexpr Kernels kMxfp4 = with_natural<Mxfp4Bytes, NibbleTiles>(
    MB_AHEAD("mxfp4_bf16", Mxfp4Bytes, NibbleTiles), "qmm_sm90_mxfp4_bf16_256_natural",
    "qmm_sm90_mxfp4_bf16_256_288_natural");
constexpr Kernels kMxfp8 = without_160(MB_EITHER("mxfp8_bf16", Mxfp8Bytes, SameTiles));
constexpr Kernels kNvfp4 = with_natural<Nvfp4Bytes, NibbleTiles>(
    with_ahead<Nvfp4Bytes, NibbleTiles, 232>(
        without_160(MB_EITHER("nvfp4_bf16", Nvfp4Bytes, NibbleTiles)),
        "qmm_sm90_nvfp4_bf16_256_ahead"),
    "qmm_sm90_nvfp4_bf16_256_natural", "qmm_sm90_nvfp4_bf16_256_288_natural");
constexpr Kernels kNvfp4F16 = MB_NIBBLE_KERNELS("nvfp4_f16", Nvfp4Bytes);
constexpr Kernels kDenseBf16 = MB_DENSE_AHEAD("dense_bf16");
constexpr Kernels kAcrossBf16 = MB_DENSE_KERNELS("across_bf16");
constexpr Kernels kDenseF16 = MB_DENSE_AHEAD("dense_f16");
constexpr Kernels kAcrossF16 = MB_DENSE_KERNELS("across_f16");
#undef MB_FIELD_KERNELS
#undef MB_DENSE_AHEAD
#undef MB_DENSE_EITHER
#undef MB_DENSE_KERNELS
#undef MB_NIBBLE_KERNELS
#undef MB_AHEAD
#undef MB_EITHER
#undef MB_EITHER_OF
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
// Where the tiles of matrices that are met once are one round of clusters, one of them that is met
// twice makes two rounds of it. Mixtral's layers of 72 / 96 tokens, whose down has 64 tiles for 66
// clusters, by tiles of 32 -> 64, uniform 284 / 379 us -> 289 / 323, zipf 382 / 389 -> 335 / 341
// (mxfp4 288 / 395 -> 283 / 325, 402 / 408 -> 339 / 345, nvfp4 at 64 304 -> 309, zipf 417 -> 350),
// but of 24 and 32 in nvfp4 294 -> 303 and 297 -> 302.
constexpr int64_t kMostRowsOf32InOneRound = 12;
// Where whole tiles are about what experts meet on the average, half of them meet some rows more.
constexpr int64_t kLeastRowsOf96 = 52, kLeastRowsOf160 = 112;
constexpr int64_t kRowsBelowWhole = 24, kRowsBeyondWhole = 48, kMostRowsOf288 = 600;
// Qwen3-30B's gates and ups, 256 / 384 rows an expert: even 335 / 524 us -> 329 / 504, uniform 354
// / 572 -> 350 / 545. Tiles of one width alone take 327 of even routing at 256, and 389 of uniform.
constexpr int64_t kLeastRowsAhead = 256 - kRowsBelowWhole;
// Where there are no wider tiles then: of dense weights, even / uniform, 256 rows 366 / 384 -> 373
// / 446, 384 610 / 632 -> 615 / 610, 512 693 / 768 -> 653 / 736.
constexpr int64_t kLeastRowsAheadAlone = 320;

// Where x is multiplied as it lies, and not staged in the order of the weights: in wide tiles,
// beside whose products there is time to take weights in the order of x. Segments for Qwen3-30B's
// gates and ups, 192 / 256 / 512 rows an expert, 342 / 359 / 698 us -> 299 / 299 / 575, but 128 203
// -> 211; one matrix, 192 rows of 8192^2 54.8 -> 53.3, 4096 rows 702 -> 674. It is another order of
// sums.
constexpr int64_t kLeastRowsOfNatural = 192;
// Of 8 bits and of e2m1, whose loops take longer so, where w has few columns beside which to stage
// x takes long. 8 bits: 4096 rows of 8192^2 726 -> 751, but 65536 rows of 1536 x 2048 597, for
// which 4 bits, staged, took 664. Segments as above mxfp4 333 / 360 / 695 -> 313 / 319 / 614, nvfp4
// 341 / 367 / 709 -> 330 / 340 / 647; 16384 rows of 4096^2 mxfp4 736 -> 726, nvfp4 752 -> 769, of
// 3072 x 4096 570 -> 548 and 583 -> 583; segments of 5760 columns, 256 / 512 rows, mxfp4 417 / 774
// -> 433 / 802.
constexpr int64_t kMostColumnsOfNaturalBytes = 3072;
constexpr int64_t kMostColumnsOfNaturalMxfp4 = 4096, kMostColumnsOfNaturalNvfp4 = 2048;
constexpr int kHalfBlock = 64;  // values, whose scales are loaded at once

// That a matrix of w meets on the average.
int64_t rows_of_a_matrix(const MatmulProblem& p) {
  return p.total_rows() / std::max<int64_t>(1, std::min(p.batch.numel(), p.w.values.count()));
}

// Whether tiles of all matrices, each met once, are one round of clusters and nearly fill it.
bool fills_one_round(const MatmulProblem& p, const QmmSm90Kernel& kernel) {
  const int64_t stripes = ceil_div(p.n, 2 * kernel.rows), matrices = p.w.values.count();
  return stripes * matrices <= kQmmClusters && stripes * (matrices + 1) > kQmmClusters;
}

// Whether the scales of half a block are one, or bytes that can be loaded at once.
bool has_scales_of_halves(const MatmulProblem& p) {
  if (p.w.spec->mode == Mode::affine) return p.w.spec->group_size >= kHalfBlock;
  return p.k % kHalfBlock == 0 && alignment(p.w.scales) % (kHalfBlock / p.w.spec->group_size) == 0;
}
// Beside which to stage x takes longer than to take weights in its order.
int64_t most_columns_of_natural(const QuantSpec& spec) {
  if (spec.bits == 8) return kMostColumnsOfNaturalBytes;
  if (spec.mode == Mode::mxfp4) return kMostColumnsOfNaturalMxfp4;
  if (spec.mode == Mode::nvfp4) return kMostColumnsOfNaturalNvfp4;
  return std::numeric_limits<int64_t>::max();
}

// Where the format has such a kernel.
bool takes_natural(const MatmulProblem& p, int64_t rows) {
  if (p.options.deterministic || rows < kLeastRowsOfNatural) return false;
  if (p.n > most_columns_of_natural(*p.w.spec)) return false;
  return has_scales_of_halves(p) && lies_in_place(p);
}

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
  const int64_t rows = rows_of_a_matrix(p);
  const bool routed = p.grouping != dispatch::Grouping::none;
  const bool both = routed && of.tiles64.least_tokens <= kMostRowsOf32;
  const int64_t most_of_32 = !both                            ? kMostRowsOf32
                             : fills_one_round(p, of.tiles32) ? kMostRowsOf32InOneRound
                                                              : kMostRoutedRowsOf32;
  if (rows <= most_of_32) return of.tiles32;
  if (rows <= kMostRowsOf64) return of.tiles64;
  if (rows <= kMostRowsOf128 && !qmm_sm90_shares(p)) return of.tiles128;
  const bool natural = of.natural256.name != nullptr && takes_natural(p, rows);
  return natural ? of.natural256 : of.tiles256;
}

const QmmSm90Either* qmm_sm90_either(const MatmulProblem& p, bool ahead) {
  const Kernels& of = kernels_of(p);
  const QmmSm90Kernel& kernel = qmm_sm90_kernel(p);
  const int64_t rows = rows_of_a_matrix(p);
  const QmmSm90Either* either = nullptr;
  if (&kernel == &of.tiles64 && rows >= kLeastRowsOf96) either = &of.either64;
  if (&kernel == &of.tiles128 && rows >= kLeastRowsOf160) either = &of.either128;
  if ((&kernel == &of.tiles256 || &kernel == &of.natural256) && rows <= kMostRowsOf288 &&
      (rows + kRowsBelowWhole) % 256 <= kRowsBelowWhole + kRowsBeyondWhole) {
    either = ahead                     ? &of.ahead256_288
             : &kernel == &of.tiles256 ? &of.either256
                                       : &of.natural256_288;
  }
  return either != nullptr && either->name != nullptr ? either : nullptr;
}

const QmmSm90Kernel* qmm_sm90_ahead(const MatmulProblem& p, int64_t products) {
  const Kernels& of = kernels_of(p);
  const bool has = of.ahead256.name != nullptr && &qmm_sm90_kernel(p) == &of.tiles256 &&
                   (products == 1 || of.ahead256_288.name != nullptr);
  const int64_t least = of.ahead256_288.name != nullptr ? kLeastRowsAhead : kLeastRowsAheadAlone;
  return has && rows_of_a_matrix(p) >= least ? &of.ahead256 : nullptr;
}

bool qmm_sm90_is_natural(const MatmulProblem& p) {
  return &qmm_sm90_kernel(p) == &kernels_of(p).natural256;
}

bool qmm_sm90_has_narrow_tiles(const MatmulProblem& p) {
  return kernels_of(p).tiles32.least_tokens <= kMostRowsOf32;
}

uint32_t qmm_sm90_chunk_blocks(const MatmulProblem& p) { return kernels_of(p).chunk_blocks; }

bool qmm_sm90_has_layers(const MatmulProblem& p) {
  const Kernels& of = kernels_of(p);
  return &of == &kAffine4 || &of == &kAffine8 || &of == &kMxfp4 || &of == &kMxfp8 || &of == &kNvfp4;
}

}  // namespace moeblas::cuda
