// What instances of qmv_sm90 are for.
#pragma once

#include <type_traits>

#include "cuda/qmv_sm90/decode.cuh"

namespace moeblas::cuda::device {

// What a kernel is an instance for. kScale: an ElementType. kTiles: n-tiles of eight tokens at
// most, 0 for few tokens; kGroup: values of x and w that meet before a scale is applied.
template <class F, int scale, int tiles, int group>
struct QmvTraits {
  using Format = F;
  using Decode = QmvDecoder<F>;
  static constexpr int kScale = scale, kTiles = tiles, kGroup = group;
  static constexpr bool kHelped =
      false;  // by warps beside those who multiply (qmv_sm90/helpers.cuh)
  // Whether scales come with every stage, those of an item at multiples of their size: known to the
  // compiler or read from QmvParams.
  static constexpr bool kWords = false;
  // Whether, the other way round, a tile's always come at once.
  static constexpr bool kByTile = false;
  // Whether rows of x stand as bytes where a matrix meets few of them (qmv_sm90/bytes.cuh).
  static constexpr bool kBytes = false;
  // Of threads that multiply, and of the other four warps'.
  static constexpr int kRegisters = 112, kOtherRegisters = 32;
  static constexpr bool kAffine = int(F::kMode) == MOEBLAS_AFFINE;
  static constexpr bool kHalves = group == 16;               // a unit holds two groups
  static constexpr int kUnits = Decode::kBits == 4 ? 4 : 2;  // of an item
  static constexpr int kSlots = kUnits * (kHalves ? 2 : 1);
  static constexpr int kTokens = tiles == 0 ? 8 / kSlots : 8 * tiles;  // columns of x that are used
  static constexpr int kFactorUnit = tiles > 0 && group == 64 ? 64 : 32;
  static constexpr int kSums = tiles == 0 ? 1 : tiles;
  // Up to so many columns can share a product's eight (add_few), each in several of them; 0: none
  // that kTokens does not know.
  static constexpr int kFew = tiles == 0                   ? kTokens
                              : kHalves                    ? 2
                              : kUnits == 4 || group == 32 ? 4
                                                           : 0;
};

template <class F, int scale, int group, bool words = true>
struct QmvHelped : QmvTraits<F, scale, 1, group> {
  static constexpr bool kHelped = true, kWords = words;
  // Only affine has groups, of 128, whose scales come with the stages and are not words.
  static constexpr bool kByTile = !words && int(F::kMode) != MOEBLAS_AFFINE;
  static constexpr bool kBytes = int(F::kMode) == MOEBLAS_MXFP4;
  // Where mxfp4's scales come by tiles, layers of gpt-oss-120b took 2 % longer with products for
  // operations of logic; where they come with the stages, layers took up to 2 % less.
  using Decode = std::conditional_t<kBytes && kByTile, Decoder<F>, QmvDecoder<F>>;
  static constexpr int kRegisters = 104, kOtherRegisters = 64;
};

}  // namespace moeblas::cuda::device
