// Kernels with one fault each. The emulator must name it.
#include "simt/portable_kernel.h"

// Reverses 64 values; the barrier between store and load is missing.
MB_KERNEL void read_before_barrier(MB_DEVICE const float* x MB_ARG(buffer(0)),
                                   MB_DEVICE float* y MB_ARG(buffer(1)) MB_GRID) {
  MB_TG_ARRAY(float, stage, [64]);
  stage[mb_thread.x] = x[mb_thread.x];
  y[mb_thread.x] = stage[63 - mb_thread.x];
}
MB_ENTRY(read_before_barrier);

// The barrier after the loads is missing, so the next step's stores run into them.
MB_KERNEL void write_before_barrier(MB_DEVICE const float* x MB_ARG(buffer(0)),
                                    MB_DEVICE float* y MB_ARG(buffer(1)) MB_GRID) {
  MB_TG_ARRAY(float, stage, [64]);
  float sum = 0.0f;
  for (uint step = 0; step < 3; ++step) {
    stage[mb_thread.x] = x[step * 64 + mb_thread.x];
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    sum += stage[63 - mb_thread.x];
  }
  y[mb_thread.x] = sum;
}
MB_ENTRY(write_before_barrier);

// Sums each step of 64 values across simdgroups; the barrier after the loads is missing. The
// reduction keeps the lanes of a simdgroup together, so only a simdgroup that runs ahead does harm.
MB_KERNEL void partials_without_barrier(MB_DEVICE const float* x MB_ARG(buffer(0)),
                                        MB_DEVICE float* y MB_ARG(buffer(1)) MB_GRID) {
  MB_TG_ARRAY(float, partials, [2]);
  float total = 0.0f;
  for (uint step = 0; step < 3; ++step) {
    const float sum = metal::simd_sum(x[step * 64 + mb_thread.x]);
    if (mb_lane == 0) partials[mb_simdgroup] = sum;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    total += partials[0] + partials[1];
  }
  y[mb_thread.x] = total;
}
MB_ENTRY(partials_without_barrier);

// A barrier stands there, but it orders device memory only.
MB_KERNEL void barrier_of_other_memory(MB_DEVICE const float* x MB_ARG(buffer(0)),
                                       MB_DEVICE float* y MB_ARG(buffer(1)) MB_GRID) {
  MB_TG_ARRAY(float, stage, [64]);
  stage[mb_thread.x] = x[mb_thread.x];
  metal::threadgroup_barrier(metal::mem_flags::mem_device);
  y[mb_thread.x] = stage[63 - mb_thread.x];
}
MB_ENTRY(barrier_of_other_memory);

// Lanes of one simdgroup read each other's stores; a shuffle between them orders nothing.
MB_KERNEL void lanes_without_barrier(MB_DEVICE const float* x MB_ARG(buffer(0)),
                                     MB_DEVICE float* y MB_ARG(buffer(1)) MB_GRID) {
  MB_TG_ARRAY(float, stage, [64]);
  stage[mb_thread.x] = x[mb_thread.x];
  const float sum = metal::simd_sum(x[mb_thread.x]);
  y[mb_thread.x] = stage[mb_thread.x ^ 1] + sum;
}
MB_ENTRY(lanes_without_barrier);

// A plain store next to atomics of the same word.
MB_KERNEL void atomic_and_plain(MB_DEVICE uint* y MB_ARG(buffer(0)) MB_GRID) {
  MB_TG_ARRAY(metal::atomic_uint, count, [1]);
  if (mb_thread.x == 0) metal::atomic_store_explicit(&count[0], 0u, metal::memory_order_relaxed);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  metal::atomic_fetch_add_explicit(&count[0], 1u, metal::memory_order_relaxed);
  if (mb_thread.x == 40) y[0] = *(MB_TG uint*)(&count[0]);
}
MB_ENTRY(atomic_and_plain);

MB_KERNEL void never_written(MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  MB_TG_ARRAY(float, stage, [64]);
  if (mb_thread.x < 32) stage[mb_thread.x] = 1.0f;
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  y[mb_thread.x] = stage[mb_thread.x];
}
MB_ENTRY(never_written);

