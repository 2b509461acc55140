// The operations in C++: thin, inline and over the C interface, so that no C++ symbol crosses the
// library's border. moeblas.h states shapes, dtypes, rounding and errors of each; a failing call
// throws moeblas::Error and leaves its outputs untouched, but for MOEBLAS_DEVICE_ERROR and
// MOEBLAS_INTERNAL_ERROR, after which they are undefined. Outputs belong to the caller: allocate
// them by what the infer_* function of the operation returns. Optional tensors are left out as {}.
#pragma once

#include "moeblas/error.h"
#include "moeblas/moe.h"
#include "moeblas/options.h"
#include "moeblas/quant.h"
#include "moeblas/tensor.h"

namespace moeblas {

namespace detail {

// The C form of an optional view, for the duration of one call.
class CTensor {
 public:
  CTensor(const TensorView& view) : tensor_(view.c_view()), present_(view.present) {}
  operator const moeblas_tensor*() const { return present_ ? &tensor_ : nullptr; }

 private:
  moeblas_tensor tensor_;
  bool present_;
};

class CQuantized {
 public:
  CQuantized(const Quantized& q)
      : codes_(q.codes),
        scales_(q.scales),
        biases_(q.biases),
        tensor_scale_(q.tensor_scale),
        c_{sizeof(moeblas_quantized),
           static_cast<int32_t>(q.spec.mode),
           q.spec.bits,
           q.spec.group_size,
           codes_,
           scales_,
           biases_,
           tensor_scale_,
           q.host_tensor_scale ? &*q.host_tensor_scale : nullptr,
           static_cast<int32_t>(q.scale_layout)} {}
  CQuantized(const CQuantized&) = delete;
  CQuantized& operator=(const CQuantized&) = delete;
  operator const moeblas_quantized*() const { return &c_; }

 private:
  CTensor codes_, scales_, biases_, tensor_scale_;
  moeblas_quantized c_;
};

class COptions {
 public:
  COptions(const Options& o)
      : c_{sizeof(moeblas_options),
           static_cast<int32_t>(o.precision),
           o.deterministic,
           o.check_ids,
           o.kernel,
           o.workspace,
           o.workspace_bytes,
           o.stream,
           o.query,
           o.allocate,
           o.allocate_context} {}
  operator const moeblas_options*() const { return &c_; }

