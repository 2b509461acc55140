// The operations at the C border: import the arguments, let ops/ check them and state the problem,
// let dispatch/ select and run.
#include "capi/boundary.h"
#include "dispatch/select.h"
#include "moeblas/moeblas.h"
#include "ops/moe.h"
#include "ops/products.h"
#include "ops/qqmm.h"
#include "ops/quantization.h"
#include "registry/registry.h"

using namespace moeblas;
using capi::guarded;
using capi::import;

namespace {

template <class Problem>
void run(const Problem& problem) {
  dispatch::run(backends(), problem);
}

std::optional<DType> optional_dtype(const char* op, const char* name, const moeblas_dtype* dtype) {
  return dtype != nullptr ? std::optional(import(op, name, *dtype)) : std::nullopt;
}

void write(moeblas_spec* out, const char* op, const QuantizedSpec& spec) {
  capi::write(out, op, spec.codes);
  capi::write(out + 1, op, spec.scales);
  out[2] = {};
  out[2].ndim = -1;
  if (spec.biases) capi::write(out + 2, op, *spec.biases);
}

}  // namespace

extern "C" {

// ---- Quantization ------------------------------------------------------------------------------

moeblas_status moeblas_quantize(const moeblas_tensor* w, const moeblas_quantized* out,
                                const moeblas_options* options) {
  constexpr const char* op = "quantize";
  return guarded([&] {
    run(ops::quantize(import(op, "w", w), import(op, ops::kPacked, out), import(op, options)));
  });
}

moeblas_status moeblas_infer_quantize(const moeblas_tensor* w, int32_t mode, int32_t bits,
                                      int32_t group_size, const moeblas_dtype* scale_dtype,
                                      int32_t scale_layout, moeblas_spec out[3]) {
  constexpr const char* op = "quantize";
  return guarded([&] {
    const QuantizedSpec spec = ops::infer_quantize(
        import(op, "w", w), {static_cast<Mode>(mode), bits, group_size},
        optional_dtype(op, "scale_dtype", scale_dtype), static_cast<ScaleLayout>(scale_layout));
    write(out, op, spec);
  });
}

moeblas_status moeblas_quantize_dual(const moeblas_tensor* w, const moeblas_quantized* rows,
                                     const moeblas_quantized* columns,
                                     const moeblas_options* options) {
  constexpr const char* op = "quantize_dual";
  return guarded([&] {
    run(ops::quantize_dual(import(op, "w", w), import(op, ops::kRows, rows),
                           import(op, ops::kColumns, columns), import(op, options)));
  });
}

moeblas_status moeblas_infer_quantize_dual(const moeblas_tensor* w, int32_t mode, int32_t bits,
                                           int32_t group_size, const moeblas_dtype* scale_dtype,
                                           int32_t scale_layout, moeblas_spec out[6]) {
  constexpr const char* op = "quantize_dual";
  return guarded([&] {
    const DualSpecs specs = ops::infer_quantize_dual(
        import(op, "w", w), {static_cast<Mode>(mode), bits, group_size},
        optional_dtype(op, "scale_dtype", scale_dtype), static_cast<ScaleLayout>(scale_layout));
    write(out, op, specs.rows);
    write(out + 3, op, specs.columns);
  });
}

moeblas_status moeblas_dequantize(const moeblas_quantized* w, const moeblas_tensor* out,
                                  const moeblas_options* options) {
  constexpr const char* op = "dequantize";
  return guarded([&] {
    run(ops::dequantize(import(op, ops::kPacked, w), import(op, "out", out), import(op, options)));
  });
}

moeblas_status moeblas_infer_dequantize(const moeblas_quantized* w, const moeblas_dtype* dtype,
                                        moeblas_spec* out) {
  constexpr const char* op = "dequantize";
  return guarded([&] {
    capi::write(
        out, op,
        ops::infer_dequantize(import(op, ops::kPacked, w), optional_dtype(op, "dtype", dtype)));
  });
}

moeblas_status moeblas_to_fp8(const moeblas_tensor* x, const moeblas_tensor* out,
                              const moeblas_options* options) {
  constexpr const char* op = "to_fp8";
  return guarded(
      [&] { run(ops::to_fp8(import(op, "x", x), import(op, "out", out), import(op, options))); });
}

moeblas_status moeblas_infer_to_fp8(const moeblas_tensor* x, moeblas_spec* out) {
  constexpr const char* op = "to_fp8";
  return guarded([&] { capi::write(out, op, ops::infer_to_fp8(import(op, "x", x))); });
}

moeblas_status moeblas_from_fp8(const moeblas_tensor* x, const moeblas_tensor* out,
                                const moeblas_options* options) {
  constexpr const char* op = "from_fp8";
  return guarded(
      [&] { run(ops::from_fp8(import(op, "x", x), import(op, "out", out), import(op, options))); });
}

moeblas_status moeblas_infer_from_fp8(const moeblas_tensor* x, moeblas_dtype dtype,
                                      moeblas_spec* out) {
  constexpr const char* op = "from_fp8";
  return guarded([&] {
    capi::write(out, op, ops::infer_from_fp8(import(op, "x", x), import(op, "dtype", dtype)));
  });
}

// ---- Products ----------------------------------------------------------------------------------

moeblas_status moeblas_quantized_matmul(const moeblas_tensor* x, const moeblas_quantized* w,
                                        int32_t transpose, const moeblas_tensor* out,
                                        const moeblas_options* options) {
  constexpr const char* op = "quantized_matmul";
  return guarded([&] {
    run(ops::quantized_matmul(import(op, "x", x), import(op, ops::kWeights, w), transpose != 0,
                              import(op, "out", out), import(op, options)));
  });
}

moeblas_status moeblas_infer_quantized_matmul(const moeblas_tensor* x, const moeblas_quantized* w,
                                              int32_t transpose, moeblas_spec* out) {
  constexpr const char* op = "quantized_matmul";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_quantized_matmul(import(op, "x", x), import(op, ops::kWeights, w),
                                            transpose != 0));
  });
}

