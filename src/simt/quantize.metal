// quantize_simt_<format>: values to packed codes, scales and biases; quantize and quantize_dual use
// it, once per direction. A lane takes eight neighbouring values, whose codes are Bits whole bytes,
// and the 2 to 16 lanes of a group agree on its range by shuffles: values are read once, 16 bytes
// at a time, and stay in registers. Where the rows of a view are neighbours in memory (the
// transpose of a matrix), a lane takes a whole group instead and neighbouring lanes take
// neighbouring rows, so that they still read one piece; the second look at the values comes from
// the cache. Either way the time is that of reading the values. clear_scales_simt writes the zeros
// around swizzled scales.
//
// Every decision is made by src/formats with comparisons that count NaN as the CPU backend does;
// codes, scales and biases are its bits.
#include "simt/packed_rows.h"

namespace moeblas {
namespace simt {

// A lane's share of the work: some octets of one group.
struct Share {
  ulong row;
  ulong group;
  long first_octet;  // of the row
  bool valid;        // false: past the end, in the simdgroup for the shuffles' sake
  bool writes;       // the group's scale

  MB_GPU_FN void find(MB_CONST PackedParams& p, ulong unit) {
    const ulong per_row = ulong(p.groups) * p.lanes;
    valid = unit < ulong(p.rows) * per_row;
    const bool across = p.lanes == 1;
    const ulong inner = across ? ulong(p.rows) : per_row;
    const ulong outer = unit / inner, rest = unit - outer * inner;
    row = across ? rest : outer;
    const ulong in_row = across ? outer : rest;
    group = in_row / p.lanes;
    first_octet = long(in_row * p.octets);
    writes = valid && in_row == group * p.lanes;
  }
};

// A group's range as its lanes see it, and then its codes. Block formats: the largest magnitude, as
// bits, among which NaN is above infinity and infinity above every number.
template <class Format>
struct GroupEncoder {
  uint largest;
  float multiplier;
  bool all_zero;

  MB_GPU_FN void start() { largest = 0; }
  MB_GPU_FN void see(float value) {
    const uint bits = formats::float_to_bits(formats::magnitude(value));
    largest = largest < bits ? bits : largest;
  }
  MB_GPU_FN void merge(ushort distance) {
    const uint other = simd_shuffle_xor(largest, distance);
    largest = largest < other ? other : largest;
  }
  // Fits the range and stores the group's scale.
  MB_GPU_FN void fit(MB_DEVICE uchar* scales, MB_DEVICE uchar*, MB_CONST PackedParams& p,
                     MB_DEVICE const float* tensor_scale, MB_THREAD const Share& share) {
    const float amax = formats::bits_to_float(largest);
    const float enc = 1.0f / load_tensor_scale(p, tensor_scale, share.row);
    const uint scale = Format::encode_scale(amax, enc);
    multiplier = Format::encode_multiplier(amax, scale, enc);
    all_zero = formats::is_nan(multiplier);
    if (share.writes) scales[scale_offset(p, share.row, share.group)] = uchar(scale);
  }
  MB_GPU_FN uint code(float value) const {
    return all_zero ? 0u : Format::encode_code(formats::mul(value, multiplier));
  }
};

// Affine: minimum and maximum of the numbers, NaN where there is none yet.
template <int Bits>
struct GroupEncoder<formats::Affine<Bits>> {
  float low;
  float high;
  formats::AffineParams params;

  MB_GPU_FN void start() { low = high = formats::quiet_nan(); }
  MB_GPU_FN void see(float value) {
    if (formats::is_nan(value)) return;
    if (!(low <= value)) low = value;
    if (!(high >= value)) high = value;
  }
  MB_GPU_FN void merge(ushort distance) {
    const float other_low = simd_shuffle_xor(low, distance);
    const float other_high = simd_shuffle_xor(high, distance);
    see(other_low);
    see(other_high);
  }
  MB_GPU_FN void fit(MB_DEVICE uchar* scales, MB_DEVICE uchar* biases, MB_CONST PackedParams& p,
                     MB_DEVICE const float*, MB_THREAD const Share& share) {
    params = formats::affine_fit(low, high, Bits);
    if (!share.writes) return;
    const long group = long(share.group);
    store_float(scales, p.scales.type, row_offset(p.scales, share.row) + group, params.scale);
    store_float(biases, p.scales.type, row_offset(p.biases, share.row) + group, params.bias);
  }
  MB_GPU_FN uint code(float value) const { return formats::affine_encode(value, params, Bits); }
};

}  // namespace simt
}  // namespace moeblas