 private:
  moeblas_options c_;
};

inline Spec to_spec(const moeblas_spec& s) {
  return {from_dlpack(s.dtype), Shape(std::span(s.shape, static_cast<size_t>(s.ndim)))};
}
inline QuantizedSpec to_quantized_spec(const moeblas_spec* s) {
  QuantizedSpec result{to_spec(s[0]), to_spec(s[1]), {}};
  if (s[2].ndim >= 0) result.biases = to_spec(s[2]);
  return result;
}

}  // namespace detail

// ---- Quantization ------------------------------------------------------------------------------

inline void quantize(const TensorView& w, const Quantized& out, const Options& options = {}) {
  check(moeblas_quantize(detail::CTensor(w), detail::CQuantized(out), detail::COptions(options)));
}

inline QuantizedSpec infer_quantize(const TensorView& w, const QuantSpec& spec,
                                    std::optional<DType> scale_dtype = {},
                                    ScaleLayout scale_layout = ScaleLayout::rows) {
  moeblas_spec out[3];
  moeblas_dtype dtype = to_dlpack(scale_dtype.value_or(DType::f32));
  check(moeblas_infer_quantize(detail::CTensor(w), static_cast<int32_t>(spec.mode), spec.bits,
                               spec.group_size, scale_dtype ? &dtype : nullptr,
                               static_cast<int32_t>(scale_layout), out));
  return detail::to_quantized_spec(out);
}

inline void quantize_dual(const TensorView& w, const Quantized& rows, const Quantized& columns,
                          const Options& options = {}) {
  check(moeblas_quantize_dual(detail::CTensor(w), detail::CQuantized(rows),
                              detail::CQuantized(columns), detail::COptions(options)));
}
inline DualSpecs infer_quantize_dual(const TensorView& w, const QuantSpec& spec,
                                     std::optional<DType> scale_dtype = {},
                                     ScaleLayout scale_layout = ScaleLayout::rows) {
  moeblas_spec out[6];
  moeblas_dtype dtype = to_dlpack(scale_dtype.value_or(DType::f32));
  check(moeblas_infer_quantize_dual(detail::CTensor(w), static_cast<int32_t>(spec.mode), spec.bits,
                                    spec.group_size, scale_dtype ? &dtype : nullptr,
                                    static_cast<int32_t>(scale_layout), out));
  return {detail::to_quantized_spec(out), detail::to_quantized_spec(out + 3)};
}

inline void dequantize(const Quantized& w, const TensorView& out, const Options& options = {}) {
  check(moeblas_dequantize(detail::CQuantized(w), detail::CTensor(out), detail::COptions(options)));
}
inline Spec infer_dequantize(const Quantized& w, std::optional<DType> dtype = {}) {
  moeblas_dtype d = to_dlpack(dtype.value_or(DType::f32));
  moeblas_spec s{};
  check(moeblas_infer_dequantize(detail::CQuantized(w), dtype ? &d : nullptr, &s));
  return detail::to_spec(s);
}

inline void to_fp8(const TensorView& x, const TensorView& out, const Options& options = {}) {
  check(moeblas_to_fp8(detail::CTensor(x), detail::CTensor(out), detail::COptions(options)));
}
inline Spec infer_to_fp8(const TensorView& x) {
  moeblas_spec s{};
  check(moeblas_infer_to_fp8(detail::CTensor(x), &s));
  return detail::to_spec(s);
}

inline void from_fp8(const TensorView& x, const TensorView& out, const Options& options = {}) {
  check(moeblas_from_fp8(detail::CTensor(x), detail::CTensor(out), detail::COptions(options)));
}
inline Spec infer_from_fp8(const TensorView& x, DType dtype) {
  moeblas_spec s{};
  check(moeblas_infer_from_fp8(detail::CTensor(x), to_dlpack(dtype), &s));
  return detail::to_spec(s);
}

// ---- Products ----------------------------------------------------------------------------------

// out <- x @ w^T (transpose) or x @ w.
inline void quantized_matmul(const TensorView& x, const Quantized& w, bool transpose,
                             const TensorView& out, const Options& options = {}) {
  check(moeblas_quantized_matmul(detail::CTensor(x), detail::CQuantized(w), transpose,
                                 detail::CTensor(out), detail::COptions(options)));
}
inline Spec infer_quantized_matmul(const TensorView& x, const Quantized& w, bool transpose = true) {
  moeblas_spec s{};
  check(moeblas_infer_quantized_matmul(detail::CTensor(x), detail::CQuantized(w), transpose, &s));
  return detail::to_spec(s);
}

// out[p] <- a[lhs[p]] @ b[rhs[p]].
inline void gather_mm(const TensorView& a, const TensorView& b, const TensorView& lhs_indices,
                      const TensorView& rhs_indices, bool sorted_indices, const TensorView& out,
                      const Options& options = {}) {
  check(moeblas_gather_mm(detail::CTensor(a), detail::CTensor(b), detail::CTensor(lhs_indices),
                          detail::CTensor(rhs_indices), sorted_indices, detail::CTensor(out),
                          detail::COptions(options)));
}
inline Spec infer_gather_mm(const TensorView& a, const TensorView& b,
                            const TensorView& lhs_indices = {},
                            const TensorView& rhs_indices = {}) {
  moeblas_spec s{};
  check(moeblas_infer_gather_mm(detail::CTensor(a), detail::CTensor(b),
                                detail::CTensor(lhs_indices), detail::CTensor(rhs_indices), &s));
  return detail::to_spec(s);
}

// out[p] <- x[lhs[p]] @ w[rhs[p]]^T (transpose) or x[lhs[p]] @ w[rhs[p]].
inline void gather_qmm(const TensorView& x, const Quantized& w, const TensorView& lhs_indices,
                       const TensorView& rhs_indices, bool transpose, bool sorted_indices,
                       const TensorView& out, const Options& options = {}) {
  check(moeblas_gather_qmm(detail::CTensor(x), detail::CQuantized(w), detail::CTensor(lhs_indices),
                           detail::CTensor(rhs_indices), transpose, sorted_indices,
                           detail::CTensor(out), detail::COptions(options)));
}
inline Spec infer_gather_qmm(const TensorView& x, const Quantized& w,
                             const TensorView& lhs_indices = {}, const TensorView& rhs_indices = {},
                             bool transpose = true) {
  moeblas_spec s{};
  check(moeblas_infer_gather_qmm(detail::CTensor(x), detail::CQuantized(w),
                                 detail::CTensor(lhs_indices), detail::CTensor(rhs_indices),
                                 transpose, &s));
  return detail::to_spec(s);
}

// out[p] <- w[expert_indices[p]] @ x[p].
inline void gather_qmv(const TensorView& x, const Quantized& w, const TensorView& expert_indices,
                       const TensorView& out, const Options& options = {}) {
  check(moeblas_gather_qmv(detail::CTensor(x), detail::CQuantized(w),
                           detail::CTensor(expert_indices), detail::CTensor(out),
                           detail::COptions(options)));
}
inline Spec infer_gather_qmv(const TensorView& x, const Quantized& w,
                             const TensorView& expert_indices) {
  moeblas_spec s{};
  check(moeblas_infer_gather_qmv(detail::CTensor(x), detail::CQuantized(w),
                                 detail::CTensor(expert_indices), &s));
  return detail::to_spec(s);
}

// out[i] <- a[:, s:e] @ b[s:e, :] with (s, e) = segments[i].
inline void segmented_mm(const TensorView& a, const TensorView& b, const TensorView& segments,
                         const TensorView& out, const Options& options = {}) {
  check(moeblas_segmented_mm(detail::CTensor(a), detail::CTensor(b), detail::CTensor(segments),
                             detail::CTensor(out), detail::COptions(options)));
}
inline Spec infer_segmented_mm(const TensorView& a, const TensorView& b,
                               const TensorView& segments) {
  moeblas_spec s{};
  check(moeblas_infer_segmented_mm(detail::CTensor(a), detail::CTensor(b),
                                   detail::CTensor(segments), &s));
  return detail::to_spec(s);
}

// out[r] <- x[r] @ w[e], e the first expert with offsets[e] > r.
inline void grouped_mm(const TensorView& x, const TensorView& w, const TensorView& offsets,
                       const TensorView& out, const Options& options = {}) {
  check(moeblas_grouped_mm(detail::CTensor(x), detail::CTensor(w), detail::CTensor(offsets),
                           detail::CTensor(out), detail::COptions(options)));
}
inline Spec infer_grouped_mm(const TensorView& x, const TensorView& w, const TensorView& offsets) {
  moeblas_spec s{};
  check(moeblas_infer_grouped_mm(detail::CTensor(x), detail::CTensor(w), detail::CTensor(offsets),
                                 &s));
  return detail::to_spec(s);
}

inline void grouped_qmm(const TensorView& x, const Quantized& w, const TensorView& offsets,
                        bool transpose, const TensorView& out, const Options& options = {}) {
  check(moeblas_grouped_qmm(detail::CTensor(x), detail::CQuantized(w), detail::CTensor(offsets),
                            transpose, detail::CTensor(out), detail::COptions(options)));
}
inline Spec infer_grouped_qmm(const TensorView& x, const Quantized& w, const TensorView& offsets,
                              bool transpose = true) {
  moeblas_spec s{};
  check(moeblas_infer_grouped_qmm(detail::CTensor(x), detail::CQuantized(w),
                                  detail::CTensor(offsets), transpose, &s));
  return detail::to_spec(s);
}

// ---- Block-quantized products ------------------------------------------------------------------
// x and w are packed, or float with their format in `spec`: Quantized{.spec = {...}, .codes =
// floats}. infer_*: `dtype` is the output's where x is packed (bfloat16 if left out); floats keep
// theirs.

namespace detail {
class CEpilogue {
 public:
  CEpilogue(const Epilogue& e)
      : tensor_c_(e.c),
        bias_(e.bias),
        c_{sizeof(moeblas_epilogue), e.alpha, e.beta, tensor_c_, bias_} {}
  CEpilogue(const CEpilogue&) = delete;
  CEpilogue& operator=(const CEpilogue&) = delete;
  operator const moeblas_epilogue*() const { return &c_; }

