// Kernels of the check itself: what a queue does can be seen without any of the library's own, and
// how fast this device reads memory.
#include "simt/portable_kernel.h"

namespace moeblas {
namespace simt {

struct ProbeParams {
  uint n;
  uint row;
  int added;
};

}  // namespace simt
}  // namespace moeblas

// out[i] = a[i] + added, row by row of the grid's y.
MB_KERNEL void gpu_probe_add(MB_DEVICE const int* a MB_ARG(buffer(0)),
                             MB_DEVICE int* out MB_ARG(buffer(1)),
                             MB_PARAMS(moeblas::simt::ProbeParams, p, 2) MB_GRID) {
  const uint in_row = mb_group.x * mb_threads.x + mb_thread.x;
  const uint i = mb_group.y * p.row + in_row;
  if (in_row < p.row && i < p.n) out[i] = a[i] + p.added;
}
MB_ENTRY(gpu_probe_add);

// Every thread reads sixteen bytes at a time, eight at once; the result depends on all.
MB_KERNEL void gpu_probe_read(MB_DEVICE const metal::uint4* a MB_ARG(buffer(0)),
                              MB_DEVICE uint* out MB_ARG(buffer(1)),
                              MB_PARAMS(moeblas::simt::ProbeParams, p, 2) MB_GRID) {
  const uint threads = mb_groups.x * mb_threads.x;
  uint found = 0;
  for (uint i = mb_group.x * mb_threads.x + mb_thread.x; i + 7 * threads < p.n; i += 8 * threads) {
    metal::uint4 v[8];
    for (uint j = 0; j < 8; ++j) v[j] = a[i + j * threads];
    for (uint j = 0; j < 8; ++j) found |= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (found == p.row) out[0] = found;
}
MB_ENTRY(gpu_probe_read);
