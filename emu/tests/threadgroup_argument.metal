// Threadgroup memory whose length the caller sets: Metal's alone, CUDA has no such argument.
#include "simt/portable_kernel.h"

MB_KERNEL void reverse(MB_DEVICE uint* y MB_ARG(buffer(0)),
                       MB_TG uint* stage MB_ARG(threadgroup(0)),
                       uint i MB_ARG(thread_index_in_threadgroup),
                       uint n MB_ARG(threads_per_threadgroup)) {
  stage[i] = y[i];
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  y[i] = stage[n - 1 - i];
}
MB_ENTRY(reverse);