 private:
  CTensor tensor_c_, bias_;
  moeblas_epilogue c_;
};
}  // namespace detail

// out <- fq(x) @ fq(w)^T.
inline void qqmm(const Quantized& x, const Quantized& w, const TensorView& out,
                 const Epilogue& epilogue = {}, const Options& options = {}) {
  check(moeblas_qqmm(detail::CQuantized(x), detail::CQuantized(w), detail::CEpilogue(epilogue),
                     detail::CTensor(out), detail::COptions(options)));
}
inline Spec infer_qqmm(const Quantized& x, const Quantized& w, std::optional<DType> dtype = {}) {
  const moeblas_dtype d = to_dlpack(dtype.value_or(DType::bf16));
  moeblas_spec s{};
  check(moeblas_infer_qqmm(detail::CQuantized(x), detail::CQuantized(w), dtype ? &d : nullptr, &s));
  return detail::to_spec(s);
}

// out[p] <- fq(x)[lhs[p]] @ fq(w)[rhs[p]]^T.
inline void gather_qqmm(const Quantized& x, const Quantized& w, const TensorView& lhs_indices,
                        const TensorView& rhs_indices, bool sorted_indices, const TensorView& out,
                        const Epilogue& epilogue = {}, const Options& options = {}) {
  check(moeblas_gather_qqmm(detail::CQuantized(x), detail::CQuantized(w),
                            detail::CTensor(lhs_indices), detail::CTensor(rhs_indices),
                            sorted_indices, detail::CEpilogue(epilogue), detail::CTensor(out),
                            detail::COptions(options)));
}
inline Spec infer_gather_qqmm(const Quantized& x, const Quantized& w,
                              const TensorView& lhs_indices = {},
                              const TensorView& rhs_indices = {}, std::optional<DType> dtype = {}) {
  const moeblas_dtype d = to_dlpack(dtype.value_or(DType::bf16));
  moeblas_spec s{};
  check(moeblas_infer_gather_qqmm(detail::CQuantized(x), detail::CQuantized(w),
                                  detail::CTensor(lhs_indices), detail::CTensor(rhs_indices),
                                  dtype ? &d : nullptr, &s));
  return detail::to_spec(s);
}

// out[r] <- fq(x)[r] @ fq(w)[e]^T, e the first expert with offsets[e] > r.
inline void grouped_qqmm(const Quantized& x, const Quantized& w, const TensorView& offsets,
                         const TensorView& out, const Epilogue& epilogue = {},
                         const Options& options = {}) {
  check(moeblas_grouped_qqmm(detail::CQuantized(x), detail::CQuantized(w), detail::CTensor(offsets),
                             detail::CEpilogue(epilogue), detail::CTensor(out),
                             detail::COptions(options)));
}
inline Spec infer_grouped_qqmm(const Quantized& x, const Quantized& w, const TensorView& offsets,
                               std::optional<DType> dtype = {}) {
  const moeblas_dtype d = to_dlpack(dtype.value_or(DType::bf16));
  moeblas_spec s{};
  check(moeblas_infer_grouped_qqmm(detail::CQuantized(x), detail::CQuantized(w),
                                   detail::CTensor(offsets), dtype ? &d : nullptr, &s));
  return detail::to_spec(s);
}

// ---- Routing and the fused expert layer --------------------------------------------------------

namespace detail {
inline moeblas_router to_c(const Router& r) {
  return {sizeof(moeblas_router),
          r.top_k,
          static_cast<int32_t>(r.score),
          r.normalize,
          r.n_group,
          r.topk_group,
          r.scaling_factor};
}
}  // namespace detail

// ids, weights <- the top-k experts of every token.
inline void moe_route(const TensorView& logits, const TensorView& bias, const Router& router,
                      const TensorView& ids, const TensorView& weights,
                      const Options& options = {}) {
  const moeblas_router r = detail::to_c(router);
  check(moeblas_moe_route(detail::CTensor(logits), detail::CTensor(bias), &r, detail::CTensor(ids),
                          detail::CTensor(weights), detail::COptions(options)));
}

inline RouteSpecs infer_moe_route(const TensorView& logits, const TensorView& bias,
                                  const Router& router) {
  const moeblas_router r = detail::to_c(router);
  moeblas_spec s[2]{};
  check(moeblas_infer_moe_route(detail::CTensor(logits), detail::CTensor(bias), &r, s));
  return {detail::to_spec(s[0]), detail::to_spec(s[1])};
}

// rows, offsets, inverse <- the rows of x in the order of their experts.
inline void moe_permute(const TensorView& x, const TensorView& ids, const TensorView& expert_map,
                        int64_t experts, const TensorView& rows, const TensorView& offsets,
                        const TensorView& inverse, const Options& options = {}) {
  check(moeblas_moe_permute(detail::CTensor(x), detail::CTensor(ids), detail::CTensor(expert_map),
                            experts, detail::CTensor(rows), detail::CTensor(offsets),
                            detail::CTensor(inverse), detail::COptions(options)));
}

inline PermuteSpecs infer_moe_permute(const TensorView& x, const TensorView& ids,
                                      const TensorView& expert_map, int64_t experts) {
  moeblas_spec s[3]{};
  check(moeblas_infer_moe_permute(detail::CTensor(x), detail::CTensor(ids),
                                  detail::CTensor(expert_map), experts, s));
  return {detail::to_spec(s[0]), detail::to_spec(s[1]), detail::to_spec(s[2])};
}

// out[t] <- sum over j of weights[t, j] * y[inverse[t, j]].
inline void moe_unpermute(const TensorView& y, const TensorView& inverse, const TensorView& weights,
                          const TensorView& out, const Options& options = {}) {
  check(moeblas_moe_unpermute(detail::CTensor(y), detail::CTensor(inverse),
                              detail::CTensor(weights), detail::CTensor(out),
                              detail::COptions(options)));
}

inline Spec infer_moe_unpermute(const TensorView& y, const TensorView& inverse,
                                const TensorView& weights = {}) {
  moeblas_spec s{};
  check(moeblas_infer_moe_unpermute(detail::CTensor(y), detail::CTensor(inverse),
                                    detail::CTensor(weights), &s));
  return detail::to_spec(s);
}

namespace detail {
class CFfn {
 public:
  CFfn(const FfnLayer& f)
      : gate_up_(f.gate_up.value_or(Quantized{})),
        gate_(f.gate.value_or(Quantized{})),
        up_(f.up.value_or(Quantized{})),
        down_(f.down.value_or(Quantized{})),
        gate_up_bias_(f.gate_up_bias),
        gate_bias_(f.gate_bias),
        up_bias_(f.up_bias),
        down_bias_(f.down_bias),
        expert_map_(f.expert_map),
        c_{sizeof(moeblas_ffn),
           f.gate_up ? gate_up_.get() : nullptr,
           f.gate ? gate_.get() : nullptr,
           f.up ? up_.get() : nullptr,
           f.down ? down_.get() : nullptr,
           gate_up_bias_,
           gate_bias_,
           up_bias_,
           down_bias_,
           expert_map_,
           static_cast<int32_t>(f.activation),
           static_cast<int32_t>(f.glu_layout),
           f.alpha,
           f.limit} {}
  CFfn(const CFfn&) = delete;
  CFfn& operator=(const CFfn&) = delete;
  operator const moeblas_ffn*() const { return &c_; }

