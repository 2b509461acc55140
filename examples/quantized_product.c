/* A quantized product from C11: a matrix is quantized to 4 bits in groups of 64, multiplied with a
 * vector, and the result compared with what the definition of the format says.
 *
 *   example_quantized_product
 */
#include <math.h>
#include <moeblas/moeblas.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 48, K = 256, GROUP = 64 };

static uint32_t codes[N * K / 8]; /* eight codes of 4 bits in a word, the lowest first */
static float scales[N * K / GROUP], biases[N * K / GROUP];
static float w[N * K], x[K], y[N];

static const moeblas_dtype f32 = {MOEBLAS_FLOAT, 32, 1}, u32 = {MOEBLAS_UINT, 32, 1};

static moeblas_tensor tensor(void* data, moeblas_dtype dtype, int32_t ndim, const int64_t* shape) {
  const moeblas_tensor t = {data, {MOEBLAS_CPU, 0}, ndim, dtype, shape, NULL, 0};
  return t;
}

static void check(moeblas_status status) {
  if (status == MOEBLAS_OK) return;
  fprintf(stderr, "%s\n", moeblas_last_error());
  exit(1);
}

/* By the definition: value = code * scale + bias. */
static double value(int n, int k) {
  const int i = n * K + k;
  const uint32_t code = codes[i / 8] >> (i % 8 * 4) & 15;
  return (double)code * scales[i / GROUP] + biases[i / GROUP];
}

int main(void) {
  const int64_t w_shape[] = {N, K}, x_shape[] = {K}, y_shape[] = {N};
  const int64_t codes_shape[] = {N, K / 8}, groups_shape[] = {N, K / GROUP};
  const moeblas_tensor w_view = tensor(w, f32, 2, w_shape), x_view = tensor(x, f32, 1, x_shape),
                       y_view = tensor(y, f32, 1, y_shape),
                       codes_view = tensor(codes, u32, 2, codes_shape),
                       scales_view = tensor(scales, f32, 2, groups_shape),
                       biases_view = tensor(biases, f32, 2, groups_shape);
  moeblas_quantized packed = MOEBLAS_QUANTIZED_INIT;
  double worst = 0, worst_step = 0;
  int n, k;

  packed.mode = MOEBLAS_AFFINE;
  packed.bits = 4;
  packed.group_size = GROUP;
  packed.codes = &codes_view;
  packed.scales = &scales_view;
  packed.biases = &biases_view;

  for (k = 0; k < K; ++k) x[k] = (float)cos(k * 0.7);
  for (n = 0; n < N * K; ++n) w[n] = (float)sin(n * 0.37);
  check(moeblas_quantize(&w_view, &packed, NULL));
  check(moeblas_quantized_matmul(&x_view, &packed, 1, &y_view, NULL));

  for (n = 0; n < N; ++n) {
    /* Of a float32 sum of K products: K roundings of at most 2^-24 of all magnitudes. */
    double sum = 0, magnitude = 0, error;
    for (k = 0; k < K; ++k) {
      sum += x[k] * value(n, k);
      magnitude += fabs(x[k] * value(n, k));
      error = fabs(value(n, k) - w[n * K + k]) / fabs(scales[(n * K + k) / GROUP]);
      if (error > worst_step) worst_step = error;
    }
    error = fabs(y[n] - sum) / (K * ldexp(magnitude, -24));
    if (error > worst) worst = error;
  }
  printf("moeblas %s: %d x %d weights in 4 bits, off by %.2f of a step at most\n",
         moeblas_version(), N, K, worst_step);
  printf("product: error %.3f of its bound\n", worst);
  return worst <= 1 ? 0 : 1;
}
