// The list of formats. Everything that must know all of them derives from it: the information that
// the operations check against, and the step from a run-time (mode, bits) to a format as a type.
#pragma once

#include <cstdint>
#include <utility>

#include "affine.h"
#include "moeblas/quant.h"
#include "mxfp4.h"
#include "mxfp8.h"
#include "nvfp4.h"

namespace moeblas::formats {

template <class... Formats>
struct FormatList {};

using AllFormats = FormatList<Affine<2>, Affine<3>, Affine<4>, Affine<5>, Affine<6>, Affine<8>,
                              Mxfp4, Mxfp8, Nvfp4>;

template <class Format>
inline constexpr bool kIsAffine = int(Format::kMode) == MOEBLAS_AFFINE;

template <class Format>
constexpr bool is_format(Mode mode, int bits) {
  return static_cast<int>(mode) == int(Format::kMode) && bits == int(Format::kBits);
}

template <class... Formats>
constexpr bool any_format(FormatList<Formats...>, Mode mode, int bits) {
  return (is_format<Formats>(mode, bits) || ...);
}

// Calls f.template operator()<Format>() for the one format of (mode, bits); false if there is none.
template <class F, class... Formats>
bool visit_format(FormatList<Formats...>, Mode mode, int bits, F&& f) {
  return ((is_format<Formats>(mode, bits) ? (f.template operator()<Formats>(), true) : false) ||
          ...);
}
template <class F>
bool visit_format(Mode mode, int bits, F&& f) {
  return visit_format(AllFormats{}, mode, bits, std::forward<F>(f));
}

// Legal (mode, bits, group_size): affine takes any of four groups, the others their own only.
template <class... Formats>
constexpr bool is_legal(FormatList<Formats...>, Mode mode, int bits, int64_t group_size) {
  auto takes = [=]<class Format>() {
    if (!is_format<Format>(mode, bits)) return false;
    if constexpr (kIsAffine<Format>) {
      return group_size == 16 || group_size == 32 || group_size == 64 || group_size == 128;
    } else {
      return group_size == int(Format::kGroup);
    }
  };
  return (takes.template operator()<Formats>() || ...);
}
constexpr bool is_legal(const QuantSpec& spec) {
  return is_legal(AllFormats{}, spec.mode, spec.bits, spec.group_size);
}

}  // namespace moeblas::formats
