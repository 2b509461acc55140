/* moeblas: the matrix products of mixture-of-experts models, on checkpoints as they are stored.
 *
 * This is the C interface and the library's only binary boundary. Sections: messages, the
 * operations, kernels and selection, threads, memory. moeblas/types.h has what they are given:
 * status, tensors, formats, options.
 *
 * Rules that hold for every operation
 *   - Notation: M tokens (rows of x), N outputs, K inputs, E experts, G group_size.
 *   - A call either succeeds or returns a status other than MOEBLAS_OK and leaves every output
 *     untouched, unless that status is MOEBLAS_DEVICE_ERROR or MOEBLAS_INTERNAL_ERROR: launches in
 *     front of one that failed may write, and outputs are undefined then. moeblas_last_error()
 *     names operation, argument, what was expected and what came. Nothing aborts, exits, prints or
 *     throws across this border.
 *   - Every element of every output is written, whatever output and workspace held before.
 *   - Sums are accumulated in float32 and rounded once to the output's dtype. (What is lost of
 *     small values of x beside large ones on NVIDIA GPUs: docs/reliability.md, under its table.)
 *   - Indices: any integer dtype up to 64 bits, any strides, 0 included. They are flat row-major
 *     positions over the batch dimensions (all but the last two) of the tensor they select from. A
 *     position outside the range, -1 included, selects nothing: its rows of the output are 0 and
 *     no weight, scale or activation is read for it (an error with moeblas_options.check_ids).
 *   - Inputs are strided views. Packed codes, scales and biases need unit stride in their last
 *     dimension, all other strides are free; activations, indices and segments are free in all.
 *   - Outputs have unit stride in the last dimension, other strides free, and overlap no input.
 *   - Data pointers are aligned to their element type; nothing more is asked for, nor is padding.
 *   - Float dtypes: float32, float16, bfloat16. Formats: by the specifications in docs/formats.md.
 *   - Sizes of 0 are valid: the arguments are checked, the name of a forced kernel too, an empty
 *     output is left alone, K = 0 gives 0. The rows of a result times K or N, and the pairs of a
 *     layer times its widths, are at most 2^44: views that repeat memory can claim more.
 *   - Structs of arguments that may grow (moeblas_quantized, _options, _query, _epilogue, _router,
 *     _ffn) begin with their size, struct_size: fields that an older caller does not know keep
 *     their defaults, fields that an older library does not know must be 0. The *_INIT macros set
 *     size and defaults; {sizeof q} does for moeblas_query. The other structs have no such field.
 *   - Thread safety: every function may be called from any thread at any time, except where it says
 *     otherwise. Results do not depend on the number of threads, bit for bit. Calls read
 * environment variables: as everywhere, no thread may change the environment meanwhile.
 *   - A CPU call has finished when it returns. On a device with streams the call is enqueued on
 *     moeblas_options.stream and returns at once: the memory of tensors and of the workspace must
 *     stay until that work is done, that of a captured call for as long as its graph is launched.
 *     Structs, shapes, strides and names are read before a call returns. On CUDA, work that fails
 *     after that shows where the caller next synchronizes.
 */
#ifndef MOEBLAS_H
#define MOEBLAS_H

#include "moeblas/types.h"
#include "moeblas/version.h"

#if defined(MOEBLAS_STATIC)
#define MOEBLAS_API
#else
#define MOEBLAS_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Messages ----------------------------------------------------------------------------- */

/* The name of a status, never NULL. */
MOEBLAS_API const char* moeblas_status_string(moeblas_status status);

/* The message of this thread's last call that failed, "" if none did. Valid until the thread's next
 * call into the library. */
MOEBLAS_API const char* moeblas_last_error(void);

/* MOEBLAS_VERSION_STRING of the library that is loaded. */
MOEBLAS_API const char* moeblas_version(void);

/* ---- Quantization ------------------------------------------------------------------------- */

