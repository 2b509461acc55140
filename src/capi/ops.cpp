// The operations at the C border: import the arguments, let ops/ check them and state the problem,
// let dispatch/ select and run.
#include "capi/boundary.h"
#include "dispatch/select.h"
#include "moeblas/moeblas.h"
#include "ops/products.h"
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

}  // namespace

extern "C" {

// ---- Quantization ------------------------------------------------------------------------------

moeblas_status moeblas_quantize(const moeblas_tensor* w, const moeblas_quantized* out,
                                const moeblas_options* options) {
  constexpr const char* op = "quantize";
  return guarded(
      [&] { run(ops::quantize(import(op, "w", w), import(op, "w_q", out), import(op, options))); });
}

moeblas_status moeblas_infer_quantize(const moeblas_tensor* w, int32_t mode, int32_t bits,
                                      int32_t group_size, const moeblas_dtype* scale_dtype,
                                      moeblas_spec out[3]) {
  constexpr const char* op = "quantize";
  return guarded([&] {
    const QuantizedSpec spec =
        ops::infer_quantize(import(op, "w", w), {static_cast<Mode>(mode), bits, group_size},
                            optional_dtype(op, "scale_dtype", scale_dtype));
    capi::write(out, op, spec.codes);
    capi::write(out + 1, op, spec.scales);
    if (spec.biases) {
      capi::write(out + 2, op, *spec.biases);
    } else {
      out[2] = {};
      out[2].ndim = -1;
    }
  });
}

moeblas_status moeblas_dequantize(const moeblas_quantized* w, const moeblas_tensor* out,
                                  const moeblas_options* options) {
  constexpr const char* op = "dequantize";
  return guarded([&] {
    run(ops::dequantize(import(op, "w_q", w), import(op, "out", out), import(op, options)));
  });
}

moeblas_status moeblas_infer_dequantize(const moeblas_quantized* w, const moeblas_dtype* dtype,
                                        moeblas_spec* out) {
  constexpr const char* op = "dequantize";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_dequantize(import(op, "w_q", w), optional_dtype(op, "dtype", dtype)));
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
    run(ops::quantized_matmul(import(op, "x", x), import(op, "w", w), transpose != 0,
                              import(op, "out", out), import(op, options)));
  });
}

moeblas_status moeblas_infer_quantized_matmul(const moeblas_tensor* x, const moeblas_quantized* w,
                                              int32_t transpose, moeblas_spec* out) {
  constexpr const char* op = "quantized_matmul";
  return guarded([&] {
    capi::write(
        out, op,
        ops::infer_quantized_matmul(import(op, "x", x), import(op, "w", w), transpose != 0));
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
    run(ops::gather_qmm(import(op, "x", x), import(op, "w", w),
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
                ops::infer_gather_qmm(import(op, "x", x), import(op, "w", w),
                                      import(op, "lhs_indices", lhs_indices),
                                      import(op, "rhs_indices", rhs_indices), transpose != 0));
  });
}

moeblas_status moeblas_gather_qmv(const moeblas_tensor* x, const moeblas_quantized* w,
                                  const moeblas_tensor* expert_indices, const moeblas_tensor* out,
                                  const moeblas_options* options) {
  constexpr const char* op = "gather_qmv";
  return guarded([&] {
    run(ops::gather_qmv(import(op, "x", x), import(op, "w", w),
                        import(op, "expert_indices", expert_indices), import(op, "out", out),
                        import(op, options)));
  });
}

moeblas_status moeblas_infer_gather_qmv(const moeblas_tensor* x, const moeblas_quantized* w,
                                        const moeblas_tensor* expert_indices, moeblas_spec* out) {
  constexpr const char* op = "gather_qmv";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_gather_qmv(import(op, "x", x), import(op, "w", w),
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
    run(ops::grouped_qmm(import(op, "x", x), import(op, "w", w), import(op, "offsets", offsets),
                         transpose != 0, import(op, "out", out), import(op, options)));
  });
}

moeblas_status moeblas_infer_grouped_qmm(const moeblas_tensor* x, const moeblas_quantized* w,
                                         const moeblas_tensor* offsets, int32_t transpose,
                                         moeblas_spec* out) {
  constexpr const char* op = "grouped_qmm";
  return guarded([&] {
    capi::write(out, op,
                ops::infer_grouped_qmm(import(op, "x", x), import(op, "w", w),
                                       import(op, "offsets", offsets), transpose != 0));
  });
}

}  // extern "C"
