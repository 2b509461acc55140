// The swizzled layout of block scales that Blackwell's block-scaled matrix instructions read: tiles
// of 128 rows x 4 scales, 512 bytes each, row tiles outermost. (Source: the layout of 1D block
// scaling factors in NVIDIA's cuBLAS documentation.)
#pragma once

#include "portable.h"

namespace moeblas {
namespace formats {

MB_FN uint64 swizzle_padded_rows(uint64 rows) { return (rows + 127) / 128 * 128; }
MB_FN uint64 swizzle_padded_scales(uint64 scales) { return (scales + 3) / 4 * 4; }

// The byte of scale g of row r in a matrix with `padded_scales` scales a row.
MB_FN uint64 swizzled_128x4(uint64 r, uint64 g, uint64 padded_scales) {
  uint64 tile = r / 128 * (padded_scales / 4) + g / 4;
  return tile * 512 + r % 32 * 16 + r / 32 % 4 * 4 + g % 4;
}

}  // namespace formats
}  // namespace moeblas