 private:
  // A quantized view that the C form points into.
  struct Held {
    Held(const Quantized& q) : quantized(q), c(quantized) {}
    const moeblas_quantized* get() const { return c; }
    Quantized quantized;
    CQuantized c;
  };
  Held gate_up_, gate_, up_, down_;
  CTensor gate_up_bias_, gate_bias_, up_bias_, down_bias_, expert_map_;
  moeblas_ffn c_;
};
}  // namespace detail

// out[t] <- sum over j of weights[t, j] * expert ids[t, j] of x[t].
inline void moe_ffn(const TensorView& x, const FfnLayer& layer, const TensorView& ids,
                    const TensorView& weights, const TensorView& out, const Options& options = {}) {
  check(moeblas_moe_ffn(detail::CTensor(x), detail::CFfn(layer), detail::CTensor(ids),
                        detail::CTensor(weights), detail::CTensor(out), detail::COptions(options)));
}
inline Spec infer_moe_ffn(const TensorView& x, const FfnLayer& layer, const TensorView& ids,
                          const TensorView& weights) {
  moeblas_spec s{};
  check(moeblas_infer_moe_ffn(detail::CTensor(x), detail::CFfn(layer), detail::CTensor(ids),
                              detail::CTensor(weights), &s));
  return detail::to_spec(s);
}

}  // namespace moeblas
