/* What every function of moeblas.h takes and returns: status, tensors, formats, options. */
#ifndef MOEBLAS_TYPES_H
#define MOEBLAS_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "moeblas/mode.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ------------------------------------------------------------------------------- */

typedef enum moeblas_status {
  MOEBLAS_OK = 0,
  MOEBLAS_INVALID_ARGUMENT = 1, /* the caller's arguments; the message names the one */
  MOEBLAS_UNSUPPORTED = 2,      /* valid, but no kernel takes it; the message lists every reason */
  MOEBLAS_OUT_OF_MEMORY = 3,
  MOEBLAS_DEVICE_ERROR = 4,  /* the device or its driver refused; outputs are undefined then */
  MOEBLAS_INTERNAL_ERROR = 5 /* a mistake of the library's, or the host's parallel loop threw */
} moeblas_status;

/* ---- Tensors ------------------------------------------------------------------------------ */

#define MOEBLAS_MAX_NDIM 8

/* DLPack's numbers (DLDeviceType, DLDataTypeCode), so that a DLTensor can be passed as it is.
 * MOEBLAS_CUDA: any address that the device itself may use, pinned host memory and managed memory
 * included, if it is named by this type and the device that is to work on it; DLPack's own types of
 * those two (3, 13) are refused, since they do not say which device that is. A call uses the device
 * of its tensors, whichever is current, and leaves that one current.
 * MOEBLAS_METAL: id 0, the system's default device. `data` is an address of the CPU's in memory
 * that both share: memory of moeblas_buffer_alloc, or any other, whose pages are wrapped for the
 * time of the call, without a copy. Metal may refuse to wrap what is not of mmap or vm_allocate or
 * is longer than its largest buffer; the call then fails and says so. Wrapping costs time in every
 * call: moeblas_buffer_alloc is for what is used again. Tensors must stay until the work is done;
 * work that fails after a call has returned is reported by the next moeblas_buffer_copy. */
enum { MOEBLAS_CPU = 1, MOEBLAS_CUDA = 2, MOEBLAS_METAL = 8 };
enum { MOEBLAS_INT = 0, MOEBLAS_UINT = 1, MOEBLAS_FLOAT = 2, MOEBLAS_BFLOAT = 4, MOEBLAS_BOOL = 6 };

typedef struct moeblas_device {
  int32_t type; /* MOEBLAS_CPU, ... */
  int32_t id;
} moeblas_device;

typedef struct moeblas_dtype {
  uint8_t code; /* MOEBLAS_INT, ... */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} moeblas_dtype;

/* A view of memory that belongs to the caller; the layout of DLPack's DLTensor. Optional tensors
 * are passed as NULL. */
typedef struct moeblas_tensor {
  void* data; /* may be NULL if the tensor is empty */
  moeblas_device device;
  int32_t ndim; /* 0 .. MOEBLAS_MAX_NDIM */
  moeblas_dtype dtype;
  const int64_t* shape;   /* ndim numbers >= 0 */
  const int64_t* strides; /* ndim numbers, in elements; NULL: row-major without gaps */
  uint64_t byte_offset;   /* from data to the first element */
} moeblas_tensor;

/* The shape and dtype of an output, as the moeblas_infer_* functions return it. */
typedef struct moeblas_spec {
  moeblas_dtype dtype;
  int32_t ndim;
  int64_t shape[MOEBLAS_MAX_NDIM];
} moeblas_spec;

/* ---- Formats ------------------------------------------------------------------------------ */

enum { MOEBLAS_SCALES_ROWS = 0, MOEBLAS_SCALES_SWIZZLED_128X4 = 1 };

/* A block-quantized matrix (or stack of matrices), rows along the last axis.
 *
 *   mode     bits             group_size       scales dtype        value
 *   affine   2,3,4,5,6,8 (4)  16,32,64,128 (64) f16, bf16, f32      code * scale + bias
 *   mxfp4    4                32               uint8, E8M0         e2m1(code) * 2^(scale-127)
 *   mxfp8    8                32               uint8, E8M0         e4m3(code) * 2^(scale-127)
 *   nvfp4    4                16               uint8, E4M3FN       e2m1(code) * (e4m3(scale) * t)
 *
 * codes: uint32 (..., K*bits/32), or the same bytes as uint8 (..., K*bits/8): element i of a row is
 *   bits [i*bits, (i+1)*bits) of the row's byte stream, least significant bit first. K*bits must be
 *   a multiple of 32 and K a multiple of group_size.
 * scales (and biases, affine only, of the same dtype): (..., K/group_size).
 *
 * scale_layout: MOEBLAS_SCALES_ROWS as above, or MOEBLAS_SCALES_SWIZZLED_128X4, the layout of
 *   block-scaled matrix instructions (Blackwell): uint8 (..., rows padded to a multiple of 128,
 *   K/group_size padded to a multiple of 4), each matrix in one piece, in tiles of 128 x 4 of which
 *   scale (r, g) is byte (r % 32) * 16 + (r / 32 % 4) * 4 + g % 4; zeros in the padding. Written by
 *   moeblas_quantize, read by moeblas_dequantize and the qqmm products.
 *
 * t: tensor_scale, float32, one number or one per matrix of the stack (shape () or (E,)), on the
 *   tensors' device; or a number on the host; or neither: 1. Only nvfp4 has it. It is finite and
 *   not negative, and what quantizes by it (quantize, a float operand of qqmm) needs 2^-126 or
 *   more. A number on the host is refused otherwise. A tensor's numbers are not looked at: read,
 *   they multiply as IEEE has it; quantizing by others than those writes codes without meaning. */