// Half of the lanes go to another reduction.
MB_KERNEL void split_collective(MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  float value = float(mb_lane);
  if (mb_lane < 16) {
    value = metal::simd_sum(value);
  } else {
    value = metal::simd_max(value);
  }
  y[mb_thread.x] = value;
}
MB_ENTRY(split_collective);

// Lanes past the end return before the reduction of the others.
MB_KERNEL void early_return(MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  if (mb_thread.x >= 60) return;
  y[mb_thread.x] = metal::simd_sum(1.0f);
}
MB_ENTRY(early_return);

// A reduction where one simdgroup has a ragged tail of iterations.
MB_KERNEL void ragged_loop(MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  float sum = 0.0f;
  for (uint i = mb_lane; i < 40; i += 32) sum += metal::simd_sum(1.0f);
  y[mb_thread.x] = sum;
}
MB_ENTRY(ragged_loop);

MB_KERNEL void lane_dependent_delta(MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  y[mb_thread.x] = metal::simd_shuffle_down(1.0f, ushort(mb_lane & 1u));
}
MB_ENTRY(lane_dependent_delta);

// Only one simdgroup reaches the barrier.
MB_KERNEL void split_barrier(MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  if (mb_simdgroup == 0) metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  y[mb_thread.x] = 1.0f;
}
MB_ENTRY(split_barrier);

MB_KERNEL void two_barriers(MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  if (mb_simdgroup == 0) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  } else {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
  y[mb_thread.x] = 1.0f;
}
MB_ENTRY(two_barriers);

MB_KERNEL void store_past_buffer(MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  y[mb_thread.x + 1] = 1.0f;
}
MB_ENTRY(store_past_buffer);

MB_KERNEL void load_before_buffer(MB_DEVICE const float* x MB_ARG(buffer(1)),
                                  MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  y[mb_thread.x] = x[int(mb_thread.x) - 1];
}
MB_ENTRY(load_before_buffer);

MB_KERNEL void store_past_stage(MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  MB_TG_ARRAY(float, stage, [64]);
  MB_TG float* next = stage + 1;
  next[mb_thread.x] = 1.0f;
  y[mb_thread.x] = 1.0f;
}
MB_ENTRY(store_past_stage);

// A thread's array of four takes five results, by way of a pointer that does not tell its length.
MB_KERNEL void store_past_thread_array(MB_DEVICE float* y MB_ARG(buffer(0)),
                                       MB_DEVICE const uint* n MB_ARG(buffer(1)) MB_GRID) {
  float results[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  MB_THREAD float* next = results;
  for (uint i = 0; i < n[0]; ++i) next[i] += float(i);
  for (uint i = 0; i < n[0]; ++i) y[mb_thread.x] += next[i];
}
MB_ENTRY(store_past_thread_array);

// Runs out of a row into the next one: inside of the array, and wrong all the same.
MB_KERNEL void store_past_row(MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  MB_TG_ARRAY(float, stage, [64][8]);
  for (uint i = 0; i < mb_groups.x + 8; ++i) stage[mb_thread.x][i] = 1.0f;
  y[mb_thread.x] = 1.0f;
}
MB_ENTRY(store_past_row);

MB_KERNEL void misaligned_vector(MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  MB_DEVICE metal::float4* v = (MB_DEVICE metal::float4*)(y + mb_thread.x % 8);
  y[mb_thread.x] = v[0].x;
}
MB_ENTRY(misaligned_vector);

MB_KERNEL void too_much_threadgroup_memory(MB_DEVICE float* y MB_ARG(buffer(0)) MB_GRID) {
  MB_TG_ARRAY(float, first, [4096]);
  MB_TG_ARRAY(float, second, [4100]);
  first[mb_thread.x] = second[mb_thread.x] = 1.0f;
  y[mb_thread.x] = first[mb_thread.x];
}
MB_ENTRY(too_much_threadgroup_memory);