/* out <- quantize(w): w (..., K) float32, float16 or bfloat16, ndim >= 1, quantized in groups along
 * the last axis. `out` names mode, bits and group_size and holds the tensors to write: codes,
 * scales and, for affine, biases (float16, bfloat16 or float32, any of them whatever w's dtype).
 * Affine: the group's end of larger magnitude is exact, rounding half to even, NaN becomes code 0.
 * mx modes: the scale is rounded up, so that nothing saturates; codes round to nearest even; a
 * group with NaN or infinity gets scale 255 (NaN). nvfp4: scale = e4m3(amax/6 / t); a scale beyond
 * 448 saturates. */
MOEBLAS_API moeblas_status moeblas_quantize(const moeblas_tensor* w, const moeblas_quantized* out,
                                            const moeblas_options* options);
/* The outputs of moeblas_quantize: out[0] codes (uint32), out[1] scales, out[2] biases (affine;
 * ndim -1 otherwise). scale_dtype: NULL is w's dtype; affine only. scale_layout:
 * MOEBLAS_SCALES_ROWS, ... */
MOEBLAS_API moeblas_status moeblas_infer_quantize(const moeblas_tensor* w, int32_t mode,
                                                  int32_t bits, int32_t group_size,
                                                  const moeblas_dtype* scale_dtype,
                                                  int32_t scale_layout, moeblas_spec out[3]);

/* quantize of w (..., R, K) and of its transpose (..., K, R), from one read: `rows` as
 * moeblas_quantize writes it, `columns` the same for the transpose. R and K are multiples of the
 * group; both name one format and one scale layout; the tensor_scale of `rows` serves both. */
MOEBLAS_API moeblas_status moeblas_quantize_dual(const moeblas_tensor* w,
                                                 const moeblas_quantized* rows,
                                                 const moeblas_quantized* columns,
                                                 const moeblas_options* options);
/* The outputs of moeblas_quantize_dual: out[0..2] rows, out[3..5] columns, each as
 * moeblas_infer_quantize has them. */
MOEBLAS_API moeblas_status moeblas_infer_quantize_dual(const moeblas_tensor* w, int32_t mode,
                                                       int32_t bits, int32_t group_size,
                                                       const moeblas_dtype* scale_dtype,
                                                       int32_t scale_layout, moeblas_spec out[6]);

/* out (..., K) <- the values of w, formed in float32 (one multiplication, then one addition) and
 * rounded once to out's dtype: float32, float16 or bfloat16. */
MOEBLAS_API moeblas_status moeblas_dequantize(const moeblas_quantized* w, const moeblas_tensor* out,
                                              const moeblas_options* options);
/* dtype NULL: the scales' dtype for affine, bfloat16 for the others. */
MOEBLAS_API moeblas_status moeblas_infer_dequantize(const moeblas_quantized* w,
                                                    const moeblas_dtype* dtype, moeblas_spec* out);

/* out (uint8) <- E4M3FN codes of x (any float dtype, any shape): nearest even, saturating at 448,
 * NaN -> 0x7F. */
MOEBLAS_API moeblas_status moeblas_to_fp8(const moeblas_tensor* x, const moeblas_tensor* out,
                                          const moeblas_options* options);
MOEBLAS_API moeblas_status moeblas_infer_to_fp8(const moeblas_tensor* x, moeblas_spec* out);

/* out (float32, float16 or bfloat16) <- the values of E4M3FN codes x (uint8); 0x7F, 0xFF -> NaN. */
MOEBLAS_API moeblas_status moeblas_from_fp8(const moeblas_tensor* x, const moeblas_tensor* out,
                                            const moeblas_options* options);
MOEBLAS_API moeblas_status moeblas_infer_from_fp8(const moeblas_tensor* x, moeblas_dtype dtype,
                                                  moeblas_spec* out);

/* ---- Products ----------------------------------------------------------------------------- */
/* x, a, b: float32, float16 or bfloat16; the output has x's dtype. Quantized w is (..., N, K) with
 * transpose != 0 and (..., K, N) otherwise; its groups run along its last axis. Where an operation
 * takes a quantized w it also takes mode MOEBLAS_DENSE: `codes` is then a float tensor of any
 * strides and of any float dtype, x's or another, whose values count as they are, and nothing else
 * is set. So a checkpoint's layers run through one call, whether they are quantized or not. */

/* out <- x @ w^T (transpose) or x @ w. x (..., M, K) or (K,); w with two dimensions is shared by
 * all matrices of x; with more, its batch dimensions and x's broadcast (x needs more than two
 * then). */
