// What a composed expert layer needs between its products: map_experts_simt (every pair's expert
// here, or -1) and glu_simt (the activation of float32 gates and ups, rounded once). A thread takes
// an element, so that neighbouring threads read and write neighbours; the time is that of reading
// gates and ups. Pairs without an expert here are left alone: nothing reads what they would have.
#include "simt/glu.h"
#include "simt/local_experts.h"

MB_KERNEL void map_experts_simt(MB_DEVICE const uchar* ids MB_ARG(buffer(0)),
                                MB_DEVICE const uchar* map MB_ARG(buffer(1)),
                                MB_DEVICE int* experts MB_ARG(buffer(2)),
                                MB_PARAMS(moeblas::simt::PermuteParams, p, 3) MB_GRID) {
  const ulong step = ulong(mb_groups.x) * mb_threads.x;
  for (ulong i = ulong(mb_group.x) * mb_threads.x + mb_thread.x; i < ulong(p.pairs); i += step)
    experts[i] = int(moeblas::simt::local_expert(ids, map, p.ids, i));
}
MB_ENTRY(map_experts_simt);

MB_KERNEL void glu_simt(MB_DEVICE const float* gate_up MB_ARG(buffer(0)),
                        MB_DEVICE const int* experts MB_ARG(buffer(1)),
                        MB_DEVICE uchar* hidden MB_ARG(buffer(2)),
                        MB_PARAMS(moeblas::simt::GluParams, p, 3) MB_GRID) {
  const ulong cols = ulong(p.cols);
  const ulong total = ulong(p.pairs) * cols;
  const ulong step = ulong(mb_groups.x) * mb_threads.x;
  for (ulong i = ulong(mb_group.x) * mb_threads.x + mb_thread.x; i < total; i += step) {
    const ulong pair = i / cols;
    if (experts[pair] < 0) continue;
    MB_DEVICE const float* row = gate_up + pair * 2 * cols;
    const long at = long(i - pair * cols) * p.step;
    moeblas::simt::store_float(hidden, p.type, long(i),
                               moeblas::simt::glu(row[p.gate + at], row[p.up + at], p));
  }
}
MB_ENTRY(glu_simt);
