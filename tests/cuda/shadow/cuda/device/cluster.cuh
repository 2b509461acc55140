// In the place of src/cuda/device/cluster.cuh.
#pragma once

#include "cuda/device/copy_async.cuh"
#include "cuda/device/ptx.cuh"

namespace moeblas::cuda::device {

inline uint32_t cluster_rank() { return test::cluster_rank(); }
inline void cluster_barrier() {
  test::cluster_arrive();
  test::cluster_wait();
}
inline void cluster_arrive() { test::cluster_arrive(); }
inline void cluster_wait() { test::cluster_wait(); }
inline void cluster_meet() {
  cluster_arrive();
  cluster_wait();
}
inline uint32_t cluster_address(uint32_t address, uint32_t rank) {
  return test::cluster_address_of(address, rank);
}
inline void cluster_barrier_arrive(uint32_t barrier) {
  test::barrier_arrive_in_cluster(barrier, 0);
}
inline void copy_box_to_both(uint32_t to, const CUtensorMap* map, int32_t x, int32_t y,
                             uint32_t barrier) {
  const Box box = box_at<2>(to, map, {x, y});
  for (uint32_t rank = 0; rank < 2; ++rank) {
    test::copy_later_in_cluster(cluster_address(to, rank), box.bytes, box.write,
                                cluster_address(barrier, rank));
  }
}
inline uint64_t evict_normal_policy() { return 0; }

// What lanes do not agree on has no register of all of them.
inline uint32_t uniform(uint32_t value) {
  const uint32_t all = __reduce_or_sync(0xffffffffu, value);
  if (all != value) test::block_fails("lanes do not agree on what is one number of all");
  return all;
}

}  // namespace moeblas::cuda::device
