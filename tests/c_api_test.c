/* The C interface from C, through the shared library: a gathered product of weights quantized here,
 * and every other kind of function once. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moeblas/moeblas.h"

static int failures = 0;

static void expect(int holds, const char* what, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "line %d: %s (%s)\n", line, what, moeblas_last_error());
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)

enum { E = 3, N = 24, K = 64, T = 4, TOP = 2, GROUPS = K / 32, WORDS = K / 8 };

static const moeblas_dtype kFloat32 = {MOEBLAS_FLOAT, 32, 1};
static const moeblas_dtype kUint32 = {MOEBLAS_UINT, 32, 1};
static const moeblas_dtype kInt32 = {MOEBLAS_INT, 32, 1};

static moeblas_tensor tensor(void* data, moeblas_dtype dtype, int32_t ndim, const int64_t* shape) {
  moeblas_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.type = MOEBLAS_CPU;
  t.ndim = ndim;
  t.dtype = dtype;
  t.shape = shape;
  return t;
}

static float w_values[E * N * K], w_decoded[E * N * K], x_values[T * K], out_values[T * TOP * N];
static uint32_t codes_values[E * N * WORDS];
static float scales_values[E * N * GROUPS], biases_values[E * N * GROUPS];
static int32_t ids_values[T * TOP] = {0, 2, 1, 1, 2, 0, 1, -1};

static const int64_t w_shape[] = {E, N, K}, codes_shape[] = {E, N, WORDS},
                     scales_shape[] = {E, N, GROUPS}, x_shape[] = {T, 1, 1, K},
                     ids_shape[] = {T, TOP}, out_shape[] = {T, TOP, 1, N};

static void fill(void) {
  unsigned state = 1;
  size_t i;
  for (i = 0; i < E * N * K; ++i) {
    state = state * 1664525u + 1013904223u;
    w_values[i] = (float)(state >> 16) / 32768.0f - 1.0f;
  }
  for (i = 0; i < T * K; ++i) {
    state = state * 1664525u + 1013904223u;
    x_values[i] = (float)(state >> 16) / 32768.0f - 1.0f;
  }
}

static void test_product(void) {
  moeblas_tensor w = tensor(w_values, kFloat32, 3, w_shape);
  moeblas_tensor codes = tensor(codes_values, kUint32, 3, codes_shape);
  moeblas_tensor scales = tensor(scales_values, kFloat32, 3, scales_shape);
  moeblas_tensor biases = tensor(biases_values, kFloat32, 3, scales_shape);
  moeblas_tensor decoded = tensor(w_decoded, kFloat32, 3, w_shape);
  moeblas_tensor x = tensor(x_values, kFloat32, 4, x_shape);
  moeblas_tensor ids = tensor(ids_values, kInt32, 2, ids_shape);
  moeblas_tensor out = tensor(out_values, kFloat32, 4, out_shape);
  moeblas_quantized q = MOEBLAS_QUANTIZED_INIT;
  moeblas_options options = MOEBLAS_OPTIONS_INIT;
  moeblas_spec specs[3];
  moeblas_query query;
  char text[1024];
  int t, j, n, k;

  EXPECT(moeblas_infer_quantize(&w, MOEBLAS_AFFINE, 4, 32, NULL, MOEBLAS_SCALES_ROWS, specs) ==
         MOEBLAS_OK);
  EXPECT(specs[0].ndim == 3 && memcmp(specs[0].shape, codes_shape, sizeof codes_shape) == 0);
  EXPECT(specs[1].ndim == 3 && memcmp(specs[1].shape, scales_shape, sizeof scales_shape) == 0);
  EXPECT(specs[2].ndim == 3 && specs[2].dtype.code == MOEBLAS_FLOAT && specs[2].dtype.bits == 32);

  q.bits = 4;
  q.group_size = 32;
  q.codes = &codes;
  q.scales = &scales;
  q.biases = &biases;
  EXPECT(moeblas_quantize(&w, &q, NULL) == MOEBLAS_OK);
  EXPECT(moeblas_dequantize(&q, &decoded, &options) == MOEBLAS_OK);
  /* Within a step of 15 in the range of 2, and a little for a step that was stretched. */
  for (k = 0; k < E * N * K; ++k) EXPECT(fabsf(w_decoded[k] - w_values[k]) < 0.15f);

  EXPECT(moeblas_infer_gather_qmm(&x, &q, NULL, &ids, 1, specs) == MOEBLAS_OK);
  EXPECT(specs[0].ndim == 4 && memcmp(specs[0].shape, out_shape, sizeof out_shape) == 0);

  memset(&query, 0, sizeof query);
  query.struct_size = sizeof query;
  query.text = text;
  query.text_bytes = sizeof text;
  options.query = &query;
  EXPECT(moeblas_gather_qmm(&x, &q, NULL, &ids, 1, 0, &out, &options) == MOEBLAS_OK);
  EXPECT(query.kernel != NULL && strstr(text, query.kernel) != NULL);

  /* The query's workspace, from the library's own allocator. */
  options.query = NULL;
  options.workspace_bytes = query.workspace_bytes;
  EXPECT(moeblas_buffer_alloc(x.device, query.workspace_bytes, &options.workspace) == MOEBLAS_OK);
  EXPECT(moeblas_gather_qmm(&x, &q, NULL, &ids, 1, 0, &out, &options) == MOEBLAS_OK);
  EXPECT(moeblas_buffer_free(x.device, options.workspace) == MOEBLAS_OK);
  for (t = 0; t < T; ++t) {
    for (j = 0; j < TOP; ++j) {
      const int32_t e = ids_values[t * TOP + j];
      for (n = 0; n < N; ++n) {
        double sum = 0;
        for (k = 0; e >= 0 && k < K; ++k) {
          sum += (double)x_values[t * K + k] * w_decoded[(e * N + n) * K + k];
        }
        EXPECT(fabs(out_values[(t * TOP + j) * N + n] - sum) < 1e-4);
      }
    }
  }

  /* An error: status and message, and the output as it was. */
  out_values[0] = 77;
  options.workspace = NULL;
  options.workspace_bytes = 0;
  options.check_ids = 1;
  EXPECT(moeblas_gather_qmm(&x, &q, NULL, &ids, 1, 0, &out, &options) == MOEBLAS_INVALID_ARGUMENT);
  EXPECT(strstr(moeblas_last_error(), "[gather_qmm] rhs_indices") == moeblas_last_error());
  options.check_ids = 0;
  options.kernel = "no_such_kernel";
  EXPECT(moeblas_gather_qmm(&x, &q, NULL, &ids, 1, 0, &out, &options) == MOEBLAS_INVALID_ARGUMENT);
  q.biases = NULL;
  EXPECT(moeblas_gather_qmm(&x, &q, NULL, &ids, 1, 0, &out, NULL) == MOEBLAS_INVALID_ARGUMENT);
  EXPECT(strcmp(moeblas_last_error(), "[gather_qmm] biases is missing") == 0);
  EXPECT(out_values[0] == 77);
}