MOEBLAS_API moeblas_status moeblas_quantized_matmul(const moeblas_tensor* x,
                                                    const moeblas_quantized* w, int32_t transpose,
                                                    const moeblas_tensor* out,
                                                    const moeblas_options* options);
MOEBLAS_API moeblas_status moeblas_infer_quantized_matmul(const moeblas_tensor* x,
                                                          const moeblas_quantized* w,
                                                          int32_t transpose, moeblas_spec* out);

/* out[p] <- a[lhs[p]] @ b[rhs[p]]: a (..., M, K), b (..., K, N), out broadcast(lhs, rhs) + (M, N).
 * A missing index counts 0, 1, ... over its operand's batch shape. Vectors (K,) get a unit
 * dimension that is dropped from the result. sorted_indices: a promise that the one index array
 * passed is sorted; breaking it costs speed, never correctness. */
MOEBLAS_API moeblas_status moeblas_gather_mm(const moeblas_tensor* a, const moeblas_tensor* b,
                                             const moeblas_tensor* lhs_indices,
                                             const moeblas_tensor* rhs_indices,
                                             int32_t sorted_indices, const moeblas_tensor* out,
                                             const moeblas_options* options);
MOEBLAS_API moeblas_status moeblas_infer_gather_mm(const moeblas_tensor* a, const moeblas_tensor* b,
                                                   const moeblas_tensor* lhs_indices,
                                                   const moeblas_tensor* rhs_indices,
                                                   moeblas_spec* out);

/* out[p] <- x[lhs[p]] @ w[rhs[p]]^T (or w[rhs[p]] without transpose): the product of expert layers.
 * x (..., M, K) with at least two dimensions; indices as for moeblas_gather_mm. Each selected
 * expert's weights are read once, however many rows chose it. */
MOEBLAS_API moeblas_status moeblas_gather_qmm(const moeblas_tensor* x, const moeblas_quantized* w,
                                              const moeblas_tensor* lhs_indices,
                                              const moeblas_tensor* rhs_indices, int32_t transpose,
                                              int32_t sorted_indices, const moeblas_tensor* out,
                                              const moeblas_options* options);
MOEBLAS_API moeblas_status moeblas_infer_gather_qmm(const moeblas_tensor* x,
                                                    const moeblas_quantized* w,
                                                    const moeblas_tensor* lhs_indices,
                                                    const moeblas_tensor* rhs_indices,
                                                    int32_t transpose, moeblas_spec* out);

/* out[p] <- w[ids[p]] @ x[p]: x (P, K), w (E, N, K), ids (P,), out (P, N), for every mode, width
 * and dtype. This is the contract of ExecuTorch's operator metal::gather_qmv(x, w, scales, biases,
 * expert_indices, group_size), arguments in the same order: w's packed bytes, uint8 (E, N, K/2),
 * are w->codes, its scales and biases (E, N, K/group_size) of x's dtype are w->scales and
 * w->biases, with mode affine, 4 bits and group_size 32, 64 or 128; where it returns a new tensor,
 * `out` is the caller's. (backends/apple/metal/ops/gather_qmv.py in its repository.) */
MOEBLAS_API moeblas_status moeblas_gather_qmv(const moeblas_tensor* x, const moeblas_quantized* w,
                                              const moeblas_tensor* expert_indices,
                                              const moeblas_tensor* out,
                                              const moeblas_options* options);
MOEBLAS_API moeblas_status moeblas_infer_gather_qmv(const moeblas_tensor* x,
                                                    const moeblas_quantized* w,
                                                    const moeblas_tensor* expert_indices,
                                                    moeblas_spec* out);

/* out[i] <- a[:, s:e] @ b[s:e, :] with (s, e) = segments[i]: a (M, K), b (K, N), segments (..., 2)
 * integers, out segments.shape[:-1] + (M, N). Ends are clamped to [0, K]; e <= s gives 0; segments
 * may overlap, skip and start anywhere. Values outside a segment never enter its result, NaN
 * included. */