template <class Format>
MB_KERNEL void quantize_simt(MB_DEVICE const uchar* values MB_ARG(buffer(0)),
                             MB_DEVICE uchar* codes MB_ARG(buffer(1)),
                             MB_DEVICE uchar* scales MB_ARG(buffer(2)),
                             MB_DEVICE uchar* biases MB_ARG(buffer(3)),
                             MB_DEVICE const float* tensor_scale MB_ARG(buffer(4)),
                             MB_PARAMS(moeblas::simt::PackedParams, p, 5) MB_GRID) {
  const ulong units = ulong(p.rows) * ulong(p.groups) * p.lanes;
  const ulong step = ulong(mb_groups.x) * mb_threads.x;
  // A simdgroup goes on as a whole: its lanes meet in the shuffles.
  for (ulong base = ulong(mb_group.x) * mb_threads.x + mb_simdgroup * 32u; base < units;
       base += step) {
    moeblas::simt::Share share;
    share.find(p, base + mb_lane);
    moeblas::simt::Octet x;
    moeblas::simt::GroupEncoder<Format> encoder;
    encoder.start();
    long start = 0;
    if (share.valid) {
      start = moeblas::simt::row_offset(p.values, share.row) +
              share.first_octet * 8 * p.values.col_stride;
      for (uint o = 0; o < p.octets; ++o) {
        x.load(values, p.values, start + long(o) * 8 * p.values.col_stride, 8);
        for (uint i = 0; i < 8; ++i) encoder.see(x.v[i]);
      }
    }
    for (ushort distance = 1; distance < p.lanes; distance = ushort(distance * 2))
      encoder.merge(distance);
    if (!share.valid) continue;
    encoder.fit(scales, biases, p, tensor_scale, share);
    MB_DEVICE uchar* row_codes = codes + moeblas::simt::row_offset(p.codes, share.row);
    for (uint o = 0; o < p.octets; ++o) {
      // A single octet is still here from the first look.
      if (p.octets > 1) x.load(values, p.values, start + long(o) * 8 * p.values.col_stride, 8);
      moeblas::formats::uint64 octet = 0;
      for (int i = 0; i < 8; ++i)
        octet = moeblas::formats::with_code<Format::kBits>(octet, i, encoder.code(x.v[i]));
      moeblas::simt::store_codes<Format::kBits>(row_codes, share.first_octet + o, octet,
                                                p.codes.wide != 0);
    }
  }
}
MB_INSTANTIATE(quantize_simt_affine2, quantize_simt<moeblas::formats::Affine<2>>);
MB_INSTANTIATE(quantize_simt_affine3, quantize_simt<moeblas::formats::Affine<3>>);
MB_INSTANTIATE(quantize_simt_affine4, quantize_simt<moeblas::formats::Affine<4>>);
MB_INSTANTIATE(quantize_simt_affine5, quantize_simt<moeblas::formats::Affine<5>>);
MB_INSTANTIATE(quantize_simt_affine6, quantize_simt<moeblas::formats::Affine<6>>);
MB_INSTANTIATE(quantize_simt_affine8, quantize_simt<moeblas::formats::Affine<8>>);
MB_INSTANTIATE(quantize_simt_mxfp4, quantize_simt<moeblas::formats::Mxfp4>);
MB_INSTANTIATE(quantize_simt_mxfp8, quantize_simt<moeblas::formats::Mxfp8>);
MB_INSTANTIATE(quantize_simt_nvfp4, quantize_simt<moeblas::formats::Nvfp4>);

// Zeros wherever a swizzled matrix has no scale. A thread per byte of the padded matrices; the
// others are quantize_simt's.
MB_KERNEL void clear_scales_simt(MB_DEVICE uchar* scales MB_ARG(buffer(0)),
                                 MB_PARAMS(moeblas::simt::PackedParams, p, 1) MB_GRID) {
  const ulong padded_rows = ulong(p.padded_rows), padded_groups = ulong(p.padded_groups);
  const ulong matrix_bytes = padded_rows * padded_groups;
  const ulong total = ulong(p.rows) / ulong(p.rows_per_matrix) * matrix_bytes;
  const ulong step = ulong(mb_groups.x) * mb_threads.x;
  for (ulong i = ulong(mb_group.x) * mb_threads.x + mb_thread.x; i < total; i += step) {
    const ulong matrix = i / matrix_bytes, rest = i - matrix * matrix_bytes;
    const ulong row = rest / padded_groups, group = rest - row * padded_groups;
    if (row < ulong(p.rows_per_matrix) && group < ulong(p.groups)) continue;
    scales[moeblas::simt::row_offset(p.scales, matrix * padded_rows) +
           long(moeblas::formats::swizzled_128x4(row, group, padded_groups))] = 0;
  }
}
MB_ENTRY(clear_scales_simt);
