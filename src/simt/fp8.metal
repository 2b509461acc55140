// to_fp8_simt and from_fp8_simt: values to E4M3FN codes and back, element by element. A thread
// takes up to eight neighbours of a row: 16 bytes of half-precision values against 8 of codes. The
// host folds rows without gaps into one, so that short rows cost nothing.
#include "formats/fp8.h"
#include "simt/octet.h"
#include "simt/quantize_params.h"

namespace moeblas {
namespace simt {

// Up to eight elements of a row, and where they lie on both sides.
struct Fp8Unit {
  long value;
  long code;
  uint count;

  MB_GPU_FN void find(MB_CONST Fp8Params& p, ulong unit) {
    const ulong per_row = (ulong(p.cols) + 7) / 8;
    const ulong row = unit / per_row, first = (unit - row * per_row) * 8;
    value = row_offset(p.values, row) + long(first) * p.values.col_stride;
    code = row_offset(p.codes, row) + long(first) * p.codes.col_stride;
    const ulong left = ulong(p.cols) - first;
    count = left < 8 ? uint(left) : 8u;
  }
};

}  // namespace simt
}  // namespace moeblas

MB_KERNEL void to_fp8_simt(MB_DEVICE const uchar* values MB_ARG(buffer(0)),
                           MB_DEVICE uchar* codes MB_ARG(buffer(1)),
                           MB_PARAMS(moeblas::simt::Fp8Params, p, 2) MB_GRID) {
  const ulong units = ulong(p.rows) * ((ulong(p.cols) + 7) / 8);
  const ulong step = ulong(mb_groups.x) * mb_threads.x;
  for (ulong i = ulong(mb_group.x) * mb_threads.x + mb_thread.x; i < units; i += step) {
    moeblas::simt::Fp8Unit unit;
    unit.find(p, i);
    moeblas::simt::Octet x;
    x.load(values, p.values, unit.value, unit.count);
    uint word[2] = {0, 0};
    for (uint j = 0; j < 8; ++j)
      word[j / 4] |= moeblas::formats::e4m3_encode(x.v[j]) << (j % 4 * 8);
    if (p.codes.wide && unit.count == 8) {
      MB_DEVICE uint* to = reinterpret_cast<MB_DEVICE uint*>(codes + unit.code);
      to[0] = word[0];
      to[1] = word[1];
    } else {
      for (uint j = 0; j < unit.count; ++j)
        codes[unit.code + long(j) * p.codes.col_stride] = uchar(word[j / 4] >> (j % 4 * 8));
    }
  }
}
MB_ENTRY(to_fp8_simt);

MB_KERNEL void from_fp8_simt(MB_DEVICE uchar* values MB_ARG(buffer(0)),
                             MB_DEVICE const uchar* codes MB_ARG(buffer(1)),
                             MB_PARAMS(moeblas::simt::Fp8Params, p, 2) MB_GRID) {
  const ulong units = ulong(p.rows) * ((ulong(p.cols) + 7) / 8);
  const ulong step = ulong(mb_groups.x) * mb_threads.x;
  for (ulong i = ulong(mb_group.x) * mb_threads.x + mb_thread.x; i < units; i += step) {
    moeblas::simt::Fp8Unit unit;
    unit.find(p, i);
    uint word[2] = {0, 0};
    if (p.codes.wide && unit.count == 8) {
      MB_DEVICE const uint* from = reinterpret_cast<MB_DEVICE const uint*>(codes + unit.code);
      word[0] = from[0];
      word[1] = from[1];
    } else {
      for (uint j = 0; j < unit.count; ++j)
        word[j / 4] |= uint(codes[unit.code + long(j) * p.codes.col_stride]) << (j % 4 * 8);
    }
    moeblas::simt::Octet x;
    for (uint j = 0; j < 8; ++j)
      x.v[j] = moeblas::formats::e4m3_decode((word[j / 4] >> (j % 4 * 8)) & 0xffu);
    x.store(values, p.values, unit.value, unit.count);
  }
}
MB_ENTRY(from_fp8_simt);