MOEBLAS_API moeblas_status moeblas_segmented_mm(const moeblas_tensor* a, const moeblas_tensor* b,
                                                const moeblas_tensor* segments,
                                                const moeblas_tensor* out,
                                                const moeblas_options* options);
MOEBLAS_API moeblas_status moeblas_infer_segmented_mm(const moeblas_tensor* a,
                                                      const moeblas_tensor* b,
                                                      const moeblas_tensor* segments,
                                                      moeblas_spec* out);

/* out (R, N): row r of x (R, K) times the matrix of the first expert e with offsets[e] > r. w
 * (E, K, N); offsets (E,) int32 or int64 on the device, the rows' ends: those of expert e are
 * offsets[e-1] .. offsets[e]. Ends are clamped to [0, R]; an end not above its predecessors is an
 * empty expert; rows past the last end are 0. */
MOEBLAS_API moeblas_status moeblas_grouped_mm(const moeblas_tensor* x, const moeblas_tensor* w,
                                              const moeblas_tensor* offsets,
                                              const moeblas_tensor* out,
                                              const moeblas_options* options);
MOEBLAS_API moeblas_status moeblas_infer_grouped_mm(const moeblas_tensor* x,
                                                    const moeblas_tensor* w,
                                                    const moeblas_tensor* offsets,
                                                    moeblas_spec* out);

/* The same with quantized w, (E, N, K) with transpose, (E, K, N) without. */
MOEBLAS_API moeblas_status moeblas_grouped_qmm(const moeblas_tensor* x, const moeblas_quantized* w,
                                               const moeblas_tensor* offsets, int32_t transpose,
                                               const moeblas_tensor* out,
                                               const moeblas_options* options);
MOEBLAS_API moeblas_status moeblas_infer_grouped_qmm(const moeblas_tensor* x,
                                                     const moeblas_quantized* w,
                                                     const moeblas_tensor* offsets,
                                                     int32_t transpose, moeblas_spec* out);

/* ---- Block-quantized products ------------------------------------------------------------- */
/* Both operands are block-quantized in one format, mxfp4, mxfp8 or nvfp4: y = fq(x) @ fq(w)^T,
 * where fq is quantize followed by dequantize, in float32. x and w are each either packed (codes
 * and scales) or float: `codes` is then the float tensor, `scales` NULL, the layout that of rows,
 * and the tensor is quantized on the fly along K. nvfp4: both have a tensor_scale or neither; x's
 * is one number or one per matrix of w. */

/* out = (alpha * sum + beta * c) + bias, in float32, rounded once. NULL stands for alpha 1 alone.
 * Rows whose index selects no matrix are 0. */
typedef struct moeblas_epilogue {
  size_t struct_size; /* sizeof(moeblas_epilogue) */
  float alpha;
  float beta;
  const moeblas_tensor* c;    /* any float dtype, broadcast to out's shape; NULL: none */
  const moeblas_tensor* bias; /* any float dtype, (N,) or w's batch + (N,); NULL: none */
} moeblas_epilogue;

#define MOEBLAS_EPILOGUE_INIT {sizeof(moeblas_epilogue), 1.0f, 0.0f, NULL, NULL}

/* x (..., M, K), w (..., N, K); w with two dimensions is shared by all matrices of x; with more,
 * batch dimensions broadcast (x needs more than two then). out has x's dtype, or any float dtype if
 * x is packed. */
MOEBLAS_API moeblas_status moeblas_qqmm(const moeblas_quantized* x, const moeblas_quantized* w,
                                        const moeblas_epilogue* epilogue, const moeblas_tensor* out,
                                        const moeblas_options* options);
/* dtype: of the output where x is packed (NULL: bfloat16). Otherwise NULL or x's, which it has. */
MOEBLAS_API moeblas_status moeblas_infer_qqmm(const moeblas_quantized* x,
                                              const moeblas_quantized* w,
                                              const moeblas_dtype* dtype, moeblas_spec* out);

/* out[p] <- x[lhs[p]] @ w[rhs[p]]^T; indices as for moeblas_gather_qmm. */
MOEBLAS_API moeblas_status moeblas_gather_qqmm(
    const moeblas_quantized* x, const moeblas_quantized* w, const moeblas_tensor* lhs_indices,
    const moeblas_tensor* rhs_indices, int32_t sorted_indices, const moeblas_epilogue* epilogue,
    const moeblas_tensor* out, const moeblas_options* options);