/* ExecuTorch's operator in its own order of arguments, and its layout: two codes a byte. */
static moeblas_status contract(const moeblas_tensor* x, const moeblas_tensor* w,
                               const moeblas_tensor* scales, const moeblas_tensor* biases,
                               const moeblas_tensor* expert_indices, int64_t group_size,
                               const moeblas_tensor* out) {
  moeblas_quantized q = MOEBLAS_QUANTIZED_INIT;
  q.mode = MOEBLAS_AFFINE;
  q.bits = 4;
  q.group_size = (int32_t)group_size;
  q.codes = w;
  q.scales = scales;
  q.biases = biases;
  return moeblas_gather_qmv(x, &q, expert_indices, out, NULL);
}

static void test_contract(void) {
  static const moeblas_dtype uint8 = {MOEBLAS_UINT, 8, 1}, int64 = {MOEBLAS_INT, 64, 1};
  static const int64_t bytes_shape[] = {E, N, K / 2}, groups_shape[] = {E, N, K / 32},
                       rows_shape[] = {T, K}, index_shape[] = {T}, result_shape[] = {T, N};
  static uint8_t bytes[E * N * K / 2];
  static float s[E * N * K / 32], z[E * N * K / 32], result[T * N];
  static int64_t index[T] = {2, 0, 2, 1};
  moeblas_tensor x = tensor(x_values, kFloat32, 2, rows_shape);
  moeblas_tensor w = tensor(bytes, uint8, 3, bytes_shape);
  moeblas_tensor scales = tensor(s, kFloat32, 3, groups_shape);
  moeblas_tensor biases = tensor(z, kFloat32, 3, groups_shape);
  moeblas_tensor ids = tensor(index, int64, 1, index_shape);
  moeblas_tensor out = tensor(result, kFloat32, 2, result_shape);
  int p, n, k;
  for (k = 0; k < E * N * K / 2; ++k) bytes[k] = (uint8_t)(k * 37 + 11);
  for (k = 0; k < E * N * K / 32; ++k) {
    s[k] = (float)(k % 5 + 1) / 16;
    z[k] = (float)(k % 7) - 3;
  }
  EXPECT(contract(&x, &w, &scales, &biases, &ids, 32, &out) == MOEBLAS_OK);
  for (p = 0; p < T; ++p) {
    for (n = 0; n < N; ++n) {
      double sum = 0, size = 0;
      for (k = 0; k < K; ++k) {
        const int64_t row = index[p] * N + n;
        const int code = bytes[row * (K / 2) + k / 2] >> (k % 2 * 4) & 15;
        const double value = (double)code * s[row * (K / 32) + k / 32] + z[row * (K / 32) + k / 32];
        sum += value * x_values[p * K + k];
        size += fabs(value * x_values[p * K + k]);
      }
      /* A rounding per product and per addition of float32, in any order. */
      EXPECT(fabs(result[p * N + n] - sum) <= size * (2 * K) * 0x1p-24);
    }
  }
  EXPECT(contract(&x, &w, &scales, &biases, &ids, 48, &out) == MOEBLAS_INVALID_ARGUMENT);
}