moeblas_status moeblas_gather_mm(const moeblas_tensor* a, const moeblas_tensor* b,
                                 const moeblas_tensor* lhs_indices,
                                 const moeblas_tensor* rhs_indices, int32_t sorted_indices,
                                 const moeblas_tensor* out, const moeblas_options* options) {
  constexpr const char* op = "gather_mm";
  return guarded([&] {
    run(ops::gather_mm(import(op, "a", a), import(op, "b", b),
                       import(op, "lhs_indices", lhs_indices),
                       import(op, "rhs_indices", rhs_indices), sorted_indices != 0,
                       import(op, "out", out), import(op, options)));
  });
}

moeblas_status moeblas_infer_gather_mm(const moeblas_tensor* a, const moeblas_tensor* b,
                                       const moeblas_tensor* lhs_indices,
                                       const moeblas_tensor* rhs_indices, moeblas_spec* out) {
  constexpr const char* op = "gather_mm";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_gather_mm(import(op, "a", a), import(op, "b", b),
                                     import(op, "lhs_indices", lhs_indices),
                                     import(op, "rhs_indices", rhs_indices)));
  });
}

moeblas_status moeblas_gather_qmm(const moeblas_tensor* x, const moeblas_quantized* w,
                                  const moeblas_tensor* lhs_indices,
                                  const moeblas_tensor* rhs_indices, int32_t transpose,
                                  int32_t sorted_indices, const moeblas_tensor* out,
                                  const moeblas_options* options) {
  constexpr const char* op = "gather_qmm";
  return guarded([&] {
    run(ops::gather_qmm(import(op, "x", x), import(op, ops::kWeights, w),
                        import(op, "lhs_indices", lhs_indices),
                        import(op, "rhs_indices", rhs_indices), transpose != 0, sorted_indices != 0,
                        import(op, "out", out), import(op, options)));
  });
}