MOEBLAS_API moeblas_status moeblas_infer_gather_qqmm(const moeblas_quantized* x,
                                                     const moeblas_quantized* w,
                                                     const moeblas_tensor* lhs_indices,
                                                     const moeblas_tensor* rhs_indices,
                                                     const moeblas_dtype* dtype, moeblas_spec* out);

/* out (R, N): x (R, K), w (E, N, K); offsets as for moeblas_grouped_mm. */
MOEBLAS_API moeblas_status moeblas_grouped_qqmm(
    const moeblas_quantized* x, const moeblas_quantized* w, const moeblas_tensor* offsets,
    const moeblas_epilogue* epilogue, const moeblas_tensor* out, const moeblas_options* options);
MOEBLAS_API moeblas_status moeblas_infer_grouped_qqmm(const moeblas_quantized* x,
                                                      const moeblas_quantized* w,
                                                      const moeblas_tensor* offsets,
                                                      const moeblas_dtype* dtype,
                                                      moeblas_spec* out);

/* ---- Routing and the fused expert layer --------------------------------------------------- */

enum { MOEBLAS_SOFTMAX = 0, MOEBLAS_SIGMOID = 1 };

/* How a router chooses. Scores are softmax(logits) over all experts or sigmoid(logits), in float32.
 * The top_k experts of largest score + bias are chosen, largest first; ties go to the lower expert,
 * NaN comes last. With n_group > 1 the experts form n_group groups of equal size, a group's worth
 * is the sum of its two best values, and only the topk_group best groups are considered. A weight
 * is the score without the bias, with `normalize` divided by the sum of the chosen scores (0 where
 * that is 0), times scaling_factor. Mixtral, Qwen3-MoE, gpt-oss: softmax, normalize; OLMoE:
 * softmax; DeepSeek-V3: sigmoid, normalize, bias, groups, scaling_factor. (Softmax with normalize
 * is the softmax of the chosen logits.) */
typedef struct moeblas_router {
  size_t struct_size; /* sizeof(moeblas_router) */
  int32_t top_k;
  int32_t score;      /* MOEBLAS_SOFTMAX, MOEBLAS_SIGMOID */
  int32_t normalize;  /* 0: weights as scored over all experts; 1: over the chosen ones */
  int32_t n_group;    /* divides E */
  int32_t topk_group; /* 1 .. n_group */
  float scaling_factor;
} moeblas_router;

#define MOEBLAS_ROUTER_INIT {sizeof(moeblas_router), 0, MOEBLAS_SOFTMAX, 0, 1, 1, 1.0f}

/* ids (T, k) int32 and weights (T, k) float32 <- the choice for logits (T, E), any float dtype.
 * bias: (E,) float32 or NULL. */
MOEBLAS_API moeblas_status moeblas_moe_route(
    const moeblas_tensor* logits, const moeblas_tensor* bias, const moeblas_router* router,
    const moeblas_tensor* ids, const moeblas_tensor* weights, const moeblas_options* options);
/* out[0] ids, out[1] weights. */
MOEBLAS_API moeblas_status moeblas_infer_moe_route(const moeblas_tensor* logits,
                                                   const moeblas_tensor* bias,
                                                   const moeblas_router* router,
                                                   moeblas_spec out[2]);

/* Rows of x (T, H), any float dtype, into the order of their experts. Pair (t, j) belongs to expert
 * e = ids[t, j] or, with expert_map (any integers, one per global expert), expert_map[ids[t, j]];
 * pairs whose id is out of range or whose e is outside [0, experts) are dropped. The others are
 * sorted by expert, then t, then j. rows (T*k, H), x's dtype: the row of x of each sorted pair,
 * zeros past the last; offsets (experts,) int32: where each expert's rows end, for grouped
 * products; inverse (T, k) int32: each pair's row, -1 if dropped. ids (T, k), any integers. */
MOEBLAS_API moeblas_status moeblas_moe_permute(const moeblas_tensor* x, const moeblas_tensor* ids,
                                               const moeblas_tensor* expert_map, int64_t experts,
                                               const moeblas_tensor* rows,
                                               const moeblas_tensor* offsets,
                                               const moeblas_tensor* inverse,
                                               const moeblas_options* options);
