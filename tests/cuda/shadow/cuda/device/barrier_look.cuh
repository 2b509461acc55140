// In the place of src/cuda/device/barrier_look.cuh.
#pragma once

#include "cuda/device/cluster.cuh"

namespace moeblas::cuda::device {

inline void barrier_arrive_if(bool arrives, uint32_t barrier) {
  if (arrives) barrier_arrive(barrier);
}
inline bool barrier_passed(uint32_t barrier, uint32_t parity) {
  return test::barrier_passed_at(barrier, parity);
}
inline void cluster_barrier_arrive_if(bool arrives, uint32_t barrier) {
  if (arrives) cluster_barrier_arrive(barrier);
}

}  // namespace moeblas::cuda::device
