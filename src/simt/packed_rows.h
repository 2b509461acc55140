// Packed codes and their scales in device memory: what quantize.metal writes and dequantize.metal
// reads.
#pragma once

#include "formats/affine.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"
#include "formats/pack.h"
#include "formats/scale_layout.h"
#include "simt/octet.h"
#include "simt/quantize_params.h"

namespace moeblas {
namespace simt {

// Octet i of a row's codes, Bits bytes; `wide`: they are aligned to what divides Bits.
template <int Bits>
MB_GPU_FN void store_codes(MB_DEVICE uchar* row, long i, formats::uint64 octet, bool wide) {
  MB_DEVICE uchar* to = row + i * Bits;
  if (wide && Bits % 4 == 0) {
    for (int j = 0; j < Bits / 4; ++j)
      reinterpret_cast<MB_DEVICE uint*>(to)[j] = uint(octet >> (j * 32));
  } else if (wide && Bits % 2 == 0) {
    for (int j = 0; j < Bits / 2; ++j)
      reinterpret_cast<MB_DEVICE ushort*>(to)[j] = ushort(octet >> (j * 16));
  } else {
    for (int j = 0; j < Bits; ++j) to[j] = uchar(octet >> (j * 8));
  }
}
template <int Bits>
MB_GPU_FN formats::uint64 load_codes(MB_DEVICE const uchar* row, long i, bool wide) {
  MB_DEVICE const uchar* from = row + i * Bits;
  formats::uint64 octet = 0;
  if (wide && Bits % 4 == 0) {
    for (int j = 0; j < Bits / 4; ++j)
      octet |= formats::uint64(reinterpret_cast<MB_DEVICE const uint*>(from)[j]) << (j * 32);
  } else if (wide && Bits % 2 == 0) {
    for (int j = 0; j < Bits / 2; ++j)
      octet |= formats::uint64(reinterpret_cast<MB_DEVICE const ushort*>(from)[j]) << (j * 16);
  } else {
    for (int j = 0; j < Bits; ++j) octet |= formats::uint64(from[j]) << (j * 8);
  }
  return octet;
}

// Where the scale of a group lies, in elements. A swizzled matrix is one piece that begins where
// its first row would.
MB_GPU_FN long scale_offset(MB_CONST PackedParams& p, ulong row, ulong group) {
  if (p.padded_rows == 0) return row_offset(p.scales, row) + long(group);
  const ulong matrix = row / ulong(p.rows_per_matrix);
  return row_offset(p.scales, matrix * ulong(p.padded_rows)) +
         long(formats::swizzled_128x4(row - matrix * ulong(p.rows_per_matrix), group,
                                      ulong(p.padded_groups)));
}

MB_GPU_FN float load_tensor_scale(MB_CONST PackedParams& p, MB_DEVICE const float* tensor_scale,
                                  ulong row) {
  if (!p.has_tensor_scale) return p.host_tensor_scale;
  return tensor_scale[long(row / ulong(p.rows_per_matrix)) * p.tensor_scale_stride];
}

}  // namespace simt
}  // namespace moeblas