/* out[0] rows, out[1] offsets, out[2] inverse. */
MOEBLAS_API moeblas_status moeblas_infer_moe_permute(const moeblas_tensor* x,
                                                     const moeblas_tensor* ids,
                                                     const moeblas_tensor* expert_map,
                                                     int64_t experts, moeblas_spec out[3]);

/* out (T, H) <- sum over j of weights[t, j] * y[inverse[t, j]], added in float32 in the order of j
 * and rounded once to y's dtype; entries of inverse outside [0, R) add nothing. y (R, H), any float
 * dtype; inverse (T, k), any integers; weights (T, k) float32 or NULL: all 1. */
MOEBLAS_API moeblas_status moeblas_moe_unpermute(const moeblas_tensor* y,
                                                 const moeblas_tensor* inverse,
                                                 const moeblas_tensor* weights,
                                                 const moeblas_tensor* out,
                                                 const moeblas_options* options);
MOEBLAS_API moeblas_status moeblas_infer_moe_unpermute(const moeblas_tensor* y,
                                                       const moeblas_tensor* inverse,
                                                       const moeblas_tensor* weights,
                                                       moeblas_spec* out);

enum {
  MOEBLAS_SILU = 0,          /* g * sigmoid(g) * u */
  MOEBLAS_GELU_ERF = 1,      /* g * (1 + erf(g / sqrt 2)) / 2 * u */
  MOEBLAS_GELU_TANH = 2,     /* its tanh approximation */
  MOEBLAS_RELU = 3,          /* max(g, 0) * u */
  MOEBLAS_CLAMPED_SWIGLU = 4 /* gpt-oss: g' = min(g, limit), u' = clamp(u, -limit, limit);
                                (u' + 1) * g' * sigmoid(alpha * g') */
};
/* Rows of a joint gate_up matrix (E, 2I, H). */
enum {
  MOEBLAS_GATE_UP = 0,    /* I rows of gate, then I rows of up */
  MOEBLAS_UP_GATE = 1,    /* I rows of up, then I rows of gate */
  MOEBLAS_INTERLEAVED = 2 /* gate and up row by row */
};

/* The experts of a layer. Each product has a format of its own; mode MOEBLAS_DENSE: `codes` is a
 * float tensor and nothing else is set. Either gate_up, or gate and up. */
typedef struct moeblas_ffn {
  size_t struct_size;                 /* sizeof(moeblas_ffn) */
  const moeblas_quantized* gate_up;   /* (E, 2I, H) */
  const moeblas_quantized* gate;      /* (E, I, H) */
  const moeblas_quantized* up;        /* (E, I, H) */
  const moeblas_quantized* down;      /* (E, H, I) */
  const moeblas_tensor* gate_up_bias; /* (E, 2I), any float dtype; NULL: none */
  const moeblas_tensor* gate_bias;    /* (E, I) */
  const moeblas_tensor* up_bias;      /* (E, I) */
  const moeblas_tensor* down_bias;    /* (E, H) */
  const moeblas_tensor* expert_map; /* global expert -> 0 .. E-1, or -1: not here; NULL: identity */
  int32_t activation;               /* MOEBLAS_SILU, ... */
  int32_t glu_layout;               /* MOEBLAS_GATE_UP, ...; of gate_up */
  float alpha;                      /* of MOEBLAS_CLAMPED_SWIGLU */
  float limit;
} moeblas_ffn;

#define MOEBLAS_FFN_INIT                                                                      \
  {sizeof(moeblas_ffn), NULL,   NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, MOEBLAS_SILU, \
   MOEBLAS_GATE_UP,     1.702f, 7.0f}

/* out (T, H) <- sum over j of weights[t, j] * (down[e] @ a(gate[e] @ x[t], up[e] @ x[t]) + bias),
 * gate and up with theirs, e = ids[t, j] by expert_map. x (T, H), any float dtype; ids (T, k), any
 * integers; weights (T, k) float32. Gate and up stay float32 through the activation a, whose result
 * is rounded once to x's dtype; the down product is not rounded before the sum, which adds in
 * float32 in the order of j and rounds once to x's dtype. Pairs without an expert here add 0. */