static void serial(void* context, int64_t tasks, void (*task)(void*, int64_t), void* argument) {
  int64_t i;
  ++*(int*)context;
  for (i = 0; i < tasks; ++i) task(argument, i);
}

static void test_library(void) {
  moeblas_kernel kernel;
  moeblas_device cpu;
  void* buffer = NULL;
  int calls = 0;
  char copy[4] = "";

  EXPECT(strcmp(moeblas_version(), MOEBLAS_VERSION_STRING) == 0);
  EXPECT(strstr(moeblas_info(), MOEBLAS_VERSION_STRING) != NULL);
  EXPECT(strcmp(moeblas_status_string(MOEBLAS_OK), "ok") == 0);
  EXPECT(moeblas_status_string((moeblas_status)99) != NULL);
  EXPECT(moeblas_kernel_count() > 0 && moeblas_kernel_at(0, &kernel) == MOEBLAS_OK);
  EXPECT(moeblas_kernel_at(moeblas_kernel_count(), &kernel) == MOEBLAS_INVALID_ARGUMENT);

  EXPECT(moeblas_set_num_threads(2) == MOEBLAS_OK && moeblas_get_num_threads() == 2);
  EXPECT(moeblas_set_parallel_for(serial, &calls) == MOEBLAS_OK);
  test_product();
  test_contract();
  EXPECT(calls > 0);
  EXPECT(moeblas_set_parallel_for(NULL, NULL) == MOEBLAS_OK);
  EXPECT(moeblas_set_num_threads(0) == MOEBLAS_OK && moeblas_get_num_threads() >= 1);
  EXPECT(moeblas_advise_huge_pages(NULL, 0) == MOEBLAS_OK);
  EXPECT(moeblas_advise_huge_pages(NULL, 1) == MOEBLAS_INVALID_ARGUMENT);
  EXPECT(moeblas_advise_huge_pages(&calls, SIZE_MAX) == MOEBLAS_OK);

  cpu.type = MOEBLAS_CPU;
  cpu.id = 0;
  EXPECT(moeblas_buffer_alloc(cpu, 4, &buffer) == MOEBLAS_OK);
  EXPECT(moeblas_buffer_copy(cpu, buffer, cpu, "abc", 4) == MOEBLAS_OK);
  EXPECT(moeblas_buffer_copy(cpu, copy, cpu, buffer, 4) == MOEBLAS_OK);
  EXPECT(strcmp(copy, "abc") == 0);
  EXPECT(moeblas_buffer_free(cpu, buffer) == MOEBLAS_OK);
  EXPECT(moeblas_buffer_alloc(cpu, 5 << 20, &buffer) == MOEBLAS_OK);
  EXPECT((uintptr_t)buffer % (2 << 20) == 0);
  EXPECT(moeblas_buffer_free(cpu, buffer) == MOEBLAS_OK);
}

int main(void) {
  EXPECT(strcmp(moeblas_last_error(), "") == 0);
  fill();
  test_product();
  test_library();
  if (failures == 0) puts("ok");
  return failures == 0 ? 0 : 1;
}