moeblas_status moeblas_infer_gather_qmm(const moeblas_tensor* x, const moeblas_quantized* w,
                                        const moeblas_tensor* lhs_indices,
                                        const moeblas_tensor* rhs_indices, int32_t transpose,
                                        moeblas_spec* out) {
  constexpr const char* op = "gather_qmm";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_gather_qmm(import(op, "x", x), import(op, ops::kWeights, w),
                                      import(op, "lhs_indices", lhs_indices),
                                      import(op, "rhs_indices", rhs_indices), transpose != 0));
  });
}

moeblas_status moeblas_gather_qmv(const moeblas_tensor* x, const moeblas_quantized* w,
                                  const moeblas_tensor* expert_indices, const moeblas_tensor* out,
                                  const moeblas_options* options) {
  constexpr const char* op = "gather_qmv";
  return guarded([&] {
    run(ops::gather_qmv(import(op, "x", x), import(op, ops::kWeights, w),
                        import(op, "expert_indices", expert_indices), import(op, "out", out),
                        import(op, options)));
  });
}

moeblas_status moeblas_infer_gather_qmv(const moeblas_tensor* x, const moeblas_quantized* w,
                                        const moeblas_tensor* expert_indices, moeblas_spec* out) {
  constexpr const char* op = "gather_qmv";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_gather_qmv(import(op, "x", x), import(op, ops::kWeights, w),
                                      import(op, "expert_indices", expert_indices)));
  });
}

moeblas_status moeblas_segmented_mm(const moeblas_tensor* a, const moeblas_tensor* b,
                                    const moeblas_tensor* segments, const moeblas_tensor* out,
                                    const moeblas_options* options) {
  constexpr const char* op = "segmented_mm";
  return guarded([&] {
    run(ops::segmented_mm(import(op, "a", a), import(op, "b", b), import(op, "segments", segments),
                          import(op, "out", out), import(op, options)));
  });
}

moeblas_status moeblas_infer_segmented_mm(const moeblas_tensor* a, const moeblas_tensor* b,
                                          const moeblas_tensor* segments, moeblas_spec* out) {
  constexpr const char* op = "segmented_mm";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_segmented_mm(import(op, "a", a), import(op, "b", b),
                                        import(op, "segments", segments)));
  });
}

moeblas_status moeblas_grouped_mm(const moeblas_tensor* x, const moeblas_tensor* w,
                                  const moeblas_tensor* offsets, const moeblas_tensor* out,
                                  const moeblas_options* options) {
  constexpr const char* op = "grouped_mm";
  return guarded([&] {
    run(ops::grouped_mm(import(op, "x", x), import(op, "w", w), import(op, "offsets", offsets),
                        import(op, "out", out), import(op, options)));
  });
}

moeblas_status moeblas_infer_grouped_mm(const moeblas_tensor* x, const moeblas_tensor* w,
                                        const moeblas_tensor* offsets, moeblas_spec* out) {
  constexpr const char* op = "grouped_mm";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_grouped_mm(import(op, "x", x), import(op, "w", w),
                                      import(op, "offsets", offsets)));
  });
}

moeblas_status moeblas_grouped_qmm(const moeblas_tensor* x, const moeblas_quantized* w,
                                   const moeblas_tensor* offsets, int32_t transpose,
                                   const moeblas_tensor* out, const moeblas_options* options) {
  constexpr const char* op = "grouped_qmm";
  return guarded([&] {
    run(ops::grouped_qmm(import(op, "x", x), import(op, ops::kWeights, w),
                         import(op, "offsets", offsets), transpose != 0, import(op, "out", out),
                         import(op, options)));
  });
}