MOEBLAS_API moeblas_status moeblas_moe_ffn(const moeblas_tensor* x, const moeblas_ffn* layer,
                                           const moeblas_tensor* ids, const moeblas_tensor* weights,
                                           const moeblas_tensor* out,
                                           const moeblas_options* options);
MOEBLAS_API moeblas_status moeblas_infer_moe_ffn(const moeblas_tensor* x, const moeblas_ffn* layer,
                                                 const moeblas_tensor* ids,
                                                 const moeblas_tensor* weights, moeblas_spec* out);

/* ---- Kernels ------------------------------------------------------------------------------ */

/* One row of the dispatch table. The first row that takes a problem runs. All strings live as long
 * as the library. */
typedef struct moeblas_kernel {
  const char* name;
  const char* backend;  /* "cpu", ... */
  const char* problem;  /* "matmul", "quantize", ... */
  const char* arch;     /* what the device must have; "any" */
  const char* formats;  /* weight formats */
  const char* dtypes;   /* of the activations */
  const char* grouping; /* how rows find their matrix */
  const char* rows;     /* rows of x per call */
  const char* summary;
} moeblas_kernel;

MOEBLAS_API int32_t moeblas_kernel_count(void);
/* Row i in table order, or MOEBLAS_INVALID_ARGUMENT. */
MOEBLAS_API moeblas_status moeblas_kernel_at(int32_t i, moeblas_kernel* out);

/* The library's version on the first line, then what was found on this machine, one line per
 * backend: whether it is usable, and why not. Valid until the thread's next moeblas_info. */
MOEBLAS_API const char* moeblas_info(void);

/* ---- Threads ------------------------------------------------------------------------------ */

/* The number of threads that CPU kernels use, the caller's included. Default: the CPUs of the
 * process's affinity mask, or the environment variable MOEBLAS_NUM_THREADS. n < 1: back to the
 * default. They serve one caller at a time: what a call has to do while they are another thread's,
 * it does on its own thread alone. Programs that call from several threads at once can bring
 * threads for all of them by moeblas_set_parallel_for. */
MOEBLAS_API moeblas_status moeblas_set_num_threads(int32_t n);
MOEBLAS_API int32_t moeblas_get_num_threads(void);

/* A parallel loop of the host's, used in place of the library's own threads: it must call
 * task(argument, i) once for every i in [0, tasks), in any order and on any threads, and return
 * when all have returned. NULL: back to the library's. The hook must be callable from any thread.
 * Calls that had begun when another was set may use the old one until they return, and its context.
 */
typedef void (*moeblas_parallel_for)(void* context, int64_t tasks,
                                     void (*task)(void* argument, int64_t i), void* argument);
MOEBLAS_API moeblas_status moeblas_set_parallel_for(moeblas_parallel_for hook, void* context);

/* ---- Memory ------------------------------------------------------------------------------- */

/* Device memory for programs that have no allocator of their own; 64-byte aligned or better. On the
 * CPU from 2 MiB on aligned to 2 MiB and advised as below. */
MOEBLAS_API moeblas_status moeblas_buffer_alloc(moeblas_device device, size_t bytes, void** out);
MOEBLAS_API moeblas_status moeblas_buffer_free(moeblas_device device, void* buffer);
/* Synchronous copy, after all work that the devices of both ends were given before; the ranges must
 * not overlap. */
MOEBLAS_API moeblas_status moeblas_buffer_copy(moeblas_device to_device, void* to,
                                               moeblas_device from_device, const void* from,
                                               size_t bytes);

/* Asks the system to back the whole 2 MiB pages within [data, data + bytes), memory of the caller's
 * on the host, by pages of that size: a stream of weights then runs up to 60 % faster on one
 * thread. Contents stay. Best before the memory is first written. Advice: where the system has no
 * such pages or does not give them (Linux: /sys/kernel/mm/transparent_hugepage/enabled is "never",
 * or the memory is a file's on a file system without large pages), nothing happens and the call
 * succeeds. */
MOEBLAS_API moeblas_status moeblas_advise_huge_pages(const void* data, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
