// dequantize_simt_<format>: packed codes to values, each formed in float32 by the format's
// definition and rounded once. A lane takes eight neighbouring codes, which are Bits whole bytes,
// and writes 16 bytes of values (32 of float32); neighbouring lanes share their group's scale
// through the cache. The time is that of writing the values.
#include "simt/packed_rows.h"

namespace moeblas {
namespace simt {

// One group's multiplier; affine: scale and bias.
template <class Format>
struct GroupDecoder {
  float scale;

  MB_GPU_FN void load(MB_DEVICE const uchar* scales, MB_DEVICE const uchar*,
                      MB_CONST PackedParams& p, MB_DEVICE const float* tensor_scale, ulong row,
                      ulong group) {
    scale = formats::mul(Format::decode_scale(scales[scale_offset(p, row, group)]),
                         load_tensor_scale(p, tensor_scale, row));
  }
  MB_GPU_FN float value(uint code) const { return formats::mul(Format::decode_code(code), scale); }
};

template <int Bits>
struct GroupDecoder<formats::Affine<Bits>> {
  formats::AffineParams params;

  MB_GPU_FN void load(MB_DEVICE const uchar* scales, MB_DEVICE const uchar* biases,
                      MB_CONST PackedParams& p, MB_DEVICE const float*, ulong row, ulong group) {
    params.scale = load_float(scales, p.scales.type, row_offset(p.scales, row) + long(group));
    params.bias = load_float(biases, p.scales.type, row_offset(p.biases, row) + long(group));
  }
  MB_GPU_FN float value(uint code) const { return formats::Affine<Bits>::decode(code, params); }
};

}  // namespace simt
}  // namespace moeblas

template <class Format>
MB_KERNEL void dequantize_simt(MB_DEVICE uchar* values MB_ARG(buffer(0)),
                               MB_DEVICE const uchar* codes MB_ARG(buffer(1)),
                               MB_DEVICE const uchar* scales MB_ARG(buffer(2)),
                               MB_DEVICE const uchar* biases MB_ARG(buffer(3)),
                               MB_DEVICE const float* tensor_scale MB_ARG(buffer(4)),
                               MB_PARAMS(moeblas::simt::PackedParams, p, 5) MB_GRID) {
  const ulong per_group = p.group_size / 8u;
  const ulong per_row = ulong(p.groups) * per_group;
  const ulong units = ulong(p.rows) * per_row;
  const ulong step = ulong(mb_groups.x) * mb_threads.x;
  for (ulong unit = ulong(mb_group.x) * mb_threads.x + mb_thread.x; unit < units; unit += step) {
    const ulong row = unit / per_row, i = unit - row * per_row;
    moeblas::simt::GroupDecoder<Format> decoder;
    decoder.load(scales, biases, p, tensor_scale, row, i / per_group);
    const moeblas::formats::uint64 octet = moeblas::simt::load_codes<Format::kBits>(
        codes + moeblas::simt::row_offset(p.codes, row), long(i), p.codes.wide != 0);
    moeblas::simt::Octet out;
    for (int j = 0; j < 8; ++j)
      out.v[j] = decoder.value(moeblas::formats::code_of<Format::kBits>(octet, j));
    out.store(values, p.values, moeblas::simt::row_offset(p.values, row) + long(i) * 8, 8);
  }
}
MB_INSTANTIATE(dequantize_simt_affine2, dequantize_simt<moeblas::formats::Affine<2>>);
MB_INSTANTIATE(dequantize_simt_affine3, dequantize_simt<moeblas::formats::Affine<3>>);
MB_INSTANTIATE(dequantize_simt_affine4, dequantize_simt<moeblas::formats::Affine<4>>);
MB_INSTANTIATE(dequantize_simt_affine5, dequantize_simt<moeblas::formats::Affine<5>>);
MB_INSTANTIATE(dequantize_simt_affine6, dequantize_simt<moeblas::formats::Affine<6>>);
MB_INSTANTIATE(dequantize_simt_affine8, dequantize_simt<moeblas::formats::Affine<8>>);
MB_INSTANTIATE(dequantize_simt_mxfp4, dequantize_simt<moeblas::formats::Mxfp4>);
MB_INSTANTIATE(dequantize_simt_mxfp8, dequantize_simt<moeblas::formats::Mxfp8>);
MB_INSTANTIATE(dequantize_simt_nvfp4, dequantize_simt<moeblas::formats::Nvfp4>);