moeblas_status moeblas_infer_grouped_qmm(const moeblas_tensor* x, const moeblas_quantized* w,
                                         const moeblas_tensor* offsets, int32_t transpose,
                                         moeblas_spec* out) {
  constexpr const char* op = "grouped_qmm";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_grouped_qmm(import(op, "x", x), import(op, ops::kWeights, w),
                                       import(op, "offsets", offsets), transpose != 0));
  });
}

// ---- Block-quantized products ------------------------------------------------------------------

moeblas_status moeblas_qqmm(const moeblas_quantized* x, const moeblas_quantized* w,
                            const moeblas_epilogue* epilogue, const moeblas_tensor* out,
                            const moeblas_options* options) {
  constexpr const char* op = "qqmm";
  return guarded([&] {
    run(ops::qqmm(import(op, ops::kBlockX, x), import(op, ops::kBlockW, w), import(op, epilogue),
                  import(op, "out", out), import(op, options)));
  });
}

moeblas_status moeblas_infer_qqmm(const moeblas_quantized* x, const moeblas_quantized* w,
                                  const moeblas_dtype* dtype, moeblas_spec* out) {
  constexpr const char* op = "qqmm";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_qqmm(import(op, ops::kBlockX, x), import(op, ops::kBlockW, w),
                                optional_dtype(op, "dtype", dtype)));
  });
}

moeblas_status moeblas_gather_qqmm(const moeblas_quantized* x, const moeblas_quantized* w,
                                   const moeblas_tensor* lhs_indices,
                                   const moeblas_tensor* rhs_indices, int32_t sorted_indices,
                                   const moeblas_epilogue* epilogue, const moeblas_tensor* out,
                                   const moeblas_options* options) {
  constexpr const char* op = "gather_qqmm";
  return guarded([&] {
    run(ops::gather_qqmm(import(op, ops::kBlockX, x), import(op, ops::kBlockW, w),
                         import(op, "lhs_indices", lhs_indices),
                         import(op, "rhs_indices", rhs_indices), sorted_indices != 0,
                         import(op, epilogue), import(op, "out", out), import(op, options)));
  });
}

moeblas_status moeblas_infer_gather_qqmm(const moeblas_quantized* x, const moeblas_quantized* w,
                                         const moeblas_tensor* lhs_indices,
                                         const moeblas_tensor* rhs_indices,
                                         const moeblas_dtype* dtype, moeblas_spec* out) {
  constexpr const char* op = "gather_qqmm";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_gather_qqmm(import(op, ops::kBlockX, x), import(op, ops::kBlockW, w),
                                       import(op, "lhs_indices", lhs_indices),
                                       import(op, "rhs_indices", rhs_indices),
                                       optional_dtype(op, "dtype", dtype)));
  });
}

moeblas_status moeblas_grouped_qqmm(const moeblas_quantized* x, const moeblas_quantized* w,
                                    const moeblas_tensor* offsets, const moeblas_epilogue* epilogue,
                                    const moeblas_tensor* out, const moeblas_options* options) {
  constexpr const char* op = "grouped_qqmm";
  return guarded([&] {
    run(ops::grouped_qqmm(import(op, ops::kBlockX, x), import(op, ops::kBlockW, w),
                          import(op, "offsets", offsets), import(op, epilogue),
                          import(op, "out", out), import(op, options)));
  });
}

moeblas_status moeblas_infer_grouped_qqmm(const moeblas_quantized* x, const moeblas_quantized* w,
                                          const moeblas_tensor* offsets, const moeblas_dtype* dtype,
                                          moeblas_spec* out) {
  constexpr const char* op = "grouped_qqmm";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_grouped_qqmm(import(op, ops::kBlockX, x), import(op, ops::kBlockW, w),
                                        import(op, "offsets", offsets),
                                        optional_dtype(op, "dtype", dtype)));
  });
}

// ---- Routing and the fused expert layer ---------------------------------------------------------

