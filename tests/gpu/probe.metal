// A kernel of the check itself: what a queue does can be seen without any of the library's own.
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
