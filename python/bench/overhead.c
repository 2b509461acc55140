/* The C call that overhead.py compares with: gather_qmm of affine 4-bit weights, groups of 32. */
#define _POSIX_C_SOURCE 199309L
#include <moeblas/moeblas.h>
#include <time.h>

/* Seconds for `calls` calls; -1 if one failed. x (T, 1, 1, K), w (E, N, K), ids (T, k), out
 * (T, k, 1, N). */
double seconds(void* x, void* codes, void* scales, void* biases, void* ids, void* out, int64_t t,
               int64_t k, int64_t e, int64_t n, int64_t features, int64_t calls) {
  const int64_t x_shape[] = {t, 1, 1, features}, codes_shape[] = {e, n, features / 8},
                scales_shape[] = {e, n, features / 32}, ids_shape[] = {t, k},
                out_shape[] = {t, k, 1, n};
  const moeblas_device cpu = {MOEBLAS_CPU, 0};
  const moeblas_dtype f32 = {MOEBLAS_FLOAT, 32, 1}, u32 = {MOEBLAS_UINT, 32, 1},
                      i32 = {MOEBLAS_INT, 32, 1};
  const moeblas_tensor x_t = {x, cpu, 4, f32, x_shape, NULL, 0},
                       codes_t = {codes, cpu, 3, u32, codes_shape, NULL, 0},
                       scales_t = {scales, cpu, 3, f32, scales_shape, NULL, 0},
                       biases_t = {biases, cpu, 3, f32, scales_shape, NULL, 0},
                       ids_t = {ids, cpu, 2, i32, ids_shape, NULL, 0},
                       out_t = {out, cpu, 4, f32, out_shape, NULL, 0};
  moeblas_quantized w = MOEBLAS_QUANTIZED_INIT;
  struct timespec start, end;
  w.group_size = 32;
  w.codes = &codes_t;
  w.scales = &scales_t;
  w.biases = &biases_t;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int64_t i = 0; i < calls; ++i) {
    if (moeblas_gather_qmm(&x_t, &w, NULL, &ids_t, 1, 0, &out_t, NULL) != MOEBLAS_OK) return -1;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}