typedef struct moeblas_quantized {
  size_t struct_size; /* sizeof(moeblas_quantized) */
  int32_t mode;       /* enum moeblas_mode */
  int32_t bits;       /* 0: the mode's default */
  int32_t group_size; /* 0: the mode's default */
  const moeblas_tensor* codes;
  const moeblas_tensor* scales;
  const moeblas_tensor* biases;
  const moeblas_tensor* tensor_scale;
  const float* host_tensor_scale; /* read before the call returns */
  int32_t scale_layout;           /* MOEBLAS_SCALES_ROWS, ... */
} moeblas_quantized;

#define MOEBLAS_QUANTIZED_INIT                                                    \
  {sizeof(moeblas_quantized), MOEBLAS_AFFINE, 0, 0, NULL, NULL, NULL, NULL, NULL, \
   MOEBLAS_SCALES_ROWS}

/* ---- Options ------------------------------------------------------------------------------ */

enum {
  MOEBLAS_NATIVE = 0, /* activations as given, accumulation of float32 class; with 16-bit
                         activations products of two rows and more, and of one that no kernel for
                         few rows takes (with `deterministic`, say), may round affine weights to x's
                         dtype and, where that is bfloat16, take numbers below 2^-126 for 0 */
  MOEBLAS_EXACT = 1,  /* float32-faithful: IEEE multiply-add for float32 x, no rounded weights */
  MOEBLAS_FAST = 2    /* opt-in: reduced-precision activations where a kernel offers them. On CPUs
                         with AVX-512 VNNI, products of many rows with affine weights of 2, 4 and 8
                         bits in groups of 32 and more, and with mxfp4: the values of x that meet
                         one group of weights are rounded to whole 127ths of their largest magnitude
                         a (to 0 where a < 2^-100), so that a result is off by up to
                         sum over groups of a/254 * sum |w| beside the roundings of float32 sums */
};

/* What a call would do, instead of doing it: the arguments are checked, a kernel is selected, and
 * nothing runs. Data pointers may be NULL; no data is read. */
typedef struct moeblas_query {
  size_t struct_size;     /* sizeof(moeblas_query) */
  const char* kernel;     /* out: the row that would run; NULL if nothing has to (empty output) */
  size_t workspace_bytes; /* out: what moeblas_options.workspace must hold */
  char* text;        /* out, may be NULL: every row before it, and why it would not take the call */
  size_t text_bytes; /* in: room in text; longer texts are cut */
} moeblas_query;

typedef struct moeblas_options {
  size_t struct_size;    /* sizeof(moeblas_options) */
  int32_t precision;     /* MOEBLAS_NATIVE, ... */
  int32_t deterministic; /* 1: a row's result does not depend, to the bit, on how many other rows
                            there are or on what they and their ids are: such calls are taken by one
                            kernel for any number of rows, which may be slower than the one chosen
                            otherwise. (0: equal from run to run, as all results are.) */
  int32_t check_ids;     /* 1: ids and segments out of range are an error (also: environment
                            variable MOEBLAS_CHECK_IDS=1); on a device the call then waits for the
                            stream, which must not be under capture */
  const char* kernel;    /* force this row of the table (also: MOEBLAS_KERNEL); NULL: choose */
  /* Caller's memory on the tensors' device, aligned to 64. It must stay until the call's work is
   * done, of a captured call for as long as the graph is launched. What it holds between calls
   * means nothing: those on one stream, which follow each other, may share it. NULL: `allocate`, or
   * else the library, which on CUDA takes it from a pool of its own and gives it back in the order
   * of the stream's work; under capture both become nodes of the graph. (A device that has no such
   * pools is waited for, and such a call is not for capture there.) */
  void* workspace;
  size_t workspace_bytes; /* at least what the query says */
  void* stream;           /* cudaStream_t; Metal: id<MTLCommandQueue>; NULL: the default stream, of
                             Metal a queue of the library's own; the CPU has none */
  moeblas_query* query;   /* if not NULL: only ask */
  /* Where the workspace comes from if `workspace` is NULL: called at most once, from within the
   * call and in its thread, with allocate_context and a size above 0. The memory is the caller's,
   * on the tensors' device, aligned to 64, and stays as `workspace` does; NULL fails the call (out
   * of memory). Saves asking with a query first. NULL: the library allocates. */
  void* (*allocate)(void* context, size_t bytes);
  void* allocate_context;
} moeblas_options;

#define MOEBLAS_OPTIONS_INIT \
  {sizeof(moeblas_options), MOEBLAS_NATIVE, 0, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL}

#ifdef __cplusplus
}
#endif

#endif