moeblas_status moeblas_moe_route(const moeblas_tensor* logits, const moeblas_tensor* bias,
                                 const moeblas_router* router, const moeblas_tensor* ids,
                                 const moeblas_tensor* weights, const moeblas_options* options) {
  constexpr const char* op = "moe_route";
  return guarded([&] {
    run(ops::moe_route(import(op, "logits", logits), import(op, "bias", bias), import(op, router),
                       import(op, "ids", ids), import(op, "weights", weights),
                       import(op, options)));
  });
}

moeblas_status moeblas_infer_moe_route(const moeblas_tensor* logits, const moeblas_tensor* bias,
                                       const moeblas_router* router, moeblas_spec out[2]) {
  constexpr const char* op = "moe_route";
  return guarded([&] {
    const RouteSpecs specs = ops::infer_moe_route(import(op, "logits", logits),
                                                  import(op, "bias", bias), import(op, router));
    capi::write(out, op, specs.ids);
    capi::write(out + 1, op, specs.weights);
  });
}

moeblas_status moeblas_moe_permute(const moeblas_tensor* x, const moeblas_tensor* ids,
                                   const moeblas_tensor* expert_map, int64_t experts,
                                   const moeblas_tensor* rows, const moeblas_tensor* offsets,
                                   const moeblas_tensor* inverse, const moeblas_options* options) {
  constexpr const char* op = "moe_permute";
  return guarded([&] {
    run(ops::moe_permute(import(op, "x", x), import(op, "ids", ids),
                         import(op, "expert_map", expert_map), experts, import(op, "rows", rows),
                         import(op, "offsets", offsets), import(op, "inverse", inverse),
                         import(op, options)));
  });
}

moeblas_status moeblas_infer_moe_permute(const moeblas_tensor* x, const moeblas_tensor* ids,
                                         const moeblas_tensor* expert_map, int64_t experts,
                                         moeblas_spec out[3]) {
  constexpr const char* op = "moe_permute";
  return guarded([&] {
    const PermuteSpecs specs = ops::infer_moe_permute(
        import(op, "x", x), import(op, "ids", ids), import(op, "expert_map", expert_map), experts);
    capi::write(out, op, specs.rows);
    capi::write(out + 1, op, specs.offsets);
    capi::write(out + 2, op, specs.inverse);
  });
}

moeblas_status moeblas_moe_unpermute(const moeblas_tensor* y, const moeblas_tensor* inverse,
                                     const moeblas_tensor* weights, const moeblas_tensor* out,
                                     const moeblas_options* options) {
  constexpr const char* op = "moe_unpermute";
  return guarded([&] {
    run(ops::moe_unpermute(import(op, "y", y), import(op, "inverse", inverse),
                           import(op, "weights", weights), import(op, "out", out),
                           import(op, options)));
  });
}

moeblas_status moeblas_infer_moe_unpermute(const moeblas_tensor* y, const moeblas_tensor* inverse,
                                           const moeblas_tensor* weights, moeblas_spec* out) {
  constexpr const char* op = "moe_unpermute";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_moe_unpermute(import(op, "y", y), import(op, "inverse", inverse),
                                         import(op, "weights", weights)));
  });
}

moeblas_status moeblas_moe_ffn(const moeblas_tensor* x, const moeblas_ffn* layer,
                               const moeblas_tensor* ids, const moeblas_tensor* weights,
                               const moeblas_tensor* out, const moeblas_options* options) {
  constexpr const char* op = "moe_ffn";
  return guarded([&] {
    run(ops::moe_ffn(import(op, "x", x), import(op, layer), import(op, "ids", ids),
                     import(op, "weights", weights), import(op, "out", out), import(op, options)));
  });
}

moeblas_status moeblas_infer_moe_ffn(const moeblas_tensor* x, const moeblas_ffn* layer,
                                     const moeblas_tensor* ids, const moeblas_tensor* weights,
                                     moeblas_spec* out) {
  constexpr const char* op = "moe_ffn";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_moe_ffn(import(op, "x", x), import(op, layer), import(op, "ids", ids),
                                   import(op, "weights", weights)));
  });
}

}  // extern "C"
